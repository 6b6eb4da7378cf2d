//! Generates `crates/rpc/src/generated` from `crates/rpc/proto`, without protoc.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

const PROTOS: &[&str] = &[
    "cri.proto",
    "containerd/tasks.proto",
    "containerd/containers.proto",
    "containerd/events.proto",
    "deviceplugin.proto",
    "podresources.proto",
    "pluginregistration.proto",
    "csi.proto",
    "dra.proto",
    "launcher.proto",
];

/// Writes the generated files, or with `check` fails when a committed one differs from what would be written.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let rpc = root.join("crates/rpc");
    let committed = rpc.join("src/generated");
    let scratch = std::env::temp_dir().join(format!("ferrovirt-codegen-rpc-{}", std::process::id()));
    fs::create_dir_all(&scratch).with_context(|| format!("create {}", scratch.display()))?;
    let outcome = generate(&rpc.join("proto"), &scratch).and_then(|()| install(&scratch, &committed, check));
    fs::remove_dir_all(&scratch).with_context(|| format!("remove {}", scratch.display()))?;
    outcome
}

fn generate(protos: &Path, out: &Path) -> Result<()> {
    let descriptors = protox::compile(PROTOS, [protos]).context("compile the protocol files")?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .out_dir(out)
        .compile_fds(descriptors)
        .context("generate Rust from the protocol files")
}

fn install(from: &Path, to: &Path, check: bool) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let fresh = fs::read_to_string(entry.path())?;
        let target = to.join(&name);
        if check {
            if fs::read_to_string(&target).unwrap_or_default() != fresh {
                bail!("{} is out of date: run `cargo xtask codegen rpc`", target.display());
            }
        } else {
            fs::create_dir_all(to)?;
            fs::write(&target, fresh).with_context(|| format!("write {}", target.display()))?;
        }
    }
    Ok(())
}
