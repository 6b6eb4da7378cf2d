//! How the virtual CPUs of an instance type are spread over sockets, cores and threads.

use serde_json::Value;

use crate::fields::at;

/// Sockets, cores and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) sockets: i64,
    pub(crate) cores: i64,
    pub(crate) threads: i64,
}

/// What a preference asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preferred {
    Sockets,
    Cores,
    Threads,
    Any,
    Spread { across: Across, ratio: i64 },
}

/// What virtual CPUs are spread over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Across {
    SocketsCores,
    CoresThreads,
    SocketsCoresThreads,
}

impl Across {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Across::SocketsCores => "SocketsCores",
            Across::CoresThreads => "CoresThreads",
            Across::SocketsCoresThreads => "SocketsCoresThreads",
        }
    }
}

/// Threads of a core, wherever CPUs are spread over threads.
const THREADS: i64 = 2;
const RATIO: i64 = 2;

impl Preferred {
    /// What the spec of a preference asks for. What admission of preferences refuses counts as nothing said.
    pub(crate) fn of(preference: &Value) -> Self {
        let named = at(preference, "cpu.preferredCPUTopology").and_then(Value::as_str).unwrap_or_default();
        match named {
            "cores" | "preferCores" => Preferred::Cores,
            "threads" | "preferThreads" => Preferred::Threads,
            "any" | "preferAny" => Preferred::Any,
            "spread" | "preferSpread" => {
                let ratio = ["cpu.spreadOptions.ratio", "preferSpreadSocketToCoreRatio"]
                    .iter()
                    .find_map(|path| at(preference, path)?.as_i64().filter(|ratio| *ratio > 0));
                let across = match at(preference, "cpu.spreadOptions.across").and_then(Value::as_str) {
                    Some("CoresThreads") => Across::CoresThreads,
                    Some("SocketsCoresThreads") => Across::SocketsCoresThreads,
                    _ => Across::SocketsCores,
                };
                Preferred::Spread { across, ratio: ratio.unwrap_or(RATIO) }
            }
            _ => Preferred::Sockets,
        }
    }
}

/// The virtual CPUs cannot be spread as it is preferred.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{vcpus} vCPUs provided by the instance type are not divisible by the {by} provided by the preference")]
pub(crate) struct Indivisible {
    vcpus: i64,
    by: String,
}

/// The topology of `vcpus` under the spec of a preference.
pub(crate) fn topology(vcpus: i64, preference: &Value) -> Result<Topology, Indivisible> {
    let one = Topology { sockets: 1, cores: 1, threads: 1 };
    match Preferred::of(preference) {
        Preferred::Sockets | Preferred::Any => Ok(Topology { sockets: vcpus, ..one }),
        Preferred::Cores => Ok(Topology { cores: vcpus, ..one }),
        Preferred::Threads => Ok(Topology { threads: vcpus, ..one }),
        Preferred::Spread { .. } if vcpus <= 1 => Ok(one),
        Preferred::Spread { across, ratio } => spread(vcpus, across, ratio),
    }
}

fn spread(vcpus: i64, across: Across, ratio: i64) -> Result<Topology, Indivisible> {
    let of_ratio = format!("Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of {ratio}");
    let of_threads = format!("number of threads per core {THREADS}");
    let (by, named, topology) = match across {
        Across::SocketsCores => (ratio, of_ratio, Topology { sockets: vcpus / ratio, cores: ratio, threads: 1 }),
        Across::CoresThreads => {
            (THREADS, of_threads, Topology { sockets: 1, cores: vcpus / THREADS, threads: THREADS })
        }
        Across::SocketsCoresThreads => {
            let by = ratio.saturating_mul(THREADS);
            let topology = Topology { sockets: vcpus / by, cores: ratio, threads: THREADS };
            (by, format!("{of_threads} and {of_ratio}"), topology)
        }
    };
    if vcpus % by == 0 { Ok(topology) } else { Err(Indivisible { vcpus, by: named }) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn virtual_cpus_are_spread_as_it_is_preferred() {
        let check = |vcpus: i64, cpu: Value, expect: Result<[i64; 3], &str>| {
            let found = topology(vcpus, &json!({ "cpu": cpu, "preferSpreadSocketToCoreRatio": 4 }));
            let found = found.map(|t| [t.sockets, t.cores, t.threads]).map_err(|error| error.to_string());
            match expect {
                Ok(expect) => assert_eq!(found, Ok(expect), "{vcpus} {cpu}"),
                Err(part) => assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{found:?}"),
            }
        };
        check(4, Value::Null, Ok([4, 1, 1]));
        for (name, expect) in [("sockets", [4, 1, 1]), ("cores", [1, 4, 1]), ("threads", [1, 1, 4]), ("any", [4, 1, 1])]
        {
            check(4, json!({ "preferredCPUTopology": name }), Ok(expect));
            let deprecated = format!("prefer{}{}", name[..1].to_uppercase(), &name[1..]);
            check(4, json!({ "preferredCPUTopology": deprecated }), Ok(expect));
        }
        let spread = |options: Value| json!({ "preferredCPUTopology": "spread", "spreadOptions": options });
        check(8, spread(Value::Null), Ok([2, 4, 1]));
        check(8, spread(json!({ "ratio": 2 })), Ok([4, 2, 1]));
        check(8, spread(json!({ "across": "CoresThreads", "ratio": 2 })), Ok([1, 4, 2]));
        check(8, spread(json!({ "across": "SocketsCoresThreads", "ratio": 2 })), Ok([2, 2, 2]));
        check(1, spread(json!({ "across": "SocketsCoresThreads" })), Ok([1, 1, 1]));
        check(
            6,
            spread(Value::Null),
            Err("6 vCPUs provided by the instance type are not divisible by the Spec.PreferSpread"),
        );
        check(
            3,
            spread(json!({ "across": "CoresThreads" })),
            Err("by the number of threads per core 2 provided by the preference"),
        );
        let all = "by the number of threads per core 2 and Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of 3 ";
        check(8, spread(json!({ "across": "SocketsCoresThreads", "ratio": 3 })), Err(all));
    }
}
