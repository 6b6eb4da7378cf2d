//! `ferrovirt bundle`: everything that a machine without a network needs to install this version, as one file.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use images::Extra;

use crate::failure::{advise, parse};
use crate::images::default_workshop;
use crate::{deploy, install, terminal};

/// Write all images, the manifests and the programs to one file
#[derive(Debug, Parser)]
#[command(name = "bundle")]
struct Bundle {
    /// The file, which is replaced
    file: PathBuf,
}

/// `ferrovirt bundle`
pub(crate) fn main(words: Vec<std::ffi::OsString>) -> anyhow::Result<()> {
    let Some(asked) = parse::<Bundle>(words)? else { return Ok(()) };
    let shop = default_workshop()?;
    if !shop.virtctl.is_file() {
        let error = anyhow::anyhow!("{} is missing", shop.virtctl.display());
        return Err(advise(error, "`make build` puts it beside the program"));
    }
    let extra = [
        ("manifests/ferrovirt-operators.yaml", Extra::Text(deploy::OPERATORS)),
        ("manifests/hco-cr.yaml", Extra::Text(deploy::OBJECT)),
        ("manifests/hostpath-cr.yaml", Extra::Text(install::STORAGE)),
        ("ferrovirt", Extra::Program(shop.binary.clone())),
        ("virtctl", Extra::Program(shop.virtctl.clone())),
    ];
    images::write_bundle(&shop, &extra, &asked.file)?;
    let size = std::fs::metadata(&asked.file).with_context(|| format!("cannot read {}", asked.file.display()))?.len();
    let file = asked.file.display();
    terminal::say(&format!("wrote {file}, {} MiB. On a machine that reaches the cluster:", size.div_ceil(1 << 20)));
    terminal::say(&format!("    tar xf {file} ferrovirt virtctl"));
    terminal::say(&format!("    ./ferrovirt install --images-from {file} --registry HOST[:PORT][/PATH]"));
    terminal::say("without --registry on the one node of a cluster");
    Ok(())
}
