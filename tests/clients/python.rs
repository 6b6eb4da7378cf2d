//! The Python client: every `test_*.py` beside this file is one test, run by an interpreter that has the client.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use libtest_mimic::{Failed, Trial};

/// The release made for Kubernetes 1.33. `FERROVIRT_PYTHON_CLIENT` names another.
const RELEASE: &str = "33.1.0";

/// A test for each file.
pub(crate) fn trials() -> Result<Vec<Trial>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory()).context("cannot read tests/clients/python")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(name) = name.strip_suffix(".py").filter(|name| name.starts_with("test_")) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "tests/clients/python holds no test_*.py");
    let trial = |module: String| {
        let name = format!("python::{}", module.trim_start_matches("test_"));
        Trial::test(name, move || run(&module).map_err(|error| Failed::from(format!("{error:#}"))))
    };
    Ok(names.into_iter().map(trial).collect())
}

fn directory() -> PathBuf {
    e2e::root().join("tests/clients/python")
}

fn run(module: &str) -> Result<()> {
    let release = std::env::var("FERROVIRT_PYTHON_CLIENT").unwrap_or_else(|_| RELEASE.to_owned());
    let interpreter = e2e::python::interpreter("kubernetes", &release)?;
    let output = Command::new(interpreter)
        .args(["-W", "ignore", "-m", "unittest", module])
        .current_dir(directory())
        .env("KUBECONFIG", e2e::kubeconfig())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .context("cannot run Python")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
