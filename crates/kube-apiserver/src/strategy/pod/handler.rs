//! What is asked of a container while it lives: probes, and what runs after its start and before its end.

use super::super::field::{Causes, Field, NOT_NEGATIVE, PORT, Rule, check};
use super::super::service::port_name_problems;
use super::Around;

/// Kinds of handlers, in the order in which the first one counts.
const KINDS: [&str; 5] = ["exec", "httpGet", "tcpSocket", "grpc", "sleep"];
const PROBE: &[(&str, Rule)] = &[
    ("initialDelaySeconds", NOT_NEGATIVE),
    ("timeoutSeconds", NOT_NEGATIVE),
    ("periodSeconds", NOT_NEGATIVE),
    ("successThreshold", NOT_NEGATIVE),
    ("failureThreshold", NOT_NEGATIVE),
    ("terminationGracePeriodSeconds", Rule::AtLeast(1)),
];

/// Checks the probes and handlers of a container.
pub(super) fn all(container: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.get(name);
        if !probe.is_set() {
            continue;
        }
        handler(&probe, around, causes);
        check(&probe, PROBE, causes);
        let (successes, grace) = (probe.get("successThreshold"), probe.get("terminationGracePeriodSeconds"));
        if name != "readinessProbe" && successes.number() != 1 {
            successes.invalid("must be 1", causes);
        }
        if name == "readinessProbe" && grace.is_set() {
            grace.invalid("must not be set for readinessProbes", causes);
        }
    }
    for name in ["postStart", "preStop"] {
        let hook = container.get("lifecycle").get(name);
        if hook.is_set() {
            handler(&hook, around, causes);
        }
    }
}

fn handler(handler: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let mut given = KINDS.iter().map(|kind| handler.get(kind)).filter(Field::is_set);
    let Some(first) = given.next() else {
        handler.required("must specify a handler type", causes);
        return;
    };
    given.for_each(|more| more.forbidden("may not specify more than 1 handler type", causes));
    match first.path.rsplit('.').next().unwrap_or_default() {
        "exec" => first.get("command").check(&Rule::Needed, causes),
        "httpGet" => http(&first, causes),
        "tcpSocket" => port(&first.get("port"), causes),
        "grpc" => number(&first.get("port"), causes),
        _ => sleep(&first, around, causes),
    }
}

fn http(get: &Field<'_>, causes: &mut Causes) {
    get.get("path").check(&Rule::Needed, causes);
    port(&get.get("port"), causes);
    get.get("scheme").check(&Rule::OneOf(&["HTTP", "HTTPS"]), causes);
    for header in get.each("httpHeaders") {
        let name = header.get("name").text();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            let why = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
            get.get("httpHeaders").invalid_word(name, why, causes);
        }
    }
}

/// A port by its number or its name.
fn port(port: &Field<'_>, causes: &mut Causes) {
    match port.value.as_str() {
        Some(name) => port_name_problems(name).for_each(|why| port.invalid(why, causes)),
        None => number(port, causes),
    }
}

fn number(port: &Field<'_>, causes: &mut Causes) {
    if port.is_set() {
        port.check(&PORT, causes);
    } else {
        port.told_as(port.path.clone()).invalid("must be between 1 and 65535, inclusive", causes);
    }
}

fn sleep(sleep: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let (seconds, most) = (sleep.get("seconds").number(), around.grace);
    if seconds < 0 || seconds > most {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({most})");
        sleep.get("seconds").told_as(sleep.path.clone()).invalid(&why, causes);
    }
}
