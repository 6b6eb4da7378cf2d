//! Loading into containerd, over its socket, only what it does not have yet.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::layout::Layout;
use crate::{Error, Image, sysroot};

/// Imports `wanted` images of the store into containerd's `k8s.io` namespace and returns the names that were missing there.
/// Containerd unpacks on its side, so `socket` may belong to another mount namespace.
pub fn load(layout: &Layout, socket: &Path, wanted: &[Image]) -> Result<Vec<String>, Error> {
    let ctr = || {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(socket).args(["--namespace", "k8s.io", "images"]);
        command
    };
    let built = layout.list()?;
    if built.is_empty() {
        return Err(Error::NothingBuilt);
    }
    let present = sysroot::run(ctr().arg("list"))?;
    let names: Vec<_> = wanted.iter().map(|image| image.name()).collect();
    let wanted = built.into_iter().filter(|image| names.contains(&image.name));
    let missing = missing(&present, wanted.map(|i| (i.name, i.digest)));
    if missing.is_empty() {
        return Ok(missing);
    }
    let spawn = |source| Error::Spawn { program: "ctr".into(), source };
    let mut import = ctr()
        .args(["import", "--no-unpack=false", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(spawn)?;
    let sent = match import.stdin.take() {
        Some(stdin) => layout.export(&missing, &[], std::io::BufWriter::with_capacity(1 << 20, stdin)),
        None => Ok(()),
    };
    let output = import.wait_with_output().map_err(spawn)?;
    if !output.status.success() {
        return Err(Error::Program {
            program: "ctr images import".into(),
            words: String::from_utf8_lossy(&output.stderr).trim().into(),
        });
    }
    sent?;
    Ok(missing)
}

/// Images of the store that `ctr images list` does not show with the same digest.
fn missing(listing: &str, store: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let present: Vec<(&str, &str)> = listing
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            Some((name, words.nth(1)?))
        })
        .collect();
    store.filter(|(name, digest)| !present.contains(&(name, digest))).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_with_another_digest_is_missing() {
        let listing =
            "REF TYPE DIGEST SIZE\nx/a:1 application/json sha256:aa 1 KiB\nx/b:1 application/json sha256:old 1 KiB\n";
        let store = [("x/a:1", "sha256:aa"), ("x/b:1", "sha256:new"), ("x/c:1", "sha256:cc")];
        let found = missing(listing, store.iter().map(|(n, d)| ((*n).to_owned(), (*d).to_owned())));
        assert_eq!(found, ["x/b:1", "x/c:1"]);
    }
}
