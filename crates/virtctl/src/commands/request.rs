//! Requests to subresources that are not streams: sent, and answered in one sentence.

use http::{Method, Request, header};
use serde_json::Value;

use crate::{
    connect::Cluster,
    fault::{Fault, Outcome},
    stream,
    target::{Kind, Target},
    words,
};

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
            words::say("Dry Run execution")?;
        }
        words::say(&format!("{} {name} {done}", kind.short().to_uppercase()))?;
        Ok(std::process::ExitCode::SUCCESS)
    }
}

/// A machine named by its kind's own command: `NAME`, or `vm/NAME/NAMESPACE` as elsewhere.
pub(super) fn named(cluster: &Cluster, kind: Kind, text: &str) -> Result<(String, String), Fault> {
    let target = Target::parse(text)?;
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
    let what = format!("cannot {} {} {namespace}/{name}", verb(subresource), kind.short().to_uppercase());
    let body = if options.is_null() { Vec::new() } else { options.to_string().into_bytes() };
    let request = Request::builder()
        .method(Method::PUT)
        .uri(stream::path(kind, namespace, name, subresource))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|error| Fault::usage(what.clone()).because(error))?;
    let answer = cluster.client.request_text(request).await;
    answer.map(drop).map_err(|error| Fault::api(what, &error))
}

fn verb(subresource: &str) -> &str {
    match subresource {
        "softreboot" => "reboot",
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
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dry_run_is_asked_of_the_server() {
        assert_eq!(DryRun { dry_run: false }.add(json!({ "paused": true })), json!({ "paused": true }));
        assert_eq!(DryRun { dry_run: true }.add(json!({})), json!({ "dryRun": ["All"] }));
    }
}
