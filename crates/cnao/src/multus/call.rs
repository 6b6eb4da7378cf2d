//! What the shim passes on: the environment and the input that the container runtime gave it. Pure.

use std::collections::BTreeMap;

use net::cni::Attachment;
use serde::Deserialize;
use serde_json::{Value, json};

/// Codes of errors, as the CNI specification has them.
const INVALID_ENVIRONMENT: u32 = 4;
/// Try again later.
pub(super) const LATER: u32 = 11;
/// What is ours.
const FAILED: u32 = 100;

/// The body of a request.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Request {
    /// Variables of the environment that begin with `CNI_`.
    pub(super) env: BTreeMap<String, String>,
    /// What the shim read.
    #[serde(default)]
    pub(super) config: Value,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Check,
    Del,
    Status,
    Gc,
}

/// A request, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) verb: Verb,
    /// The interface of the pod's own network. Empty for what concerns no sandbox.
    pub(super) attachment: Attachment,
    /// Ids of the sandboxes that are there, for [`Verb::Gc`].
    pub(super) valid: Vec<String>,
}

impl Call {
    /// A fact of the pod, from `CNI_ARGS`.
    pub(super) fn argument(&self, name: &str) -> &str {
        let found = self.attachment.args.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }
}

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: u32,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(error: &(dyn std::error::Error + 'static)) -> Self {
        Self { code: FAILED, message: kit::Chain(error).to_string() }
    }

    /// As the container runtime reads it.
    pub(super) fn body(&self, version: &str) -> Value {
        json!({ "cniVersion": version, "code": self.code, "msg": self.message })
    }
}

/// Reads a request.
pub(super) fn parse(request: &Request) -> Result<Call, Failure> {
    let invalid = |message: String| Failure { code: INVALID_ENVIRONMENT, message };
    let text = |name: &str| -> String { request.env.get(name).cloned().unwrap_or_default() };
    let verb = match text("CNI_COMMAND").as_str() {
        "ADD" => Verb::Add,
        "CHECK" => Verb::Check,
        "DEL" => Verb::Del,
        "STATUS" => Verb::Status,
        "GC" => Verb::Gc,
        other => return Err(invalid(format!("CNI_COMMAND {other:?} is none: ADD, CHECK, DEL, GC and STATUS are"))),
    };
    let concerns_one = matches!(verb, Verb::Add | Verb::Check | Verb::Del);
    let needed = |name: &str, verbs: &[Verb]| match text(name) {
        value if value.is_empty() && verbs.contains(&verb) => Err(invalid(format!("{name} is not set"))),
        value => Ok(value),
    };
    let container = needed("CNI_CONTAINERID", &[Verb::Add, Verb::Check, Verb::Del])?;
    // It names a file of ours.
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if concerns_one && (!container.chars().all(plain) || container.starts_with('.') || container.len() > 128) {
        return Err(invalid(format!("CNI_CONTAINERID {container:?} is none")));
    }
    let arguments = text("CNI_ARGS");
    let pairs = arguments.split(';').filter(|pair| !pair.is_empty());
    let args = pairs
        .map(|pair| pair.split_once('=').ok_or_else(|| invalid(format!("CNI_ARGS: {pair:?} is not NAME=VALUE"))))
        .map(|pair| pair.map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect::<Result<_, _>>()?;
    let attachment = Attachment {
        container,
        netns: needed("CNI_NETNS", &[Verb::Add, Verb::Check])?,
        interface: needed("CNI_IFNAME", &[Verb::Add, Verb::Check, Verb::Del])?,
        args,
        capabilities: request.config["runtimeConfig"].as_object().cloned().unwrap_or_default(),
    };
    let valid = request.config["cni.dev/valid-attachments"].as_array().into_iter().flatten();
    let valid = valid.filter_map(|one| one["containerID"].as_str().map(str::to_owned)).collect();
    Ok(Call { verb, attachment, valid })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(env: &[(&str, &str)], config: Value) -> Request {
        Request { env: env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(), config }
    }

    const ADD: [(&str, &str); 5] = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c1"),
        ("CNI_NETNS", "/run/netns/x"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=a"),
    ];

    #[test]
    fn a_call_is_what_the_runtime_said() {
        let call = parse(&request(&ADD, json!({ "runtimeConfig": { "portMappings": [1] } }))).unwrap();
        assert_eq!((call.verb, call.argument("K8S_POD_NAME"), call.argument("x")), (Verb::Add, "a", ""));
        assert_eq!(call.attachment.capabilities["portMappings"], json!([1]));
        let gc = json!({ "cni.dev/valid-attachments": [{ "containerID": "c1", "ifname": "eth0" }] });
        assert_eq!(parse(&request(&[("CNI_COMMAND", "GC")], gc)).unwrap().valid, ["c1"]);
        // The network namespace may be gone by then.
        let del = [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c1"), ("CNI_IFNAME", "eth0")];
        assert_eq!(parse(&request(&del, Value::Null)).unwrap().verb, Verb::Del);
    }

    #[test]
    fn a_call_that_lacks_something_is_refused_by_name() {
        for missing in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
            let env: Vec<_> = ADD.into_iter().filter(|(name, _)| *name != missing).collect();
            let failure = parse(&request(&env, Value::Null)).unwrap_err();
            assert_eq!((failure.code, failure.message), (INVALID_ENVIRONMENT, format!("{missing} is not set")));
        }
        let with = |name: &'static str, value: &'static str| {
            let env: Vec<_> = ADD.into_iter().filter(|(known, _)| *known != name).chain([(name, value)]).collect();
            parse(&request(&env, Value::Null)).unwrap_err().message
        };
        assert!(with("CNI_COMMAND", "PUT").contains("\"PUT\" is none"));
        assert!(with("CNI_CONTAINERID", "../../etc/x").contains("is none"));
        assert!(with("CNI_ARGS", "a").contains("is not NAME=VALUE"));
    }
}
