//! `virtctl guestfs`: a shell beside a claim's disk, in a pod with tools for disks that lives as long as the shell.
//!
//! ```text
//! image known -> claim there, and free -> pod -> runs -> attach -+- the shell ends    -> pod deleted
//!                                                                +- Ctrl-C, a signal  -> pod deleted
//! ```

mod pod;

use std::process::ExitCode;
use std::time::Duration;

use futures::SinkExt as _;
use futures::channel::mpsc;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{AttachParams, AttachedProcess, DeleteParams, ListParams, PostParams, TerminalSize};
use kube::{Api, ResourceExt as _};
use meta::text::printable;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::input;
use crate::terminal::{Ending, Raw};

/// How long the pod may take to run.
const PATIENCE: Duration = Duration::from_secs(500);
const LOOK: Duration = Duration::from_millis(500);
/// How long the pod may take to go.
const FAREWELL: Duration = Duration::from_secs(60);
/// What to do where the image is not there.
const MISSING: &str = "the image guestfs is made for who asks for it: `ferrovirt images build guestfs` makes it, then `ferrovirt images load` \
                       or `ferrovirt images push` gives it to the nodes; or name another one with --image";
/// The image in the registry of the other images.
const IMAGE: &str = "libguestfs-tools";

/// Start a shell in a pod with tools for disks, beside the disk of a claim.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The disk of a claim with a file system is /disk/disk.img in the pod, a block device is /dev/vda."
)]
pub(crate) struct Args {
    /// PersistentVolumeClaim whose disk to work on.
    #[arg(value_name = "PVC")]
    claim: String,
    /// Image of the pod; the cluster's own when it is left out. It has its shell at /entrypoint.sh.
    #[arg(long, default_value = "")]
    image: String,
    /// When the image is pulled: Always, IfNotPresent or Never.
    #[arg(long, default_value = "IfNotPresent", value_name = "POLICY")]
    pull_policy: String,
    /// Give the pod KVM.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = true)]
    kvm: bool,
    /// Run as root in the pod.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    root: bool,
    /// User to run as in the pod.
    #[arg(long)]
    uid: Option<i64>,
    /// Group to run as; only together with --uid.
    #[arg(long)]
    gid: Option<i64>,
    /// Group that the volume is made accessible to.
    #[arg(long = "fsGroup", value_name = "GID")]
    fs_group: Option<i64>,
    /// VirtualMachine whose place among the nodes the pod takes.
    #[arg(long, value_name = "NAME")]
    vm: Option<String>,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let mut shape = pod::Shape::of(&args)?;
    let cluster = globals.cluster().await?;
    let mut ending = Ending::watch().map_err(|error| Fault::new("cannot watch signals").because(error))?;
    if shape.image.is_empty() {
        shape.image = image(&cluster).await?;
    }
    println!("Use image: {}", shape.image);
    let claim = claim(&cluster, &args.claim).await?;
    free(&cluster, &args.claim).await?;
    if let Some(name) = &args.vm {
        let machines: Api<api::kubevirt::v1::VirtualMachine> =
            Api::namespaced(cluster.client.clone(), &cluster.namespace);
        let machine = machines.get(name).await;
        shape.place = Some(machine.map_err(|error| Fault::api(format!("cannot read VirtualMachine {name}"), &error))?);
    }
    shape.block = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
    println!("The PVC has been mounted at {}", shape.mounted_at());
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let wanted = shape.pod().map_err(|error| Fault::new("cannot describe the pod").because(error))?;
    let name = wanted.name_any();
    let created = pods.create(&PostParams::default(), &wanted).await;
    created.map_err(|error| Fault::api(format!("cannot create pod {name}"), &error))?;
    let outcome = tokio::select! {
        outcome = session(&pods, &name) => outcome,
        code = ending.code() => Ok(ExitCode::from(code)),
    };
    let removed = remove(&pods, &name).await;
    // What went wrong first is what is told.
    outcome.and_then(|code| removed.map(|()| code))
}

/// What the server knows of the image.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Image {
    registry: String,
    tag: String,
    image_prefix: String,
    digest: String,
    gs_image: String,
}

impl Image {
    fn name(&self) -> Option<String> {
        if !self.gs_image.is_empty() {
            return Some(self.gs_image.clone());
        }
        let version = match (self.digest.as_str(), self.tag.as_str()) {
            ("", "") => return None,
            ("", tag) => format!(":{tag}"),
            (digest, _) => format!("@{digest}"),
        };
        let image = format!("{}{IMAGE}{version}", self.image_prefix);
        Some(if self.registry.is_empty() { image } else { format!("{}/{image}", self.registry) })
    }
}

async fn image(cluster: &Cluster) -> Result<String, Fault> {
    const WHAT: &str = "could not get guestfs image info";
    let request = http::Request::get("/apis/subresources.kubevirt.io/v1/guestfs").body(Vec::new());
    let request = request.map_err(|error| Fault::new(WHAT).because(error))?;
    let hint = "name an image with --image";
    let found: Image = match cluster.client.request(request).await {
        Ok(found) => found,
        Err(error) => return Err(Fault::api(WHAT, &error).hint(hint)),
    };
    let missing = || Fault::new(WHAT).because("the server names neither an image nor its tag or digest").hint(hint);
    found.name().ok_or_else(missing)
}

async fn claim(cluster: &Cluster, name: &str) -> Result<PersistentVolumeClaim, Fault> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = claims.get_opt(name).await;
    let found = found.map_err(|error| Fault::api(format!("cannot read PVC {name}"), &error))?;
    found.ok_or_else(|| Fault::new(format!("The PVC {name} doesn't exist")))
}

/// Nobody else has the claim: two that write one disk destroy it.
async fn free(cluster: &Cluster, claim: &str) -> Result<(), Fault> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let all = pods.list(&ListParams::default()).await;
    let all = all.map_err(|error| Fault::api("cannot list the pods that may use the PVC", &error))?;
    match all.items.iter().find(|pod| pod::uses(pod, claim)) {
        None => Ok(()),
        Some(pod) => Err(Fault::new(format!("PVC {claim} is used by another pod"))
            .because(format!("pod {} has it", pod.name_any()))
            .hint("stop the virtual machine, or end the pod, and try again")),
    }
}

async fn session(pods: &Api<Pod>, name: &str) -> Outcome {
    wait(pods, name).await?;
    let attached = pods.attach(name, &AttachParams::interactive_tty().container(pod::CONTAINER)).await;
    let mut process = attached.map_err(|error| Fault::api(format!("cannot attach to pod {name}"), &error))?;
    let raw =
        Raw::enter(rustix::stdio::stdin()).map_err(|error| Fault::new("cannot prepare the terminal").because(error))?;
    if raw.is_some() {
        eprint!("If you don't see a command prompt, try pressing enter.\r\n");
    }
    let outcome = pump(&mut process).await;
    drop(raw);
    outcome.map_err(|error| Fault::new("the shell's connection broke").because(error))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns once the pod runs.
async fn wait(pods: &Api<Pod>, name: &str) -> Result<(), Fault> {
    let deadline = Instant::now() + PATIENCE;
    let mut told = String::new();
    loop {
        let pod = pods.get(name).await.map_err(|error| Fault::api(format!("cannot read pod {name}"), &error))?;
        match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Running") => return Ok(()),
            Some(phase @ ("Failed" | "Succeeded")) => {
                return Err(Fault::new(format!("Pod is not in running state but got {phase}"))
                    .hint("the image has its shell at /entrypoint.sh"));
            }
            _ => {}
        }
        if let Some((image, why)) = pod::lacks(&pod) {
            return Err(Fault::new(format!("the nodes cannot get image {image}"))
                .because(printable(&why))
                .hint(MISSING));
        }
        if let Some(why) = pod::waits(&pod).filter(|why| *why != told) {
            eprintln!("{}", printable(&why));
            told = why;
        }
        if Instant::now() >= deadline {
            let why = format!("timeout in waiting for the containers to be started in pod {name}");
            return Err(Fault::new(why).because(told));
        }
        sleep(LOOK).await;
    }
}

/// Copies between this terminal and the shell until the shell has ended. What was typed before the end of the input still
/// reaches it.
async fn pump(process: &mut AttachedProcess) -> std::io::Result<()> {
    let (stdin, stdout) = (process.stdin(), process.stdout());
    let mut keys = input::standard()?;
    let _sizes = process.terminal_size().map(|sender| kit::spawn("resize", resize(sender)));
    let typing = async move {
        let Some(mut stdin) = stdin else { return };
        while let Some(bytes) = keys.recv().await {
            if stdin.write_all(&bytes).await.is_err() || stdin.flush().await.is_err() {
                return;
            }
        }
    };
    let showing = async move {
        match stdout {
            Some(stdout) => show(stdout).await,
            None => Ok(()),
        }
    };
    let _typing = kit::spawn("typing", typing);
    showing.await
}

async fn show(mut from: impl AsyncRead + Unpin) -> std::io::Result<()> {
    let mut out = tokio::io::stdout();
    let mut buffer = vec![0; 32 << 10];
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(()),
            length => {
                out.write_all(buffer.get(..length).unwrap_or_default()).await?;
                out.flush().await?;
            }
        }
    }
}

/// Tells the shell how large this terminal is, now and whenever that changes.
async fn resize(mut sender: mpsc::Sender<TerminalSize>) {
    let Ok(mut changes) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change()) else { return };
    loop {
        if let Ok(size) = rustix::termios::tcgetwinsize(rustix::stdio::stdin()) {
            let size = TerminalSize { width: size.ws_col, height: size.ws_row };
            if sender.send(size).await.is_err() {
                return;
            }
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

/// Removes the pod and returns when the claim is free again.
async fn remove(pods: &Api<Pod>, name: &str) -> Result<(), Fault> {
    let cannot = |error: &kube::Error| Fault::api(format!("cannot delete pod {name}"), error);
    match pods.delete(name, &DeleteParams::default().grace_period(0)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(cannot(&error)),
        Ok(_) => {}
    }
    let deadline = Instant::now() + FAREWELL;
    while pods.get_opt(name).await.map_err(|error| cannot(&error))?.is_some() {
        if Instant::now() >= deadline {
            return Err(Fault::new(format!("pod {name} is still there")).hint(format!("kubectl delete pod {name}")));
        }
        sleep(LOOK).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_is_the_servers() {
        let check = |json: &str, expect: Option<&str>| {
            let image: Image = serde_json::from_str(json).unwrap();
            assert_eq!(image.name().as_deref(), expect);
        };
        check(r#"{"gsImage": "my/image:1"}"#, Some("my/image:1"));
        check(r#"{"registry": "r.io/k", "tag": "v1"}"#, Some("r.io/k/libguestfs-tools:v1"));
        check(r#"{"imagePrefix": "p-", "digest": "sha256:0", "tag": "v1"}"#, Some("p-libguestfs-tools@sha256:0"));
        check("{}", None);
    }
}
