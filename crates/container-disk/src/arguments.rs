//! The command line.

use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Copy this program to a path.
    Copy { target: PathBuf },
    /// Lend these files, or the only one in /disk when none is named.
    Lend { socket: PathBuf, paths: Vec<PathBuf> },
}

const USAGE: &str = "usage: container-disk --socket SOCKET [--path FILE]... | container-disk --copy-to PATH";

pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Mode, String> {
    let (mut socket, mut target, mut paths) = (None, None, Vec::new());
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
            other => return Err(format!("unknown argument {other}\n{USAGE}")),
        }
    }
    paths.retain(|path| !path.as_os_str().is_empty());
    match (socket, target) {
        (Some(socket), None) => Ok(Mode::Lend { socket, paths }),
        (None, Some(target)) => Ok(Mode::Copy { target }),
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
        assert!(check(&[]).is_err());
        assert!(check(&["--socket"]).is_err());
        assert!(check(&["--sock", "x"]).is_err());
    }
}
