//! Images made by hand, to see what becomes of those that hold no proper disk.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::wait::{self, until};
use crate::{node, product};

/// Gives the node an image called `name` that holds these files.
pub fn import(name: &str, files: &[(&str, &[u8])]) -> Result<()> {
    let archive = archive(name, files).context("cannot write the image")?;
    let sockets = containerds()?;
    let socket = sockets.first().context("no node runs virt-handler")?;
    let mut command = ctr(socket);
    let piped = command.args(["import", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut import = piped.spawn().context("cannot run ctr")?;
    if let Some(mut stdin) = import.stdin.take() {
        stdin.write_all(&archive).context("cannot hand ctr the image")?;
    }
    let output = import.wait_with_output().context("ctr did not end")?;
    ensure!(output.status.success(), "ctr: {}", String::from_utf8_lossy(&output.stderr));
    known(socket, name)
}

/// Gives an image a second name, on every node.
pub fn tag(name: &str, other: &str) -> Result<()> {
    for socket in containerds()? {
        let output = ctr(&socket).args(["tag", "--force", name, other]).output().context("cannot run ctr")?;
        ensure!(output.status.success(), "ctr: {}", String::from_utf8_lossy(&output.stderr));
        known(&socket, other)?;
    }
    Ok(())
}

/// The root of each node's files.
pub(crate) fn nodes() -> Result<Vec<PathBuf>> {
    let root = |socket: PathBuf| socket.ancestors().nth(3).map(Path::to_path_buf);
    containerds()?.into_iter().map(|socket| root(socket).context("a socket without a root")).collect()
}

/// The containerd of each node.
fn containerds() -> Result<Vec<PathBuf>> {
    let words = ["get", "pods", "-l", "kubevirt.io=virt-handler", "-o", "jsonpath={.items[*].metadata.uid}"];
    let uids = product::kubectl(&words)?;
    uids.split_whitespace().map(node::containerd).collect()
}

/// A command about images.
fn ctr(socket: &Path) -> Command {
    let mut command = Command::new("ctr");
    command.arg("--address").arg(socket).args(["--namespace", "k8s.io", "images"]);
    command
}

/// Waits until pods can have the image.
fn known(socket: &Path, name: &str) -> Result<()> {
    // Pods get the images that containerd's CRI part knows. It learns of others by an event, marks them then, and may be
    // told before an image is complete: another event makes it look again.
    let mut looks = 0;
    until(&format!("image {name} to be known to CRI"), wait::SOON, || {
        looks += 1;
        if looks % 20 == 0 {
            ctr(socket).args(["label", name, &format!("looked={looks}")]).output().context("cannot run ctr")?;
        }
        let list = ctr(socket).args(["list", &format!("name=={name}")]).output().context("cannot run ctr")?;
        Ok(String::from_utf8_lossy(&list.stdout).contains("io.cri-containerd.image=managed").then_some(()))
    })
}

/// An archive as `docker save` writes it: one layer, a configuration, and what names both.
fn archive(name: &str, files: &[(&str, &[u8])]) -> std::io::Result<Vec<u8>> {
    let layer = layer(files)?;
    let digest: String = Sha256::digest(&layer).iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }]);
    let mut image = tar::Builder::new(Vec::new());
    add(&mut image, "layer.tar", &layer, 0o644)?;
    add(&mut image, "config.json", config.to_string().as_bytes(), 0o644)?;
    add(&mut image, "manifest.json", manifest.to_string().as_bytes(), 0o644)?;
    image.into_inner()
}

/// The layer with these files.
pub(crate) fn layer(files: &[(&str, &[u8])]) -> std::io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::new());
    for (path, content) in files {
        add(&mut layer, path, content, 0o644)?;
    }
    layer.into_inner()
}

fn add(tar: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8], mode: u32) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, path, content)
}
