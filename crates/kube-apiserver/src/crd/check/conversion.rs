//! `spec.conversion`: a strategy, and for webhooks a client.

use serde_json::{Value, json};

use apimachinery::error::Cause;

use super::{forbidden, invalid, required, text, unsupported};

const FIELD: &str = "spec.conversion";

pub(super) fn check(conversion: &Value, causes: &mut Vec<Cause>) {
    let strategy = text(&conversion["strategy"]);
    if strategy.is_empty() {
        causes.push(required(&format!("{FIELD}.strategy"), ""));
        return;
    }
    if !matches!(strategy, "None" | "Webhook") {
        causes.push(unsupported(&format!("{FIELD}.strategy"), &conversion["strategy"], &["None", "Webhook"]));
        return;
    }
    let webhook = &conversion["webhook"];
    if strategy == "None" {
        if webhook.is_object() {
            let why = "should not be set when strategy is not set to Webhook";
            causes.push(forbidden(&format!("{FIELD}.webhookClientConfig"), why));
            if webhook["conversionReviewVersions"].as_array().is_some_and(|list| !list.is_empty()) {
                causes.push(forbidden(&format!("{FIELD}.conversionReviewVersions"), why));
            }
        }
        return;
    }
    let client = &webhook["clientConfig"];
    let at = format!("{FIELD}.webhookClientConfig");
    match (text(&client["url"]), client["service"].is_object()) {
        _ if !client.is_object() => causes.push(required(&at, "required when strategy is set to Webhook")),
        ("", false) => causes.push(required(&at, "exactly one of url or service is required")),
        ("", true) => service(&client["service"], &format!("{at}.service"), causes),
        (_, true) => causes.push(required(&at, "exactly one of url or service is required")),
        (address, false) => url(address, &format!("{at}.url"), causes),
    }
    review_versions(&webhook["conversionReviewVersions"], causes);
}

pub(crate) fn service(service: &Value, at: &str, causes: &mut Vec<Cause>) {
    for (key, why) in [("name", "service name is required"), ("namespace", "service namespace is required")] {
        if text(&service[key]).is_empty() {
            causes.push(required(&format!("{at}.{key}"), why));
        }
    }
    if let Some(port) = service["port"].as_i64().filter(|port| !(1..=65535).contains(port)) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        causes.push(invalid(&format!("{at}.port"), &json!(port), why));
    }
    let path = text(&service["path"]);
    if !path.is_empty() && !path.starts_with('/') {
        causes.push(invalid(&format!("{at}.path"), &service["path"], "must start with a '/'"));
    }
}

pub(crate) fn url(address: &str, at: &str, causes: &mut Vec<Cause>) {
    let form = "desired format: https://host[:port][/path]";
    let mut wrong = |why: String| causes.push(invalid(at, &json!(address), &why));
    match url::Url::parse(address) {
        Err(error) => wrong(format!("url must be a valid URL: {error}; {form}")),
        Ok(url) => {
            if url.scheme() != "https" {
                wrong(format!("'https' is the only allowed URL scheme; {form}"));
            }
            if url.host_str().unwrap_or_default().is_empty() {
                wrong(format!("host must be specified; {form}"));
            }
            if !url.username().is_empty() || url.password().is_some() {
                wrong("user information is not permitted in the URL".to_owned());
            }
            if url.fragment().is_some() {
                wrong("fragments are not permitted in the URL".to_owned());
            }
            if url.query().is_some() {
                wrong("query parameters are not permitted in the URL".to_owned());
            }
        }
    }
}

fn review_versions(versions: &Value, causes: &mut Vec<Cause>) {
    let field = format!("{FIELD}.conversionReviewVersions");
    let list = versions.as_array().map(Vec::as_slice).unwrap_or_default();
    if list.is_empty() {
        causes.push(required(&field, ""));
    } else if !list.iter().any(|version| version == "v1" || version == "v1beta1") {
        causes.push(invalid(&field, versions, "must include at least one of v1, v1beta1"));
    }
    for (index, version) in list.iter().enumerate() {
        if let Some(why) = super::names::label_problem(text(version)) {
            causes.push(invalid(&format!("{field}[{index}]"), version, &why));
        }
    }
}
