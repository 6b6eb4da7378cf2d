//! Requests to subresources that are not streams: sent, and answered in one sentence.

use http::{Method, Request, header};
use serde_json::{Value, json};

use crate::connect::Cluster;
use crate::fault::{Fault, Outcome};
use crate::target::{Kind, Target};
use crate::{output, stream};

/// `--dry-run`, as kubectl has it for what the server decides.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DryRun {
    /// Only check whether it would be accepted.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    pub(super) dry_run: bool,
}

impl DryRun {
    /// Adds it to the options of a request.
    pub(super) fn add(&self, mut options: Value) -> Value {
        if self.dry_run
            && let Some(options) = options.as_object_mut()
        {
            options.insert("dryRun".to_owned(), Value::from(vec!["All"]));
        }
        options
    }

    /// Says what happened to a machine.
    pub(super) fn done(&self, kind: Kind, name: &str, done: &str) -> Outcome {
        if self.dry_run {
            output::say("Dry Run execution")?;
        }
        output::say(&format!("{} {name} {done}", kind.short().to_uppercase()))?;
        Ok(std::process::ExitCode::SUCCESS)
    }
}

/// How long a guest has to shut down, when that is to be another time than its own.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Deadline {
    /// Seconds the guest has to shut down; needs --force.
    #[arg(long, default_value_t = -1, allow_negative_numbers = true, value_name = "SECONDS")]
    pub(super) grace_period: i64,
    /// Do not wait longer than --grace-period for the guest; data may be lost.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    pub(super) force: bool,
}

impl Deadline {
    /// The options of the request `verb`, which calls the seconds `field`.
    pub(super) fn options(&self, verb: &str, field: &str) -> Result<Value, Fault> {
        match (self.force, self.grace_period) {
            (true, -1) => Err(Fault::usage("--force needs to know how long the guest has")
                .hint(format!("`--force --grace-period=0` {verb}s it at once"))),
            (true, seconds) => Ok(json!({ (field): seconds })),
            (false, -1) => Ok(json!({})),
            (false, _) => Err(Fault::usage("--grace-period works only together with --force")),
        }
    }
}

/// A machine named by its kind's own command: `NAME`, or `vm/NAME/NAMESPACE` as elsewhere.
pub(super) fn named(cluster: &Cluster, kind: Kind, text: &str) -> Result<(String, String), Fault> {
    let target = Target::parse_name(text)?;
    if text.contains('/') && target.kind != kind {
        return Err(Fault::usage(format!("{text:?} is not a {}", kind.short().to_uppercase())));
    }
    Ok((target.namespace.unwrap_or_else(|| cluster.namespace.clone()), target.name))
}

/// PUTs `options` to a subresource.
pub(super) async fn put(
    cluster: &Cluster,
    kind: Kind,
    (namespace, name): (&str, &str),
    subresource: &str,
    options: &Value,
) -> Result<(), Fault> {
    send(cluster, kind, (namespace, name), subresource, options).await.map(drop)
}

/// PUTs `options` to a subresource, for its answer.
pub(super) async fn send(
    cluster: &Cluster,
    kind: Kind,
    (namespace, name): (&str, &str),
    subresource: &str,
    options: &Value,
) -> Result<String, Fault> {
    let what = format!("cannot {} {} {namespace}/{name}", verb(subresource), kind.short().to_uppercase());
    let body = if options.is_null() { Vec::new() } else { options.to_string().into_bytes() };
    let request = Request::builder()
        .method(Method::PUT)
        .uri(stream::path(kind, namespace, name, subresource))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|error| Fault::usage(what.clone()).because(error))?;
    cluster.client.request_text(request).await.map_err(|error| Fault::api(what, &error))
}

fn verb(subresource: &str) -> &str {
    match subresource {
        "softreboot" => "reboot",
        "evacuate/cancel" => "cancel the evacuation of",
        other => other,
    }
}

/// GETs what the guest says.
pub(super) async fn get(cluster: &Cluster, (namespace, name): (&str, &str), subresource: &str) -> Result<Value, Fault> {
    let what = format!("cannot get {subresource} of VMI {namespace}/{name}");
    let request = Request::get(stream::path(Kind::Vmi, namespace, name, subresource))
        .header(header::ACCEPT, "application/json")
        .body(Vec::new())
        .map_err(|error| Fault::usage(what.clone()).because(error))?;
    cluster.client.request(request).await.map_err(|error| Fault::api(what, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_is_asked_of_the_server() {
        assert_eq!(DryRun { dry_run: false }.add(json!({ "paused": true })), json!({ "paused": true }));
        assert_eq!(DryRun { dry_run: true }.add(json!({})), json!({ "dryRun": ["All"] }));
    }

    #[track_caller]
    fn check(force: bool, grace_period: i64, expect: Result<Value, &str>) {
        match (Deadline { grace_period, force }.options("stop", "gracePeriod"), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_deadline_is_asked_for_by_both_flags() {
        check(false, -1, Ok(json!({})));
        check(true, 0, Ok(json!({ "gracePeriod": 0 })));
        check(true, 10, Ok(json!({ "gracePeriod": 10 })));
        check(true, -1, Err("--force --grace-period=0` stops it at once"));
        check(false, 5, Err("only together with --force"));
    }
}
