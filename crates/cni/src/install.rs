//! Puts the plugins where a node's runtime looks for them, and waits.
//!
//! `cnv-bridge`, `cnv-tuning` and `macvtap` are always this program; `bridge` and `tuning` become links where the node has none of its own.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// The plugins, each with the name under which the node may have one that is not ours.
const PLUGINS: [(&str, Option<&str>); 3] =
    [("cnv-bridge", Some("bridge")), ("cnv-tuning", Some("tuning")), ("macvtap", None)];

/// Puts this program into `directory` under the names of the plugins `wanted`. Returns what was done, for the log.
pub(crate) fn install(directory: &Path, wanted: &[String]) -> Result<String, Error> {
    let program = std::env::current_exe().map_err(Error::io("find this program's own file"))?;
    let names = || PLUGINS.map(|(own, plain)| plain.unwrap_or(own));
    if let Some(unknown) = wanted.iter().find(|name| !names().contains(&name.as_str())) {
        return Err(Error::Node(format!("there is no plugin {unknown:?}: name {}", names().join(", "))));
    }
    put(&program, directory, wanted)
}

/// Until SIGTERM, at the cost of nothing.
pub(crate) fn wait() -> Result<(), Error> {
    sys::signal::exit_when_asked().map_err(|source| Error::io("handle signals")(io::Error::other(source)))?;
    loop {
        std::thread::park();
    }
}

fn put(program: &Path, directory: &Path, wanted: &[String]) -> Result<String, Error> {
    fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
    let content = digest(program)?;
    let mut said = String::new();
    for (own, plain) in PLUGINS {
        if !wanted.iter().any(|name| name == plain.unwrap_or(own)) {
            continue;
        }
        let there = directory.join(own);
        // Of a file that is not there, nothing can be read.
        let is_own = is_file(&there)? && digest(&there)? == content;
        if !is_own {
            replace(&there, |partial| copy(program, partial, &content))?;
            said += &format!("{} is this version now\n", there.display());
        }
        let Some(plain) = plain.map(|name| directory.join(name)) else { continue };
        // A link into nothing is as good as none; whatever else is there is the node's.
        let has = plain.try_exists().map_err(Error::io(format!("look at {}", plain.display())))?;
        if !has {
            replace(&plain, |partial| symlink(own, partial).map_err(Error::io(format!("link {}", partial.display()))))?;
            said += &format!("{} is {own}\n", plain.display());
        }
    }
    Ok(said)
}

/// Whether a file of its own is there, and no link.
fn is_file(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(found.is_file()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io(format!("look at {}", path.display()))(error)),
    }
}

/// Makes what is to be at `path` beside it and renames it: nobody ever runs half of it, and who runs the old one keeps it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial: PathBuf = path.with_file_name(name);
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io(format!("remove {}", partial.display()))(error));
        }
        _ => {}
    }
    make(&partial)?;
    fs::rename(&partial, path).map_err(Error::io(format!("put {} into its place", path.display())))
}

fn copy(program: &Path, partial: &Path, wanted: &[u8]) -> Result<(), Error> {
    let what = format!("copy {} to {}", program.display(), partial.display());
    fs::copy(program, partial).map_err(Error::io(what.clone()))?;
    fs::set_permissions(partial, fs::Permissions::from_mode(0o755)).map_err(Error::io(what.clone()))?;
    let file = fs::File::open(partial).map_err(Error::io(what.clone()))?;
    file.sync_all().map_err(Error::io(what))?;
    if digest(partial)? != wanted {
        return Err(Error::Node(format!("{} is not what was written: look at the file system", partial.display())));
    }
    Ok(())
}

fn digest(path: &Path) -> Result<Vec<u8>, Error> {
    let what = || Error::io(format!("read {}", path.display()));
    let mut file = fs::File::open(path).map_err(what())?;
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash).map_err(what())?;
    Ok(hash.finalize().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scene {
        dir: tempfile::TempDir,
    }

    impl Scene {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("program"), "new").unwrap();
            fs::create_dir(dir.path().join("bin")).unwrap();
            Scene { dir }
        }

        fn bin(&self, name: &str) -> PathBuf {
            self.dir.path().join("bin").join(name)
        }

        fn put(&self) -> String {
            let wanted = ["bridge", "tuning", "macvtap"].map(str::to_owned);
            put(&self.dir.path().join("program"), &self.dir.path().join("bin"), &wanted).unwrap()
        }

        #[track_caller]
        fn check(&self, name: &str, expect: &str) {
            assert_eq!(fs::read_to_string(self.bin(name)).unwrap(), expect, "{name}");
        }
    }

    #[test]
    fn a_node_without_plugins_gets_both_names_once() {
        let scene = Scene::new();
        assert_eq!(scene.put().lines().count(), 5);
        for name in ["bridge", "cnv-bridge", "tuning", "cnv-tuning", "macvtap"] {
            scene.check(name, "new");
            assert_eq!(fs::metadata(scene.bin(name)).unwrap().permissions().mode() & 0o777, 0o755);
        }
        assert_eq!(fs::read_link(scene.bin("bridge")).unwrap(), Path::new("cnv-bridge"));
        assert_eq!(scene.put(), "");
        assert_eq!(fs::read_dir(scene.dir.path().join("bin")).unwrap().count(), 5);
    }

    #[test]
    fn one_plugin_comes_alone() {
        let scene = Scene::new();
        let bin = scene.dir.path().join("bin");
        put(&scene.dir.path().join("program"), &bin, &["macvtap".to_owned()]).unwrap();
        assert_eq!(fs::read_dir(bin).unwrap().count(), 1);
        scene.check("macvtap", "new");
    }

    #[test]
    fn what_the_node_has_stays_and_what_is_ours_is_replaced() {
        let scene = Scene::new();
        fs::write(scene.bin("bridge"), "the node's").unwrap();
        // As other installers leave it: a link to the node's own, through which nothing may be written.
        symlink("bridge", scene.bin("cnv-bridge")).unwrap();
        fs::write(scene.bin("cnv-tuning"), "old").unwrap();
        symlink("nowhere", scene.bin("tuning")).unwrap();
        fs::write(scene.bin("cnv-tuning.partial"), "half").unwrap();
        scene.put();
        scene.check("bridge", "the node's");
        for name in ["cnv-bridge", "cnv-tuning", "tuning"] {
            scene.check(name, "new");
        }
        assert!(!scene.bin("cnv-tuning.partial").exists());
    }
}
