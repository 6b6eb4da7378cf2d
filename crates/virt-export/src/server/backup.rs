//! Volumes of a backup that is pulled: what they held at one moment, out of the NBD server of a guest that runs on.
//!
//! ```text
//!  GET data -> a range of bytes ─┐                           ┌─ agent of the node (see `api::export::lending`)
//!  GET map  -> extents, by page ─┴─▶ a connection of its own ┴▶ QEMU
//! ```

mod asked;
mod data;
mod lender;
mod map;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use nbd::{ALLOCATION, Client};
use tokio::net::UnixStream;

pub use self::lender::Lender;

const PATH: &str = "_BACKUP_PATH";

/// A volume of the backup, and the paths that lead to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The name of the volume, and of QEMU's export.
    pub volume: String,
    /// Of its bytes.
    pub data: String,
    /// Of its extents.
    pub map: String,
}

/// A backup.
#[derive(Clone, Debug)]
pub struct Backup {
    /// Its volumes.
    pub volumes: Vec<Served>,
    /// QEMU's bitmap of what changed, when it is of what changed.
    pub bitmap: Option<String>,
    /// By whom QEMU is reached.
    pub lender: Arc<Lender>,
}

/// The volumes that the variables of an environment name: `BACKUP0_BACKUP_PATH` and those that begin like it.
pub(super) fn of_environment(variables: impl Iterator<Item = (String, String)>) -> Vec<Served> {
    let all: BTreeMap<String, String> = variables.collect();
    let named = all.iter().filter_map(|(name, value)| Some((name.strip_suffix(PATH)?, value)));
    let volumes = named.map(|(prefix, volume)| {
        let uri = |form: &str| all.get(&format!("{prefix}_{form}_URI")).cloned().unwrap_or_default();
        Served { volume: volume.clone(), data: uri("DATA"), map: uri("MAP") }
    });
    volumes.collect()
}

/// What of a volume is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Data,
    Map,
}

impl Backup {
    pub(super) fn place(&self, path: &str) -> Option<(&Served, Form)> {
        self.volumes.iter().find_map(|volume| match path {
            path if path == volume.data => Some((volume, Form::Data)),
            path if path == volume.map => Some((volume, Form::Map)),
            _ => None,
        })
    }

    /// Answers a request for `volume`.
    pub(super) async fn answer(
        &self,
        (volume, form): (&Served, Form),
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> io::Result<Response> {
        let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
        let asked = match asked::parse(uri.query().unwrap_or_default()) {
            Ok(asked) => asked,
            Err(refusal) => return Ok(refusal.into_response()),
        };
        match form {
            Form::Data => data::answer(self.open(volume, &[]).await?, &asked, range, method),
            Form::Map => {
                let changed = self.bitmap.as_deref().map(nbd::dirty_bitmap);
                let contexts: Vec<&str> = std::iter::once(ALLOCATION).chain(changed.as_deref()).collect();
                map::answer(self.open(volume, &contexts).await?, &asked, method).await
            }
        }
    }

    async fn open(&self, volume: &Served, contexts: &[&str]) -> io::Result<Client<UnixStream>> {
        let stream = self.lender.borrow().await?;
        Client::connect(stream, &volume.volume, contexts).await.map_err(plain)
    }
}

/// A failure of QEMU, or of the way to it.
fn plain(error: nbd::Error) -> io::Error {
    match error {
        nbd::Error::Connection(source) => source,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_named_by_variables() {
        let all = [
            ("BACKUP0_BACKUP_PATH", "root"),
            ("BACKUP0_DATA_URI", "/exports/root/data"),
            ("BACKUP0_MAP_URI", "/exports/root/map"),
            ("VOLUME0_EXPORT_PATH", "/export-volumes/a"),
        ];
        let found = of_environment(all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let root = Served {
            volume: "root".to_owned(),
            data: "/exports/root/data".to_owned(),
            map: "/exports/root/map".to_owned(),
        };
        assert_eq!(found, std::slice::from_ref(&root));
        let backup = Backup { volumes: found, bitmap: None, lender: Lender::new("x") };
        assert_eq!(backup.place("/exports/root/data"), Some((&root, Form::Data)));
        assert_eq!(backup.place("/exports/root/map"), Some((&root, Form::Map)));
        assert_eq!(backup.place("/exports/root/"), None);
    }
}
