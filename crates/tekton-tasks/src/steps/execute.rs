//! execute-in-vm and cleanup-vm: a command in a guest, by SSH, with the connection that a Secret describes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kube::api::DynamicObject;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::Instant;

use super::program;
use crate::cluster::{VM, VMI, what};
use crate::words::{given, truth};
use crate::{Cluster, Error};

/// How long a guest is waited for where nobody says.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// How long a machine is given to stop, or to be deleted.
const END: Duration = Duration::from_secs(5 * 60);
const PORT: u16 = 22;
const LOOK: Duration = Duration::from_secs(2);

/// What is run, and where.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Execute {
    /// The machine
    #[arg(long)]
    vm_name: String,
    /// Its namespace
    #[arg(long, default_value = "")]
    vm_namespace: String,
    /// Directory of the connection's Secret
    #[arg(long, default_value = "/data/connectionsecret")]
    connection: PathBuf,
    /// The command and its first words
    #[arg(long = "command", allow_hyphen_values = true)]
    command: Vec<String>,
    /// Further words
    #[arg(long = "arg", allow_hyphen_values = true)]
    args: Vec<String>,
    /// A script, in place of a command
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    script: String,
}

/// The same, and what becomes of the machine.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Cleanup {
    #[command(flatten)]
    execute: Execute,
    /// Whether to stop the machine
    #[arg(long, default_value = "false")]
    stop: String,
    /// Whether to delete it
    #[arg(long, default_value = "false")]
    delete: String,
    /// How long the command may take, with the guest's start
    #[arg(long, default_value = "")]
    timeout: String,
}

/// What runs in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Job {
    Command(String),
    Script(String),
}

/// Runs the command in the guest, whose machine is started if it does not run; its exit code.
///
/// # Errors
/// When nothing is to be run, the guest does not answer, or the connection cannot be read.
pub async fn execute(cluster: &Cluster, args: &Execute) -> Result<u8, Error> {
    let job = job(args)?.ok_or_else(|| Error::param("script", "one of command and script has to be given"))?;
    run(cluster, args, &job, PATIENCE).await
}

/// Runs the command, if there is one, and then stops or deletes the machine, whatever came of the command.
///
/// # Errors
/// When a param makes no sense, or the machine cannot be stopped or deleted.
pub async fn cleanup(cluster: &Cluster, args: &Cleanup) -> Result<u8, Error> {
    let (stop, delete) = (truth("stop", &args.stop)?, truth("delete", &args.delete)?);
    let patience = match given(&args.timeout) {
        None => PATIENCE,
        Some(text) => kit::duration::parse(text)
            .ok_or_else(|| Error::param("timeout", format!("{text:?} is no duration: write it as 30m")))?,
    };
    let job = job(&args.execute)?;
    if job.is_none() && !stop && !delete {
        return Err(Error::param("stop", "nothing is to be done: give a command, or let stop or delete be true"));
    }
    let done = match &job {
        None => Ok(0),
        Some(job) => match tokio::time::timeout(patience, run(cluster, &args.execute, job, patience)).await {
            Ok(done) => done,
            Err(_) => Err(Error::TooLate { what: "the command had not ended".to_owned(), seconds: patience.as_secs() }),
        },
    };
    let namespace = given(&args.execute.vm_namespace).unwrap_or(&cluster.namespace);
    let name = args.execute.vm_name.as_str();
    if stop {
        end(cluster, namespace, name).await?;
    }
    if delete && !cluster.delete(VM, namespace, name, END).await? && !stop {
        return Err(Error::Failed(format!("there is no {}", what(VM, namespace, name))));
    }
    done
}

/// Stops the machine, and waits until its guest is gone.
async fn end(cluster: &Cluster, namespace: &str, name: &str) -> Result<(), Error> {
    cluster.need(VM, namespace, name).await?;
    if cluster.get(VMI, namespace, name).await?.is_none() {
        return Ok(());
    }
    cluster.power(namespace, name, "stop").await?;
    let late = format!("{} had not stopped", what(VM, namespace, name));
    let gone = |object: Option<&DynamicObject>| object.is_none_or(has_ended);
    cluster.until(VMI, namespace, name, gone, END, late).await.map(drop)
}

fn has_ended(instance: &DynamicObject) -> bool {
    instance.data["status"]["phase"].as_str().is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase))
}

/// What is to be run, with the words of a command as they are.
fn job(args: &Execute) -> Result<Option<Job>, Error> {
    let words: Vec<&str> =
        args.command.iter().chain(&args.args).map(String::as_str).filter(|word| !word.is_empty()).collect();
    let has_command = args.command.iter().any(|word| !word.is_empty());
    match (has_command, given(&args.script)) {
        (true, Some(_)) => Err(Error::param("script", "only one of command and script may be given")),
        (false, None) if !words.is_empty() => Err(Error::param("args", "there is no command that they are for")),
        (false, None) => Ok(None),
        (false, Some(_)) => Ok(Some(Job::Script(args.script.clone()))),
        (true, None) => {
            let line = shlex::try_join(words).map_err(|_| Error::param("command", "a word holds a zero byte"))?;
            Ok(Some(Job::Command(line)))
        }
    }
}

async fn run(cluster: &Cluster, args: &Execute, job: &Job, patience: Duration) -> Result<u8, Error> {
    let namespace = given(&args.vm_namespace).unwrap_or(&cluster.namespace);
    let deadline = Instant::now() + patience;
    let connection = Connection::read(&args.connection)?;
    let address = started(cluster, namespace, &args.vm_name, deadline).await?;
    let dir = tempfile::tempdir().map_err(Error::file("make a directory in", Path::new("/tmp")))?;
    let words = connection.words(dir.path(), &address)?;
    converse(words, job).await
}

/// The address at which the guest's SSH server answers; the machine is started where it does not run.
async fn started(cluster: &Cluster, namespace: &str, name: &str, deadline: Instant) -> Result<String, Error> {
    cluster.need(VM, namespace, name).await?;
    let instance = cluster.get(VMI, namespace, name).await?;
    if instance.is_none_or(|instance| has_ended(&instance)) {
        cluster.power(namespace, name, "start").await?;
    }
    let patience = deadline.saturating_duration_since(Instant::now());
    let has_address = |object: Option<&DynamicObject>| object.is_some_and(|object| address(object).is_some());
    let late = format!("{} had no address", what(VMI, namespace, name));
    let found = cluster.until(VMI, namespace, name, has_address, patience, late).await?;
    let address = found.as_ref().and_then(address).unwrap_or_default();
    loop {
        let dial = TcpStream::connect((address.as_str(), PORT));
        if matches!(tokio::time::timeout(LOOK, dial).await, Ok(Ok(_))) {
            return Ok(address);
        }
        if Instant::now() >= deadline {
            let what = format!("the guest of {} did not answer at {address} port {PORT}", what(VM, namespace, name));
            return Err(Error::TooLate { what, seconds: patience.as_secs() });
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The first address of a running guest.
fn address(instance: &DynamicObject) -> Option<String> {
    let status = &instance.data["status"];
    let running = status["phase"] == "Running";
    let mut addresses =
        status["interfaces"].as_array().into_iter().flatten().filter_map(|one| one["ipAddress"].as_str());
    addresses.find(|address| running && !address.is_empty()).map(str::to_owned)
}

/// What a Secret says of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Connection {
    user: String,
    key: String,
    host_key: Option<String>,
    any_host: bool,
    more: Vec<String>,
}

impl Connection {
    fn read(dir: &Path) -> Result<Self, Error> {
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).ok().map(|text| text.trim_end().to_owned());
        Self::of(text)
    }

    fn of(text: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let wrong = |message: &str| Error::param("secretName", message);
        if let Some(kind) = text("type").filter(|kind| kind != "ssh") {
            return Err(wrong(&format!("the Secret's type is {kind:?}, and not \"ssh\"")));
        }
        let key = text("ssh-privatekey").filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| wrong("there is no Secret with ssh-privatekey"))?;
        let user = text("user").filter(|user| !user.is_empty()).ok_or_else(|| wrong("the Secret has no user"))?;
        let any_host = text("disable-strict-host-key-checking").is_some_and(|said| said == "true");
        let host_key = text("host-public-key").filter(|key| !key.is_empty());
        if host_key.is_none() && !any_host {
            return Err(wrong("the Secret has neither host-public-key nor disable-strict-host-key-checking: true"));
        }
        let more = shlex::split(&text("additional-ssh-options").unwrap_or_default())
            .ok_or_else(|| wrong("a quotation mark of additional-ssh-options is not closed"))?;
        Ok(Self { user, key, host_key, any_host, more })
    }

    /// The words of `ssh`, with its files in `dir`.
    fn words(&self, dir: &Path, address: &str) -> Result<Vec<String>, Error> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let (key, known) = (dir.join("key"), dir.join("known_hosts"));
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key);
        let written = file.as_mut().map_err(|error| std::io::Error::from(error.kind()));
        let written = written.and_then(|file| std::io::Write::write_all(file, format!("{}\n", self.key).as_bytes()));
        written.map_err(Error::file("write", &key))?;
        let hosts = self.host_key.as_ref().map_or_else(String::new, |key| format!("{address} {key}\n"));
        std::fs::write(&known, hosts).map_err(Error::file("write", &known))?;
        let strict = if self.any_host { "no" } else { "yes" };
        let mut words: Vec<String> = ["-F", "none", "-T", "-i"].map(str::to_owned).to_vec();
        words.push(key.to_string_lossy().into_owned());
        for option in [
            "BatchMode=yes".to_owned(),
            "IdentitiesOnly=yes".to_owned(),
            "ServerAliveInterval=15".to_owned(),
            format!("StrictHostKeyChecking={strict}"),
            format!("UserKnownHostsFile={}", known.display()),
        ] {
            words.extend(["-o".to_owned(), option]);
        }
        words.extend(self.more.iter().cloned());
        words.extend(["-l".to_owned(), self.user.clone(), "--".to_owned(), address.to_owned()]);
        Ok(words)
    }
}

/// A script is a file of the guest for as long as it runs, so that its first line names who reads it.
const SCRIPT: &str = "f=$(mktemp) && cat > \"$f\" && chmod 700 \"$f\" && \"$f\"; code=$?; rm -f \"$f\"; exit $code";

async fn converse(mut words: Vec<String>, job: &Job) -> Result<u8, Error> {
    let (line, input) = match job {
        Job::Command(line) => (line.clone(), None),
        Job::Script(text) => (SCRIPT.to_owned(), Some(text.clone())),
    };
    words.push(line);
    let failed = |error: std::io::Error| Error::Program { program: "ssh".to_owned(), message: error.to_string() };
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
    let mut child = Command::new("ssh").args(words).stdin(stdin).kill_on_drop(true).spawn().map_err(failed)?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        // Who does not read it says why by his exit code.
        let _ = stdin.write_all(text.as_bytes()).await;
    }
    child.wait().await.map(program::code).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn words_of_a_command_reach_the_guest_as_they_are() {
        let of = |command: &[&str], args: &[&str], script: &str| {
            let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            job(&Execute { command: all(command), args: all(args), script: script.to_owned(), ..Execute::default() })
        };
        let line = |command: &[&str], args: &[&str]| of(command, args, "").unwrap().unwrap();
        assert_eq!(line(&["echo"], &["a b", "$x"]), Job::Command("echo 'a b' '$x'".to_owned()));
        assert_eq!(line(&["sh", "-c", "exit 3"], &[]), Job::Command("sh -c 'exit 3'".to_owned()));
        assert_eq!(of(&[], &[], "#!/bin/sh\nexit 3").unwrap(), Some(Job::Script("#!/bin/sh\nexit 3".to_owned())));
        assert_eq!(of(&[], &[], "").unwrap(), None);
        assert!(of(&["a"], &[], "b").is_err() && of(&[], &["a"], "").is_err());
    }

    #[track_caller]
    fn check(secret: &[(&str, &str)], expect: Result<&str, &str>) {
        let all: BTreeMap<&str, &str> = secret.iter().copied().collect();
        let found = Connection::of(|name| all.get(name).map(|text| (*text).to_owned()));
        match (found, expect) {
            (Ok(connection), Ok(expect)) => {
                let dir = tempfile::tempdir().unwrap();
                let words = connection.words(dir.path(), "10.0.0.1").unwrap().join(" ");
                assert!(words.contains(expect) && words.ends_with("-l me -- 10.0.0.1"), "{words}");
            }
            (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{error}"),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn a_connection_is_as_its_secret_says() {
        let (user, key) = (("user", "me"), ("ssh-privatekey", "k"));
        check(&[user, key, ("host-public-key", "ssh-ed25519 AAAA")], Ok("StrictHostKeyChecking=yes"));
        check(&[user, key, ("disable-strict-host-key-checking", "true")], Ok("StrictHostKeyChecking=no"));
        let more = ("additional-ssh-options", "-p 2222 -C");
        check(&[user, key, ("disable-strict-host-key-checking", "true"), more], Ok("-p 2222 -C"));
        check(&[user, key], Err("neither host-public-key"));
        check(&[user], Err("ssh-privatekey"));
        check(&[key, ("disable-strict-host-key-checking", "true")], Err("no user"));
        check(&[user, key, ("type", "winrm")], Err("winrm"));
    }
}
