//! `/openapi`: the documents of the `openapi` module with entity tags, so that clients fetch each once.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header, request};

use crate::ApiServer;
use crate::openapi::extension::Part;
use crate::openapi::{self, V2_PROTOBUF};

/// Answers a path below `/openapi`; None when there is no such document.
pub(super) fn serve(server: &ApiServer, segments: &[&str], parts: &request::Parts) -> Option<Response> {
    let registry = server.registry();
    let cache = server.openapi();
    let extensions = server.edges().delegation.specifications.of(&registry);
    let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (group, version) = match segments {
        ["v2"] => {
            let protobuf = accept.contains("com.github.proto-openapi.spec.v2");
            let others: Vec<Part> = extensions.into_iter().filter_map(|(_, known)| known.v2).collect();
            let tag = cache.hash_of_all(&registry, &others);
            let tag = if protobuf { format!("{tag}P") } else { tag };
            return Some(tagged(parts, &tag, || {
                let document = openapi::v2(&registry, &others);
                if protobuf {
                    (V2_PROTOBUF, openapi::encode_v2(&document))
                } else {
                    ("application/json", document.to_string().into())
                }
            }));
        }
        ["v3"] => {
            let others = extensions.iter();
            let others =
                others.filter_map(|((group, version), known)| Some((&**group, &**version, known.v3.as_ref()?)));
            let index = cache.index(&registry, others).to_string();
            return Some(([(header::CONTENT_TYPE, "application/json")], index).into_response());
        }
        ["v3", "api", version] => ("", *version),
        ["v3", "apis", group, version] => (*group, *version),
        _ => return None,
    };
    let own = cache.hash(&registry, group, version);
    let part = extensions.into_iter().find(|((g, v), _)| g == group && v == version).and_then(|(_, known)| known.v3);
    let part = part.filter(|_| own.is_none());
    let tag = own.or_else(|| Some(part.as_ref()?.hash.clone()))?;
    let asked = url::form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
        .find_map(|(key, value)| (key == "hash").then_some(value));
    // An address with another hash is that of an older document: the client is led to the one there is now.
    if asked.as_ref().is_some_and(|asked| *asked != tag.as_str()) {
        let address = format!("{}?hash={tag}", parts.uri.path());
        return Some((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, address)]).into_response());
    }
    let mut response = tagged(parts, &tag, || {
        let text = match &part {
            Some(part) => part.text.to_string(),
            None => openapi::v3(&registry, group, version).unwrap_or_default().to_string(),
        };
        ("application/json", text.into())
    });
    if asked.is_some() {
        let year = kit::clock::now().saturating_add(jiff::SignedDuration::from_hours(365 * 24));
        let expires = year.unwrap_or(jiff::Timestamp::MAX).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        if let Ok(expires) = HeaderValue::from_str(&expires) {
            response.headers_mut().insert(header::EXPIRES, expires);
        }
    }
    Some(response)
}

fn tagged(parts: &request::Parts, tag: &str, body: impl FnOnce() -> (&'static str, Vec<u8>)) -> Response {
    let tag = format!("\"{tag}\"");
    let known = parts.headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let mut response = if known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let (type_, body) = body();
        ([(header::CONTENT_TYPE, type_)], Body::from(body)).into_response()
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}
