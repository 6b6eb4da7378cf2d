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

/// How the answer is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Encoding {
    #[default]
    Json,
    Yaml,
    Protobuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) shape: Shape,
    pub(crate) encoding: Encoding,
    /// What is accepted of an object that has no protobuf form.
    pub(crate) instead: Option<Encoding>,
}

impl Accept {
    /// Picks the acceptable media range that the client prefers; none at all is a 406. Objects that have no protobuf form
    /// (`protobuf` is not set) are told in it only as metadata.
    pub(crate) fn parse(headers: &HeaderMap, protobuf: bool) -> Result<Self, ApiError> {
        let header = headers.get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if header.trim().is_empty() {
            return Ok(Self::default());
        }
        let mut ranges: Vec<&str> = header.split(',').map(str::trim).collect();
        ranges.sort_by_key(|range| (std::cmp::Reverse(quality(range)), range.starts_with("*/")));
        let formed = |shape| match shape {
            Shape::Object => protobuf,
            Shape::Table(_) => false,
            Shape::Metadata(_) | Shape::MetadataList(_) => true,
        };
        let acceptable = |(shape, encoding): &(Shape, Encoding)| *encoding != Encoding::Protobuf || formed(*shape);
        let mut acceptable = ranges.into_iter().filter_map(range).filter(acceptable);
        let Some((shape, encoding)) = acceptable.next() else {
            let known = if protobuf { ", application/vnd.kubernetes.protobuf" } else { "" };
            let known = format!("application/json, application/yaml{known}");
            return Err(not_acceptable(format!("only the following media types are accepted: {known}")));
        };
        let instead = acceptable.find(|other| other.0 == shape && other.1 != Encoding::Protobuf);
        Ok(Self { shape, encoding, instead: instead.map(|(_, encoding)| encoding) })
    }

    /// Whether the stored bytes are what is asked for, if their version is.
    pub(crate) fn is_plain(self) -> bool {
        self.shape == Shape::Object && self.encoding == Encoding::Json
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

fn range(text: &str) -> Option<(Shape, Encoding)> {
    let mut parts = text.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "application/json" | "*/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
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
        return Some((Shape::Object, encoding));
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
    Some((shape, encoding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &str, protobuf: bool, expect: Option<(Shape, Encoding)>) {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, header.parse().unwrap());
        let got = Accept::parse(&headers, protobuf).ok().map(|accept| (accept.shape, accept.encoding));
        assert_eq!(got, expect, "{header}");
    }

    const JSON: Option<(Shape, Encoding)> = Some((Shape::Object, Encoding::Json));
    const YAML: Option<(Shape, Encoding)> = Some((Shape::Object, Encoding::Yaml));
    const PROTOBUF: Option<(Shape, Encoding)> = Some((Shape::Object, Encoding::Protobuf));

    #[test]
    fn first_acceptable_range_counts() {
        let table = |meta| Some((Shape::Table(meta), Encoding::Json));
        for protobuf in [true, false] {
            check("*/*", protobuf, JSON);
            check("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", protobuf, table(Meta::V1));
            check(
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io, application/json",
                protobuf,
                table(Meta::V1Beta1),
            );
            check("application/json;as=Table;v=v9;g=meta.k8s.io, application/json", protobuf, JSON);
            check("application/*", protobuf, None);
            check("text/html", protobuf, None);
        }
    }

    #[test]
    fn answers_without_protobuf_use_the_next_accepted_type() {
        for (header, formed, unformed) in [
            ("application/vnd.kubernetes.protobuf", PROTOBUF, None),
            ("application/vnd.kubernetes.protobuf;stream=watch", PROTOBUF, None),
            ("application/vnd.kubernetes.protobuf,application/json", PROTOBUF, JSON),
            ("application/vnd.kubernetes.protobuf,application/yaml", PROTOBUF, YAML),
            ("application/json,application/vnd.kubernetes.protobuf", JSON, JSON),
        ] {
            check(header, true, formed);
            check(header, false, unformed);
        }
        let table = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io";
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
        for protobuf in [true, false] {
            check(table, protobuf, None);
            check(metadata, protobuf, Some((Shape::Metadata(Meta::V1), Encoding::Protobuf)));
        }
    }

    #[test]
    fn the_accept_header_is_ordered_by_preference() {
        check("application/json;q=0.1,application/yaml;q=0.9", true, YAML);
        check("*/*, application/yaml", true, YAML);
        check("application/yaml;q=0.5, */*", true, JSON);
        check("application/json;q=0.5, application/vnd.kubernetes.protobuf", true, PROTOBUF);
    }
}
