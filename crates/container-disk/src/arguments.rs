//! The command line.

use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Copy this program to a path.
    Copy { target: PathBuf },
    /// Lend these files, or the only one in /disk when none is named.
    Lend { socket: PathBuf, paths: Vec<PathBuf> },
    /// Serve the only file of a directory over HTTP, from when `ready` is made until `done` appears.
    Serve { port: u16, directory: PathBuf, ready: PathBuf, done: PathBuf },
}

const USAGE: &str = "usage: container-disk --socket SOCKET [--path FILE]... | container-disk --copy-to PATH \
                     | container-disk -p PORT -image-dir DIRECTORY -ready-file FILE -done-file FILE";

pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Mode, String> {
    let (mut socket, mut target, mut paths) = (None, None, Vec::new());
    let (mut port, mut directory, mut ready, mut done) = (None, None, None, None);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (argument, None),
        };
        let mut value =
            || value.clone().or_else(|| arguments.next()).ok_or_else(|| format!("{name} needs a value\n{USAGE}"));
        match name.as_str() {
            "--socket" => socket = Some(PathBuf::from(value()?)),
            "--path" => paths.push(PathBuf::from(value()?)),
            "--copy-to" => target = Some(PathBuf::from(value()?)),
            "-p" => {
                let text = value()?;
                port = Some(text.parse().map_err(|_| format!("-p is {text:?}, which is no port\n{USAGE}"))?);
            }
            "-image-dir" => directory = Some(PathBuf::from(value()?)),
            "-ready-file" => ready = Some(PathBuf::from(value()?)),
            "-done-file" => done = Some(PathBuf::from(value()?)),
            other => return Err(format!("unknown argument {other}\n{USAGE}")),
        }
    }
    paths.retain(|path| !path.as_os_str().is_empty());
    match (socket, target, port, directory, ready, done) {
        (Some(socket), None, None, ..) => Ok(Mode::Lend { socket, paths }),
        (None, Some(target), None, ..) => Ok(Mode::Copy { target }),
        (None, None, Some(port), Some(directory), Some(ready), Some(done)) => {
            Ok(Mode::Serve { port, directory, ready, done })
        }
        _ => Err(USAGE.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(arguments: &[&str]) -> Result<Mode, String> {
        parse(arguments.iter().map(|argument| (*argument).to_owned()))
    }

    #[test]
    fn arguments() {
        assert_eq!(
            check(&["--socket", "/s", "--path=/a", "--path", "/b"]),
            Ok(Mode::Lend { socket: "/s".into(), paths: vec!["/a".into(), "/b".into()] })
        );
        assert_eq!(check(&["--copy-to", "/x"]), Ok(Mode::Copy { target: "/x".into() }));
        let served = ["-p", "8100", "-image-dir", "/disk", "-ready-file=/r", "-done-file", "/d"];
        let expect = Mode::Serve { port: 8100, directory: "/disk".into(), ready: "/r".into(), done: "/d".into() };
        assert_eq!(check(&served), Ok(expect));
        assert!(check(&served[..6]).is_err());
        assert!(check(&["-p", "high"]).is_err());
        assert!(check(&[]).is_err());
        assert!(check(&["--socket"]).is_err());
        assert!(check(&["--sock", "x"]).is_err());
    }
}
