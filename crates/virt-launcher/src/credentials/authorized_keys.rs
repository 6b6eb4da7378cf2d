//! The file with a user's keys, written where the guest's agent does not know what keys are: by its commands for files, and by
//! programs that every Unix has. No shell is involved, and each argument is one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::wanted::file;
use crate::exec::{self, Agent};

/// Seconds for a program of the guest.
const PROGRAM: u64 = 10;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// Bytes of the longest path of a home.
const LONGEST_HOME: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the guest agent: {0}")]
    Agent(#[source] exec::Error),
    #[error("the guest does not know this user")]
    NoUser,
    #[error("what the guest says of this user is not an account with a home")]
    Account,
    #[error("{program} ended with exit code {code}")]
    Program { program: &'static str, code: i32 },
    #[error("the guest wrote only a part of the file")]
    Short,
}

/// An account as the guest has it.
#[derive(Debug, PartialEq, Eq)]
struct Account {
    owner: String,
    home: String,
}

/// Reads a line of the guest's passwd. Its numbers and its path become arguments.
fn account(line: &str) -> Option<Account> {
    let fields: Vec<&str> = line.lines().next()?.split(':').collect();
    let [_, _, uid, gid, _, home, ..] = fields.as_slice() else { return None };
    let number = |text: &str| text.parse::<u32>().ok();
    let fits = home.starts_with('/') && home.len() <= LONGEST_HOME && !home.contains(char::is_control);
    fits.then_some(())?;
    Some(Account { owner: format!("{}:{}", number(uid)?, number(gid)?), home: home.trim_end_matches('/').to_owned() })
}

/// Has the file hold these keys and nothing else. A file that does already is left as it is.
pub(super) async fn write(agent: &impl Agent, user: &str, keys: &[String]) -> Result<(), Error> {
    let asked = ["passwd".to_owned(), user.to_owned()];
    let found = exec::run(agent, "getent", &asked, PROGRAM).await.map_err(Error::Agent)?;
    match found.exit_code {
        0 => {}
        2 => return Err(Error::NoUser),
        code => return Err(Error::Program { program: "getent", code }),
    }
    let Account { owner, home } = account(&found.output).ok_or(Error::Account)?;
    let (directory, path) = (format!("{home}/.ssh"), format!("{home}/.ssh/authorized_keys"));
    let content = file(keys);
    let held = read(agent, &path, content.len()).await?;
    if held.as_deref().unwrap_or_default() == content.as_bytes() {
        return Ok(());
    }
    program(agent, "mkdir", &["-p", "--", &directory]).await?;
    own(agent, &directory, &owner, "700").await?;
    if held.is_some() {
        own(agent, &path, &owner, "600").await?;
    }
    let handle = open(agent, &path, "w").await?;
    let written = put(agent, &handle, content.as_bytes()).await;
    close(agent, &handle).await.and(written)?;
    own(agent, &path, &owner, "600").await
}

async fn own(agent: &impl Agent, path: &str, owner: &str, mode: &str) -> Result<(), Error> {
    program(agent, "chown", &["--", owner, path]).await?;
    program(agent, "chmod", &[mode, "--", path]).await
}

async fn program(agent: &impl Agent, program: &'static str, args: &[&str]) -> Result<(), Error> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    match exec::run(agent, program, &args, PROGRAM).await.map_err(Error::Agent)?.exit_code {
        0 => Ok(()),
        code => Err(Error::Program { program, code }),
    }
}

async fn ask(agent: &impl Agent, command: &str, arguments: Value) -> Result<Value, Error> {
    agent.ask(json!({ "execute": command, "arguments": arguments })).await.map_err(Error::Agent)
}

async fn open(agent: &impl Agent, path: &str, mode: &str) -> Result<Value, Error> {
    let handle = ask(agent, "guest-file-open", json!({ "path": path, "mode": mode })).await?;
    if handle.is_i64() { Ok(handle) } else { Err(Error::Agent(exec::Error::Answer)) }
}

async fn close(agent: &impl Agent, handle: &Value) -> Result<(), Error> {
    ask(agent, "guest-file-close", json!({ "handle": handle })).await.map(drop)
}

async fn put(agent: &impl Agent, handle: &Value, content: &[u8]) -> Result<(), Error> {
    if content.is_empty() {
        return Ok(());
    }
    let arguments = json!({ "handle": handle, "buf-b64": STANDARD.encode(content) });
    let answer = ask(agent, "guest-file-write", arguments).await?;
    if answer["count"].as_u64() == u64::try_from(content.len()).ok() { Ok(()) } else { Err(Error::Short) }
}

/// What the file holds, which is read no further than it takes to see that it is longer than `length`. None without a file.
async fn read(agent: &impl Agent, path: &str, length: usize) -> Result<Option<Vec<u8>>, Error> {
    let handle = match open(agent, path, "r").await {
        Ok(handle) => handle,
        Err(Error::Agent(exec::Error::Agent(error)))
            if error.refused_by_agent().is_some_and(|why| why.contains("No such file or directory")) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let content = pull(agent, &handle, length).await;
    close(agent, &handle).await?;
    content.map(Some)
}

async fn pull(agent: &impl Agent, handle: &Value, length: usize) -> Result<Vec<u8>, Error> {
    let mut content = Vec::new();
    while content.len() <= length {
        let answer = ask(agent, "guest-file-read", json!({ "handle": handle, "count": CHUNK })).await?;
        let encoded = answer["buf-b64"].as_str().unwrap_or_default();
        let chunk = STANDARD.decode(encoded).map_err(|_| Error::Agent(exec::Error::Answer))?;
        if chunk.is_empty() {
            break;
        }
        content.extend(chunk);
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_read_and_what_is_none_is_refused() {
        let own = |owner: &str, home: &str| Some(Account { owner: owner.to_owned(), home: home.to_owned() });
        let check = |line: &str, expect: Option<Account>| assert_eq!(account(line), expect, "{line}");
        check("eve:x:1000:100:Eve:/home/eve:/bin/sh\n", own("1000:100", "/home/eve"));
        check("root:x:0:0::/:/bin/sh", own("0:0", ""));
        check("eve:x:1000:100:Eve:/home/eve/:/bin/sh\nroot:x:0:0::/root:", own("1000:100", "/home/eve"));
        for bad in [
            "",
            "eve",
            "eve:x:-1:0::/home/eve:",
            "eve:x:1000:--reference=/etc/shadow::/home/eve:",
            "eve:x:1000:100::home/eve:",
            "eve:x:1000:100::-rf:",
            "eve:x:1000:100::/home/\u{7}:",
        ] {
            check(bad, None);
        }
        check(&format!("eve:x:1000:100::/{}:", "x".repeat(5000)), None);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_a_guest_says_of_a_user_becomes_arguments_that_are_no_options(line in "(?s).{0,200}") {
            if let Some(Account { owner, home }) = account(&line) {
                prop_assert!(owner.split(':').all(|part| part.parse::<u32>().is_ok()));
                prop_assert!(home.is_empty() || home.starts_with('/'));
                prop_assert!(!home.contains(char::is_control));
            }
        }
    }
}
