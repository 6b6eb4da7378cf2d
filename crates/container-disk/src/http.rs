//! The disk of an image over HTTP, for the importer that shares the pod and its network: whole, or from an offset on.
//!
//! The file `ready` holds the disk's name once it can be fetched; the file `done` says that nobody will ask again.

use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::answer::quoted;
use crate::lend::{only_file, open};

/// A request of a few hundred bytes takes no time on the pod's own network.
const REQUEST: Duration = Duration::from_secs(10);
/// No request is as long.
const HEAD: u64 = 16 << 10;

/// What a request is for.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    body: bool,
    path: String,
    from: Option<u64>,
}

/// Serves until the importer is done.
pub(crate) fn serve(port: u16, directory: &Path, ready: &Path, done: &Path) -> io::Result<()> {
    sys::signal::exit_when_asked().map_err(io::Error::other)?;
    let disk = only_file(directory)?;
    // What cannot be read is said before it is asked for.
    open(&disk)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let name = disk.file_name().unwrap_or_default().to_string_lossy().into_owned();
    fs::write(ready, &name)?;
    let served = disk;
    std::thread::Builder::new().spawn(move || {
        for stream in listener.incoming().flatten() {
            let disk = served.clone();
            // A connection that fails is asked for again; there is one importer, so few at a time.
            let _ = std::thread::Builder::new().spawn(move || answer(stream, &disk));
        }
    })?;
    wait(done)
}

/// Returns when `path` is there.
fn wait(path: &Path) -> io::Result<()> {
    let look = rustix::time::Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    while !path.try_exists()? {
        // Interrupted or not, the next look is due.
        let _ = rustix::thread::nanosleep(&look);
    }
    Ok(())
}

fn answer(mut stream: TcpStream, disk: &Path) -> io::Result<()> {
    stream.set_read_timeout(Some(REQUEST))?;
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    let mut reader = BufReader::new(stream.try_clone()?).take(HEAD);
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head)? == 0 {
            return Ok(());
        }
    }
    let Some(request) = parse(&String::from_utf8_lossy(&head)) else {
        return stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    if request.path == "/info" {
        let environment: Vec<_> = std::env::vars().map(|(name, value)| quoted(&format!("{name}={value}"))).collect();
        let text = format!("{{\"env\":[{}]}}\n", environment.join(","));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
        stream.write_all(head.as_bytes())?;
        return if request.body { stream.write_all(text.as_bytes()) } else { Ok(()) };
    }
    if request.path != format!("/{name}") && request.path != "/disk.img" {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    let mut file = File::open(disk)?;
    let size = file.metadata()?.len();
    stream.write_all(headers(size, request.from).as_bytes())?;
    let from = request.from.unwrap_or(0);
    if request.body && from < size {
        file.seek(SeekFrom::Start(from))?;
        io::copy(&mut file, &mut stream)?;
    }
    Ok(())
}

/// The head of an answer with the file from an offset on.
fn headers(size: u64, from: Option<u64>) -> String {
    let common = "Accept-Ranges: bytes\r\nConnection: close\r\n";
    match from {
        None => format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n{common}\r\n"),
        Some(from) if from < size => format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/{size}\r\n{common}\r\n",
            size - from,
            size - 1
        ),
        Some(_) => format!(
            "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\nContent-Range: bytes */{size}\r\n{common}\r\n"
        ),
    }
}

fn parse(head: &str) -> Option<Request> {
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let body = match first.next()? {
        "GET" => true,
        "HEAD" => false,
        _ => return None,
    };
    let path = first.next()?.split('?').next()?.to_owned();
    let range = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("range"));
    // A range that is not "from here on" is answered with the whole, as the protocol allows.
    let from = range.and_then(|(_, value)| value.trim().strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    Some(Request { body, path, from })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let check = |head: &str, expect: Option<(bool, &str, Option<u64>)>| {
            let expect = expect.map(|(body, path, from)| Request { body, path: path.to_owned(), from });
            assert_eq!(parse(head), expect, "{head}");
        };
        check("GET /disk.img HTTP/1.1\r\n\r\n", Some((true, "/disk.img", None)));
        check("HEAD /a?b HTTP/1.1\r\nHost: x\r\nrange: bytes=7-\r\n\r\n", Some((false, "/a", Some(7))));
        check("GET / HTTP/1.1\r\nRange: bytes=0-1,4-5\r\n\r\n", Some((true, "/", None)));
        check("POST / HTTP/1.1\r\n\r\n", None);
        check("", None);
    }

    #[test]
    fn answers_say_what_follows() {
        assert!(headers(10, None).contains("200 OK\r\nContent-Length: 10\r\n"));
        assert!(headers(10, Some(0)).contains("Content-Range: bytes 0-9/10\r\n"));
        assert!(headers(10, Some(4)).contains("Content-Length: 6\r\nContent-Range: bytes 4-9/10\r\n"));
        assert!(headers(10, Some(10)).starts_with("HTTP/1.1 416"));
    }
}
