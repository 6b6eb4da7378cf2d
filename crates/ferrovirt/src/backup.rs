//! `ferrovirt backup`: what the API server keeps, and the keys that make its answers and tokens valid, in one file.
//!
//! What lies on nodes and volumes (images, disks, logs) is not part of it.

mod file;
pub(crate) mod restore;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Parser;
use futures::{AsyncBufReadExt, StreamExt};
use kube_apiserver::store;
use kube_apiserver::store::archive::{self, Archive};
use serde_json::Value;

use crate::failure::{advise, parse};
use crate::state::{State, StateArgs, VERSION};
use crate::{cluster, terminal};
use file::{Head, Writer};

/// Save the cluster's objects, keys and certificates to a file
///
/// The cluster may run meanwhile: what is saved is one consistent moment. The file holds private keys and every Secret, so
/// only its owner may read it. Images, volumes and the disks of machines are not in it.
#[derive(Debug, Parser)]
#[command(name = "backup")]
struct BackupArgs {
    #[command(flatten)]
    state: StateArgs,
    /// File to write; it must not exist
    file: PathBuf,
}

/// `ferrovirt backup`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<BackupArgs>(words)? else { return Ok(()) };
    terminal::log("error,kube_client=off");
    let (state, file) = (arguments.state.state()?, arguments.file);
    if file.symlink_metadata().is_ok() {
        let error = anyhow::anyhow!("{} exists", file.display());
        return Err(advise(error, "a backup overwrites nothing: name another file, or remove this one"));
    }
    ensure_cluster(&state)?;
    let head = if state.control_plane_pid()?.is_some() {
        cluster::runtime()?.block_on(running(&state, &file))?
    } else {
        stopped(&state, &file)?
    };
    terminal::say(&format!("{} objects at revision {} saved to {}", head.objects, head.revision, file.display()));
    Ok(())
}

fn ensure_cluster(state: &State) -> anyhow::Result<()> {
    if state.store().join(store::FILE).exists() {
        return Ok(());
    }
    let error = anyhow::anyhow!("there is no cluster in {}", state.dir().display());
    Err(advise(error, "`ferrovirt up` makes one; --state-dir says where another one is"))
}

/// Asks the API server, which alone knows what is in its store while it runs.
async fn running(state: &State, file: &Path) -> anyhow::Result<Head> {
    let client = cluster::client(&state.kubeconfig(), "ferrovirt").await?;
    let request = http::Request::get("/backup").body(Vec::new()).context("cannot ask for the objects")?;
    let lines = client.request_stream(request).await.context("the API server does not hand its objects out")?;
    let mut lines = std::pin::pin!(lines.lines());
    let first = lines.next().await.context("the API server says nothing")??;
    let said: Value = serde_json::from_str(&first).context("the API server says something else")?;
    let number = |key: &str| said[key].as_u64().with_context(|| format!("the API server does not say its {key}"));
    let head = head(state, number("revision")?, usize::try_from(number("objects")?)?)?;
    let mut new = Partial::create(file)?;
    let mut writer = begin(state, &mut new, &head)?;
    let mut count = 0;
    while let Some(line) = lines.next().await {
        let line = line.context("the API server ended in the middle of its answer")?;
        writer.line(&line).with_context(|| format!("cannot write {}", file.display()))?;
        count += 1;
    }
    ensure!(count == head.objects, "the API server ended after {count} of {} objects", head.objects);
    end(writer)?;
    new.keep()?;
    Ok(head)
}

/// Reads the store itself, and keeps a control plane from starting meanwhile.
fn stopped(state: &State, file: &Path) -> anyhow::Result<Head> {
    let _lock = sys::lock::acquire(&state.control_plane_lock())?.context("the control plane has just started")?;
    let archive = Archive::read(&state.store()).map_err(restore::advised)?;
    let head = head(state, archive.revision, archive.objects.len())?;
    let mut new = Partial::create(file)?;
    let mut writer = begin(state, &mut new, &head)?;
    for object in &archive.objects {
        let line = String::from_utf8(archive::line(object)).context("an object is not text")?;
        writer.line(line.trim_end()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    end(writer)?;
    new.keep()?;
    Ok(head)
}

fn head(state: &State, revision: u64, objects: usize) -> anyhow::Result<Head> {
    let nodes = state.nodes()?.iter().map(ToString::to_string).collect();
    Ok(Head { version: VERSION.to_owned(), made: kit::clock::now().to_string(), revision, objects, nodes })
}

/// The head, and the keys.
fn begin<'a>(state: &State, new: &'a mut Partial, head: &Head) -> anyhow::Result<Writer<BufWriter<&'a File>>> {
    let path = new.path.clone();
    let failed = || format!("cannot write {}", path.display());
    let mut writer = Writer::begin(BufWriter::new(&new.file), head).with_context(failed)?;
    let dir = state.pki();
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    for name in names.iter().filter(|name| name.ends_with(".crt") || name.ends_with(".key")) {
        let path = dir.join(name);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        writer.file(name, &text).with_context(failed)?;
    }
    Ok(writer)
}

fn end(writer: Writer<BufWriter<&File>>) -> anyhow::Result<()> {
    writer.end().and_then(|mut out| out.flush()).context("cannot finish the backup")
}

/// A file under another name until it is whole; gone when it does not get that far.
struct Partial {
    file: File,
    path: PathBuf,
    name: PathBuf,
    kept: bool,
}

impl Partial {
    fn create(name: &Path) -> anyhow::Result<Self> {
        let mut path = name.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        let remove = fs::remove_file(&path);
        drop(remove);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file, path, name: name.to_owned(), kept: false })
    }

    /// Gives the file its name, for good.
    fn keep(mut self) -> anyhow::Result<()> {
        let failed = || format!("cannot write {}", self.name.display());
        self.file.sync_all().with_context(failed)?;
        fs::rename(&self.path, &self.name).with_context(failed)?;
        self.kept = true;
        let dir = self.name.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir).and_then(|dir| dir.sync_all()).with_context(failed)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}
