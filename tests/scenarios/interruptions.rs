//! Whoever fills a volume is killed in the middle, or before, or after, and so is whoever watches over it: the volume is right
//! in the end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use e2e::Namespace;
use e2e::machine::phase;
use e2e::node::Frozen;
use e2e::servers::web::Web;
use e2e::wait::happens;
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::chain::Chain;
use crate::component::{CDI_CONTROLLER, UPLOAD_PROXY, ended};
use crate::data_volume::{apply, program, says, succeeded, volume, worker};
use crate::long;

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("volumes_outlive_the_programs_that_fill_them", volumes_outlive_the_programs_that_fill_them)]
}

const SIZE: &str = "8Mi";

/// One after the other: both take the controller away.
fn volumes_outlive_the_programs_that_fill_them() -> Result<()> {
    imports_outlive_their_programs()?;
    uploads_and_copies_outlive_their_programs()
}

fn slow(web: &Web, chain: &mut Chain, name: &str) -> Result<Value> {
    web.put(name, &chain.image(name, "raw")?)?;
    Ok(volume(name, SIZE, &json!({ "http": { "url": web.url(&format!("slow/{name}")) } })))
}

fn imports_outlive_their_programs() -> Result<()> {
    let space = Namespace::new("interrupted")?;
    let web = Web::start()?;
    let mut chain = Chain::default();
    let volumes = ["killed", "deleted", "unwatched"].map(|name| slow(&web, &mut chain, name));
    apply(&space, volumes.into_iter().collect::<Result<_>>()?)?;
    // Nobody makes what the imports need, until there is another controller. It goes with its pod: a program that is killed
    // again soon is not started at once.
    CDI_CONTROLLER.delete()?;

    program(&worker(&space, "killed", "importer")?, "cdi-importer")?.kill()?;
    let pod = worker(&space, "deleted", "importer")?;
    program(&pod, "cdi-importer")?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    space.kubectl(&["delete", "pod", name, "--grace-period=0", "--force"])?;
    // It is done while nobody looks, and the next controller finds it so.
    let pod = worker(&space, "unwatched", "importer")?;
    program(&pod, "cdi-importer")?;
    let controller = CDI_CONTROLLER.process()?;
    let frozen = controller.freeze()?;
    ended(&pod)?;
    controller.kill()?;
    drop(frozen);
    CDI_CONTROLLER.back(&controller)?;

    for name in chain.names() {
        succeeded(&space, name)?;
    }
    chain.boot(&space)
}

/// `virtctl image-upload`, and the file it sends.
struct Upload {
    child: Child,
    _file: tempfile::NamedTempFile,
}

impl Upload {
    /// Starts it; it is on its way when this returns.
    fn begin(space: &Namespace, name: &str, content: &[u8]) -> Result<Self> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), content)?;
        let image = format!("--image-path={}", file.path().display());
        let mut command =
            space.virtctl_command(&["image-upload", "dv", name, "--no-create", &image, "--insecure", "--retry=20"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot run virtctl")?;
        let said = child.stdout.as_mut().context("virtctl says nothing")?;
        let mut lines = BufReader::new(said).lines();
        ensure!(lines.any(|line| line.is_ok_and(|line| line.starts_with("Uploading data"))), "virtctl uploads nothing");
        Ok(Self { child, _file: file })
    }

    fn end(self) -> Result<()> {
        let output = self.child.wait_with_output().context("virtctl did not end")?;
        ensure!(output.status.success(), "virtctl: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

/// Has the upload server of a DataVolume stand still.
fn halted(space: &Namespace, name: &str) -> Result<Frozen> {
    program(&worker(space, name, "cdi-upload-server")?, "cdi-uploadserver")?.freeze()
}

fn uploads_and_copies_outlive_their_programs() -> Result<()> {
    let space = Namespace::new("interrupted-uploads")?;
    let mut chain = Chain::default();
    let upload = |name: &str| volume(name, SIZE, &json!({ "upload": {} }));
    apply(&space, vec![upload("first"), upload("second")])?;
    for name in ["first", "second"] {
        space.wait("datavolume", name, "took uploads", |found| phase(found) == "UploadReady")?;
    }
    // The server of one dies, the proxy of both, and the controller.
    let files = [chain.image("first", "raw")?, chain.image("second", "qcow2")?];
    let (first, second) = (halted(&space, "first")?, halted(&space, "second")?);
    let uploads = [Upload::begin(&space, "first", &files[0])?, Upload::begin(&space, "second", &files[1])?];
    UPLOAD_PROXY.kill()?;
    CDI_CONTROLLER.delete()?;
    program(&worker(&space, "second", "cdi-upload-server")?, "cdi-uploadserver")?.kill()?;
    drop((first, second));
    for upload in uploads {
        upload.end()?;
    }
    for name in ["first", "second"] {
        succeeded(&space, name)?;
    }

    // Between a file system and a device the driver has no way: pods of ours copy. There is room for one of them, so that
    // whoever sends comes when the server stands still, however slow this machine is.
    happens("the pods of the uploads ended", || Ok(space.list("pods", "")?.is_empty().then_some(())))?;
    space.kubectl(&["create", "quota", "one", "--hard=pods=1"])?;
    space.wait("resourcequota", "one", "was counted", |quota| quota["status"]["used"]["pods"] == "0")?;
    let mut copy = volume("copy", SIZE, &json!({ "pvc": { "name": "first", "namespace": space.name() } }));
    copy["spec"]["storage"]["volumeMode"] = json!("Block");
    apply(&space, vec![copy])?;
    says(&space, "copy", "Running", "exceeded quota: one")?;
    let target = halted(&space, "copy")?;
    space.kubectl(&["delete", "quota", "one"])?;
    program(&worker(&space, "first", "cdi-clone-source")?, "cdi-cloner")?.kill()?;
    CDI_CONTROLLER.kill()?;
    drop(target);
    succeeded(&space, "copy")?;
    chain.copied("copy", "first");
    chain.boot(&space)
}
