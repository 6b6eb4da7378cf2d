//! Volumes of a template that come and go, brought to the instance that runs. Pure.

use api::kubevirt::hotplug::{self, is_hotplug, volumes};
use api::kubevirt::v1::{Disk, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume};

use crate::facts::claims;
use crate::volumes_update::plan::migrates;

/// What the instance is to have.
#[derive(Clone, Debug, PartialEq)]
pub struct Devices {
    /// Its volumes.
    pub volumes: Vec<Volume>,
    /// Its disks.
    pub disks: Vec<Disk>,
}

/// What `vmi` is to have of volumes and disks, if that is something else than it has: those of the template of `vm` that
/// come and go, and those that were given to the instance alone. `root` is the claim a disk is known by that moved with its
/// guest.
pub fn devices(vm: &VirtualMachine, vmi: &VirtualMachineInstance, root: impl Fn(&str) -> String) -> Option<Devices> {
    let template = vm.spec.template.spec.as_deref()?;
    let alone: Vec<&str> = hotplug::ephemeral(vmi).collect();
    let asked = |name: &str| volumes(template).find(|volume| volume.name == name);
    let is_drive = |disk: &Disk| disk.cdrom.is_some();
    let is_copied = |name: &str| migrates(vm) && !hotplug::disk(&vmi.spec, name).is_some_and(is_drive);
    // A claim in place of another is the going of one and the coming of the other, unless the disk is copied.
    let stays = |held: &Volume| {
        asked(&held.name).is_some_and(|volume| {
            let (Some(held), Some(wanted)) = (claims::of_volume(held), claims::of_volume(volume)) else {
                return held == volume;
            };
            wanted.claim == held.claim || wanted.claim == root(held.claim) || is_copied(held.volume)
        })
    };
    let goes = |volume: &Volume| is_hotplug(volume) && !alone.contains(&volume.name.as_str()) && !stays(volume);
    let gone = |name: &str| vmi.spec.volumes.iter().any(|volume| volume.name == name && goes(volume));
    let mut out = Devices {
        volumes: vmi.spec.volumes.iter().filter(|volume| !goes(volume)).cloned().collect(),
        disks: vmi.spec.domain.devices.disks.iter().filter(|d| is_drive(d) || !gone(&d.name)).cloned().collect(),
    };
    for volume in volumes(template) {
        let name = &volume.name;
        let here = vmi.spec.volumes.iter().any(|known| known.name == *name);
        // One of this name that is on its way out has to be gone first.
        let leaving = hotplug::status(vmi, name).is_some_and(|entry| entry.hotplug_volume.is_some());
        let Some(disk) = hotplug::disk(template, name).filter(|_| !here && !leaving) else { continue };
        out.volumes.push(volume.clone());
        if !out.disks.iter().any(|known| known.name == *name) {
            out.disks.push(disk.clone());
        }
    }
    let same = out.volumes == vmi.spec.volumes && out.disks == vmi.spec.domain.devices.disks;
    (!same).then_some(out)
}

/// True when a guest started with `before` would have to be started again to be as `now` says: what comes and goes is no
/// reason, and what follows from other claims of the same volumes is said in [`crate::volumes_update`].
pub fn needs_restart(before: &VirtualMachineInstanceSpec, now: &VirtualMachineInstanceSpec) -> bool {
    let (mut before, now) = (hotplug::at_start(before), hotplug::at_start(now));
    for volume in before.volumes.iter_mut().filter(|volume| claims::of_volume(volume).is_some()) {
        let same = |other: &&Volume| other.name == volume.name && claims::of_volume(other).is_some();
        if let Some(other) = now.volumes.iter().find(same) {
            *volume = other.clone();
        }
    }
    before != now
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// `name=claim` comes and goes, `name:claim` stays.
    fn spec(text: &str) -> Value {
        let volume = |word: &str| {
            let (name, claim) = word.split_once(['=', ':']).unwrap();
            let later = word.contains('=');
            json!({ "name": name, "persistentVolumeClaim": { "claimName": claim, "hotpluggable": later.then_some(true) } })
        };
        let disk = |word: &str| match word.split_once(['=', ':']) {
            Some((name, _)) if name.starts_with("cd") => json!({ "name": name, "cdrom": {} }),
            Some((name, _)) => json!({ "name": name, "disk": { "bus": "scsi" } }),
            None => json!({ "name": word, "cdrom": {} }),
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let volumes: Vec<Value> =
            words.iter().filter(|word| word.contains(['=', ':'])).map(|word| volume(word)).collect();
        let disks: Vec<Value> = words.iter().map(|word| disk(word)).collect();
        json!({ "volumes": volumes, "domain": { "devices": { "disks": disks } } })
    }

    /// Volumes and disks after the change; none when nothing is to change.
    #[track_caller]
    fn check(template: &str, alone: &str, leaving: &str, instance: &str, expect: Option<(&str, &str)>) {
        let vm: VirtualMachine =
            serde_json::from_value(json!({ "spec": { "template": { "spec": spec(template) } } })).unwrap();
        let statuses: Vec<Value> =
            leaving.split_whitespace().map(|name| json!({ "name": name, "target": "", "hotplugVolume": {} })).collect();
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": { "annotations": { (hotplug::EPHEMERAL): alone } },
            "spec": spec(instance), "status": { "volumeStatus": statuses },
        }))
        .unwrap();
        let found = devices(&vm, &vmi, str::to_owned).map(|found| {
            let claim = |volume: &Volume| volume.persistent_volume_claim.clone().unwrap_or_default().claim_name;
            let volumes: Vec<String> = found.volumes.iter().map(|v| format!("{}={}", v.name, claim(v))).collect();
            let disks: Vec<String> = found.disks.iter().map(|disk| disk.name.clone()).collect();
            (volumes.join(" "), disks.join(" "))
        });
        assert_eq!(found, expect.map(|(volumes, disks)| (volumes.to_owned(), disks.to_owned())));
    }

    #[test]
    fn the_instance_follows_its_template() {
        check("root:r", "", "", "root:r", None);
        check("root:r a=x", "", "", "root:r", Some(("root=r a=x", "root a")));
        check("root:r", "", "", "root:r a=x", Some(("root=r", "root")));
        check("root:r a=x", "", "", "root:r a=x", None);
        // What only the instance has stays its own, and so does what only a restart changes.
        check("root:r", "a", "", "root:r a=x", None);
        check("root:r b:y", "", "", "root:r", None);
        // One of the name is still on its way out.
        check("root:r a=x", "", "a", "root:r", None);
    }

    #[test]
    fn media_are_put_in_taken_out_and_exchanged() {
        check("cd=x", "", "", "cd", Some(("cd=x", "cd")));
        check("cd", "", "", "cd=x", Some(("", "cd")));
        check("cd=y", "", "cd", "cd=x", Some(("", "cd")));
    }

    #[test]
    fn hotpluggable_volumes_need_no_restart() {
        let of = |text: &str| serde_json::from_value::<VirtualMachineInstanceSpec>(spec(text)).unwrap();
        assert!(!needs_restart(&of("root:r"), &of("root:r a=x")));
        assert!(needs_restart(&of("root:r"), &of("root:r a:x")));
        assert!(needs_restart(&of("root:r"), &of("root:r cd=x")), "a drive comes with the machine");
    }
}
