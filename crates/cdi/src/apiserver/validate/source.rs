//! Where content comes from: rules that DataVolumes, populators and crons share.

use api::cdi::v1beta1::{DataVolumeSource, DataVolumeSourceRegistry};
use disk::Checksum;
use kit::admission::Cause;

use super::refuse;

const KUBEVIRT: &str = "kubevirt";
const ARCHIVE: &str = "archive";

/// Exactly one source of `kind` is named.
pub(super) fn one(source: &DataVolumeSource, kind: &str, field: &str) -> Result<(), Cause> {
    let named = [
        source.blank.is_some(),
        source.gcs.is_some(),
        source.http.is_some(),
        source.imageio.is_some(),
        source.pvc.is_some(),
        source.registry.is_some(),
        source.s3.is_some(),
        source.snapshot.is_some(),
        source.upload.is_some(),
        source.vddk.is_some(),
    ];
    match named.into_iter().filter(|named| *named).count() {
        0 => refuse(format!("{field}.source"), format!("Missing {kind} source")),
        1 => Ok(()),
        _ => refuse(format!("{field}.source"), format!("Multiple {kind} sources")),
    }
}

pub(super) fn content_type(content: Option<&str>, field: &str) -> Result<(), Cause> {
    match content.unwrap_or_default() {
        "" | KUBEVIRT | ARCHIVE => Ok(()),
        _ => refuse(format!("{field}.contentType"), format!("ContentType not one of: {KUBEVIRT}, {ARCHIVE}")),
    }
}

/// What is imported, and not cloned or uploaded.
pub(super) fn import(source: &DataVolumeSource, content: Option<&str>, field: &str) -> Result<(), Cause> {
    if let Some(http) = &source.http {
        url(&http.url, "HTTP", field)?;
        if let Some(sum) = http.checksum.as_deref().filter(|sum| !sum.is_empty())
            && let Err(wrong) = sum.parse::<Checksum>()
        {
            return refuse(format!("{field}.source.HTTP.checksum"), format!("{field}.source {wrong}"));
        }
    }
    if let Some(s3) = &source.s3 {
        url(&s3.url, "S3", field)?;
    }
    if let Some(gcs) = &source.gcs {
        url(&gcs.url, "GCS", field)?;
    }
    if source.blank.is_some() && content == Some(ARCHIVE) {
        return refuse(format!("{field}.contentType"), "SourceType cannot be blank and the contentType be archive");
    }
    if let Some(registry) = &source.registry {
        if content.is_some_and(|content| !content.is_empty() && content != KUBEVIRT) {
            let message = format!("ContentType must be {KUBEVIRT} when Source is Registry");
            return refuse(format!("{field}.contentType"), message);
        }
        self::registry(registry, field)?;
    }
    let empty = |text: Option<&String>| text.is_none_or(String::is_empty);
    if let Some(imageio) = &source.imageio {
        if empty(imageio.secret_ref.as_ref()) || empty(imageio.cert_config_map.as_ref()) || imageio.disk_id.is_empty() {
            let field = format!("{field}.source.Imageio");
            return refuse(field.clone(), format!("{field} source Imageio is not valid"));
        }
        url(&imageio.url, "ImageIO", field)?;
    }
    if let Some(vddk) = &source.vddk {
        let needed = [&vddk.secret_ref, &vddk.uuid, &vddk.backing_file, &vddk.thumbprint];
        if needed.into_iter().any(|text| empty(text.as_ref())) {
            let field = format!("{field}.source.VDDK");
            return refuse(field.clone(), format!("{field} source VDDK is not valid"));
        }
        url(vddk.url.as_deref().unwrap_or_default(), "VDDK", field)?;
    }
    Ok(())
}

fn url(text: &str, kind: &str, field: &str) -> Result<(), Cause> {
    let wrong = match text.split_once("://") {
        _ if text.is_empty() => "source URL is empty".to_owned(),
        _ if !text.bytes().all(|byte| byte.is_ascii_graphic() || byte >= 0x80) => format!("Invalid source URL: {text}"),
        Some(("http" | "https" | "gs", _)) => return Ok(()),
        Some((scheme, _)) if plain_scheme(scheme) => format!("Invalid source URL scheme: {text}"),
        // A path, and so a URL without a scheme.
        None if text.starts_with('/') => format!("Invalid source URL scheme: {text}"),
        _ => format!("Invalid source URL: {text}"),
    };
    refuse(format!("{field}.source.{kind}.url"), format!("{field}.source {wrong}"))
}

fn plain_scheme(scheme: &str) -> bool {
    scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

pub(super) fn registry(registry: &DataVolumeSourceRegistry, field: &str) -> Result<(), Cause> {
    let field = format!("{field}.source.Registry");
    let (url, stream, method) = (&registry.url, &registry.image_stream, registry.pull_method.as_deref());
    if url.is_some() == stream.is_some() {
        return refuse(field, "Source registry should have either URL or ImageStream");
    }
    if let Some(url) = url
        && !matches!(url.split_once(':'), Some(("docker" | "oci-archive", _)))
    {
        return refuse(format!("{field}.URL"), format!("Illegal registry source URL scheme {url}"));
    }
    if let Some(method) = method.filter(|method| !matches!(*method, "pod" | "node")) {
        let message = format!("ImportMethod {method} is neither pod, node or \"\"");
        return refuse(format!("{field}.importMethod"), message);
    }
    if stream.as_ref().is_some_and(String::is_empty) {
        return refuse(format!("{field}.importMethod"), "Source registry ImageStream is not valid");
    }
    if stream.is_some() && method != Some("node") {
        let message = "Source registry ImageStream is supported only with node pull import method";
        return refuse(format!("{field}.importMethod"), message);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(source: Value, content: Option<&str>, expect: &str) {
        let source: DataVolumeSource = serde_json::from_value(source).unwrap();
        let found = one(&source, "Data volume", "spec").and_then(|()| import(&source, content, "spec"));
        assert_eq!(found.err().map(|cause| format!("{}: {}", cause.field, cause.message)).unwrap_or_default(), expect);
    }

    #[test]
    fn sources() {
        check(json!({}), None, "spec.source: Missing Data volume source");
        check(json!({ "blank": {}, "upload": {} }), None, "spec.source: Multiple Data volume sources");
        check(json!({ "http": { "url": "http://a/b" } }), None, "");
        let summed = |sum: &str| json!({ "http": { "url": "http://a/b", "checksum": sum } });
        check(summed("md5:d41d8cd98f00b204e9800998ecf8427e"), None, "");
        let length = "spec.source.HTTP.checksum: spec.source a checksum of md5 has 32 hexadecimal digits, this one has 2 characters";
        check(summed("md5:00"), None, length);
        let unknown = "spec.source.HTTP.checksum: spec.source the checksum's algorithm \"crc\" is not known: md5, sha1, sha256 and sha512 are";
        check(summed("crc:00"), None, unknown);
        check(json!({ "gcs": { "url": "gs://a/b" } }), None, "");
        check(json!({ "http": { "url": "" } }), None, "spec.source.HTTP.url: spec.source source URL is empty");
        let wrong = "spec.source.S3.url: spec.source Invalid source URL scheme: ftp://a";
        check(json!({ "s3": { "url": "ftp://a" } }), None, wrong);
        check(json!({ "http": { "url": "a b" } }), None, "spec.source.HTTP.url: spec.source Invalid source URL: a b");
        let archive = "spec.contentType: SourceType cannot be blank and the contentType be archive";
        check(json!({ "blank": {} }), Some("archive"), archive);
        let registry = |fields: Value| json!({ "registry": fields });
        check(registry(json!({ "url": "docker://r/i" })), Some("kubevirt"), "");
        let archive = "spec.contentType: ContentType must be kubevirt when Source is Registry";
        check(registry(json!({ "url": "docker://r/i" })), Some("archive"), archive);
        let scheme = "spec.source.Registry.URL: Illegal registry source URL scheme http://r/i";
        check(registry(json!({ "url": "http://r/i" })), None, scheme);
        let either = "spec.source.Registry: Source registry should have either URL or ImageStream";
        check(registry(json!({})), None, either);
        let method = "spec.source.Registry.importMethod: ImportMethod x is neither pod, node or \"\"";
        check(registry(json!({ "url": "docker://r", "pullMethod": "x" })), None, method);
        let stream = "spec.source.Registry.importMethod: Source registry ImageStream is supported only with node pull \
                      import method";
        check(registry(json!({ "imageStream": "s" })), None, stream);
        let imageio = "spec.source.Imageio: spec.source.Imageio source Imageio is not valid";
        check(json!({ "imageio": { "url": "http://a", "diskId": "1" } }), None, imageio);
        let vddk = "spec.source.VDDK: spec.source.VDDK source VDDK is not valid";
        check(json!({ "vddk": { "url": "http://a", "uuid": "1" } }), None, vddk);
    }
}
