//! A container image made of the machine's static busybox.

use std::path::Path;

use sha2::{Digest, Sha256};

pub(crate) const IMAGE: &str = "test.local/busybox:1";

/// Writes an image archive that `ctr images import` reads.
pub(crate) fn write(archive: &Path, busybox: &Path) {
    let layer = layer(busybox);
    let layer_digest = hex(&Sha256::digest(&layer));
    let config = serde_json::json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "100000000"], "Env": ["PATH=/bin", "FROM_IMAGE=yes"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
    });
    let config = serde_json::to_vec(&config).unwrap();
    let config_name = format!("{}.json", hex(&Sha256::digest(&config)));
    let manifest = serde_json::json!([{"Config": config_name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    let mut tar = tar::Builder::new(std::fs::File::create(archive).unwrap());
    add(&mut tar, &config_name, &config, 0o644);
    add(&mut tar, "layer.tar", &layer, 0o644);
    add(&mut tar, "manifest.json", &serde_json::to_vec(&manifest).unwrap(), 0o644);
    tar.finish().unwrap();
}

fn layer(busybox: &Path) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    add(&mut tar, "bin/busybox", &std::fs::read(busybox).unwrap(), 0o755);
    for name in "sh sleep echo cat ls id test true false nc httpd env grep mkdir touch stat hostname wget tee seq head stty kill printf".split(' ') {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        tar.append_link(&mut header, format!("bin/{name}"), "busybox").unwrap();
    }
    add(&mut tar, "etc/passwd", b"root:x:0:0::/:/bin/sh\nqemu:x:107:107::/:/bin/sh\n", 0o644);
    add(&mut tar, "etc/group", b"root:x:0:\nqemu:x:107:\n", 0o644);
    tar.into_inner().unwrap()
}

fn add<W: std::io::Write>(tar: &mut tar::Builder<W>, name: &str, data: &[u8], mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    tar.append_data(&mut header, name, data).unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
