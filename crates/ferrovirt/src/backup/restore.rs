//! `ferrovirt restore`: a backup becomes the state that `ferrovirt up` starts from.
//!
//! ```text
//! restore.partial/{pki,store}  --complete-->  restore/{pki,store}  --finish-->  {pki,store}, what was there: replaced/
//! ```
//! Cut short before the first arrow, nothing has happened; after it, the next `restore` or `up` finishes.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use kube_apiserver::store::archive::{self, Archive};
use kube_apiserver::store::{self, OpenError};

use super::file::{self, Backup};
use crate::failure::{advise, parse};
use crate::nodes::Number;
use crate::state::{State, StateArgs};
use crate::terminal;

/// How far the restored cluster's revisions begin above the backup's. What was written after the backup had revisions too,
/// which clients may remember; they must not be given to anything else.
const DISTANCE: u64 = 1 << 30;

const PARTS: [&str; 2] = ["pki", "store"];

/// Replace the cluster's state by a backup; `ferrovirt up` then starts it
#[derive(Debug, Parser)]
#[command(name = "restore")]
struct RestoreArgs {
    #[command(flatten)]
    state: StateArgs,
    /// A file made by `ferrovirt backup`
    file: PathBuf,
    /// Restore over a cluster; its objects and keys are kept in the directory `replaced` beside them, until the next time
    #[arg(long)]
    force: bool,
}

/// `ferrovirt restore`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<RestoreArgs>(words)? else { return Ok(()) };
    terminal::log("error");
    let state = arguments.state.state()?;
    let backup = read(&arguments.file)?;
    refuse_running(&state)?;
    let present = state.store().join(store::FILE).exists() || state.restoring().exists();
    if present && !arguments.force {
        let error = anyhow::anyhow!("there is a cluster in {}", state.dir().display());
        return Err(advise(error, "--force restores over it and keeps its objects and keys in `replaced`"));
    }
    let existed = state.dir().exists();
    state.make()?;
    let outcome = replace(&state, &backup);
    if outcome.is_err() && !existed {
        let _ = fs::remove_dir_all(state.dir());
    }
    outcome?;
    let head = &backup.head;
    terminal::say(&format!("{} objects of {} restored to {}", head.objects, head.made, state.dir().display()));
    terminal::say("`ferrovirt up` starts the cluster");
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Backup> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let backup = file::read(BufReader::new(file));
    backup.with_context(|| format!("cannot restore {}", path.display()))
}

fn refuse_running(state: &State) -> anyhow::Result<()> {
    let mut runs = state.control_plane_pid()?.is_some();
    for number in state.nodes()? {
        runs |= state.node_pid(number)?.is_some();
    }
    if runs {
        return Err(advise(anyhow::anyhow!("the cluster runs"), "`ferrovirt down` stops it"));
    }
    Ok(())
}

fn replace(state: &State, backup: &Backup) -> anyhow::Result<()> {
    let _exclusive = state.exclusive()?;
    let _lock = sys::lock::acquire(&state.control_plane_lock())?.context("the control plane has just started")?;
    finish(state)?;
    let (partial, whole) = (state.restoring().with_extension("partial"), state.restoring());
    clear(&partial)?;
    clear(&state.replaced())?;
    let failed = || format!("cannot write {}", partial.display());
    make(&partial).with_context(failed)?;
    for (name, text) in &backup.files {
        write(&partial.join("pki").join(name), text).with_context(failed)?;
    }
    sync(&partial.join("pki")).with_context(failed)?;
    let newest = backup.head.revision.max(archive::acknowledged(&state.store()));
    let archive = Archive { revision: newest + DISTANCE, objects: backup.objects.clone() };
    archive.write(&partial.join("store")).with_context(failed)?;
    for number in backup.head.nodes.iter().filter_map(|name| name.parse::<Number>().ok()) {
        let dir = state.nodes_dir().join(number.to_string());
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    sync(&partial).and_then(|()| fs::rename(&partial, &whole)).and_then(|()| sync(state.dir())).with_context(failed)?;
    finish(state)
}

/// Puts a complete restored state in its place; nothing to do if there is none. The control plane must not run.
pub(crate) fn finish(state: &State) -> anyhow::Result<()> {
    let whole = state.restoring();
    if !whole.exists() {
        return Ok(());
    }
    let exchange = || -> io::Result<()> {
        fs::create_dir_all(state.replaced())?;
        for part in PARTS {
            let (fresh, present, aside) = (whole.join(part), state.dir().join(part), state.replaced().join(part));
            if !fresh.exists() {
                continue;
            }
            if aside.exists() && present.exists() {
                // An `up` has made it, empty, before it came here.
                fs::remove_dir(&present)?;
            } else if present.exists() {
                fs::rename(&present, &aside)?;
            }
            fs::rename(&fresh, &present)?;
        }
        sync(state.dir())?;
        fs::remove_dir(&whole)
    };
    exchange().with_context(|| format!("cannot put {} in its place", whole.display()))
}

/// Adds what to do to the refusal of a damaged store.
pub(crate) fn advised(error: OpenError) -> anyhow::Error {
    let damaged = matches!(error, OpenError::Damaged { .. });
    let error = anyhow::Error::new(error);
    if damaged { advise(error, "`ferrovirt restore FILE --force` puts a backup in its place") } else { error }
}

fn make(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700).create(dir)?;
    builder.create(dir.join("pki"))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mode = if path.extension().is_some_and(|end| end == "key") { 0o600 } else { 0o644 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn clear(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::file::Head;
    use super::*;

    fn backup(text: &str) -> Backup {
        let line = r#"{"resource":"pods","namespace":"n","name":"a","object":{"metadata":{"resourceVersion":"7"}}}"#;
        Backup {
            head: Head { revision: 9, objects: 1, nodes: vec!["node1".into(), "node2".into()], ..Head::default() },
            files: vec![("ca.key".into(), text.into())],
            objects: vec![Arc::new(archive::parse(line).unwrap())],
        }
    }

    fn key(dir: &Path) -> String {
        fs::read_to_string(dir.join("pki/ca.key")).unwrap()
    }

    #[test]
    fn a_restore_keeps_the_old_state_and_raises_revisions() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::at(dir.path().to_owned());
        state.make().unwrap();
        replace(&state, &backup("one")).unwrap();
        assert_eq!((key(state.dir()), Archive::read(&state.store()).unwrap().revision), ("one".into(), 9 + DISTANCE));
        assert_eq!(state.nodes().unwrap().len(), 2);
        replace(&state, &backup("two")).unwrap();
        assert_eq!((key(state.dir()), key(&state.replaced())), ("two".into(), "one".into()));
        let archive = Archive::read(&state.store()).unwrap();
        assert_eq!((archive.revision, archive.objects[0].revision), (9 + 2 * DISTANCE, 7));
    }

    #[test]
    fn a_restore_cut_short_is_finished_later() {
        for moved in 0..4 {
            let dir = tempfile::tempdir().unwrap();
            let state = State::at(dir.path().to_owned());
            state.make().unwrap();
            replace(&state, &backup("one")).unwrap();
            clear(&state.replaced()).unwrap();
            // As `replace` leaves it, and then so many renames of `finish`.
            make(&state.restoring()).unwrap();
            write(&state.restoring().join("pki/ca.key"), "two").unwrap();
            let store = Archive { revision: 50, objects: backup("").objects };
            store.write(&state.restoring().join("store")).unwrap();
            fs::create_dir(state.replaced()).unwrap();
            let renames = [("pki", "replaced/pki"), ("restore/pki", "pki"), ("store", "replaced/store")];
            for (from, to) in renames.iter().take(moved) {
                fs::rename(dir.path().join(from), dir.path().join(to)).unwrap();
            }
            state.make().unwrap();
            finish(&state).unwrap();
            assert_eq!((key(state.dir()), key(&state.replaced())), ("two".into(), "one".into()), "{moved}");
            assert_eq!(Archive::read(&state.store()).unwrap().revision, 50, "{moved}");
            assert!(!state.restoring().exists());
        }
    }
}
