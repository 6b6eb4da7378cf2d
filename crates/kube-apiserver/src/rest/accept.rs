//! What the client accepts: the encoding and the shape (object, Table, PartialObjectMetadata).

use http::HeaderMap;

use crate::error::ApiError;

/// Shape of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    #[default]
    Object,
    Table,
    /// PartialObjectMetadata or its list.
    Metadata,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Accept {
    pub(super) shape: Shape,
    pub(super) yaml: bool,
}

impl Accept {
    /// Picks the first acceptable media range; none at all is a 406.
    pub(super) fn parse(headers: &HeaderMap) -> Result<Self, ApiError> {
        let header = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if header.trim().is_empty() {
            return Ok(Self::default());
        }
        header.split(',').find_map(range).ok_or_else(|| {
            let known = "application/json, application/yaml";
            ApiError::new(406, "NotAcceptable", format!("only the following media types are accepted: {known}"))
        })
    }
}

fn range(text: &str) -> Option<Accept> {
    let mut parts = text.split(';').map(str::trim);
    let yaml = match parts.next()? {
        "application/json" | "*/*" | "application/*" => false,
        "application/yaml" => true,
        _ => return None,
    };
    let mut shape = Shape::Object;
    let (mut version, mut group) = ("", "");
    for part in parts {
        match part.split_once('=')? {
            ("as", "Table") => shape = Shape::Table,
            ("as", "PartialObjectMetadata" | "PartialObjectMetadataList") => shape = Shape::Metadata,
            ("as", _) => return None,
            ("v", value) => version = value,
            ("g", value) => group = value,
            ("stream", "watch") | ("q" | "charset" | "pretty", _) => {}
            _ => return None,
        }
    }
    let known = shape == Shape::Object || (version == "v1" && group == "meta.k8s.io");
    known.then_some(Accept { shape, yaml })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &str, expect: Option<(Shape, bool)>) {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, header.parse().unwrap());
        let got = Accept::parse(&headers).ok().map(|accept| (accept.shape, accept.yaml));
        assert_eq!(got, expect, "{header}");
    }

    #[test]
    fn first_acceptable_range_counts() {
        check("*/*", Some((Shape::Object, false)));
        check("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Some((Shape::Table, false)));
        check("application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json", Some((Shape::Object, false)));
        check("application/vnd.kubernetes.protobuf,application/yaml", Some((Shape::Object, true)));
        check("application/vnd.kubernetes.protobuf", None);
        check("text/html", None);
    }
}
