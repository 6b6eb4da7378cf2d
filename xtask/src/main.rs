//! The repository's own tasks: `cargo xtask TASK`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod circles;
mod codegen_api;
mod codegen_crds;
mod codegen_manifests;
mod codegen_product;
mod codegen_reads;
mod codegen_rpc;
mod codegen_schemas;
mod codegen_waiting;
mod descriptions;
mod documented;
mod imports;
mod orphans;
mod package;
mod product;
mod pure;
mod tidy;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
enum Task {
    /// Generate committed files.
    #[command(subcommand)]
    Codegen(Codegen),
    /// Check the rules of the repository that a program can check.
    Tidy,
}

#[derive(Subcommand)]
enum Codegen {
    /// crates/api/src/generated: the types of the KubeVirt API.
    Api {
        /// Only check that the committed files are up to date.
        #[arg(long)]
        check: bool,
    },
    /// deploy/crds: the CustomResourceDefinitions.
    Crds {
        /// Only check that the committed files are up to date.
        #[arg(long)]
        check: bool,
    },
    /// deploy/kubevirt-operator.yaml and deploy/kubevirt-cr.yaml.
    Manifests {
        /// Only check that the committed files are up to date.
        #[arg(long)]
        check: bool,
    },
    /// crates/api/tests/it/reads.txt: which crates read which fields of the API.
    Reads {
        /// Only check that the committed file is up to date.
        #[arg(long)]
        check: bool,
    },
    /// crates/rpc/src/generated from crates/rpc/proto.
    Rpc {
        /// Only check that the committed files are up to date.
        #[arg(long)]
        check: bool,
    },
    /// Schemas and the resource table of the built-in Kubernetes kinds, for kube-apiserver.
    Schemas {
        /// Only check that the committed files are up to date.
        #[arg(long)]
        check: bool,
    },
    /// crates/ferrovirt/waiting.ld: the functions that the components of the running cluster execute while they wait.
    Waiting {
        /// What FERROVIRT_LINK_MAP named when the running program was built.
        map: PathBuf,
    },
}

fn main() -> Result<()> {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    match Task::parse() {
        Task::Tidy => tidy::run(&root),
        Task::Codegen(Codegen::Api { check }) => codegen_api::run(&root, check),
        Task::Codegen(Codegen::Crds { check }) => codegen_crds::run(&root, check),
        Task::Codegen(Codegen::Manifests { check }) => codegen_manifests::run(&root, check),
        Task::Codegen(Codegen::Reads { check }) => codegen_reads::run(&root, check),
        Task::Codegen(Codegen::Rpc { check }) => codegen_rpc::run(&root, check),
        Task::Codegen(Codegen::Schemas { check }) => codegen_schemas::run(&root, check),
        Task::Codegen(Codegen::Waiting { map }) => codegen_waiting::run(&root, &map),
    }
}
