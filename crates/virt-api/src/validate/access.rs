//! Access credentials: one type each, one source, and a way into the guest that exists.

use api::kubevirt::v1::VirtualMachineInstanceSpec;
use kit::admission::Cause;

use super::invalid;

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let no_cloud = spec.volumes.iter().any(|volume| volume.cloud_init_no_cloud.is_some());
    let config_drive = spec.volumes.iter().any(|volume| volume.cloud_init_config_drive.is_some());
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let field = format!("{path}.accessCredentials[{index}]");
        let kinds = [credential.ssh_public_key.is_some(), credential.user_password.is_some()];
        if kinds.iter().filter(|set| **set).count() != 1 {
            let message = format!("{field} must have exactly one access credential type set");
            causes.push(invalid(field.clone(), message));
        }
        if let Some(key) = &credential.ssh_public_key {
            let way = &key.propagation_method;
            let place = format!("{field}.sshPublicKey.propagationMethod");
            for (asked, there, name) in [
                (way.no_cloud.is_some(), no_cloud, "noCloud"),
                (way.config_drive.is_some(), config_drive, "configDrive"),
            ] {
                if asked && !there {
                    let message = format!(
                        "{field} requires a {name} volume to exist when the {name} propagationMethod is in use."
                    );
                    causes.push(invalid(place.clone(), message));
                }
            }
            if key.source.secret.is_none() {
                let message = format!("{field} must have exactly one source set");
                causes.push(invalid(format!("{field}.sshPublicKey.source"), message));
            }
            let ways = [way.no_cloud.is_some(), way.config_drive.is_some(), way.qemu_guest_agent.is_some()];
            if ways.iter().filter(|set| **set).count() != 1 {
                let message = format!("{field} must have exactly one propagationMethod set");
                causes.push(invalid(place.clone(), message));
            }
        }
    }
}
