//! `cargo xtask tidy`: the rules of the repository that a program can check.
//!
//! * dependencies point one way: binaries -> components -> libraries -> api, and components never at each other;
//! * a file has one idea: none is over 1000 lines (tests: 1500), generated code excepted;
//! * `unsafe` lives in `sys`;
//! * only the programs print;
//! * modules do not use each other in circles, and plans and statuses are computed from their input alone;
//! * a `use` names one module;
//! * every source file is part of a program;
//! * what docs/kubernetes.md promises is backed by tests;
//! * generated files are what their generators make.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{circles, documented, imports, orphans, pure};

const LONGEST: usize = 1000;
const LONGEST_TEST: usize = 1500;

/// How high a crate stands. A crate may depend only on crates of a lower layer, libraries also on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    Api,
    Library,
    Component,
    Program,
}

fn layer(name: &str) -> Option<Layer> {
    Some(match name {
        "api" | "meta" => Layer::Api,
        "apimachinery" | "kube-store" => Layer::Library,
        "kit" | "origin" | "domain" | "disk" | "net" | "nbd" | "libvirt" | "sys" | "rpc" | "tls-verify" | "images"
        | "instancetype" | "csi-controllers" | "pod-networks" | "tekton-tasks" => Layer::Library,
        "kube-apiserver" | "kube-controllers" | "kubelet" => Layer::Component,
        "virt-operator" | "virt-api" | "virt-controller" | "virt-handler" | "virt-launcher" | "virt-export" | "hpp"
        | "cdi" | "cnao" | "hco" | "ssp" => Layer::Component,
        "ferrovirt" | "virtctl" | "container-disk" | "cni" | "xtask" | "e2e" | "bench" => Layer::Program,
        _ => return None,
    })
}

/// Libraries that know no Kubernetes, and so depend on no crate that does.
const NO_KUBERNETES: [&str; 9] = ["cni", "disk", "net", "nbd", "sys", "libvirt", "tls-verify", "images", "rpc"];
/// The embedded cluster does not know that virtual machines exist.
const NO_VIRTUAL_MACHINES: [&str; 7] =
    ["apimachinery", "kube-store", "kube-apiserver", "kube-controllers", "csi-controllers", "pod-networks", "kubelet"];

pub(crate) fn run(root: &Path) -> Result<()> {
    let mut found = dependencies(&metadata(root)?);
    let files = tracked(root)?;
    found.extend(sizes(root, &files)?);
    found.extend(words(root, &files)?);
    found.extend(documented::findings(root, &files)?);
    let written: Vec<PathBuf> = files.iter().filter(|path| !is_generated(path)).cloned().collect();
    found.extend(circles::findings(root, &written)?);
    found.extend(pure::findings(root, &written)?);
    found.extend(imports::findings(root, &written)?);
    found.extend(orphans::findings(root, &written)?);
    for finding in &found {
        eprintln!("tidy: {finding}");
    }
    if !found.is_empty() {
        bail!("{} findings", found.len());
    }
    println!("tidy: {} files follow the rules", files.len());
    Ok(())
}

fn metadata(root: &Path) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("cannot run cargo metadata")?;
    serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")
}

/// Edges of the workspace that point the wrong way.
fn dependencies(metadata: &Value) -> Vec<String> {
    let mut edges: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let list = edges.entry(text(&package["name"])).or_default();
        let normal = package["dependencies"].as_array().into_iter().flatten().filter(|d| d["kind"].is_null());
        list.extend(normal.map(|d| text(&d["name"])));
    }
    let mut found = Vec::new();
    for (name, needs) in &edges {
        let Some(own) = layer(name) else {
            found.push(format!("crate {name} has no layer; give it one in xtask/src/tidy.rs"));
            continue;
        };
        for other in needs {
            if NO_KUBERNETES.contains(&name.as_str()) && (other == "kube" || other == "k8s-openapi" || other == "api") {
                found.push(format!("{name} depends on {other}, but it is to know no Kubernetes"));
            }
            if NO_VIRTUAL_MACHINES.contains(&name.as_str()) && other == "domain" {
                found.push(format!("{name} depends on {other}, but it is to know no virtual machines"));
            }
            let Some(theirs) = layer(other).filter(|_| edges.contains_key(other)) else { continue };
            if theirs > own || (theirs == own && own == Layer::Component) {
                found.push(format!(
                    "{name} depends on {other}: dependencies point from programs to components to libraries"
                ));
            }
        }
    }
    found
}

fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git").args(["ls-files"]).current_dir(root).output().context("cannot run git")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().map(PathBuf::from).filter(|path| root.join(path).is_file()).collect())
}

fn is_generated(path: &Path) -> bool {
    path.components()
        .any(|part| matches!(part.as_os_str().to_str(), Some("generated" | "testdata" | "data" | "deploy")))
}

fn sizes(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "rs") && !is_generated(p)) {
        let text = read(root, path)?;
        let (lines, test) = (text.lines().count(), path.components().any(|p| p.as_os_str() == "tests"));
        let limit = if test { LONGEST_TEST } else { LONGEST };
        if lines > limit {
            found.push(format!("{} has {lines} lines, over {limit}: it holds more than one idea", path.display()));
        }
        if !text.starts_with("//!") && !text.starts_with("#!") {
            found.push(format!("{} does not begin by saying what it is for (`//!`)", path.display()));
        }
        if path.file_name().is_some_and(|name| name == "mod.rs") {
            found.push(format!("{}: a folder's module file lies beside the folder", path.display()));
        }
    }
    Ok(found)
}

/// Words that have their place.
fn words(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in
        files.iter().filter(|p| p.extension().is_some_and(|e| e == "rs") && p.starts_with("crates") && !is_generated(p))
    {
        let text = read(root, path)?;
        let of = |names: &[&str]| names.iter().any(|name| path.starts_with(Path::new("crates").join(name)));
        if !of(&["sys"]) && text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains("unsafe {")) {
            found.push(format!("{}: unsafe code belongs into crates/sys", path.display()));
        }
        // Crate `api` also holds Kubernetes' quantities, so the edge alone says nothing.
        if of(&NO_VIRTUAL_MACHINES) && text.contains("api::kubevirt") {
            found.push(format!("{}: the embedded cluster knows no virtual machines", path.display()));
        }
        let prints = ["println!(", "eprintln!(", "process::exit("];
        let production = text.split("#[cfg(test)]").next().unwrap_or_default();
        let example =
            path.components().any(|p| matches!(p.as_os_str().to_str(), Some("tests" | "examples" | "benches")));
        // A build script speaks to cargo by what it prints.
        let script = path.file_name().is_some_and(|name| name == "build.rs");
        if !example
            && !script
            && !of(&["ferrovirt", "virtctl", "container-disk", "bench"])
            && prints.iter().any(|p| production.contains(p))
        {
            found.push(format!("{}: only the programs print and exit", path.display()));
        }
    }
    Ok(found)
}

fn read(root: &Path, path: &Path) -> Result<String> {
    std::fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(name: &str, needs: &[&str], expect: usize) {
        let all = ["api", "kit", "sys", "virt-api", "virt-handler", "ferrovirt", "kubelet"];
        let list =
            |n: &str| if n == name { needs.iter().map(|d| json!({"name": d, "kind": null})).collect() } else { vec![] };
        let packages: Vec<_> = all.iter().map(|n| json!({"name": n, "dependencies": list(n)})).collect();
        assert_eq!(dependencies(&json!({"packages": packages})).len(), expect);
    }

    #[test]
    fn directions() {
        check("ferrovirt", &["virt-api", "kit", "api"], 0);
        check("virt-api", &["virt-handler"], 1);
        check("kit", &["virt-api"], 1);
        check("kit", &["api"], 0);
        check("sys", &["kube"], 1);
        check("kubelet", &["api"], 0);
        check("api", &["kit"], 1);
    }
}
