//! What users have going on, each in a thread of its own, again and again, while something is done to the product.

use std::io::Write as _;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::machine::{self, holds, phase};
use e2e::screen::Screen;
use e2e::servers::web::Web;
use e2e::wait::{SOON, throughout, until};
use e2e::{Console, Namespace, product};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::data_volume::{succeeded, volume};
use crate::export_links;
use crate::mover::Policy;

/// One that moves between the nodes.
pub(crate) const MOVES: &str = "moves";
/// One that is looked at and typed to.
pub(crate) const STAYS: &str = "stays";
const SIZE: usize = 8 << 20;
const PAUSE: Duration = Duration::from_secs(1);
/// In which a shell answers, or what was typed did not come to it.
const ANSWER: Duration = Duration::from_secs(5);
/// The slowest download lasts for twelve minutes.
const RATE: &str = "11k";

/// Two machines that run.
pub(crate) fn machines(space: &Namespace) -> Result<()> {
    for name in [MOVES, STAYS] {
        space.apply(&machine::on_kernel(name, "Always"))?;
    }
    let ready = |vmi: &Value| phase(vmi) == "Running" && holds(vmi, "AgentConnected") && holds(vmi, "LiveMigratable");
    for name in [MOVES, STAYS] {
        space.wait("vmi", name, "ran with its agent", ready)?;
    }
    Ok(())
}

/// What is there before anything is done.
pub(crate) struct Prepared<'a> {
    space: &'a Namespace,
    directory: TempDir,
    disk: Vec<u8>,
    web: Web,
    _slow: Policy,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(space: &'a Namespace) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let disk: Vec<u8> = (0..SIZE).map(|at| (at / 7 % 251) as u8).collect();
        std::fs::write(directory.path().join("disk.img"), &disk)?;
        let web = Web::start()?;
        web.put("disk.img", &disk)?;
        let limits = json!({ "bandwidthPerMigration": "4Mi", "completionTimeoutPerGiB": 3000 });
        let slow = Policy::new(space, &limits)?;
        let prepared = Self { space, directory, disk, web, _slow: slow };
        space.apply(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "authorities" },
            "data": { "web.pem": prepared.web.certificate } }))?;
        prepared.upload("exported", &[])?;
        space.apply(&json!({
            "apiVersion": "export.kubevirt.io/v1", "kind": "VirtualMachineExport", "metadata": { "name": "out" },
            "spec": { "source": { "apiGroup": "", "kind": "PersistentVolumeClaim", "name": "exported" }, "ttlDuration": "2h" },
        }))?;
        // Nobody uploads into this one until everything is over.
        space.apply(&volume("late", "8Mi", &json!({ "upload": {} })))?;
        space.wait("datavolume", "late", "waited for its upload", |found| phase(found) == "UploadReady")?;
        export_links::client(space)?;
        space.wait("pod", "client", "ran", |pod| phase(pod) == "Running")?;
        space.wait("vmexport", "out", "was served", |found| found["status"]["phase"] == "Ready")?;
        Ok(prepared)
    }

    /// Does something while all of `streams` go on; none of them may fail. What is done can ask whether one of them has.
    pub(crate) fn during<T, const N: usize>(
        &self,
        streams: [Stream; N],
        what: impl FnOnce(&dyn Fn() -> bool) -> Result<T>,
    ) -> Result<T> {
        let over = &AtomicBool::new(false);
        let begin = Instant::now();
        let (done, rounds) = thread::scope(|scope| {
            let running = streams.map(|stream| (stream, scope.spawn(move || stream.keep_going(self, over))));
            let done = what(&|| running.iter().any(|(_, stream)| stream.is_finished()));
            over.store(true, Ordering::Relaxed);
            let ended = running.map(|(stream, running)| {
                let ended = running.join().unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")));
                (stream, ended)
            });
            (done, ended)
        });
        let took = begin.elapsed().as_secs();
        let mut broken = Vec::new();
        for (stream, ended) in rounds {
            match ended {
                Ok(rounds) if rounds >= stream.least() => {}
                Ok(rounds) => broken.push(format!("{stream:?} went on only {rounds} times within {took} s")),
                Err(error) => broken.push(format!("{stream:?} broke: {error:#}")),
            }
        }
        let broken = broken.join("\n");
        match done {
            Ok(done) if broken.is_empty() => Ok(done),
            Ok(_) => bail!("{broken}"),
            Err(error) => Err(error.context(broken)),
        }
    }

    /// Uploads the disk into a new DataVolume.
    fn upload(&self, name: &str, more: &[&str]) -> Result<()> {
        let path = format!("--image-path={}", self.directory.path().join("disk.img").display());
        let words = ["image-upload", "dv", name, "--size=8Mi", path.as_str(), "--force-bind", "--insecure"];
        self.space.virtctl(&[&words[..], more].concat())?;
        succeeded(self.space, name).map(drop)
    }

    /// The upload server that waited all the time takes its upload.
    pub(crate) fn waited(&self) -> Result<()> {
        let found = self.space.get("datavolume", "late")?;
        ensure!(phase(&found) == "UploadReady", "{}", found["status"]);
        self.upload("late", &["--no-create"]).context("the upload that was waited for")
    }

    fn forget(&self, volume: &str) -> Result<()> {
        self.space.kubectl(&["delete", "datavolume", volume, "--timeout=60s"]).map(drop)
    }
}

/// Something that goes on over TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    Migrations,
    Uploads,
    Imports,
    Exports,
    /// One that lasts as long as everything else.
    Download,
    Screen,
    Console,
    /// The screen, by another connection whenever one has ended with who carried it.
    Screens,
    /// The console, which connects again by itself.
    Shell,
    Requests,
}

impl Stream {
    /// So often it goes on at least.
    pub(crate) fn least(self) -> usize {
        match self {
            Self::Download => 1,
            Self::Migrations | Self::Uploads | Self::Imports => 5,
            Self::Exports => 10,
            Self::Screens | Self::Shell | Self::Requests => 20,
            Self::Screen | Self::Console => 50,
        }
    }

    /// Goes on until everything is over; says how often.
    pub(crate) fn keep_going(self, prepared: &Prepared<'_>, over: &AtomicBool) -> Result<usize> {
        match self {
            Self::Migrations => again(over, |round| migrate(prepared, round)),
            Self::Uploads => again(over, |round| {
                let name = format!("up-{round}");
                prepared.upload(&name, &[])?;
                prepared.forget(&name)
            }),
            Self::Imports => again(over, |round| import(prepared, round)),
            Self::Exports => again(over, |round| export(prepared, round)),
            Self::Download => download(prepared, over),
            Self::Screen => {
                let screen = Screen::open(prepared.space, STAYS)?;
                let mut viewer = screen.viewer()?;
                again(over, |_| viewer.look())
            }
            Self::Console => {
                let mut console = Console::open(prepared.space, STAYS)?;
                console.log_in("root", "guest")?;
                again(over, |round| {
                    let (said, _) = console.run(&format!("echo round {round}"))?;
                    ensure!(said == format!("round {round}"), "{said:?}");
                    Ok(())
                })
            }
            Self::Screens => screens(prepared, over),
            Self::Shell => {
                let mut console = Console::open(prepared.space, STAYS)?;
                console.log_in("root", "guest")?;
                again(over, |round| {
                    let (typed, shown) = (format!("\recho 'ro''und'{round}.\r"), format!("round{round}."));
                    // What is typed while nobody carries it is lost, as on any line.
                    until("the shell to answer", 2 * SOON, || {
                        console.type_in(&typed)?;
                        console.expect(&[&shown], ANSWER).map(Some)
                    })
                    .map(drop)
                })
            }
            Self::Requests => again(over, |round| ask(prepared, round)),
        }
    }
}

fn again(over: &AtomicBool, mut turn: impl FnMut(usize) -> Result<()>) -> Result<usize> {
    let mut rounds = 0;
    while !over.load(Ordering::Relaxed) {
        turn(rounds).with_context(|| format!("after {rounds} times"))?;
        rounds += 1;
        // Not all of the machine's time.
        throughout(PAUSE, || Ok(()))?;
    }
    Ok(rounds)
}

fn screens(prepared: &Prepared<'_>, over: &AtomicBool) -> Result<usize> {
    let screen = Screen::open(prepared.space, STAYS)?;
    let mut viewer = screen.viewer()?;
    again(over, |_| {
        if viewer.look().is_err() {
            viewer = until("the screen to be back", SOON, || screen.viewer().map(Some))?;
            viewer.look()?;
        }
        Ok(())
    })
}

fn migrate(prepared: &Prepared<'_>, round: usize) -> Result<()> {
    let name = format!("away-{round}");
    prepared.space.apply(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration", "metadata": { "name": name },
        "spec": { "vmiName": MOVES },
    }))?;
    let ended = |found: &Value| matches!(phase(found), "Succeeded" | "Failed");
    let found = prepared.space.wait("vmim", &name, "ended", ended)?;
    ensure!(phase(&found) == "Succeeded", "{}", found["status"]);
    Ok(())
}

fn import(prepared: &Prepared<'_>, round: usize) -> Result<()> {
    let name = format!("in-{round}");
    let source = json!({ "http": { "url": prepared.web.secure_url("slow/disk.img"), "certConfigMap": "authorities" } });
    prepared.space.apply(&volume(&name, "8Mi", &source))?;
    succeeded(prepared.space, &name)?;
    prepared.forget(&name)
}

/// By the API server and the proxy, and through a forwarded port.
fn export(prepared: &Prepared<'_>, round: usize) -> Result<()> {
    let path = prepared.directory.path().join("download");
    let output = format!("--output={}", path.display());
    let mut words = vec!["vmexport", "download", "out", "--format=raw", "--keep-vme", output.as_str()];
    words.extend((round % 2 == 1).then_some("--port-forward"));
    prepared.space.virtctl(&words)?;
    let found = std::fs::read(&path).context("nothing was downloaded")?;
    ensure!(found.starts_with(&prepared.disk), "{} bytes, and not those of the disk", found.len());
    Ok(())
}

/// A curl that is in no hurry.
struct Slow(Child);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One download that lasts; it is not waited for when everything is over before.
fn download(prepared: &Prepared<'_>, over: &AtomicBool) -> Result<usize> {
    let space = prepared.space;
    let export = space.get("vmexport", "out")?;
    let link = &export["status"]["links"]["internal"];
    let formats = link["volumes"][0]["formats"].as_array().cloned().unwrap_or_default();
    let url =
        formats.iter().find(|one| one["format"] == "raw").and_then(|one| one["url"].as_str()).context("no link")?;
    let token =
        space.kubectl(&["get", "secret", "export-token-out", "-o", "go-template={{.data.token|base64decode}}"])?;
    let script = format!(
        "cat > /tmp/ca && curl --silent --show-error --fail --cacert /tmp/ca --limit-rate {RATE} \
         --header x-kubevirt-export-token:{} {url} | busybox wc -c",
        token.trim()
    );
    let mut command = space.command("kubectl");
    command.args(["exec", "-i", "client", "--", "busybox", "sh", "-c", &script]);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut slow = Slow(piped.spawn().context("cannot run kubectl")?);
    let mut stdin = slow.0.stdin.take().context("no input")?;
    stdin.write_all(link["cert"].as_str().unwrap_or_default().as_bytes()).context("cannot hand over the authority")?;
    drop(stdin);
    while !over.load(Ordering::Relaxed) {
        if let Some(status) = slow.0.try_wait().context("cannot wait")? {
            let (mut said, mut complaint) = (String::new(), String::new());
            if let (Some(mut out), Some(mut error)) = (slow.0.stdout.take(), slow.0.stderr.take()) {
                std::io::Read::read_to_string(&mut out, &mut said)?;
                std::io::Read::read_to_string(&mut error, &mut complaint)?;
            }
            let size: usize = said.trim().parse().unwrap_or_default();
            ensure!(status.success() && size >= SIZE, "{status}: {said:?} bytes of {SIZE}: {complaint}");
            return hold(over);
        }
        throughout(PAUSE, || Ok(()))?;
    }
    Ok(1)
}

/// Nothing more to do until everything is over.
fn hold(over: &AtomicBool) -> Result<usize> {
    again(over, |_| Ok(())).map(|_| 1)
}

/// Whatever webhooks and extension API servers of the product are asked for.
fn ask(prepared: &Prepared<'_>, round: usize) -> Result<()> {
    let space = prepared.space;
    let mut vm = machine::on_kernel("asked", "Halted");
    vm["metadata"]["labels"] = json!({ "vm.kubevirt.io/template": "none" });
    let mut template = vm.clone();
    template["metadata"]["namespace"] = json!("elsewhere");
    let objects = [
        vm,
        volume("asked", "8Mi", &json!({ "blank": {} })),
        json!({ "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate", "metadata": { "name": "asked" },
            "spec": { "virtualMachine": template } }),
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "asked", "labels": { "kubevirt.io": "virt-launcher" }, "annotations": { "k8s.v1.cni.cncf.io/networks": "" } },
            "spec": { "containers": [{ "name": "main", "image": "ferrovirt.local/component:v0.1.0" }] } }),
    ];
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let words = ["create", "--dry-run=server", "-f", "-"];
    let answered = space.feed(&words, list.to_string().as_bytes())?;
    let complaint = String::from_utf8_lossy(&answered.stderr).into_owned();
    ensure!(answered.status.success(), "{complaint}");
    match round % 3 {
        0 => {
            let labels = json!({ "metadata": { "labels": { "asked": round.to_string() } } }).to_string();
            let words = [
                "patch",
                "hyperconverged",
                "kubevirt-hyperconverged",
                "--type=merge",
                "--dry-run=server",
                "-p",
                &labels,
            ];
            product::kubectl(&words)?;
        }
        1 => drop(space.virtctl(&["guestosinfo", STAYS])?),
        _ => {
            for group in ["subresources.kubevirt.io/v1", "upload.cdi.kubevirt.io/v1beta1"] {
                space.kubectl(&["get", "--raw", &format!("/apis/{group}")])?;
            }
        }
    }
    let events = space.events("VirtualMachineInstance", STAYS)?;
    if let Some((reason, message)) =
        events.iter().find(|(_, message)| message.contains("x509") || message.contains("tls:"))
    {
        bail!("{reason}: {message}");
    }
    Ok(())
}
