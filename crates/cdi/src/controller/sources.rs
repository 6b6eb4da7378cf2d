//! What a claim is to be filled with, as its annotations say it. Pure.

use std::collections::BTreeMap;

use api::cdi::constants::{annotation, source};
use api::cdi::v1beta1::{
    DataVolumeSource, DataVolumeSourceGCS, DataVolumeSourceHTTP, DataVolumeSourceImageIO, DataVolumeSourceRegistry,
    DataVolumeSourceS3, DataVolumeSourceVDDK, ImportSourceType,
};

/// Annotations of a claim.
pub type Notes = BTreeMap<String, String>;

/// The source of a DataVolume as that of an import; none when it is no import.
pub fn import(from: &DataVolumeSource) -> Option<ImportSourceType> {
    let found = ImportSourceType {
        blank: from.blank.clone(),
        gcs: from.gcs.clone(),
        http: from.http.clone(),
        imageio: from.imageio.clone(),
        registry: from.registry.clone(),
        s3: from.s3.clone(),
        vddk: from.vddk.clone(),
    };
    (found != ImportSourceType::default()).then_some(found)
}

/// What an importer is told of where the data are.
pub fn annotations(from: &ImportSourceType) -> Notes {
    let mut out = Notes::new();
    if let Some(http) = &from.http {
        self::http(&mut out, http);
    } else if let Some(DataVolumeSourceS3 { cert_config_map, secret_ref, url }) = &from.s3 {
        located(&mut out, source::S3, url, secret_ref, cert_config_map);
    } else if let Some(DataVolumeSourceGCS { secret_ref, url }) = &from.gcs {
        located(&mut out, source::GCS, url, secret_ref, &None);
    } else if let Some(registry) = &from.registry {
        self::registry(&mut out, registry);
    } else if let Some(imageio) = &from.imageio {
        let DataVolumeSourceImageIO { cert_config_map, disk_id, insecure_skip_verify, secret_ref, url } = imageio;
        located(&mut out, source::IMAGEIO, url, secret_ref, cert_config_map);
        say(&mut out, annotation::DISK_ID, Some(disk_id));
        trust(&mut out, *insecure_skip_verify);
    } else if let Some(vddk) = &from.vddk {
        self::vddk(&mut out, vddk);
    } else {
        say(&mut out, annotation::SOURCE, Some(source::NONE));
    }
    out
}

fn http(out: &mut Notes, from: &DataVolumeSourceHTTP) {
    let DataVolumeSourceHTTP {
        cert_config_map,
        checksum,
        extra_headers,
        insecure_skip_verify,
        secret_extra_headers,
        secret_ref,
        url,
    } = from;
    located(out, source::HTTP, url, secret_ref, cert_config_map);
    say(out, annotation::CHECKSUM, checksum.as_deref());
    trust(out, *insecure_skip_verify);
    for (prefix, all) in
        [(annotation::EXTRA_HEADERS, extra_headers), (annotation::SECRET_EXTRA_HEADERS, secret_extra_headers)]
    {
        for (number, one) in all.iter().enumerate() {
            out.insert(format!("{prefix}.{number}"), one.clone());
        }
    }
}

fn registry(out: &mut Notes, from: &DataVolumeSourceRegistry) {
    let DataVolumeSourceRegistry { cert_config_map, image_stream, platform, pull_method, secret_ref, url } = from;
    let url = url.as_deref().or(image_stream.as_deref()).unwrap_or_default();
    located(out, source::REGISTRY, url, secret_ref, cert_config_map);
    say(out, annotation::REGISTRY_IMPORT_METHOD, pull_method.as_deref());
    say(out, annotation::REGISTRY_IMAGE_STREAM, image_stream.as_ref().map(|_| "true"));
    say(
        out,
        annotation::REGISTRY_ARCHITECTURE,
        platform.as_ref().and_then(|platform| platform.architecture.as_deref()),
    );
}

fn vddk(out: &mut Notes, from: &DataVolumeSourceVDDK) {
    let DataVolumeSourceVDDK {
        backing_file,
        cert_config_map,
        extra_args,
        init_image_url,
        secret_ref,
        thumbprint,
        url,
        uuid,
    } = from;
    located(out, source::VDDK, url.as_deref().unwrap_or_default(), secret_ref, cert_config_map);
    say(out, annotation::BACKING_FILE, backing_file.as_deref());
    say(out, annotation::UUID, uuid.as_deref());
    say(out, annotation::THUMBPRINT, thumbprint.as_deref());
    say(out, annotation::VDDK_INIT_IMAGE, init_image_url.as_deref());
    say(out, annotation::VDDK_EXTRA_ARGS, extra_args.as_deref());
}

fn located(out: &mut Notes, kind: &str, url: &str, secret: &Option<String>, certificates: &Option<String>) {
    say(out, annotation::SOURCE, Some(kind));
    say(out, annotation::ENDPOINT, Some(url));
    say(out, annotation::SECRET, secret.as_deref());
    say(out, annotation::CERT_CONFIG_MAP, certificates.as_deref());
}

fn trust(out: &mut Notes, anybody: Option<bool>) {
    say(out, annotation::INSECURE_SKIP_VERIFY, (anybody == Some(true)).then_some("true"));
}

fn say(out: &mut Notes, key: &str, value: Option<&str>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        out.insert(key.to_owned(), value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(from: Value, expect: &[(&str, &str)]) {
        let found = annotations(&serde_json::from_value(from).unwrap());
        let found: Vec<_> =
            found.iter().map(|(key, value)| (key.rsplit('/').next().unwrap_or_default(), value.as_str())).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn every_source_is_told() {
        check(json!({}), &[("storage.import.source", "none")]);
        check(
            json!({ "http": { "url": "http://h", "checksum": "sha256:0", "extraHeaders": ["A: b"], "secretExtraHeaders": ["s"] } }),
            &[
                ("storage.import.checksum", "sha256:0"),
                ("storage.import.endpoint", "http://h"),
                ("storage.import.extraHeaders.0", "A: b"),
                ("storage.import.secretExtraHeaders.0", "s"),
                ("storage.import.source", "http"),
            ],
        );
        check(
            json!({ "registry": { "url": "docker://r/i", "pullMethod": "node", "platform": { "architecture": "arm64" } } }),
            &[
                ("storage.import.endpoint", "docker://r/i"),
                ("storage.import.registryImageArchitecture", "arm64"),
                ("storage.import.registryImportMethod", "node"),
                ("storage.import.source", "registry"),
            ],
        );
        check(
            json!({ "imageio": { "url": "https://o", "diskId": "d", "secretRef": "s", "insecureSkipVerify": true } }),
            &[
                ("storage.import.diskId", "d"),
                ("storage.import.endpoint", "https://o"),
                ("storage.import.insecureSkipVerify", "true"),
                ("storage.import.secretName", "s"),
                ("storage.import.source", "imageio"),
            ],
        );
        check(
            json!({ "vddk": { "url": "https://v", "uuid": "u", "backingFile": "[ds] a.vmdk", "thumbprint": "t", "initImageURL": "i" } }),
            &[
                ("storage.import.backingFile", "[ds] a.vmdk"),
                ("storage.import.endpoint", "https://v"),
                ("storage.import.source", "vddk"),
                ("storage.import.uuid", "u"),
                ("storage.import.vddk.thumbprint", "t"),
                ("storage.pod.vddk.initimageurl", "i"),
            ],
        );
    }
}
