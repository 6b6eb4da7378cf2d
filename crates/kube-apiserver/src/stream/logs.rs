//! `pods/log`: the kubelet's log stream, passed through.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderValue, header};
use hyper_util::rt::TokioIo;

use apimachinery::error::{ApiError, Cause};
use apimachinery::request::RequestInfo;

use super::{Streams, kubelet};

/// Parameters that the kubelet understands.
const PASSED: [&str; 8] =
    ["follow", "tailLines", "sinceSeconds", "sinceTime", "timestamps", "limitBytes", "previous", "stream"];

pub(super) async fn serve(streams: &Streams, info: &RequestInfo, request: Request) -> Result<Response, ApiError> {
    let pod = streams.pod(info)?;
    let pairs = kubelet::query(&request);
    drop(request);
    check(&pairs, &info.name)?;
    let container = kubelet::container(&pod, kubelet::parameter(&pairs, "container"))?;
    if apimachinery::pointer::text(&pod, "/spec/nodeName").is_empty() {
        // Nothing has run yet, so nothing was written.
        let mut response = Response::new(Body::empty());
        *response.status_mut() = http::StatusCode::NO_CONTENT;
        return Ok(response);
    }
    let target = streams.kubelet_of_pod(&pod)?;
    let query = {
        let passed = pairs.iter().filter(|(k, _)| PASSED.contains(&k.as_str()));
        url::form_urlencoded::Serializer::new(String::new()).extend_pairs(passed).finish()
    };
    let path = format!("/containerLogs/{}/{}/{container}?{query}", info.namespace, info.name);
    let stream = streams.open(&target).await?;
    let failed =
        |e: &dyn std::fmt::Display| ApiError::internal(format!("Internal error occurred: error reading logs: {e}"));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await.map_err(|e| failed(&e))?;
    kit::spawn("log-connection", connection).detach();
    let outgoing = http::Request::get(path)
        .header(header::HOST, target.address.to_string())
        .body(Body::empty())
        .map_err(|e| failed(&e))?;
    let response = sender.send_request(outgoing).await.map_err(|e| failed(&e))?;
    let (parts, body) = response.into_parts();
    if !parts.status.is_success() {
        return Err(kubelet::refusal(parts.status, Body::new(body)).await);
    }
    Ok(answer(Body::new(body)))
}

/// Refuses what the kubelet would have to guess at.
fn check(pairs: &[(String, String)], pod: &str) -> Result<(), ApiError> {
    let mut causes = Vec::new();
    let mut cause = |reason: &str, field: &str, message: String| {
        causes.push(Cause { reason: format!("FieldValue{reason}"), message, field: field.to_owned() });
    };
    for (field, least, why) in [
        ("tailLines", 0, "must be greater than or equal to 0"),
        ("sinceSeconds", 1, "must be greater than 0"),
        ("limitBytes", 1, "must be greater than 0"),
    ] {
        let said = kubelet::parameter(pairs, field);
        if said.is_empty() {
            continue;
        }
        let number: i64 = said.parse().map_err(|_| {
            ApiError::bad_request(format!("invalid value {said:?} for {field}: expected a whole number"))
        })?;
        if number < least {
            cause("Invalid", field, format!("Invalid value: {number}: {why}"));
        }
    }
    let stream = kubelet::parameter(pairs, "stream");
    if !matches!(stream, "" | "All" | "Stdout" | "Stderr") {
        let supported = "\"All\", \"Stderr\", \"Stdout\"";
        let message = format!("Unsupported value: {stream:?}: supported values: {supported}");
        cause("NotSupported", "stream", message);
    }
    if ["sinceSeconds", "sinceTime"].iter().all(|field| !kubelet::parameter(pairs, field).is_empty()) {
        let why = "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified";
        cause("Forbidden", "[]", why.to_owned());
    }
    if causes.is_empty() { Ok(()) } else { Err(ApiError::invalid("", "PodLogOptions", pod, causes)) }
}

fn answer(body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}
