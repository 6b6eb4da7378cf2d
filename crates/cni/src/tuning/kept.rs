//! Notes of what interfaces were before, a file each: `CONTAINER_INTERFACE.json`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::interface::Wanted;
use crate::call::Call;
use crate::error::Error;

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    network: String,
    container: String,
    interface: String,
    before: Wanted,
}

fn of(directory: &Path, call: &Call) -> PathBuf {
    directory.join(format!("{}_{}.json", call.container, call.interface))
}

/// Notes what was before; a note that is there is older, and counts.
pub(super) fn keep(directory: &Path, call: &Call, before: Wanted) -> Result<(), Error> {
    let path = of(directory, call);
    if path.exists() {
        return Ok(());
    }
    let what = || Error::io(format!("write {}", path.display()));
    fs::create_dir_all(directory).map_err(what())?;
    let (network, container, interface) = (call.network.clone(), call.container.clone(), call.interface.clone());
    let text = serde_json::to_vec(&Note { network, container, interface, before }).map_err(Error::Decode)?;
    // A reader finds all of it or none.
    let partial = path.with_extension("partial");
    fs::write(&partial, text).and_then(|()| fs::rename(&partial, &path)).map_err(what())
}

/// What was before, if anything was changed.
pub(super) fn kept(directory: &Path, call: &Call) -> Result<Option<Wanted>, Error> {
    Ok(read(&of(directory, call))?.map(|note| note.before))
}

/// The interface is as it was.
pub(super) fn forget(directory: &Path, call: &Call) -> Result<(), Error> {
    remove(&of(directory, call))
}

/// Forgets what is noted of `network` and not in use, as the runtime lists it.
pub(super) fn collect(directory: &Path, network: &str, valid: &Value) -> Result<(), Error> {
    let Some(valid) = valid.as_array() else {
        return Err(Error::field("cni.dev/valid-attachments", valid, "list what is in use, however little"));
    };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(Error::io(format!("list {}", directory.display())))?,
    };
    for entry in entries {
        let path = entry.map_err(Error::io(format!("list {}", directory.display())))?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let Some(note) = read(&path)? else { continue };
        let used = valid
            .iter()
            .any(|one| one["containerID"] == note.container.as_str() && one["ifname"] == note.interface.as_str());
        if note.network == network && !used {
            remove(&path)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Option<Note>, Error> {
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(Error::Decode),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format!("read {}", path.display()))(error)),
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()))(error))
        }
        _ => Ok(()),
    }
}
