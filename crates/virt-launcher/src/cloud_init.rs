//! The files of a cloud-init seed disk. Pure: what lies in mounted secrets is passed in.

use std::collections::BTreeMap;

use api::kubevirt::v1::{CloudInitConfigDriveSource, CloudInitNoCloudSource, VirtualMachineInstance};
use base64::Engine as _;
use disk::iso::Files;
use serde_json::{Value, json};

/// Contents of the files of a volume's secrets, by name: `userdata`, `networkdata`, …
pub(crate) type Secret = BTreeMap<String, Vec<u8>>;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    #[error("volume {volume}: {field} is not base64")]
    Base64 { volume: String, field: &'static str },
    #[error("volume {volume}: the secret has no key userdata")]
    NoUserData { volume: String },
}

/// Volume label and files of a seed disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) label: &'static str,
    pub(crate) files: Files,
}

struct Texts {
    user: Vec<u8>,
    network: Option<Vec<u8>>,
}

pub(crate) fn no_cloud(
    vmi: &VirtualMachineInstance,
    volume: &str,
    source: &CloudInitNoCloudSource,
    secret: &Secret,
    keys: &[String],
) -> Result<Seed, Error> {
    let texts = texts(volume, source, secret)?;
    let mut meta = json!({"instance-id": instance_id(vmi), "local-hostname": hostname(vmi)});
    if !keys.is_empty() {
        meta["public-keys"] = numbered(keys);
    }
    let mut files = Files::from([("meta-data".to_owned(), line(&meta)), ("user-data".to_owned(), texts.user)]);
    files.extend(texts.network.map(|network| ("network-config".to_owned(), network)));
    Ok(Seed { label: "cidata", files })
}

pub(crate) fn config_drive(
    vmi: &VirtualMachineInstance,
    volume: &str,
    source: &CloudInitConfigDriveSource,
    secret: &Secret,
    keys: &[String],
) -> Result<Seed, Error> {
    let same = CloudInitNoCloudSource {
        user_data: source.user_data.clone(),
        user_data_base64: source.user_data_base64.clone(),
        secret_ref: source.secret_ref.clone(),
        network_data: source.network_data.clone(),
        network_data_base64: source.network_data_base64.clone(),
        network_data_secret_ref: source.network_data_secret_ref.clone(),
    };
    let texts = texts(volume, &same, secret)?;
    let mut meta = json!({
        "instance_id": instance_id(vmi),
        "uuid": instance_id(vmi),
        "hostname": hostname(vmi),
    });
    if !keys.is_empty() {
        meta["public_keys"] = numbered(keys);
    }
    let mut files = Files::from([
        ("openstack/latest/meta_data.json".to_owned(), line(&meta)),
        ("openstack/latest/user_data".to_owned(), texts.user),
    ]);
    files.extend(texts.network.map(|network| ("openstack/latest/network_data.json".to_owned(), network)));
    Ok(Seed { label: "config-2", files })
}

fn numbered(keys: &[String]) -> Value {
    keys.iter().enumerate().map(|(index, key)| (index.to_string(), Value::from(key.as_str()))).collect()
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

/// Stays the same over restarts of the VM, so that cloud-init runs once.
fn instance_id(vmi: &VirtualMachineInstance) -> String {
    let firmware = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.uuid.clone());
    firmware.unwrap_or_else(|| {
        format!(
            "{}.{}",
            vmi.metadata.name.as_deref().unwrap_or_default(),
            vmi.metadata.namespace.as_deref().unwrap_or_default()
        )
    })
}

/// A host name is one label: the first of a name with dots.
fn hostname(vmi: &VirtualMachineInstance) -> String {
    let name = vmi.spec.hostname.as_deref().filter(|name| !name.is_empty());
    let name = name.or(vmi.metadata.name.as_deref()).unwrap_or_default();
    let label = name.split('.').next().unwrap_or_default();
    label.chars().take(63).collect()
}

fn texts(volume: &str, source: &CloudInitNoCloudSource, secret: &Secret) -> Result<Texts, Error> {
    let user = given(volume, "userDataBase64", source.user_data.as_deref(), source.user_data_base64.as_deref())?;
    let network =
        given(volume, "networkDataBase64", source.network_data.as_deref(), source.network_data_base64.as_deref())?;
    let named = |names: [&str; 2]| names.iter().find_map(|name| secret.get(*name).cloned());
    let user = match (user, &source.secret_ref) {
        (Some(user), _) => user,
        (None, Some(_)) => {
            named(["userdata", "userData"]).ok_or_else(|| Error::NoUserData { volume: volume.to_owned() })?
        }
        (None, None) => Vec::new(),
    };
    let network =
        network.or_else(|| source.network_data_secret_ref.as_ref().and_then(|_| named(["networkdata", "networkData"])));
    Ok(Texts { user, network })
}

fn given(
    volume: &str,
    field: &'static str,
    plain: Option<&str>,
    encoded: Option<&str>,
) -> Result<Option<Vec<u8>>, Error> {
    if let Some(plain) = plain.filter(|plain| !plain.is_empty()) {
        return Ok(Some(plain.as_bytes().to_vec()));
    }
    let Some(encoded) = encoded.filter(|encoded| !encoded.is_empty()) else {
        return Ok(None);
    };
    let compact: String = encoded.split_ascii_whitespace().collect();
    base64::engine::general_purpose::STANDARD
        .decode(compact)
        .map(Some)
        .map_err(|_| Error::Base64 { volume: volume.to_owned(), field })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmi() -> VirtualMachineInstance {
        serde_json::from_value(json!({"metadata": {"name": "web.one", "namespace": "shop"}})).unwrap()
    }

    fn no_cloud_of(source: Value, secret: &[(&str, &str)]) -> Result<BTreeMap<String, String>, Error> {
        let source: CloudInitNoCloudSource = serde_json::from_value(source).unwrap();
        let secret = secret.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
        let seed = no_cloud(&vmi(), "seed", &source, &secret, &[])?;
        assert_eq!(seed.label, "cidata");
        Ok(seed.files.into_iter().map(|(name, text)| (name, String::from_utf8(text).unwrap())).collect())
    }

    #[test]
    fn plain_and_encoded_texts() {
        let files = no_cloud_of(json!({"userData": "#cloud-config\n", "networkData": "version: 2\n"}), &[]).unwrap();
        assert_eq!(files["user-data"], "#cloud-config\n");
        assert_eq!(files["network-config"], "version: 2\n");
        assert_eq!(files["meta-data"], "{\"instance-id\":\"web.one.shop\",\"local-hostname\":\"web\"}\n");
        let files = no_cloud_of(json!({"userDataBase64": "I2Nsb3Vk\nLWNvbmZpZw=="}), &[]).unwrap();
        assert_eq!(files["user-data"], "#cloud-config");
        assert_eq!(
            no_cloud_of(json!({"userDataBase64": "%%"}), &[]).unwrap_err().to_string(),
            "volume seed: userDataBase64 is not base64"
        );
    }

    #[test]
    fn texts_from_secrets() {
        let source = json!({"secretRef": {"name": "s"}, "networkDataSecretRef": {"name": "n"}});
        let files = no_cloud_of(source.clone(), &[("userData", "u"), ("networkdata", "n")]).unwrap();
        assert_eq!((files["user-data"].as_str(), files["network-config"].as_str()), ("u", "n"));
        assert_eq!(no_cloud_of(source, &[]).unwrap_err().to_string(), "volume seed: the secret has no key userdata");
    }

    #[test]
    fn config_drive_has_the_paths_of_openstack() {
        let source = serde_json::from_value(json!({"userData": "x"})).unwrap();
        let seed = config_drive(&vmi(), "seed", &source, &Secret::new(), &["ssh-ed25519 A".to_owned()]).unwrap();
        assert_eq!(seed.label, "config-2");
        let meta: Value = serde_json::from_slice(&seed.files["openstack/latest/meta_data.json"]).unwrap();
        assert_eq!((&meta["hostname"], &meta["public_keys"]["0"]), (&json!("web"), &json!("ssh-ed25519 A")));
    }
}
