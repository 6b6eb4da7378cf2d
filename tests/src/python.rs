//! Interpreters with a package of PyPI, each in an environment beside the images, made at first use, once for all checkouts.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};

/// Two tests that want the same environment make it once.
static TURN: Mutex<()> = Mutex::new(());

/// The interpreter that has this release of the package.
///
/// # Errors
/// When Python is missing or PyPI does not have it.
pub fn interpreter(package: &str, release: &str) -> Result<PathBuf> {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let images =
        std::env::var_os("FERROVIRT_IMAGES").map_or_else(|| "/var/cache/ferrovirt/images".into(), PathBuf::from);
    let beside = images.parent().context("FERROVIRT_IMAGES names no directory in another")?;
    let environment = beside.join(format!("python-{package}-{release}"));
    let interpreter = environment.join("bin/python");
    let complete = environment.join("complete");
    if complete.exists() {
        return Ok(interpreter);
    }
    std::fs::create_dir_all(beside).with_context(|| format!("cannot make {}", beside.display()))?;
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment).output();
    let made = made.context("python3 is missing; scripts/deps.sh installs it (packages python3 and python3-venv)")?;
    check(&made, "python3 -m venv failed; scripts/deps.sh installs what it needs (package python3-venv)")?;
    let wanted = format!("{package}=={release}");
    let installed = Command::new(&interpreter).args(["-m", "pip", "install", "--quiet", &wanted]).output();
    check(&installed.context("cannot run pip")?, &format!("pip cannot install {wanted} from PyPI"))?;
    std::fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(interpreter)
}

/// Runs a script with its arguments.
///
/// # Errors
/// When it fails: with what it said.
pub fn run(interpreter: &std::path::Path, arguments: &[&str]) -> Result<()> {
    let output = Command::new(interpreter).args(arguments).env("PYTHONDONTWRITEBYTECODE", "1").output();
    let output = output.context("cannot run Python")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn check(output: &Output, what: &str) -> Result<()> {
    if !output.status.success() {
        let said = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        bail!("{what}: {}", said.concat());
    }
    Ok(())
}
