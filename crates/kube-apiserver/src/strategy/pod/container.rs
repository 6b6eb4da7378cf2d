//! Containers of a pod: what every kind of container must be, and what init and ephemeral ones may not have.

use std::collections::HashSet;

use super::super::field::{Causes, Field, LABEL, PORT, Rule, check};
use super::super::service::port_name_problems;
use super::{Around, environment, handler, mount, resources, security};

const PULL_POLICIES: Rule = Rule::OneOf(&["Always", "IfNotPresent", "Never"]);
const RESTART_POLICIES: Rule = Rule::OneOf(&["Always", "Never", "OnFailure"]);
const RULES: &[(&str, Rule)] = &[
    ("name", Rule::Needed),
    ("name", LABEL),
    ("image", Rule::Needed),
    ("image", Rule::Name(whitespace_problem)),
    ("imagePullPolicy", PULL_POLICIES),
    ("restartPolicy", RESTART_POLICIES),
    ("terminationMessagePolicy", Rule::OneOf(&["File", "FallbackToLogsOnError"])),
];
const HANDLERS: [&str; 4] = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];
const NOT_EPHEMERAL: [&str; 6] = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "ports", "resources"];

/// Checks the containers of a pod spec.
pub(super) fn all(spec: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let mut names = HashSet::new();
    if spec.get("containers").is_empty() {
        spec.get("containers").required("", causes);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec.each(list) {
            let name = container.get("name");
            if !name.is_empty() && !names.insert(name.text()) {
                name.duplicate(causes);
            }
            one(&container, around, causes);
            match list {
                "initContainers" => init(&container, around, causes),
                "ephemeralContainers" => ephemeral(&container, spec, causes),
                _ => handler::all(&container, around, causes),
            }
        }
    }
    host_ports(spec.each("containers"), causes);
    spec.each("initContainers").for_each(|container| host_ports(std::iter::once(container), causes));
}

/// What all containers have in common.
fn one(container: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    check(container, RULES, causes);
    ports(container, around, causes);
    environment::check(container, causes);
    mount::check(container, around, causes);
    resources::container(container, around, causes);
    security::container(container, around, causes);
}

/// An init container ends before the others start; only one that is restarted always has a life to be watched.
fn init(container: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    if container.get("restartPolicy").text() == "Always" {
        handler::all(container, around, causes);
        return;
    }
    for name in HANDLERS {
        let field = container.get(name);
        if field.is_set() {
            field.forbidden("may not be set for init containers without restartPolicy=Always", causes);
        }
    }
    let resize = container.get("resizePolicy");
    if !resize.is_empty() {
        resize.invalid("must not be set for init containers", causes);
    }
}

fn ephemeral(container: &Field<'_>, spec: &Field<'_>, causes: &mut Causes) {
    for name in NOT_EPHEMERAL {
        container.get(name).check(&Rule::Absent("cannot be set for an Ephemeral Container"), causes);
    }
    let target = container.get("targetContainerName");
    let mut others = spec.each("containers").chain(spec.each("initContainers"));
    if !target.is_empty() && !others.any(|other| other.get("name").text() == target.text()) {
        target.not_found(causes);
    }
    for mounted in container.each("volumeMounts") {
        for path in ["subPath", "subPathExpr"] {
            mounted.get(path).check(&Rule::Absent("cannot be set for an Ephemeral Container"), causes);
        }
    }
}

fn ports(container: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let mut names = HashSet::new();
    for port in container.each("ports") {
        let name = port.get("name");
        if !name.is_empty() {
            let before = causes.len();
            port_name_problems(name.text()).for_each(|why| name.invalid(why, causes));
            if causes.len() == before && !names.insert(name.text()) {
                name.duplicate(causes);
            }
        }
        let (number, host) = (port.get("containerPort"), port.get("hostPort"));
        match number.number() {
            0 => number.required("", causes),
            _ => number.check(&PORT, causes),
        }
        if host.number() != 0 {
            host.check(&PORT, causes);
            if around.host_network && host.number() != number.number() {
                host.invalid("must match `containerPort` when `hostNetwork` is true", causes);
            }
        }
        port.get("protocol").check(&Rule::OneOf(&["SCTP", "TCP", "UDP"]), causes);
    }
}

/// A port of the node is given away once.
fn host_ports<'a>(containers: impl Iterator<Item = Field<'a>>, causes: &mut Causes) {
    let mut taken = HashSet::new();
    for port in containers.flat_map(|container| container.each("ports")) {
        let host = port.get("hostPort");
        if host.number() == 0 {
            continue;
        }
        let key = format!("{}/{}/{}", port.get("protocol").text(), port.get("hostIP").text(), host.number());
        if !taken.insert(key.clone()) {
            host.duplicate_word(&key, causes);
        }
    }
}

fn whitespace_problem(text: &str) -> Option<String> {
    (text.trim() != text).then(|| "must not have leading or trailing whitespace".to_owned())
}
