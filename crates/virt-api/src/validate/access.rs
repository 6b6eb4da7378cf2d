//! Access credentials: one type each, one source, and a way into the guest that exists.

use api::kubevirt::credentials::is_user;
use api::kubevirt::v1::{SSHPublicKeyAccessCredential, VirtualMachineInstanceSpec};
use kit::admission::Cause;

use super::invalid;

/// Seeds of cloud-init that the machine has.
struct Seeds {
    no_cloud: bool,
    config_drive: bool,
}

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let seeds = Seeds {
        no_cloud: spec.volumes.iter().any(|volume| volume.cloud_init_no_cloud.is_some()),
        config_drive: spec.volumes.iter().any(|volume| volume.cloud_init_config_drive.is_some()),
    };
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let field = format!("{path}.accessCredentials[{index}]");
        let kinds = [credential.ssh_public_key.is_some(), credential.user_password.is_some()];
        if kinds.iter().filter(|set| **set).count() != 1 {
            let message = format!("{field} must have exactly one access credential type set");
            causes.push(invalid(field.clone(), message));
        }
        if let Some(key) = &credential.ssh_public_key {
            ssh(&field, key, &seeds, causes);
        }
        if let Some(password) = &credential.user_password {
            let ways = usize::from(password.propagation_method.qemu_guest_agent.is_some());
            one(&field, "userPassword", password.source.secret.is_some(), ways, causes);
        }
    }
}

fn ssh(field: &str, key: &SSHPublicKeyAccessCredential, seeds: &Seeds, causes: &mut Vec<Cause>) {
    let way = &key.propagation_method;
    let place = format!("{field}.sshPublicKey.propagationMethod");
    for (asked, there, name) in [
        (way.no_cloud.is_some(), seeds.no_cloud, "noCloud"),
        (way.config_drive.is_some(), seeds.config_drive, "configDrive"),
    ] {
        if asked && !there {
            let message =
                format!("{field} requires a {name} volume to exist when the {name} propagationMethod is in use.");
            causes.push(invalid(place.clone(), message));
        }
    }
    if let Some(agent) = &way.qemu_guest_agent {
        let users = format!("{place}.qemuGuestAgent.users");
        if agent.users.is_empty() {
            let message = format!("{field} requires at least one user to be present in the users list");
            causes.push(invalid(users.clone(), message));
        }
        for (index, user) in agent.users.iter().enumerate().filter(|(_, user)| !is_user(user)) {
            let field = format!("{users}[{index}]");
            let message = format!("{field} {user:?} is not the name of a user");
            causes.push(invalid(field, message));
        }
    }
    let ways = [way.no_cloud.is_some(), way.config_drive.is_some(), way.qemu_guest_agent.is_some()];
    let ways = ways.iter().filter(|set| **set).count();
    one(field, "sshPublicKey", key.source.secret.is_some(), ways, causes);
}

/// One source, and one way.
fn one(field: &str, kind: &str, source: bool, ways: usize, causes: &mut Vec<Cause>) {
    if !source {
        let message = format!("{field} must have exactly one source set");
        causes.push(invalid(format!("{field}.{kind}.source"), message));
    }
    if ways != 1 {
        let message = format!("{field} must have exactly one propagationMethod set");
        causes.push(invalid(format!("{field}.{kind}.propagationMethod"), message));
    }
}
