//! A file system of a kind that the machine's own may not be, in a file; unmounted when dropped.

use std::path::PathBuf;
use std::process::Command;

pub(crate) struct Disk {
    _dir: tempfile::TempDir,
    pub(crate) path: PathBuf,
    /// What was said to that which was wished for, when it could not be had.
    pub(crate) refused: Option<String>,
}

fn run(program: &str, words: &[&str]) -> Result<(), String> {
    let done = Command::new(program).args(words).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()) }
}

impl Disk {
    /// Makes a file system of `size` with the first of these commands, mounted with the options beside it, that the
    /// machine
    /// takes.
    pub(crate) fn new(size: u64, wishes: &[(&str, &str)]) -> Disk {
        let dir = tempfile::tempdir().unwrap();
        let (image, path) = (dir.path().join("image"), dir.path().join("mount"));
        std::fs::create_dir(&path).unwrap();
        let [file, at] = [&image, &path].map(|path| path.display().to_string());
        let mut refused = None;
        for (mkfs, options) in wishes {
            std::fs::File::create(&image).unwrap().set_len(size).unwrap();
            let words: Vec<&str> = mkfs.split_whitespace().skip(1).chain([file.as_str()]).collect();
            run(mkfs.split_whitespace().next().unwrap(), &words).unwrap();
            match run("mount", &["-o", options, &file, &at]) {
                Ok(()) => return Disk { _dir: dir, path, refused },
                Err(error) => refused = Some(error),
            }
        }
        panic!("nothing of {wishes:?} can be mounted: {refused:?}");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", &self.path.display().to_string()]);
    }
}
