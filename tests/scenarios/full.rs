//! A pool that is full: whoever needs room says so, at every stage, and goes on when there is some.

use anyhow::{Result, bail, ensure};
use e2e::hostpath::Hostpath;
use e2e::machine::{self, condition, phase};
use e2e::servers::web::Web;
use e2e::wait::{BOOT, until};
use e2e::{Console, Namespace, ferrovirt};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::chain::Chain;
use crate::data_volume::{apply, program, succeeded, volume, worker};
use crate::long;

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("a_full_pool_is_told_and_waited_with", a_full_pool_is_told_and_waited_with)]
}

const DRIVER: &str = "full.csi.ferrovirt.io";
const CLASS: &str = "full-test";
const NODE: &str = "node1";
const SIZE: &str = "8Mi";

/// A small file system below a driver's pool, and what takes the room in it.
struct Small;

impl Small {
    fn path() -> String {
        format!("/var/{CLASS}-volumes")
    }

    fn mount() -> Result<Self> {
        let path = Self::path();
        run(&["mkdir", "-p", &path])?;
        run(&["mount", "-t", "tmpfs", "-o", "size=48m", "none", &path])?;
        Ok(Self)
    }

    /// Leaves no room.
    fn fill(&self) {
        let ballast = format!("of={}/.ballast", Self::path());
        // It fails because there is no room: that is what it is for.
        let _ = run(&["dd", "if=/dev/zero", &ballast, "bs=4k", "oflag=append", "conv=notrunc"]);
    }

    fn relieve(&self) -> Result<()> {
        run(&["rm", &format!("{}/.ballast", Self::path())])
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = run(&["umount", "-l", &Self::path()]);
    }
}

/// Runs a command on the node.
fn run(words: &[&str]) -> Result<()> {
    ferrovirt(&[&["node", "exec", NODE, "--"], words].concat()).map(drop)
}

/// A DataVolume in the pool.
fn of_class(name: &str, source: &Value) -> Value {
    let mut volume = volume(name, SIZE, source);
    volume["spec"]["storage"]["storageClassName"] = json!(CLASS);
    volume["spec"]["storage"]["accessModes"] = json!(["ReadWriteOnce"]);
    volume
}

/// Whoever runs out of room says the one, whoever begins without any the other.
fn has_no_room(said: &str) -> bool {
    ["the volume is full", "larger than the reported available storage"].iter().any(|words| said.contains(words))
}

/// What takes part, in the order in which it comes to the pool.
struct Stages {
    space: Namespace,
    web: Web,
    chain: Chain,
}

impl Stages {
    fn import(&mut self, name: &str, path: &str, format: &str) -> Result<Value> {
        self.web.put(name, &self.chain.image(name, format)?)?;
        Ok(of_class(name, &json!({ "http": { "url": self.web.url(&format!("{path}{name}")) } })))
    }

    /// A guest with a disk of its own, in the pool.
    fn writer(&self) -> Result<()> {
        let claim = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": DATA }, "spec": {
            "storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": SIZE } } } });
        let mut vm = machine::on_kernel(WRITER, "Always");
        machine::add_disk(&mut vm, DATA, json!({ "persistentVolumeClaim": { "claimName": DATA } }));
        apply(&self.space, vec![claim, vm])
    }

    /// Waits until an import says that it lacks room.
    fn import_waits(&self, name: &str) -> Result<()> {
        self.space.wait("datavolume", name, "said that there is no room", |found| {
            condition(found, "Running")["message"].as_str().is_some_and(has_no_room)
        })?;
        Ok(())
    }

    /// Waits until an event of a claim says how much is left.
    fn claim_waits(&self, name: &str, reason: &str) -> Result<()> {
        until(&format!("{reason} of {name}"), BOOT, || {
            let all = self.space.events("PersistentVolumeClaim", name)?;
            Ok(all.iter().any(|(found, said)| found == reason && said.contains(LEFT)).then_some(()))
        })
    }
}

/// What the driver says of a pool with too little in it.
const LEFT: &str = "bytes are asked for, and pool";
const WRITER: &str = "writer";
const DATA: &str = "data";

fn a_full_pool_is_told_and_waited_with() -> Result<()> {
    let small = Small::mount()?;
    let driver = Hostpath::install(DRIVER, CLASS, &json!({}))?;
    let mut all = Stages { space: Namespace::new("full")?, web: Web::start()?, chain: Chain::default() };
    all.writer()?;
    let snapshots = json!({ "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": { "name": CLASS }, "driver": DRIVER, "deletionPolicy": "Delete" });
    let golden = all.import("golden", "", "raw")?;
    let [sent, grown] = [("sent", json!({ "upload": {} })), ("grown", json!({ "blank": {} }))]
        .map(|(name, source)| of_class(name, &source));
    apply(&all.space, vec![snapshots, golden, sent, grown])?;
    for name in ["golden", "grown"] {
        succeeded(&all.space, name)?;
    }
    all.space.wait("datavolume", "sent", "took uploads", |found| phase(found) == "UploadReady")?;
    all.space.wait("vmi", WRITER, "ran", |vmi| phase(vmi) == "Running")?;
    let mut console = Console::open(&all.space, WRITER)?;
    console.log_in("root", "guest")?;

    // Nobody is done before the pool is full.
    let imports = vec![all.import("downloaded", "slow/", "raw")?, all.import("unpacked", "slower/", "raw.gz")?];
    apply(&all.space, imports)?;
    let freeze = |name| program(&worker(&all.space, name, "importer")?, "cdi-importer")?.freeze();
    let importers = std::thread::scope(|scope| {
        let other = scope.spawn(|| freeze("unpacked"));
        [freeze("downloaded"), other.join().unwrap_or_else(|_| bail!("looking for an importer panicked"))]
    });
    let importers = importers.into_iter().collect::<Result<Vec<_>>>()?;
    small.fill();
    drop(importers);
    console.type_in("dd if=/dev/zero of=/dev/vda bs=64k count=32 conv=fsync && echo 'writ''ten'\r")?;
    let space = &all.space;
    let snapshot = json!({ "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": { "name": "taken" },
        "spec": { "volumeSnapshotClassName": CLASS, "source": { "persistentVolumeClaimName": "golden" } } });
    let clone = of_class("clone", &json!({ "pvc": { "name": "golden", "namespace": space.name() } }));
    apply(space, vec![snapshot, clone])?;
    space.patch("pvc", "grown", &json!({ "spec": { "resources": { "requests": { "storage": "16Mi" } } } }))?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), all.chain.image("sent", "raw")?)?;
    let image = format!("--image-path={}", file.path().display());
    let upload = ["image-upload", "dv", "sent", "--no-create", &image, "--insecure", "--retry=0"];
    let why = space.virtctl_refused(&upload)?;
    ensure!(has_no_room(&why), "{why}");
    for name in ["downloaded", "unpacked"] {
        all.import_waits(name)?;
    }
    all.claim_waits("grown", "VolumeResizeFailed")?;
    space.wait("datavolume", "clone", "said that there is no room", |found| {
        condition(found, "Running")["message"].as_str().is_some_and(|said| said.contains(LEFT))
    })?;
    space.wait("volumesnapshot", "taken", "said that there is no room", |found| {
        found["status"]["error"]["message"].as_str().is_some_and(|said| said.contains(LEFT))
    })?;
    let still = format!("VMI was paused, IO error: not enough space on volume {DATA}");
    space.wait("vmi", WRITER, "stood still", |vmi| condition(vmi, "Paused")["message"] == still)?;
    let event = space.event("VirtualMachineInstance", WRITER, "IOerror")?;
    ensure!(event == format!("VM Paused due to not enough space on volume: {DATA}"), "{event}");

    small.relieve()?;
    until("the upload to be taken", BOOT, || space.virtctl(&upload).map(Some))?;
    console.expect(&["written"], BOOT)?;
    console.leave()?;
    for name in ["sent", "clone", "downloaded", "unpacked"] {
        succeeded(space, name)?;
    }
    space.wait("volumesnapshot", "taken", "was taken", |found| found["status"]["readyToUse"] == true)?;
    space.wait("pvc", "grown", "grew", |claim| claim["status"]["capacity"]["storage"] == "16Mi")?;
    all.chain.copied("clone", "golden");
    all.chain.boot(space)?;

    space.kubectl(&["delete", "vm", "--all", "--timeout=120s"])?;
    space.kubectl(&["delete", "volumesnapshot", "taken", "--timeout=120s"])?;
    space.kubectl(&["delete", "volumesnapshotclass", CLASS])?;
    space.kubectl(&["delete", "datavolume,pvc", "--all", "--timeout=120s"])?;
    driver.volumes_are_gone()
}
