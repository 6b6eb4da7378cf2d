//! The manifests that users apply, deploy/*-operator.yaml and deploy/*-cr.yaml: rendered by the operators themselves, so that
//! this program need not be built with them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::codegen_product;

/// Writes the manifests, or only compares them when `check`.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    for operator in ["virt-operator", "cdi", "hpp", "hco", "cnao", "ssp"] {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root).args(["test", "--quiet", "-p", operator, "--lib", "install"]);
        if !check {
            cargo.env("UPDATE_EXPECT", "1");
        }
        let status = cargo.status().context("cannot run cargo")?;
        ensure!(
            status.success(),
            "deploy/*.yaml differ from what {operator} renders: run `cargo xtask codegen manifests`"
        );
    }
    codegen_product::run(root, check)
}
