//! Disks of an oVirt engine: a transfer is asked for, the bytes come from the host that has them, the transfer is ended.
//!
//! ```text
//!  POST imagetransfers ─▶ phase "transferring" ─▶ GET extents ─▶ GET data, by ranges ─▶ POST finalize, or cancel
//! ```

use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use http::header::{self, HeaderMap, HeaderValue};
use serde::Deserialize;
use serde_json::json;
use url::Url;

use super::connection::Connection;
use super::http::{address, basic};
use super::origin::{Origin, Tries};
use super::remote::Remote;
use super::{Error, Source};

/// No answer of the engine that is of use is larger.
const LIMIT: usize = 1 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// How long the host keeps a transfer that nobody reads: an import may have to wait for its volume.
const INACTIVITY: u32 = 3600;
/// How often a transfer is looked at until it begins.
const LOOKS: u32 = 120;

/// What the API says about a disk of an engine.
#[derive(Clone, Debug, Default)]
pub struct EngineDisk {
    /// The engine's API: `https://engine/ovirt-engine/api`.
    pub url: String,
    /// The disk's identity.
    pub disk: String,
    /// One of its snapshots: the whole disk as it was then, and not as it is.
    pub snapshot: Option<String>,
    /// Name and password.
    pub login: Option<(String, String)>,
}

/// More than this is not kept: the disk is then read as a whole.
const EXTENTS_LIMIT: usize = 8 << 20;

/// A transfer that runs, as a source of the disk's raw bytes.
pub struct Transfer {
    remote: Remote,
    ticket: Origin,
    data: Option<Vec<Range<u64>>>,
}

#[derive(Deserialize)]
struct Ticket {
    id: String,
    phase: String,
    transfer_url: Option<String>,
    proxy_url: Option<String>,
}

/// Asks the engine for the disk. Call it within the runtime that is to do the work.
///
/// # Errors
/// When the engine has no such disk, does not give it to this user, or no host serves it.
pub async fn imageio(disk: &EngineDisk, connection: &Connection) -> Result<Transfer, Error> {
    let mut base = address(&disk.url)?;
    base.set_path(&format!("{}/", base.path().trim_end_matches('/')));
    let secret = match &disk.login {
        Some((name, password)) => HeaderMap::from_iter([(header::AUTHORIZATION, basic(name, password)?)]),
        None => HeaderMap::new(),
    };
    let plain = HeaderMap::from_iter([(header::ACCEPT, JSON)]);
    let engine = Origin::new(connection, base, plain, Arc::new(secret))?;
    let transfers = engine.at(below(&engine.url, "imagetransfers")?);
    let mut wanted = json!({ "direction": "download", "format": "raw", "inactivity_timeout": INACTIVITY });
    match &disk.snapshot {
        Some(snapshot) => wanted["snapshot"] = json!({ "id": snapshot }),
        None => wanted["disk"] = json!({ "id": disk.disk }),
    }
    let begun = begin(&transfers, &wanted.to_string()).await?;
    let ticket = engine.at(below(&engine.url, &format!("imagetransfers/{}", begun.id))?);
    match serve(&ticket, begun, connection).await {
        Ok((remote, data)) => Ok(Transfer { remote, ticket, data }),
        Err(error) => {
            end(&ticket, "cancel").await;
            Err(error)
        }
    }
}

fn below(base: &Url, path: &str) -> Result<Url, Error> {
    base.join(path).map_err(|e| Error::Address { url: base.to_string(), why: e.to_string() })
}

/// Asks for a transfer, again while the disk is locked by something else.
async fn begin(transfers: &Origin, wanted: &str) -> Result<Ticket, Error> {
    let mut tries = Tries::new(transfers.patience);
    loop {
        let error = match transfers.post(JSON, wanted.to_owned(), LIMIT).await {
            Ok(text) => return read(transfers, &text),
            Err(Error::Status { url, status, .. }) if status.as_u16() == 409 => {
                // A locked disk is unlocked sooner or later: as good as a server that is busy.
                Error::Status { url, status: http::StatusCode::SERVICE_UNAVAILABLE, again: None }
            }
            Err(error) => error,
        };
        match tries.pause(&error) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(error),
        }
    }
}

/// A disk that is served, and where it has data, if its host says.
type Served = (Remote, Option<Vec<Range<u64>>>);

/// Waits for the transfer to begin and finds who serves it.
async fn serve(ticket: &Origin, mut now: Ticket, connection: &Connection) -> Result<Served, Error> {
    for _ in 0..LOOKS {
        match now.phase.as_str() {
            "initializing" => {}
            "transferring" => return reach(now, connection).await,
            other => {
                let why =
                    format!("the engine's transfer is in phase {other:?} and will not begin; see the engine's events");
                return Err(Error::Image(why));
            }
        }
        tokio::time::sleep(ticket.patience.first).await;
        let (_, text) = ticket.document("an image transfer", LIMIT).await?;
        now = read(ticket, &text)?;
    }
    Err(Error::Image("the engine's transfer did not begin; see the engine's events".into()))
}

/// The host itself, or the engine on behalf of it where the host is not reached.
async fn reach(ticket: Ticket, connection: &Connection) -> Result<Served, Error> {
    let mut last = Error::Image("the engine's transfer names no address".into());
    for place in [ticket.transfer_url, ticket.proxy_url].into_iter().flatten() {
        let origin = Origin::new(connection, address(&place)?, HeaderMap::new(), Arc::new(HeaderMap::new()))?;
        match Remote::probe(origin.clone()).await {
            Ok(remote) => {
                let data = extents(&origin, remote.size()).await;
                return Ok((remote, data));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[derive(Deserialize)]
struct Stretch {
    start: u64,
    length: u64,
    #[serde(default)]
    zero: bool,
}

/// Where the disk has data. An old host, and one whose answer makes no sense, says nothing: then all of it is read.
async fn extents(disk: &Origin, size: Option<u64>) -> Option<Vec<Range<u64>>> {
    let mut url = disk.url.clone();
    url.set_path(&format!("{}/extents", url.path().trim_end_matches('/')));
    let asked = disk.at(url).once("the extents of a disk", EXTENTS_LIMIT).await;
    data_in(&serde_json::from_slice::<Vec<Stretch>>(&asked.ok()?.1).ok()?, size?)
}

/// The stretches that are not zero, if all of them together are a disk of this size.
fn data_in(stretches: &[Stretch], size: u64) -> Option<Vec<Range<u64>>> {
    let mut at = 0_u64;
    let mut data = Vec::new();
    for stretch in stretches {
        let end = stretch.start.checked_add(stretch.length).filter(|_| stretch.start == at)?;
        if !stretch.zero {
            data.push(at..end);
        }
        at = end;
    }
    (at == size).then_some(data)
}

fn read(from: &Origin, text: &[u8]) -> Result<Ticket, Error> {
    let unread =
        |e: serde_json::Error| Error::Document { url: from.name(), what: "an image transfer", source: e.into() };
    serde_json::from_slice(text).map_err(unread)
}

/// Ends a transfer one way or the other. An engine that does not hear it ends it itself, when nobody reads any more.
async fn end(ticket: &Origin, how: &str) {
    let mut url = ticket.url.clone();
    url.set_path(&format!("{}/{how}", url.path()));
    let _ = ticket.at(url).post(JSON, "{}".to_owned(), LIMIT).await;
}

impl Transfer {
    /// Tells the engine that the disk may be used again.
    pub async fn finish(&self, whole: bool) {
        end(&self.ticket, if whole { "finalize" } else { "cancel" }).await;
    }
}

impl Source for Transfer {
    fn size(&self) -> Option<u64> {
        self.remote.size()
    }

    fn ranged(&self) -> bool {
        self.remote.ranged()
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        self.remote.open(offset)
    }

    fn data(&self) -> Option<Vec<Range<u64>>> {
        self.data.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Option<&[Range<u64>]>) {
        let stretches: Vec<Stretch> = serde_json::from_str(text).unwrap();
        assert_eq!(data_in(&stretches, 30).as_deref(), expect);
    }

    #[test]
    fn extents_have_to_be_the_whole_disk() {
        let zero = r#"{"start": 10, "length": 15, "zero": true, "hole": true}"#;
        let whole = format!(r#"[{{"start": 0, "length": 10, "zero": false}}, {zero}, {{"start": 25, "length": 5}}]"#);
        check(&whole, Some(&[0..10, 25..30]));
        check(&format!("[{zero}]"), None);
        check(r#"[{"start": 0, "length": 29}]"#, None);
        check(r#"[{"start": 0, "length": 31}]"#, None);
        check(r#"[{"start": 0, "length": 10}, {"start": 5, "length": 25}]"#, None);
        check(r#"[{"start": 0, "length": 10}, {"start": 10, "length": 18446744073709551615}]"#, None);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Where data is said to be is within the disk and in order, or nothing is believed.
        #[test]
        fn any_extents_are_ordered_and_in_the_disk_or_refused(told in proptest::collection::vec((any::<Option<u64>>(), 0_u64..4096, any::<bool>()), 0..8), size in 0_u64..16384) {
            let mut at = 0_u64;
            let stretches: Vec<Stretch> = told.into_iter().map(|(start, length, zero)| {
                let start = start.unwrap_or(at);
                at = start.saturating_add(length);
                Stretch { start, length, zero }
            }).collect();
            if let Some(data) = data_in(&stretches, size) {
                prop_assert!(data.iter().all(|range| range.start <= range.end && range.end <= size));
                prop_assert!(data.windows(2).all(|pair| pair[0].end <= pair[1].start));
            }
        }

        #[test]
        fn any_answer_of_an_engine_is_parsed_or_refused(text in ".{0,80}|\\{\"(id|phase|transfer_url|proxy_url)\": .{0,40}\\}") {
            let _ = serde_json::from_str::<Ticket>(&text);
            let _ = serde_json::from_str::<Vec<Stretch>>(&text);
        }

        /// An engine does not lead us elsewhere by the name that it gives to a transfer.
        #[test]
        fn a_transfer_is_asked_after_at_the_engine(id in "[./?#@:%a-z\\\\]{0,20}|\\PC{0,20}") {
            let base = Url::parse("https://engine.lan:8443/ovirt-engine/api/").unwrap();
            if let Ok(url) = below(&base, &format!("imagetransfers/{id}")) {
                prop_assert_eq!((url.origin(), url.username(), url.password()), (base.origin(), "", None));
            }
        }

        #[test]
        fn a_transfer_that_was_changed_is_one_or_none(
            id in "\\PC{0,20}", at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut text = json!({ "id": id, "phase": "transferring", "transfer_url": "https://h/1" }).to_string().into_bytes();
            let ticket: Ticket = serde_json::from_slice(&text).unwrap();
            prop_assert_eq!((ticket.id, ticket.transfer_url.as_deref(), ticket.proxy_url), (id, Some("https://h/1"), None));
            let at = at.index(text.len());
            text[at] = byte;
            let _ = serde_json::from_slice::<Ticket>(&text);
        }
    }
}
