//! What libvirt is told of a backup: which disks, since when, and into which files. Pure.
//!
//! A checkpoint is a moment with a name: from it on, the blocks that the guest changes are counted in a bitmap of that name
//! in each tracked disk. An incremental backup holds what was changed since one.

use crate::xml::Element;

/// A disk of the running domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its volume.
    pub volume: String,
    /// Its name among the domain's disks, such as `vda`.
    pub target: String,
    /// Where its contents, or while others read them what they change, go; disks without a place are left out.
    pub file: Option<String>,
}

/// Who moves the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// QEMU writes it into files.
    Push,
    /// QEMU serves it over NBD at this socket, from the backup's moment until the job is ended.
    Pull {
        /// The path of the socket.
        socket: String,
    },
}

/// A backup's XML: all of the disks, or what changed `since` a checkpoint. Served disks have their volume's name, and a
/// bitmap called `checkpoint` that says what changed.
pub fn backup_xml(mode: &Mode, since: Option<&str>, checkpoint: &str, disks: &[Disk]) -> String {
    let (word, place) = match mode {
        Mode::Push => ("push", "target"),
        Mode::Pull { .. } => ("pull", "scratch"),
    };
    let disks = disks.iter().map(|disk| {
        let element = Element::new("disk").attr("name", &disk.target);
        let Some(file) = &disk.file else { return element.attr("backup", "no") };
        let kind = if since.is_some() { "incremental" } else { "full" };
        let served = matches!(mode, Mode::Pull { .. });
        element
            .attr("backup", "yes")
            .attr("type", "file")
            .attr("backupmode", kind)
            .attr_opt("exportname", served.then_some(&disk.volume))
            .attr_opt("exportbitmap", (served && since.is_some()).then_some(checkpoint))
            .child(Element::new("driver").attr("type", "qcow2"))
            .child(Element::new(place).attr("file", file))
    });
    let server = match mode {
        Mode::Push => None,
        Mode::Pull { socket } => Some(Element::new("server").attr("transport", "unix").attr("socket", socket)),
    };
    Element::new("domainbackup")
        .attr("mode", word)
        .children(since.map(|since| Element::with_text("incremental", since)))
        .children(server)
        .child(Element::new("disks").children(disks))
        .render()
}

/// The XML of a checkpoint of `disks`; the one before it is made anew with the second since 1970 at which it was made.
pub fn checkpoint_xml(name: &str, made: Option<i64>, disks: &[Disk]) -> String {
    let disks = disks.iter().map(|disk| {
        let element = Element::new("disk").attr("name", &disk.target);
        match disk.file {
            Some(_) => element.attr("checkpoint", "bitmap").attr("bitmap", name),
            None => element.attr("checkpoint", "no"),
        }
    });
    Element::new("domaincheckpoint")
        .child(Element::with_text("name", name))
        .children(made.map(|made| Element::with_text("creationTime", made)))
        .child(Element::new("disks").children(disks))
        .render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks() -> Vec<Disk> {
        let disk = |volume: &str, target: &str, file: Option<&str>| Disk {
            volume: volume.to_owned(),
            target: target.to_owned(),
            file: file.map(str::to_owned),
        };
        vec![disk("root", "vda", Some("/b/root.qcow2")), disk("seed", "sda", None)]
    }

    #[track_caller]
    fn check(found: &str, expect: &str) {
        let found: String = found.lines().map(str::trim).collect();
        let expect: String = expect.lines().map(str::trim).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn push_and_pull_backups_are_rendered() {
        check(
            &backup_xml(&Mode::Push, None, "c1", &disks()),
            "<domainbackup mode='push'><disks>
               <disk name='vda' backup='yes' type='file' backupmode='full'>
                 <driver type='qcow2'/><target file='/b/root.qcow2'/></disk>
               <disk name='sda' backup='no'/></disks></domainbackup>",
        );
        let served = Mode::Pull { socket: "/s".to_owned() };
        check(
            &backup_xml(&served, Some("c1"), "c2", &disks()),
            "<domainbackup mode='pull'><incremental>c1</incremental>
               <server transport='unix' socket='/s'/><disks>
               <disk name='vda' backup='yes' type='file' backupmode='incremental' exportname='root' exportbitmap='c2'>
                 <driver type='qcow2'/><scratch file='/b/root.qcow2'/></disk>
               <disk name='sda' backup='no'/></disks></domainbackup>",
        );
    }

    #[test]
    fn checkpoints() {
        check(
            &checkpoint_xml("c1", None, &disks()),
            "<domaincheckpoint><name>c1</name><disks>
               <disk name='vda' checkpoint='bitmap' bitmap='c1'/><disk name='sda' checkpoint='no'/></disks></domaincheckpoint>",
        );
        check(
            &checkpoint_xml("c1", Some(7), &disks()[..1]),
            "<domaincheckpoint><name>c1</name><creationTime>7</creationTime><disks>
               <disk name='vda' checkpoint='bitmap' bitmap='c1'/></disks></domaincheckpoint>",
        );
    }
}
