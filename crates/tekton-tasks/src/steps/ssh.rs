//! A conversation with a guest by SSH, with the connection that a Secret describes.

use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::program;
use super::ssh_options::{PORT, Route};
use crate::Error;

/// What runs in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Command(String),
    Script(String),
}

/// What a Secret says of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Connection {
    user: String,
    key: String,
    /// Keys of the guest, one a line.
    host_keys: Option<String>,
    any_host: bool,
    /// Further options, and what they say of where the guest is dialled.
    more: Vec<String>,
    pub(super) route: Route,
}

impl Connection {
    /// Of the Secret that is mounted at `dir`.
    ///
    /// # Errors
    /// When there is none, or it describes no connection.
    pub(super) fn read(dir: &Path) -> Result<Self, Error> {
        let text = |name: &str| {
            let path = dir.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => Ok(Some(text.trim_end().to_owned())),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(Error::file("read", &path)(error)),
            }
        };
        Self::of(text)
    }

    fn of(text: impl Fn(&str) -> Result<Option<String>, Error>) -> Result<Self, Error> {
        let wrong = |message: &str| Error::param("secretName", message);
        if let Some(kind) = text("type")?.filter(|kind| kind != "ssh") {
            return Err(wrong(&format!("the Secret's type is {kind:?}, and not \"ssh\"")));
        }
        let key = text("ssh-privatekey")?.filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| wrong("there is no Secret with ssh-privatekey"))?;
        let user = text("user")?.filter(|user| !user.is_empty()).ok_or_else(|| wrong("the Secret has no user"))?;
        let any_host = text("disable-strict-host-key-checking")?.is_some_and(|said| said == "true");
        let host_keys = text("host-public-key")?.filter(|key| !key.is_empty());
        if host_keys.is_none() && !any_host {
            return Err(wrong("the Secret has neither host-public-key nor disable-strict-host-key-checking: true"));
        }
        let more = shlex::split(&text("additional-ssh-options")?.unwrap_or_default())
            .ok_or_else(|| wrong("a quotation mark of additional-ssh-options is not closed"))?;
        let route = Route::of(&more).map_err(|why| wrong(&format!("additional-ssh-options: {why}")))?;
        Ok(Self { user, key, host_keys, any_host, more, route })
    }

    /// A line for each key of the guest, under the name that `ssh` looks for.
    fn known_hosts(&self, address: &str) -> String {
        let host = match self.route.port {
            PORT => address.to_owned(),
            port => format!("[{address}]:{port}"),
        };
        let keys = self.host_keys.as_deref().unwrap_or_default().lines().filter(|key| !key.trim().is_empty());
        keys.map(|key| format!("{host} {}\n", key.trim())).collect()
    }

    /// The words of `ssh`, with its files in `dir`.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub(super) fn words(&self, dir: &Path, address: &str) -> Result<Vec<String>, Error> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let (key, known) = (dir.join("key"), dir.join("known_hosts"));
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key);
        let written = file.as_mut().map_err(|error| std::io::Error::from(error.kind()));
        let written = written.and_then(|file| std::io::Write::write_all(file, format!("{}\n", self.key).as_bytes()));
        written.map_err(Error::file("write", &key))?;
        let hosts = self.known_hosts(address);
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

/// Runs the job in the guest; its exit code. How long it may take is the business of the TaskRun, which has a timeout, or of who
/// gives this one; a guest that falls silent ends it.
///
/// # Errors
/// When `ssh` cannot be run.
pub(super) async fn converse(mut words: Vec<String>, job: &Job) -> Result<u8, Error> {
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

    #[track_caller]
    fn check(secret: &[(&str, &str)], expect: Result<&str, &str>) {
        let all: BTreeMap<&str, &str> = secret.iter().copied().collect();
        let found = Connection::of(|name| Ok(all.get(name).map(|text| (*text).to_owned())));
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
        let host = ("additional-ssh-options", "-C elsewhere");
        check(&[user, key, ("disable-strict-host-key-checking", "true"), host], Err("\"elsewhere\" is no option"));
        check(&[user], Err("ssh-privatekey"));
        check(&[key, ("disable-strict-host-key-checking", "true")], Err("no user"));
        check(&[user, key, ("type", "winrm")], Err("winrm"));
    }

    #[test]
    fn a_guest_is_known_by_its_keys_at_the_port_that_is_dialled() {
        let of = |more: &str, address: &str| {
            let all = [("user", "me"), ("ssh-privatekey", "k"), ("host-public-key", "ssh-ed25519 A\nssh-rsa B\n")];
            let text = |name: &str| all.iter().find(|(key, _)| *key == name).map(|(_, text)| (*text).to_owned());
            let text = |name: &str| if name == "additional-ssh-options" { Some(more.to_owned()) } else { text(name) };
            Connection::of(|name| Ok(text(name))).unwrap().known_hosts(address)
        };
        assert_eq!(of("", "10.0.0.1"), "10.0.0.1 ssh-ed25519 A\n10.0.0.1 ssh-rsa B\n");
        assert_eq!(of("-p 2222", "10.0.0.1"), "[10.0.0.1]:2222 ssh-ed25519 A\n[10.0.0.1]:2222 ssh-rsa B\n");
        assert_eq!(of("-o Port=22", "fd00::1"), "fd00::1 ssh-ed25519 A\nfd00::1 ssh-rsa B\n");
    }
}
