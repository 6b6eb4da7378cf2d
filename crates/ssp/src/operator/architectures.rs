//! For which architectures there are templates and boot sources. Pure.

use crate::object::Spec;
use crate::templates::system::Architecture;

/// What the object asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Architectures {
    /// There are boot sources of each, whose names say of which.
    pub several: bool,
    /// Each once, the default first.
    pub all: Vec<Architecture>,
}

impl Architectures {
    /// As `spec` says; where it does not, there is `own` alone. Architectures without any template are passed over.
    pub fn of(spec: &Spec, own: Architecture) -> Self {
        let cluster = spec.cluster.clone().unwrap_or_default();
        let known = |words: &[String]| words.iter().filter_map(|word| Architecture::of(word)).collect::<Vec<_>>();
        let (control, workloads) =
            (known(&cluster.control_plane_architectures), known(&cluster.workload_architectures));
        let several = spec.enable_multiple_architectures == Some(true) && !workloads.is_empty();
        let first = match several {
            // Where there are machines, before where the control plane is.
            true => control.iter().find(|one| workloads.contains(one)).or(workloads.first()),
            false => control.first().or(workloads.first()),
        };
        let default = first.copied().unwrap_or(own);
        let mut all = vec![default];
        for one in workloads.into_iter().filter(|_| several) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        Architectures { several, all }
    }

    /// The one that is meant where none is named.
    pub fn default(&self) -> Architecture {
        self.all.first().copied().unwrap_or(Architecture::Amd64)
    }
}

#[cfg(test)]
mod tests {
    use Architecture::{Amd64, Arm64, S390x};
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, several: bool, all: &[Architecture]) {
        let spec: Spec = serde_json::from_value(spec).unwrap();
        assert_eq!(Architectures::of(&spec, Amd64), Architectures { several, all: all.to_vec() });
    }

    #[test]
    fn the_default_is_that_of_the_control_plane_where_machines_run_on_it() {
        check(json!({}), false, &[Amd64]);
        let cluster =
            json!({ "controlPlaneArchitectures": ["arm64"], "workloadArchitectures": ["amd64", "arm64", "amd64"] });
        check(json!({ "cluster": cluster }), false, &[Arm64]);
        check(json!({ "cluster": cluster, "enableMultipleArchitectures": true }), true, &[Arm64, Amd64]);
        let apart = json!({ "controlPlaneArchitectures": ["amd64"], "workloadArchitectures": ["s390x", "riscv64"] });
        check(json!({ "cluster": apart, "enableMultipleArchitectures": true }), true, &[S390x]);
        check(json!({ "enableMultipleArchitectures": true }), false, &[Amd64]);
    }
}
