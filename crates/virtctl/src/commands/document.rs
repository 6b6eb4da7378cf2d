//! Objects as documents: read from a file, asked for, and printed.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use http::{Method, Request, header};
use serde_json::Value;

use crate::connect::Cluster;
use crate::fault::{Fault, Outcome};
use crate::output;

/// Prints a value as `yaml` or `json`.
pub(super) fn print(value: &Value, format: &str) -> Outcome {
    let failed = |error: &dyn std::fmt::Display| Fault::new(format!("cannot write {format}")).because(error);
    let text = match format {
        "json" => serde_json::to_string_pretty(value).map_err(|error| failed(&error))?,
        _ => serde_saphyr::to_string(value).map_err(|error| failed(&error))?,
    };
    output::say(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// The document in a file; `-` is standard input.
pub(super) fn read(file: &Path) -> Result<Value, Fault> {
    let what = || format!("cannot read {}", file.display());
    let mut text = String::new();
    let done = match file.as_os_str() == "-" {
        true => std::io::stdin().read_to_string(&mut text).map(drop),
        false => std::fs::read_to_string(file).map(|read| text = read),
    };
    done.map_err(|error| Fault::new(what()).because(error))?;
    serde_saphyr::from_str(&text).map_err(|error| Fault::new(what()).because(error))
}

/// Sends a request with a body, or without one where it is null.
pub(super) async fn send(
    cluster: &Cluster,
    what: &str,
    method: Method,
    address: &str,
    body: &Value,
) -> Result<Value, Fault> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(address).header(header::CONTENT_TYPE, "application/json");
    let request = request.body(body).map_err(|error| Fault::new(what).because(error))?;
    cluster.client.request(request).await.map_err(|error| Fault::api(what, &error))
}
