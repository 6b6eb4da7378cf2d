//! The Python client: every `test_*.py` beside this file is one test, run by an interpreter that has the client.
//!
//! The client comes from PyPI into an environment beside the images, once for all checkouts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail, ensure};
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
    let interpreter = interpreter()?;
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

/// The interpreter that has the client, made at first use.
fn interpreter() -> Result<&'static Path> {
    static MADE: OnceLock<std::result::Result<PathBuf, String>> = OnceLock::new();
    let made = MADE.get_or_init(|| make().map_err(|error| format!("{error:#}")));
    made.as_deref().map_err(|why| anyhow::anyhow!("{why}"))
}

fn make() -> Result<PathBuf> {
    let release = std::env::var("FERROVIRT_PYTHON_CLIENT").unwrap_or_else(|_| RELEASE.to_owned());
    let images =
        std::env::var_os("FERROVIRT_IMAGES").map_or_else(|| "/var/cache/ferrovirt/images".into(), PathBuf::from);
    let beside = images.parent().context("FERROVIRT_IMAGES names no directory in another")?;
    let environment = beside.join(format!("python-client-{release}"));
    let interpreter = environment.join("bin/python");
    let complete = environment.join("complete");
    if complete.exists() {
        return Ok(interpreter);
    }
    std::fs::create_dir_all(beside).with_context(|| format!("cannot make {}", beside.display()))?;
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment).output();
    let made = made.context("python3 is missing; scripts/deps.sh installs it (packages python3 and python3-venv)")?;
    check(&made, "python3 -m venv failed; scripts/deps.sh installs what it needs (package python3-venv)")?;
    let wanted = format!("kubernetes=={release}");
    let installed = Command::new(&interpreter).args(["-m", "pip", "install", "--quiet", &wanted]).output();
    check(&installed.context("cannot run pip")?, &format!("pip cannot install {wanted} from PyPI"))?;
    std::fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(interpreter)
}

fn check(output: &Output, what: &str) -> Result<()> {
    if !output.status.success() {
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        bail!("{what}: {}", said.concat());
    }
    Ok(())
}
