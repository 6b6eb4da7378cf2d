//! What the bundle holds: how much, which values, and what it is found by.

use std::collections::BTreeSet;

use super::*;

fn all() -> Vec<Value> {
    render(&json!({ "app.kubernetes.io/managed-by": "virt-operator" }))
}

fn named(name: &str) -> Value {
    let all = all();
    all.into_iter().find(|one| one["metadata"]["name"] == name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn the_bundle_is_complete_and_every_name_is_there_once() {
    let of = |kind: &str| -> BTreeSet<String> {
        all().iter().filter(|one| one["kind"] == kind).map(|one| one["metadata"]["name"].to_string()).collect()
    };
    assert_eq!((of(INSTANCETYPES.0).len(), of(PREFERENCES.0).len(), all().len()), (65, 54, 119));
}

#[test]
fn each_series_has_its_sizes() {
    #[track_caller]
    fn check(series: &str, expect: &str) {
        let prefix = format!("{series}.");
        let mut found = Vec::new();
        for one in all() {
            let name = one["metadata"]["name"].as_str().unwrap();
            if let Some(size) = name.strip_prefix(&prefix).filter(|_| one["kind"] == INSTANCETYPES.0) {
                let memory = one["spec"]["memory"]["guest"].as_str().unwrap();
                found.push(format!("{size} {}/{memory}", one["spec"]["cpu"]["guest"]));
            }
        }
        assert_eq!(found.join(", "), expect);
    }
    check(
        "u1",
        "nano 1/512Mi, micro 1/1Gi, small 1/2Gi, medium 1/4Gi, 2xmedium 2/4Gi, large 2/8Gi, xlarge 4/16Gi, \
         2xlarge 8/32Gi, 4xlarge 16/64Gi, 8xlarge 32/128Gi",
    );
    check(
        "o1",
        "nano 1/512Mi, micro 1/1Gi, small 1/2Gi, medium 1/4Gi, large 2/8Gi, xlarge 4/16Gi, 2xlarge 8/32Gi, \
         4xlarge 16/64Gi, 8xlarge 32/128Gi",
    );
    check(
        "m1",
        "large 2/16Gi, xlarge 4/32Gi, 2xlarge 8/64Gi, 4xlarge 16/128Gi, 8xlarge 32/256Gi, large1gi 2/16Gi, \
         xlarge1gi 4/32Gi, 2xlarge1gi 8/64Gi, 4xlarge1gi 16/128Gi, 8xlarge1gi 32/256Gi",
    );
    check(
        "rt1",
        "micro 1/1Gi, small 1/2Gi, medium 1/4Gi, large 2/8Gi, xlarge 4/16Gi, 2xlarge 8/32Gi, 4xlarge 16/64Gi, \
         8xlarge 32/128Gi",
    );
    check("n1", "medium 4/4Gi, large 4/8Gi, xlarge 8/16Gi, 2xlarge 16/32Gi, 4xlarge 32/64Gi, 8xlarge 64/128Gi");
}

/// `spec` of `name`.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn check(name: &str, expect: Value) {
    assert_eq!(named(name)["spec"], expect, "{name}");
}

#[test]
fn instance_types_have_what_sets_their_series_apart() {
    check("u1.medium", json!({ "cpu": { "guest": 1 }, "memory": { "guest": "4Gi" } }));
    check("o1.nano", json!({ "cpu": { "guest": 1 }, "memory": { "guest": "512Mi", "overcommitPercent": 50 } }));
    let dedicated = |cpus: u32, more: Value| {
        let mut cpu = json!({ "guest": cpus, "dedicatedCPUPlacement": true, "isolateEmulatorThread": true });
        for (key, value) in more.as_object().into_iter().flatten() {
            cpu[key] = value.clone();
        }
        cpu
    };
    let plain = dedicated(2, json!({}));
    check("d1.large", json!({ "cpu": plain, "memory": { "guest": "8Gi" }, "ioThreadsPolicy": "auto" }));
    let numa = json!({ "guestMappingPassthrough": {} });
    for (name, page) in [("cx1.xlarge", "2Mi"), ("cx1.xlarge1gi", "1Gi")] {
        check(
            name,
            json!({
                "cpu": dedicated(4, json!({ "numa": numa, "maxSockets": 4 })),
                "memory": { "guest": "8Gi", "hugepages": { "pageSize": page } }, "ioThreadsPolicy": "auto",
            }),
        );
    }
    let undisturbed = json!({
        "cpu-load-balancing.crio.io": "disable", "cpu-quota.crio.io": "disable", "irq-load-balancing.crio.io": "disable",
    });
    check(
        "rt1.micro",
        json!({
            "cpu": dedicated(1, json!({ "numa": numa, "realtime": {} })),
            "memory": { "guest": "1Gi", "hugepages": { "pageSize": "1Gi" } }, "annotations": undisturbed,
        }),
    );
}

#[test]
fn preferences_are_their_base_and_what_differs() {
    let needs = |cpus: u32, memory: &str| json!({ "cpu": { "guest": cpus }, "memory": { "guest": memory } });
    let linux = json!({ "vm.kubevirt.io/os": "linux" });
    check(
        "debian",
        json!({
            "annotations": linux, "requirements": needs(1, "512Mi"),
            "devices": { "preferredDiskBus": "virtio", "preferredInterfaceModel": "virtio", "preferredRng": {} },
            "firmware": { "preferredEfi": { "secureBoot": false } },
        }),
    );
    let mut amd64 = needs(8, "1.5Gi");
    amd64["architecture"] = json!("amd64");
    check(
        "rhel.9.dpdk",
        json!({
            "annotations": linux, "requirements": amd64, "preferredArchitecture": "amd64",
            "cpu": { "preferredCPUTopology": "spread", "spreadOptions": { "across": "SocketsCoresThreads", "ratio": 4 } },
            "devices": {
                "preferredDiskBus": "virtio", "preferredInterfaceModel": "virtio", "preferredRng": {},
                "preferredDiskDedicatedIoThread": true, "preferredNetworkInterfaceMultiQueue": true,
            },
            "features": { "preferredSmm": {} }, "firmware": { "preferredEfi": { "secureBoot": true } },
        }),
    );
    check(
        "legacy",
        json!({
            "annotations": { "vm.kubevirt.io/os": "legacy" },
            "devices": { "preferredDiskBus": "sata", "preferredInterfaceModel": "e1000" },
        }),
    );
}

#[test]
fn windows_has_drivers_for_virtio_where_its_name_says_so() {
    #[track_caller]
    fn check(name: &str, disk: &str, interface: &str, input: Option<&str>) {
        let devices = &named(name)["spec"]["devices"];
        assert_eq!(devices["preferredDiskBus"], disk, "{name}");
        assert_eq!(devices["preferredInterfaceModel"], interface, "{name}");
        assert_eq!(devices["preferredInputBus"].as_str(), input, "{name}");
        assert_eq!(devices["preferredVideoType"].as_str(), input, "{name}");
    }
    check("windows.2k8", "sata", "e1000", None);
    check("windows.2k8.virtio", "virtio", "virtio", Some("virtio"));
    check("windows.11", "sata", "e1000e", None);
    check("windows.2k3", "sata", "rtl8139", None);
    let eleven = &named("windows.11.virtio")["spec"];
    assert_eq!(eleven["firmware"]["preferredEfi"], json!({ "persistent": true, "secureBoot": true }));
    assert_eq!(eleven["devices"]["preferredTPM"], json!({ "persistent": true }));
    assert_eq!(eleven["preferredTerminationGracePeriodSeconds"], 3600);
    assert_eq!(named("windows.xp")["spec"]["annotations"]["kubevirt.io/disablePCIHole64"], "true");
    assert!(named("windows.2k12")["spec"].get("firmware").is_none());
}

#[test]
fn labels_find_what_is_looked_for() {
    #[track_caller]
    fn check(name: &str, expect: &[(&str, &str)]) {
        let labels = named(name)["metadata"]["labels"].clone();
        assert_eq!(labels["app.kubernetes.io/managed-by"], "virt-operator");
        assert_eq!(labels["instancetype.kubevirt.io/vendor"], "kubevirt.io");
        for (key, value) in expect {
            assert_eq!(labels[format!("instancetype.kubevirt.io/{key}")], *value, "{name} {key}");
        }
        assert_eq!(labels.as_object().unwrap().len(), expect.len() + 3, "{labels}");
    }
    let medium = [("class", "general.purpose"), ("cpu", "1"), ("memory", "4Gi"), ("size", "medium"), ("version", "1")];
    check("u1.medium", &[medium.as_slice(), &[("icon-pf", "pficon-server-group")]].concat());
    let exclusive = [("class", "compute.exclusive"), ("hugepages", "1Gi"), ("numa", "true"), ("size", "large1gi")];
    let dedicated = [("dedicatedCPUPlacement", "true"), ("isolateEmulatorThread", "true"), ("cpu", "2")];
    let rest = [("memory", "4Gi"), ("version", "1"), ("icon-pf", "pficon-registry")];
    check("cx1.large1gi", &[exclusive.as_slice(), &dedicated, &rest].concat());
    let arm64 = [("arch", "arm64"), ("preferred-architecture", "arm64"), ("required-architecture", "arm64")];
    let needs = [("os-type", "linux"), ("required-cpu", "1"), ("required-memory", "2Gi")];
    check("fedora.arm64", &[arm64.as_slice(), &needs].concat());
    check("legacy", &[("os-type", "legacy")]);
}

#[test]
fn people_read_what_each_is_for() {
    for one in all() {
        let annotations = one["metadata"]["annotations"].as_object().unwrap();
        assert!(annotations.values().all(|text| text.as_str().is_some_and(|text| !text.is_empty())), "{one}");
        let display = if one["kind"] == INSTANCETYPES.0 {
            "instancetype.kubevirt.io/displayName"
        } else {
            "openshift.io/display-name"
        };
        assert!(annotations.contains_key(display), "{one}");
    }
}
