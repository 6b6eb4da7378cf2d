//! A tree of unpacked Debian packages, resolved from nothing, so that what is installed on this machine does not matter.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// An unpacked tree.
#[derive(Clone, Debug)]
pub(crate) struct Sysroot {
    pub(crate) root: PathBuf,
    /// Package file names with versions: the identity of the tree.
    pub(crate) identity: String,
}

/// Packages that a resolution from nothing drags in for maintainer scripts, which are never run here.
const NOT_UNPACKED: [&str; 6] = ["perl", "libperl", "usrmerge", "debconf", "dpkg_", "systemd_"];

/// Downloads `packages` with all they depend on and unpacks them below `cache/<name>`. A tree that is already there for
/// the same versions is kept. `backports` prefers the backports suite, which `make deps` enables.
pub(crate) fn prepare(
    cache: &Path,
    name: &str,
    packages: &[&str],
    backports: bool,
    say: &mut dyn FnMut(&str),
) -> Result<Sysroot, Error> {
    let archives = cache.join("packages");
    let partial = archives.join("partial");
    fs::create_dir_all(&partial).map_err(Error::io("create", &partial))?;
    let status = cache.join("no-packages-installed");
    fs::write(&status, b"").map_err(Error::io("write", &status))?;

    let apt = |extra: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .args([
                "-y",
                "-q",
                "-o",
                "APT::Install-Recommends=0",
                "-o",
                "Debug::NoLocking=1",
                "-o",
                "APT::Sandbox::User=root",
            ])
            .arg("-o")
            .arg(format!("Dir::State::status={}", status.display()))
            .arg("-o")
            .arg(format!("Dir::Cache::archives={}", archives.display()))
            .env("LC_ALL", "C");
        if backports {
            command.args(["-t", &backports_suite()]);
        }
        command.args(extra).arg("install").args(packages);
        command
    };
    // With an empty cache directory `--print-uris` names every file; with a full one only what is missing. The simulated
    // installation names all of them always.
    let plan = run(&mut apt(&["--simulate"]))?;
    let mut wanted: Vec<(String, String)> = plan
        .lines()
        .filter_map(|line| line.strip_prefix("Inst "))
        .filter_map(|line| {
            let (package, rest) = line.split_once(' ')?;
            let version = rest.trim_start_matches('(').split([' ', ')']).next()?;
            Some((package.to_owned(), version.to_owned()))
        })
        .collect();
    wanted.sort();
    let identity = wanted.iter().map(|(p, v)| format!("{p}={v}")).collect::<Vec<_>>().join("\n");
    let root = cache.join("trees").join(name);
    let stamp = cache.join("trees").join(format!("{name}.packages"));
    if fs::read_to_string(&stamp).is_ok_and(|had| had == identity) && root.is_dir() {
        return Ok(Sysroot { root, identity });
    }

    say(&format!("downloading {} Debian packages for {name}", wanted.len()));
    run(&mut apt(&["--download-only"]))?;
    let _ = fs::remove_file(&stamp);
    if root.exists() {
        fs::remove_dir_all(&root).map_err(Error::io("remove", &root))?;
    }
    fs::create_dir_all(&root).map_err(Error::io("create", &root))?;
    say(&format!("unpacking {name}"));
    for (package, version) in &wanted {
        if NOT_UNPACKED.iter().any(|prefix| format!("{package}_").starts_with(prefix)) {
            continue;
        }
        let file = find_archive(&archives, package, version)?;
        run(Command::new("dpkg-deb").arg("-x").arg(&file).arg(&root))?;
    }
    fs::write(&stamp, &identity).map_err(Error::io("write", &stamp))?;
    Ok(Sysroot { root, identity })
}

fn find_archive(archives: &Path, package: &str, version: &str) -> Result<PathBuf, Error> {
    let escaped = version.replace(':', "%3a");
    ["amd64", "arm64", "all"]
        .iter()
        .map(|arch| archives.join(format!("{package}_{escaped}_{arch}.deb")))
        .find(|path| path.is_file())
        .ok_or_else(|| Error::Missing { wanted: format!("{package} {version}"), image: archives.display().to_string() })
}

/// `<codename>-backports` of this Debian.
fn backports_suite() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map_or("bookworm", |name| name.trim_matches('"'));
    format!("{codename}-backports")
}

/// Runs to the end and returns standard output; a failure carries the program's last words.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| Error::Spawn { program: program.clone(), source })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.trim().lines().collect();
        let words = lines[lines.len().saturating_sub(5)..].join("; ");
        return Err(Error::Program { program, words });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
