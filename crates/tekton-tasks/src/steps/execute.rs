//! execute-in-vm and cleanup-vm: a command in a guest that runs, and what becomes of the machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::api::DynamicObject;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::power;
use super::ssh::{self, Connection, Job};
use super::ssh_options::Route;
use crate::cluster::{VM, VMI, what};
use crate::words::{given, truth};
use crate::{Cluster, Error};

/// How long a guest is waited for where nobody says.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// How long an attempt to dial may take, and how long it is until the next.
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

/// Runs the command in the guest, whose machine is started if it does not run; its exit code.
///
/// # Errors
/// When nothing is to be run, the guest does not answer, or the connection cannot be read.
pub async fn execute(cluster: &Cluster, args: &Execute) -> Result<u8, Error> {
    let job = job(args)?.ok_or_else(|| Error::param("script", "one of command and script has to be given"))?;
    let way = reach(cluster, args, PATIENCE).await?;
    ssh::converse(way.words, &job).await
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
        Some(job) => run(cluster, &args.execute, job, patience).await,
    };
    let namespace = given(&args.execute.vm_namespace).unwrap_or(&cluster.namespace);
    let name = args.execute.vm_name.as_str();
    // A machine that does not stop is deleted all the same, and a failure hides no other.
    let stopped = if stop { power::stop(cluster, namespace, name).await } else { Ok(()) };
    let deleted = match delete {
        true => cluster.delete(VM, namespace, name, power::END).await,
        false => Ok(true),
    };
    let deleted = match deleted {
        Ok(false) if !stop => Err(Error::Failed(format!("there is no {}", what(VM, namespace, name)))),
        deleted => deleted.map(drop),
    };
    together(done, [stopped, deleted])
}

/// What came of the command and of what followed: the command's code stays the step's, and every failure is told.
fn together(done: Result<u8, Error>, after: [Result<(), Error>; 2]) -> Result<u8, Error> {
    let mut failures: Vec<Error> = after.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() {
        return done;
    }
    let (code, mut told) = match done {
        Ok(0) => (1, Vec::new()),
        Ok(code) => (code, vec![format!("the command ended with {code}")]),
        Err(error) => {
            failures.insert(0, error);
            (1, Vec::new())
        }
    };
    if told.is_empty() && failures.len() == 1 {
        return Err(failures.remove(0));
    }
    told.extend(failures.iter().map(|error| kit::Chain(error).to_string()));
    Err(Error::Together { told: told.join("; "), code })
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

/// Runs the job, which has what the guest's start leaves of `patience`.
async fn run(cluster: &Cluster, args: &Execute, job: &Job, patience: Duration) -> Result<u8, Error> {
    let deadline = Instant::now() + patience;
    let way = reach(cluster, args, patience).await?;
    match tokio::time::timeout_at(deadline, ssh::converse(way.words, job)).await {
        Ok(done) => done,
        Err(_) => Err(Error::late("the command had not ended".to_owned(), patience)),
    }
}

/// The words of `ssh` to a guest that answers, and the directory of their files.
struct Way {
    words: Vec<String>,
    _files: TempDir,
}

/// Has the machine run, and waits until its guest answers.
async fn reach(cluster: &Cluster, args: &Execute, patience: Duration) -> Result<Way, Error> {
    let namespace = given(&args.vm_namespace).unwrap_or(&cluster.namespace);
    let deadline = Instant::now() + patience;
    let connection = Connection::read(&args.connection)?;
    power::start(cluster, namespace, &args.vm_name, patience).await?;
    let address = answering(cluster, namespace, &args.vm_name, &connection.route, deadline).await?;
    let files = tempfile::tempdir().map_err(Error::file("make a directory in", Path::new("/tmp")))?;
    let words = connection.words(files.path(), &address)?;
    Ok(Way { words, _files: files })
}

/// The address at which the guest's SSH server answers.
async fn answering(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    route: &Route,
    deadline: Instant,
) -> Result<String, Error> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let patience = left();
    let has_address = |object: Option<&DynamicObject>| object.is_some_and(|object| address(object).is_some());
    loop {
        let late = format!("{} had no address", what(VMI, namespace, name));
        // A guest that was started anew meanwhile may have another.
        let found = cluster.until(VMI, namespace, name, has_address, left(), late).await?;
        let address = found.as_ref().and_then(address).unwrap_or_default();
        if !route.is_direct {
            return Ok(address);
        }
        let dial = TcpStream::connect((address.as_str(), route.port));
        if matches!(tokio::time::timeout(LOOK, dial).await, Ok(Ok(_))) {
            return Ok(address);
        }
        if left() <= LOOK {
            let guest = what(VM, namespace, name);
            let what = format!("the guest of {guest} did not answer at {address} port {}", route.port);
            return Err(Error::late(what, patience));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The first address of a running guest.
fn address(instance: &DynamicObject) -> Option<String> {
    let status = &instance.data["status"];
    let running = status["phase"] == "Running" && instance.metadata.deletion_timestamp.is_none();
    let mut addresses =
        status["interfaces"].as_array().into_iter().flatten().filter_map(|one| one["ipAddress"].as_str());
    addresses.find(|address| running && !address.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
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
    fn check(
        done: Result<u8, Error>,
        stopped: Result<(), Error>,
        deleted: Result<(), Error>,
        expect: Result<u8, (u8, &str)>,
    ) {
        match (together(done, [stopped, deleted]), expect) {
            (Ok(code), Ok(expect)) => assert_eq!(code, expect),
            (Err(error), Err(expect)) => assert_eq!((error.code(), error.to_string().as_str()), expect),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn no_failure_hides_another_and_the_code_is_the_commands() {
        let failed = |text: &str| Error::Failed(text.to_owned());
        check(Ok(4), Ok(()), Ok(()), Ok(4));
        check(Ok(4), Err(failed("a")), Ok(()), Err((4, "the command ended with 4; a")));
        check(Ok(0), Err(failed("a")), Ok(()), Err((1, "a")));
        check(Ok(0), Err(failed("a")), Err(failed("b")), Err((1, "a; b")));
        check(Err(failed("c")), Err(failed("a")), Err(failed("b")), Err((1, "c; a; b")));
        check(Err(failed("c")), Ok(()), Ok(()), Err((1, "c")));
    }
}
