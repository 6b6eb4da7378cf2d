//! The first Task of each Pipeline, which is part of it: nothing is done before it has looked at the params. Pure.

use serde_json::{Value, json};

use super::Home;
use crate::manifests::task::{mounted, result, step, text};

/// Its step, and the name of its rights.
pub(in crate::manifests) const PREPARE: &str = "prepare-windows";

/// Flags and the Pipeline's params that every Pipeline has.
const FLAGS: [(&str, &str); 3] =
    [("use-bios-mode", "useBiosMode"), ("base-name", "baseDvName"), ("base-namespace", "baseDvNamespace")];
/// Flags, results and what they are.
const RESULTS: [(&str, &str, &str); 4] = [
    ("answers-result", "answers", "The ConfigMap of answers, where the machine is."),
    ("root-disk-result", "rootDisk", "The disk that the machine writes."),
    ("firmware-result", "firmware", "Firmware of the machine, as JSON."),
    ("smm-result", "smm", "Its system management mode, as JSON."),
];

impl Home<'_> {
    /// The Task; `answers` is the param that names the answers. Only where something is installed, a licence is to be accepted.
    pub(super) fn prepare(self, answers: &str, installs: bool) -> Value {
        let mut flags = vec![("answers", answers)];
        flags.extend(FLAGS);
        if installs {
            flags.push(("accept-eula", "acceptEula"));
        }
        let mut args = vec![PREPARE.to_owned()];
        args.extend(flags.iter().map(|(flag, param)| text(flag, param)));
        args.extend(RESULTS.iter().map(|(flag, name, _)| result(flag, name)));
        let given = |(_, name): &(&str, &str)| json!({ "name": name, "value": format!("$(params.{name})") });
        let declared = |(_, name): &(&str, &str)| json!({ "name": name, "type": "string" });
        let results = |(_, name, description): &(&str, &str, &str)| json!({ "name": name, "description": description });
        json!({
            "name": "prepare",
            "params": flags.iter().map(given).collect::<Vec<_>>(),
            "taskSpec": {
                "params": flags.iter().map(declared).collect::<Vec<_>>(),
                "results": RESULTS.iter().map(results).collect::<Vec<_>>(),
                "steps": [mounted(step("prepare", self.image, &args), &[("tmp", "/tmp")])],
                "volumes": [{ "name": "tmp", "emptyDir": {} }],
            },
        })
    }
}
