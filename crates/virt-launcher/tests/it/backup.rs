//! Backups of a guest on a claim, across a restart, through a node agent that is this test.

use std::os::fd::AsFd as _;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use api::kubevirt::v1::VirtualMachineInstanceBackupStatus as Status;
use rpc::launcher::launcher_client::LauncherClient;
use rpc::launcher::{BackupRequest, CheckpointRequest, DomainState, Empty, SyncRequest};
use serde_json::{Value, json};
use sys::beneath::Dir;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::boot::{Launcher, greeting_disk};
use crate::support::{connect, until, watch};

const STARTED: &str = "2026-01-31T13:59:59Z";

fn vmi() -> String {
    json!({
        "metadata": {"name": "boot", "namespace": "test", "uid": "u1"},
        "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}]}},
            "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "root"}}],
        },
        "status": {"changedBlockTracking": {"state": "Initializing"}},
    })
    .to_string()
}

/// As whom the launcher runs, everything below `path` is given.
pub(crate) fn give(path: &Path) {
    let done = Command::new("chown").args(["-R", "65534:65534"]).arg(path).status().unwrap();
    assert!(done.success() || !rustix::process::geteuid().is_root());
}

/// A guest that runs on a claim with these files.
async fn guest(files: &[(&str, PathBuf)]) -> (Launcher, LauncherClient<Channel>, Streaming<DomainState>) {
    let launcher = Launcher::start();
    let mut client = connect(&launcher.path("kubevirt/sockets/launcher-sock")).await;
    let claim = launcher.path("kubevirt-private/vmi-disks/root");
    std::fs::create_dir_all(&claim).unwrap();
    for (name, from) in files {
        let done = Command::new("cp").args(["--preserve=timestamps"]).arg(from).arg(claim.join(name)).status();
        assert!(done.unwrap().success());
    }
    give(&claim);
    let mut states = watch(&mut client).await;
    let environment = json!({"emulation": true}).to_string();
    client.sync(SyncRequest { vmi: vmi(), environment }).await.unwrap();
    until(&mut states, "status Running", |state| state.status == "Running").await;
    let xml = launcher.domain_xml();
    assert!(xml.contains("<dataStore"), "{xml}");
    (launcher, client, states)
}

/// Lends the launcher a directory, as the node agent does for a claim.
pub(crate) fn lend(launcher: &Launcher, volume: &str) -> PathBuf {
    let out = launcher.path("out");
    std::fs::create_dir(&out).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&out, Some(65534), Some(65534)).unwrap();
    }
    let stream = UnixStream::connect(launcher.path("kubevirt/sockets/hotplug-sock")).unwrap();
    let words = json!({"volume": volume, "writable": true, "directory": true});
    let dir = Dir::open(&out).unwrap();
    sys::fdpass::send(&stream, format!("{words}\n").as_bytes(), &[dir.as_fd()]).unwrap();
    let (answer, _) = sys::fdpass::receive_line(&stream, 4096).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), json!({"error": null}));
    out
}

fn ask(command: &str, mode: &str, name: &str, since: Option<&str>) -> BackupRequest {
    let options = json!({
        "cmd": command, "backupName": name, "backupStartTime": STARTED, "mode": mode, "incremental": since,
        "targetPath": "/var/run/kubevirt/hotplug-disks/backup-x",
    });
    BackupRequest { options: options.to_string() }
}

fn start(name: &str, since: Option<&str>) -> BackupRequest {
    ask("Start", "Push", name, since)
}

async fn ended(states: &mut Streaming<DomainState>, name: &str) -> Status {
    let told = |state: &DomainState| serde_json::from_str::<Status>(&state.backup).unwrap_or_default();
    let over =
        |state: &DomainState| told(state).completed == Some(true) && told(state).backup_name.as_deref() == Some(name);
    told(&until(states, "the end of the backup", over).await)
}

fn same(one: &Path, other: &Path) {
    let done = Command::new("qemu-img").arg("compare").args([one, other]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[tokio::test]
async fn a_guest_is_backed_up_and_what_changed_is_known_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("disk.img");
    std::fs::write(&image, &greeting_disk()[..512]).unwrap();
    std::fs::File::options().write(true).open(&image).unwrap().set_len(8 << 20).unwrap();
    let (first, mut client, mut states) = guest(&[("disk.img", image)]).await;
    let out = lend(&first, "backup-x");
    let refused = client.backup(start("early", Some("nothing"))).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::DataLoss, "{refused}");
    client.backup(start("full", None)).await.unwrap();
    client.backup(start("full", None)).await.unwrap();
    let full = ended(&mut states, "full").await;
    assert_eq!(full.failed, None, "{full:?}");
    assert_eq!(full.checkpoint_name.as_deref(), Some("full-2026-01-31_13-59-59"));
    assert_eq!(full.quiesce_status.as_deref(), Some("QuiesceFailed"), "there is no agent");
    assert_eq!(full.volumes[0].volume_name, "root");
    let disk = first.path("kubevirt-private/vmi-disks/root/disk.img");
    let file = out.join("boot/full-2026-01-31_13-59-59/full-root.qcow2");
    same(&file, &disk);
    assert!(file.metadata().unwrap().len() < 4 << 20, "what is empty is left out");

    client.kill(Empty {}).await.unwrap();
    until(&mut states, "status Shutoff", |state| state.status == "Shutoff").await;
    drop(states);
    let layer = first.path("kubevirt-private/vmi-disks/root/disk.img.cbt");
    let (second, mut client, mut states) = guest(&[("disk.img", disk), ("disk.img.cbt", layer)]).await;
    let out = lend(&second, "backup-x");
    let checkpoint = |name: &str| {
        let checkpoint = json!({"name": name, "creationTime": STARTED, "volumes": [{"volumeName": "root"}]});
        CheckpointRequest { checkpoint: checkpoint.to_string() }
    };
    let unknown = client.redefine_checkpoint(checkpoint("other")).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::DataLoss, "{unknown}");
    client.redefine_checkpoint(checkpoint("full-2026-01-31_13-59-59")).await.unwrap();
    client.backup(start("since", Some("full-2026-01-31_13-59-59"))).await.unwrap();
    let since = ended(&mut states, "since").await;
    assert_eq!(since.failed, None, "{since:?}");
    let file = out.join("boot/since-2026-01-31_13-59-59/since-root.qcow2");
    let map = Command::new("qemu-img").args(["map", "--output=json"]).arg(&file).output().unwrap();
    let map: Vec<Value> = serde_json::from_slice(&map.stdout).unwrap();
    assert!(map.iter().all(|part| part["data"] == json!(false)), "nothing was written: {map:?}");
}

/// A volume of a backup that the launcher serves.
async fn served(
    launcher: &Launcher,
    name: &str,
    contexts: &[&str],
) -> Result<nbd::Client<tokio::net::UnixStream>, nbd::Error> {
    let at = api::export::lending::served_at(name, STARTED);
    let socket = launcher.path("kubevirt/sockets").join(at);
    let stream = tokio::net::UnixStream::connect(socket).await?;
    nbd::Client::connect(stream, "root", contexts).await
}

#[tokio::test]
async fn a_guest_is_served_as_it_was_until_that_is_ended() {
    let home = tempfile::tempdir().unwrap();
    let image = home.path().join("disk.img");
    std::fs::write(&image, &greeting_disk()[..512]).unwrap();
    std::fs::File::options().write(true).open(&image).unwrap().set_len(8 << 20).unwrap();
    let (launcher, mut client, mut states) = guest(&[("disk.img", image)]).await;
    let out = lend(&launcher, "backup-x");
    client.backup(ask("Start", "Pull", "full", None)).await.unwrap();
    let told = |state: &DomainState| serde_json::from_str::<Status>(&state.backup).unwrap_or_default();
    let begun = |state: &DomainState| told(state).checkpoint_name.as_deref() == Some("full-2026-01-31_13-59-59");
    let begun = told(&until(&mut states, "the backup", begun).await);
    assert_eq!((begun.completed, begun.volumes[0].volume_name.as_str()), (None, "root"));
    let mut disk = served(&launcher, "full", &[nbd::ALLOCATION]).await.unwrap();
    let bytes = disk.read(0, 8 << 20).await.unwrap();
    let expect = std::fs::read(launcher.path("kubevirt-private/vmi-disks/root/disk.img")).unwrap();
    assert!(bytes == expect && bytes[..16] == greeting_disk()[..16]);
    let map = disk.status(0, 8 << 20).await.unwrap().remove(0);
    assert!(map[0].flags == 0 && map.iter().any(|extent| extent.flags & nbd::ZERO != 0), "{map:?}");
    assert!(served(&launcher, "other", &[]).await.is_err(), "another backup has another socket");
    let second = client.backup(start("second", None)).await.unwrap_err();
    assert_eq!(second.code(), tonic::Code::FailedPrecondition, "{second}");

    client.backup(ask("Abort", "Pull", "full", None)).await.unwrap();
    let full = ended(&mut states, "full").await;
    assert_eq!((full.failed, full.completed), (None, Some(true)), "{full:?}");
    assert!(disk.read(0, 512).await.is_err() && served(&launcher, "full", &[]).await.is_err(), "nothing is served");
    let kept = out.join("boot/full-2026-01-31_13-59-59");
    assert_eq!(std::fs::read_dir(kept).unwrap().count(), 0, "what was kept for it is gone");

    // Its checkpoint is there, and what is served next is what changed since.
    client.backup(ask("Start", "Pull", "since", Some("full-2026-01-31_13-59-59"))).await.unwrap();
    let changed = nbd::dirty_bitmap("since-2026-01-31_13-59-59");
    let mut disk = served(&launcher, "since", &[nbd::ALLOCATION, &changed]).await.unwrap();
    let lists = disk.status(0, 8 << 20).await.unwrap();
    assert!(lists[1].iter().all(|extent| extent.flags == 0), "nothing was written: {lists:?}");
    assert!(disk.read(0, 8 << 20).await.unwrap() == expect, "all of the disk is there, whatever changed");
    client.backup(ask("Abort", "Pull", "since", None)).await.unwrap();
    let since = ended(&mut states, "since").await;
    assert_eq!(since.failed, None, "{since:?}");
    client.kill(Empty {}).await.unwrap();
}

/// The guest with a disk that came later, on a claim of so many MiB.
fn with_data(size: u64) -> String {
    let mut vmi: Value = serde_json::from_str(&vmi()).unwrap();
    let disk = json!({"name": "data", "disk": {"bus": "scsi"}});
    vmi["spec"]["domain"]["devices"]["disks"].as_array_mut().unwrap().push(disk);
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": true}});
    vmi["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    vmi["spec"]["utilityVolumes"] = json!([{"name": "backup-x", "claimName": "out", "type": "Backup"}]);
    vmi["status"] = json!({
        "changedBlockTracking": {"state": "Enabled"},
        "volumeStatus": [{"name": "data", "target": "", "phase": "MountedToPod", "hotplugVolume": {},
            "persistentVolumeClaimInfo": {"capacity": {"storage": format!("{size}Mi")}}}],
    });
    vmi.to_string()
}

/// Gives the guest the disk in `claim`, with what tracks its changes beside it.
async fn plug(
    launcher: &Launcher,
    client: &mut LauncherClient<Channel>,
    states: &mut Streaming<DomainState>,
    claim: &Path,
) {
    let open = |name: &str| {
        std::fs::File::options().read(true).write(true).create(true).truncate(false).open(claim.join(name)).unwrap()
    };
    let (image, layer) = (open("disk.img"), open("disk.img.cbt"));
    give(claim);
    let stream = UnixStream::connect(launcher.path("kubevirt/sockets/hotplug-sock")).unwrap();
    let words = json!({"volume": "data", "writable": true});
    sys::fdpass::send(&stream, format!("{words}\n").as_bytes(), &[image.as_fd(), layer.as_fd()]).unwrap();
    let (answer, _) = sys::fdpass::receive_line(&stream, 4096).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&answer).unwrap(), json!({"error": null}));
    sync(client, 4).await;
    until(states, "the disk", |state| state.guest.contains(r#""name":"data""#)).await;
    let xml = launcher.domain_xml();
    assert_eq!(xml.matches("<dataStore").count(), 2, "{xml}");
}

async fn sync(client: &mut LauncherClient<Channel>, size: u64) {
    let environment = json!({"emulation": true}).to_string();
    client.sync(SyncRequest { vmi: with_data(size), environment }).await.unwrap();
}

#[tokio::test]
async fn changes_of_a_hotplugged_and_expanded_disk_are_tracked_over_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let (image, claim) = (home.path().join("disk.img"), home.path().join("data"));
    std::fs::create_dir(&claim).unwrap();
    std::fs::write(&image, &greeting_disk()[..512]).unwrap();
    for (file, size) in [(&image, 8 << 20), (&claim.join("disk.img"), 4 << 20)] {
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(file).unwrap();
        file.set_len(size).unwrap();
    }
    let (first, mut client, mut states) = guest(&[("disk.img", image)]).await;
    plug(&first, &mut client, &mut states, &claim).await;
    lend(&first, "backup-x");
    client.backup(start("full", None)).await.unwrap();
    let full = ended(&mut states, "full").await;
    assert_eq!((full.failed, full.volumes.len()), (None, 2), "{full:?}");
    sync(&mut client, 6).await;
    let grown = |state: &DomainState| state.guest.contains(&(6 << 20).to_string());
    until(&mut states, "a disk that has grown", grown).await;
    client.backup(start("grown", Some("full-2026-01-31_13-59-59"))).await.unwrap();
    let grown = ended(&mut states, "grown").await;
    assert_eq!((grown.failed, grown.volumes.len()), (None, 2), "{grown:?}");

    client.kill(Empty {}).await.unwrap();
    until(&mut states, "status Shutoff", |state| state.status == "Shutoff").await;
    drop(states);
    let root = |name: &str| first.path("kubevirt-private/vmi-disks/root").join(name);
    let files = [("disk.img", root("disk.img")), ("disk.img.cbt", root("disk.img.cbt"))];
    let (second, mut client, mut states) = guest(&files).await;
    plug(&second, &mut client, &mut states, &claim).await;
    lend(&second, "backup-x");
    let checkpoint = json!({"name": "grown-2026-01-31_13-59-59", "creationTime": STARTED,
        "volumes": [{"volumeName": "root"}, {"volumeName": "data"}]});
    client.redefine_checkpoint(CheckpointRequest { checkpoint: checkpoint.to_string() }).await.unwrap();
    client.backup(start("since", Some("grown-2026-01-31_13-59-59"))).await.unwrap();
    let since = ended(&mut states, "since").await;
    assert_eq!((since.failed, since.volumes.len()), (None, 2), "{since:?}");
}
