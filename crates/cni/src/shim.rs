//! `multus-shim`: what the container runtime asks, passed on to the daemon of Multus of this node, and its answer passed back.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::call::Command;
use crate::error::Error;
use crate::result;

/// Its name, as the configuration calls it.
pub(crate) const NAME: &str = "multus-shim";
/// Longer than the daemon allows itself.
const PATIENCE: Duration = Duration::from_secs(230);
/// Bytes of an answer.
const LARGEST: u64 = 4 << 20;

/// What the daemon answered: whether it did what was asked, and the text for the runtime.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) good: bool,
    pub(crate) text: String,
}

/// Passes the call on.
///
/// # Errors
/// When the daemon does not answer: the runtime tries again later.
pub(crate) fn run(command: Command, config: &Value) -> Result<Answer, Error> {
    let asked = config["cniVersion"].as_str().unwrap_or_default();
    if command == Command::Version {
        return Ok(Answer { good: true, text: result::versions(asked).to_string() });
    }
    let env: BTreeMap<String, String> = std::env::vars().filter(|(name, _)| name.starts_with("CNI_")).collect();
    let body = json!({ "env": env, "config": config }).to_string();
    let socket = config["socket"].as_str().unwrap_or("/run/multus/multus.sock");
    let failed = |source| Error::Io { what: format!("reach the daemon of Multus at {socket}"), source };
    parse(&exchange(socket, &body).map_err(failed)?).map_err(|why| failed(std::io::Error::other(why)))
}

fn exchange(socket: &str, body: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "POST /cni HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.take(LARGEST).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Reads an answer of HTTP/1.1 whose end is the end of the connection. Pure.
fn parse(answer: &[u8]) -> Result<Answer, &'static str> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("the answer was cut short")?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| "the answer is none of HTTP")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).ok_or("the answer is none of HTTP")?;
    let good = status.starts_with('2');
    let body = &answer[end + 4..];
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let whole = |length: usize| length == body.len();
        if name.eq_ignore_ascii_case("content-length") && !value.trim().parse().is_ok_and(whole) {
            return Err("the answer was cut short");
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err("the answer comes in pieces, which is not asked for");
        }
    }
    let text = std::str::from_utf8(body).map_err(|_| "the answer is no text")?.to_owned();
    match serde_json::from_str::<Value>(&text) {
        Ok(_) => Ok(Answer { good, text }),
        Err(_) if good && text.is_empty() => Ok(Answer { good, text }),
        Err(_) => Err("the answer is not JSON"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn answers_are_passed_back_whole_or_not_at_all() {
        let check = |text: &str, expect: Result<(bool, &str), &str>| {
            let found = parse(text.as_bytes());
            assert_eq!(found.as_ref().map(|one| (one.good, one.text.as_str())).map_err(|why| *why), expect);
        };
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Ok((true, "{}")));
        check("HTTP/1.1 204 No Content\r\ndate: x\r\n\r\n", Ok((true, "")));
        check("HTTP/1.1 500 x\r\nContent-Length: 10\r\n\r\n{\"code\":4}", Ok((false, "{\"code\":4}")));
        check("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", Err("the answer was cut short"));
        check("HTTP/1.1 200 OK\r\ncontent", Err("the answer was cut short"));
        check("HTTP/1.1 413 x\r\n\r\ntoo large", Err("the answer is not JSON"));
        check("HTTP/1.1 500 x\r\n\r\n", Err("the answer is not JSON"));
        check("SSH-2.0\r\n\r\n", Err("the answer is none of HTTP"));
    }

    #[test]
    fn the_daemon_gets_what_the_runtime_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = path.to_str().unwrap();
        let missing = run(Command::Del, &json!({ "socket": socket })).unwrap_err();
        assert!(crate::error::chain(&missing).contains("reach the daemon of Multus at"), "{missing:?}");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut part = [0; 4096];
            while !seen.ends_with(b"}}") {
                let read = stream.read(&mut part).unwrap();
                seen.extend_from_slice(&part[..read]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull").unwrap();
            String::from_utf8(seen).unwrap()
        });
        let answer = run(Command::Add, &json!({ "cniVersion": "1.0.0", "socket": socket })).unwrap();
        assert_eq!(answer, Answer { good: true, text: "null".to_owned() });
        let seen = daemon.join().unwrap();
        assert!(seen.starts_with("POST /cni HTTP/1.1\r\n") && seen.contains("\"cniVersion\":\"1.0.0\""), "{seen}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "(HTTP/1.1 [0-9]{3} x\r\n(content-length: [0-9]{1,20}\r\n)?\r\n)?.{0,40}") {
            for input in [bytes.as_slice(), text.as_bytes()] {
                if let Ok(answer) = parse(input) {
                    prop_assert!(answer.text.is_empty() || serde_json::from_str::<Value>(&answer.text).is_ok());
                }
            }
        }
    }
}
