//! What the client accepts: the encoding and the shape (object, Table, PartialObjectMetadata).

use http::HeaderMap;

use apimachinery::error::ApiError;

/// Version of `meta.k8s.io` in which Tables and metadata are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Meta {
    V1,
    V1Beta1,
}

impl Meta {
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// Shape of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    #[default]
    Object,
    Table(Meta),
    /// PartialObjectMetadata, of one object.
    Metadata(Meta),
    /// PartialObjectMetadataList, of a list.
    MetadataList(Meta),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) shape: Shape,
    pub(crate) yaml: bool,
}

impl Accept {
    /// Picks the acceptable media range that the client prefers; none at all is a 406.
    pub(crate) fn parse(headers: &HeaderMap) -> Result<Self, ApiError> {
        let header = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if header.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut ranges: Vec<&str> = header.split(',').map(str::trim).collect();
        ranges.sort_by_key(|range| (std::cmp::Reverse(quality(range)), range.starts_with("*/")));
        ranges.into_iter().find_map(range).ok_or_else(|| {
            let known = "application/json, application/yaml";
            not_acceptable(format!("only the following media types are accepted: {known}"))
        })
    }
}

/// 406.
pub(crate) fn not_acceptable(message: impl Into<String>) -> ApiError {
    ApiError::new(406, "NotAcceptable", message)
}

/// How much a range is preferred, in thousandths.
fn quality(range: &str) -> u32 {
    let said = range.split(';').skip(1).find_map(|part| part.trim().strip_prefix("q="));
    let quality = said.map_or(Some(1.0), |said| said.trim().parse::<f64>().ok());
    (quality.unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u32
}

fn range(text: &str) -> Option<Accept> {
    let mut parts = text.split(';').map(str::trim);
    let yaml = match parts.next()? {
        "application/json" | "*/*" => false,
        "application/yaml" => true,
        _ => return None,
    };
    let (mut shape, mut version, mut group) = ("", "", "");
    for part in parts {
        match part.split_once('=')? {
            ("as", value) => shape = value,
            ("v", value) => version = value,
            ("g", value) => group = value,
            ("stream", "watch") | ("q" | "charset" | "pretty", _) => {}
            _ => return None,
        }
    }
    if shape.is_empty() {
        return Some(Accept { shape: Shape::Object, yaml });
    }
    let meta = match (group, version) {
        ("meta.k8s.io", "v1") => Meta::V1,
        ("meta.k8s.io", "v1beta1") => Meta::V1Beta1,
        _ => return None,
    };
    let shape = match shape {
        "Table" => Shape::Table(meta),
        "PartialObjectMetadata" => Shape::Metadata(meta),
        "PartialObjectMetadataList" => Shape::MetadataList(meta),
        _ => return None,
    };
    Some(Accept { shape, yaml })
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
        let json = Some((Shape::Object, false));
        check("*/*", json);
        check("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Some((Shape::Table(Meta::V1), false)));
        check(
            "application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json",
            Some((Shape::Table(Meta::V1Beta1), false)),
        );
        check("application/json;as=Table;v=v9;g=meta.k8s.io, application/json", json);
        check("application/vnd.kubernetes.protobuf,application/json", json);
        check("application/vnd.kubernetes.protobuf,application/yaml", Some((Shape::Object, true)));
        check("application/vnd.kubernetes.protobuf", None);
        check("application/*", None);
        check("text/html", None);
    }

    #[test]
    fn what_is_preferred_comes_first() {
        check("application/json;q=0.1,application/yaml;q=0.9", Some((Shape::Object, true)));
        check("*/*, application/yaml", Some((Shape::Object, true)));
        check("application/yaml;q=0.5, */*", Some((Shape::Object, false)));
    }
}
