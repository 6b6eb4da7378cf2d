//! The instance types: series of sizes, each series with what its machines have beside processors and memory.

use serde_json::{Value, json};

use super::{GROUP, INSTANCETYPES, object};

/// Name, number of virtual processors, memory.
type Size = (&'static str, u32, &'static str);

const GENERAL: &[Size] = &[
    ("nano", 1, "512Mi"),
    ("micro", 1, "1Gi"),
    ("small", 1, "2Gi"),
    ("medium", 1, "4Gi"),
    ("2xmedium", 2, "4Gi"),
    ("large", 2, "8Gi"),
    ("xlarge", 4, "16Gi"),
    ("2xlarge", 8, "32Gi"),
    ("4xlarge", 16, "64Gi"),
    ("8xlarge", 32, "128Gi"),
];
const COMPUTE: &[Size] = &[
    ("medium", 1, "2Gi"),
    ("large", 2, "4Gi"),
    ("xlarge", 4, "8Gi"),
    ("2xlarge", 8, "16Gi"),
    ("4xlarge", 16, "32Gi"),
    ("8xlarge", 32, "64Gi"),
];
const MEMORY: &[Size] = &[
    ("large", 2, "16Gi"),
    ("xlarge", 4, "32Gi"),
    ("2xlarge", 8, "64Gi"),
    ("4xlarge", 16, "128Gi"),
    ("8xlarge", 32, "256Gi"),
];
const NETWORK: &[Size] = &[
    ("medium", 4, "4Gi"),
    ("large", 4, "8Gi"),
    ("xlarge", 8, "16Gi"),
    ("2xlarge", 16, "32Gi"),
    ("4xlarge", 32, "64Gi"),
    ("8xlarge", 64, "128Gi"),
];

/// What a machine has beside processors and memory.
#[derive(Clone, Copy, Debug)]
enum Feature {
    /// Of its memory, this many percent are not requested of the node.
    Overcommitted(u8),
    /// Processors of its own, and one for the emulator.
    Dedicated,
    /// As many threads for disks as fit.
    AutomaticThreads,
    /// The node's NUMA topology.
    Numa,
    /// Processors are scheduled for real time.
    Realtime,
    /// No processors are added to it while it runs.
    FixedSockets,
    HugePages(&'static str),
    /// CRI-O takes load balancing, quotas and interrupts away from its processors.
    Undisturbed,
}

use Feature::{AutomaticThreads, Dedicated, FixedSockets, HugePages, Numa, Overcommitted, Realtime, Undisturbed};

#[derive(Clone, Copy, Debug)]
struct Series {
    name: &'static str,
    class: &'static str,
    display: &'static str,
    description: &'static str,
    icon: &'static str,
    sizes: &'static [Size],
    /// Of the sizes, those that it has not.
    without: &'static [&'static str],
    /// What follows the size in names.
    suffix: &'static str,
    features: &'static [Feature],
}

const U1: Series = Series {
    name: "u1",
    class: "general.purpose",
    display: "General purpose",
    description: "Machines for applications of every kind: processors are shared with others, and there are four GiB of \
                  memory for each.",
    icon: "pficon-server-group",
    sizes: GENERAL,
    without: &[],
    suffix: "",
    features: &[],
};

const CX1: Series = Series {
    name: "cx1",
    class: "compute.exclusive",
    display: "Exclusive compute",
    description: "Machines that compute all the time: processors of their own where the node's memory is near, and memory in \
                  huge pages.",
    icon: "pficon-registry",
    sizes: COMPUTE,
    features: &[Dedicated, Numa, FixedSockets, HugePages("2Mi"), AutomaticThreads],
    ..U1
};

const M1: Series = Series {
    name: "m1",
    class: "memory.intensive",
    display: "Memory intensive",
    description: "Machines that hold much in memory: eight GiB for each processor, in huge pages.",
    icon: "pficon-registry",
    sizes: MEMORY,
    features: &[HugePages("2Mi")],
    ..U1
};

const ALL: &[Series] = &[
    U1,
    Series {
        name: "o1",
        class: "overcommitted",
        display: "Overcommitted",
        description: "Machines that are seldom all busy: half of their memory is requested of the node, so that more of them fit.",
        icon: "pficon-virtual-machine",
        without: &["2xmedium"],
        features: &[Overcommitted(50)],
        ..U1
    },
    Series {
        name: "d1",
        class: "dedicated.vcpu",
        display: "Dedicated processors",
        description: "Machines of general purpose that share their processors with nobody.",
        features: &[Dedicated, AutomaticThreads],
        ..U1
    },
    CX1,
    Series { suffix: "1gi", features: &[Dedicated, Numa, FixedSockets, HugePages("1Gi"), AutomaticThreads], ..CX1 },
    M1,
    Series { suffix: "1gi", features: &[HugePages("1Gi")], ..M1 },
    Series {
        name: "n1",
        class: "network",
        display: "Network functions",
        description: "Machines that forward packets, as with DPDK: processors that nothing interrupts, and huge pages.",
        icon: "pficon-registry",
        sizes: NETWORK,
        features: &[Dedicated, HugePages("1Gi"), Undisturbed],
        ..U1
    },
    Series {
        name: "rt1",
        class: "realtime",
        display: "Real time",
        description: "Machines that must answer in time: processors that nothing interrupts, scheduled for real time, and huge \
                      pages.",
        icon: "pficon-server-group",
        without: &["nano", "2xmedium"],
        features: &[Dedicated, Numa, Realtime, HugePages("1Gi"), Undisturbed],
        ..U1
    },
];

pub(super) fn render() -> Vec<Value> {
    let of = |series: &'static Series| {
        let sizes = series.sizes.iter().filter(|(size, ..)| !series.without.contains(size));
        sizes.map(|size| instancetype(series, *size))
    };
    ALL.iter().flat_map(of).collect()
}

fn instancetype(series: &Series, (size, cpus, memory): Size) -> Value {
    let size = format!("{size}{}", series.suffix);
    let mut spec = json!({ "cpu": { "guest": cpus }, "memory": { "guest": memory } });
    let mut labels = vec![
        ("class", series.class.to_owned()),
        ("cpu", cpus.to_string()),
        ("memory", memory.to_owned()),
        ("size", size.clone()),
        ("version", "1".to_owned()),
        ("icon-pf", series.icon.to_owned()),
    ];
    for feature in series.features {
        labels.extend(add(*feature, cpus, &mut spec).into_iter().map(|(key, value)| (key, value.to_owned())));
    }
    let annotations = json!({
        (format!("{GROUP}/displayName")): series.display, (format!("{GROUP}/description")): series.description,
    });
    object(INSTANCETYPES.0, &format!("{}.{size}", series.name), &labels, &annotations, &spec)
}

/// Adds `feature` to `spec`. By the labels that are returned the instance types that have it are found.
fn add(feature: Feature, cpus: u32, spec: &mut Value) -> Vec<(&'static str, &'static str)> {
    match feature {
        Overcommitted(percent) => spec["memory"]["overcommitPercent"] = json!(percent),
        AutomaticThreads => spec["ioThreadsPolicy"] = json!("auto"),
        FixedSockets => spec["cpu"]["maxSockets"] = json!(cpus),
        Undisturbed => {
            for what in ["cpu-load-balancing", "cpu-quota", "irq-load-balancing"] {
                spec["annotations"][format!("{what}.crio.io")] = json!("disable");
            }
        }
        Dedicated => {
            spec["cpu"]["dedicatedCPUPlacement"] = json!(true);
            spec["cpu"]["isolateEmulatorThread"] = json!(true);
            return vec![("dedicatedCPUPlacement", "true"), ("isolateEmulatorThread", "true")];
        }
        Numa => {
            spec["cpu"]["numa"] = json!({ "guestMappingPassthrough": {} });
            return vec![("numa", "true")];
        }
        Realtime => {
            spec["cpu"]["realtime"] = json!({});
            return vec![("realtime", "true")];
        }
        HugePages(size) => {
            spec["memory"]["hugepages"] = json!({ "pageSize": size });
            return vec![("hugepages", size)];
        }
    }
    Vec::new()
}
