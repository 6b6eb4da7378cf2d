//! containerLogs: a container's log as plain text.

use std::path::PathBuf;

use axum::body::Body;
use axum::extract::{Path as UrlPath, RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, Pod};

use super::{Site, refuse};
use crate::logs::read::{self, Query};
use crate::pod::start::named;
use crate::sandbox;

pub(super) async fn serve(
    State(site): State<Site>,
    UrlPath((namespace, pod, container)): UrlPath<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Response, Response> {
    let pod = site.pod(&namespace, &pod)?;
    let (query, previous) = parse(query.as_deref().unwrap_or_default(), kit::clock::now())
        .map_err(|message| refuse(StatusCode::BAD_REQUEST, message))?;
    let path = locate(&site, &pod, &container, previous).map_err(|message| refuse(StatusCode::BAD_REQUEST, message))?;
    // Following ends with the container; one that does not run has nothing to wait for.
    let running = if query.follow && !previous { site.running(&pod, &container).await.ok() } else { None };
    let lines = read::stream(site.context.runtime.clone(), path, query, running);
    Ok(Response::new(Body::from_stream(lines)))
}

/// The newest log of the container, or the one before.
fn locate(site: &Site, pod: &Pod, container: &str, previous: bool) -> Result<PathBuf, String> {
    let (name, _, _) = sandbox::names(pod);
    if pod.spec.as_ref().is_none_or(|spec| named(spec, container).is_none()) {
        return Err(format!("container \"{container}\" in pod \"{name}\" is not available"));
    }
    let dir = PathBuf::from(sandbox::log_directory(pod, &site.context.config.log_dir)).join(container);
    let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut attempts: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".log")?.parse().ok()).collect();
    attempts.sort_unstable_by(|a, b| b.cmp(a));
    // While the container waits for its next start, its newest attempt is the one before.
    let waits = container_state(pod, container).is_some_and(|state| state.waiting.is_some());
    match (attempts.get(usize::from(previous && !waits)), previous) {
        (Some(attempt), _) => Ok(dir.join(format!("{attempt}.log"))),
        (None, true) => Err(format!("previous terminated container \"{container}\" in pod \"{name}\" not found")),
        (None, false) => {
            let waiting = container_state(pod, container).and_then(|state| state.waiting.as_ref()?.reason.as_deref());
            let reason = match waiting.unwrap_or("ContainerCreating") {
                "ErrImagePull" => "image can't be pulled",
                "ImagePullBackOff" => "trying and failing to pull image",
                other => other,
            };
            Err(format!("container \"{container}\" in pod \"{name}\" is waiting to start: {reason}"))
        }
    }
}

fn container_state<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerState> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|status| status.name == container)?.state.as_ref()
}

fn parse(query: &str, now: Timestamp) -> Result<(Query, bool), String> {
    let mut wanted = Query { stdout: true, stderr: true, ..Default::default() };
    let mut previous = false;
    for (name, value) in pairs(query) {
        let on = matches!(value.as_str(), "1" | "t" | "T" | "true" | "True" | "TRUE");
        let number = || value.parse::<u64>().map_err(|_| format!("{name}: {value:?} is not a number"));
        match name.as_str() {
            "follow" => wanted.follow = on,
            "timestamps" => wanted.timestamps = on,
            "previous" => previous = on,
            "tailLines" => wanted.tail = Some(usize::try_from(number()?).unwrap_or(usize::MAX)),
            "limitBytes" => wanted.limit = Some(number()?),
            "sinceSeconds" => {
                let ago = std::time::Duration::from_secs(number()?);
                wanted.since = Some(now.checked_sub(ago).map_err(|_| "sinceSeconds is too large")?);
            }
            "sinceTime" => {
                wanted.since = Some(value.parse().map_err(|_| format!("sinceTime: {value:?} is not a time"))?);
            }
            "stream" => {
                wanted.stdout = value != "Stderr";
                wanted.stderr = value != "Stdout";
            }
            _ => {}
        }
    }
    Ok((wanted, previous))
}

/// The pairs of a query, decoded.
pub(super) fn pairs(query: &str) -> Vec<(String, String)> {
    let all = query.split('&').filter(|pair| !pair.is_empty());
    all.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escaped = (*byte == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match (byte, escaped) {
            (_, Some(value)) => {
                out.push(value);
                at += 2;
            }
            (b'+', None) => out.push(b' '),
            (other, None) => out.push(*other),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let (query, previous) =
            parse("follow=true&tailLines=5&sinceSeconds=60&timestamps=true&previous=true&limitBytes=9", now).unwrap();
        assert!(query.follow && query.timestamps && previous);
        assert_eq!(
            (query.tail, query.limit, query.since),
            (Some(5), Some(9), Some("2026-01-01T00:00:00Z".parse().unwrap()))
        );
        assert_eq!(parse("tailLines=x", now).unwrap_err(), "tailLines: \"x\" is not a number");
        let since = parse("sinceTime=2026-01-01T00%3A00%3A00Z", now).unwrap().0.since;
        assert_eq!(since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    }
}
