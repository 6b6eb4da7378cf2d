//! watch: a stream of JSON events, one a line.
//!
//! An event is serialized once, by the write it tells of: its line is handed to all watchers that see the stored version.
//! Those who want something else of it share what is made for the first of them ([`crate::lines`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use http::header;
use serde_json::{Value, json};
use tokio::time::Instant;

use apimachinery::error::ApiError;
use kube_store::{Event, EventKind, LINE_TAIL, Object, Watch};

use super::options::ListOptions;
use super::read::{Filter, expired, too_large};
use super::{Call, protobuf, respond};
use crate::ApiServer;
use crate::accept::{Encoding, Meta, Shape};
use crate::lines::Telling;
use crate::registry::Resource;

/// A bookmark tells an idle watcher how far it has got.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Watches without a timeout of their own end after this; clients start the next one.
const LONGEST: Duration = Duration::from_secs(45 * 60);
/// A line of this length is handed on as it is; shorter ones are put together when there are several.
const LONG: usize = 2048;
/// Objects of one request to a conversion webhook, when a watch begins.
const CONVERTED_TOGETHER: usize = 128;

pub(super) fn watch(call: &Call) -> Result<Response, ApiError> {
    let options = ListOptions::parse(&call.query, true)?;
    let filter = Filter::parse(call)?;
    let store = call.server.store();
    let namespace = (!call.info.namespace.is_empty()).then(|| call.info.namespace.clone());
    let storage = call.storage();
    // Without a position a watch begins with what exists, unless the client says otherwise.
    let unsaid = matches!(options.revision, None | Some(0));
    let from_start = options.initial_events.unwrap_or(unsaid);
    let mut initial = Vec::new();
    let position = if from_start {
        let snapshot = store.list(&storage, namespace.as_deref());
        if let Some(asked) = options.revision.filter(|asked| *asked > snapshot.revision) {
            return Err(too_large(asked, snapshot.revision));
        }
        initial = snapshot.objects;
        initial.retain(|object| filter.matches(object));
        snapshot.revision
    } else if unsaid {
        store.revision()
    } else {
        options.revision.unwrap_or_default()
    };
    // A position too old is told in the stream, as an ERROR event, which is where clients look for it.
    let watch = store.watch(&storage, namespace.as_deref(), position);
    let mut feed = Feed {
        server: call.server.clone(),
        resource: call.resource.clone(),
        filter,
        shape: match call.accept.shape {
            // Each event is of one object.
            Shape::MetadataList(meta) => Shape::Metadata(meta),
            shape => shape,
        },
        encoding: call.accept.encoding,
        include: call.query.get("includeObject").to_owned(),
        bookmarks: options.bookmarks,
        header_sent: false,
        next_bookmark: Instant::now() + BOOKMARK_EVERY,
        until: Instant::now() + options.timeout.unwrap_or(LONGEST),
        closing: call.server.closing(),
        registered: call.server.registered(),
        initial: initial.into_iter(),
        initial_end: options.initial_events == Some(true),
        pending: VecDeque::new(),
        error: None,
        watch: None,
    };
    match watch {
        Ok(watch) => feed.watch = Some(watch),
        Err(gone) => feed.error = Some(expired(gone)),
    }
    let lines = stream::unfold(feed, |mut feed| async move {
        let chunk = feed.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), feed))
    });
    let media_type = if call.accept.encoding == Encoding::Protobuf { protobuf::WATCH } else { "application/json" };
    Ok(([(header::CONTENT_TYPE, media_type)], Body::from_stream(lines)).into_response())
}

struct Feed {
    server: ApiServer,
    resource: Arc<Resource>,
    filter: Filter,
    shape: Shape,
    encoding: Encoding,
    include: String,
    bookmarks: bool,
    /// Whether a Table's columns were sent; later events repeat them no more.
    header_sent: bool,
    next_bookmark: Instant,
    until: Instant,
    closing: tokio::sync::watch::Receiver<bool>,
    /// Changes when other resources are served than before.
    registered: tokio::sync::watch::Receiver<()>,
    /// What existed at the beginning and is not told yet.
    initial: std::vec::IntoIter<Arc<Object>>,
    /// Whether its end is to be marked.
    initial_end: bool,
    /// Events taken from the watch and not told yet.
    pending: VecDeque<Arc<Event>>,
    /// Ends the stream once it is told.
    error: Option<ApiError>,
    /// None after an error ended the stream.
    watch: Option<Watch>,
}

impl Feed {
    /// The next chunk of lines; None ends the stream. A chunk is made when the client has read the last one, and is
    /// bounded: who does not read holds a position and one chunk.
    async fn next(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        if let Some(error) = self.error.take() {
            self.watch = None;
            self.error_line(&mut out, &error);
            return Some(out.into());
        }
        if *self.closing.borrow() || Instant::now() >= self.until {
            return None;
        }
        loop {
            if let Some(line) = self.shared().await {
                return Some(line);
            }
            self.backlog(&mut out).await;
            if !out.is_empty() {
                return Some(out.into());
            }
            let mark = self.wait(&mut out).await?;
            // A bookmark may not overtake events before it.
            if let Some(position) = mark.filter(|_| self.pending.is_empty()) {
                self.bookmark(&mut out, position, false);
            }
        }
    }

    /// Waits for something to tell; None ends the stream. A position is to be told to the client.
    async fn wait(&mut self, out: &mut Vec<u8>) -> Option<Option<u64>> {
        let watch = self.watch.as_mut()?;
        let custom = self.resource.crd.is_some();
        let mut mark = None;
        let events = tokio::select! {
            biased;
            events = watch.next() => events,
            () = tokio::time::sleep_until(self.until) => return None,
            _ = self.closing.wait_for(|closing| *closing) => return None,
            Ok(()) = self.registered.changed(), if custom => watch.ready(),
            () = tokio::time::sleep_until(self.next_bookmark), if self.bookmarks => {
                self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                let events = watch.ready();
                mark = Some(watch.position());
                events
            }
        };
        match events {
            Ok(events) => {
                if !self.renewed(events.is_empty()) {
                    return None;
                }
                self.pending.extend(events);
            }
            Err(gone) => {
                self.watch = None;
                self.error_line(out, &expired(gone));
            }
        }
        Some(mark)
    }

    /// Tells what is there to tell, up to a frame.
    async fn backlog(&mut self, out: &mut Vec<u8>) {
        // What a webhook converts is converted many at a time.
        let together = if self.resource.crd.is_some() { CONVERTED_TOGETHER } else { 1 };
        while out.len() < respond::FRAME && !self.initial.as_slice().is_empty() {
            let part: Vec<_> = self.initial.by_ref().take(together).collect();
            self.existing(out, &part).await;
        }
        if self.initial.as_slice().is_empty() && std::mem::take(&mut self.initial_end) {
            let position = self.watch.as_ref().map_or(0, Watch::position);
            self.bookmark(out, position, true);
        }
        while out.len() < respond::FRAME {
            let Some(event) = self.pending.pop_front() else { break };
            if let Some((kind, object)) = self.seen(&event) {
                self.line(out, kind, object).await;
            }
        }
    }

    /// The next event as the bytes all watchers share, where it is worth a chunk of its own.
    async fn shared(&mut self) -> Option<Bytes> {
        if !self.initial.as_slice().is_empty() || self.initial_end {
            return None;
        }
        let event = self.pending.front()?.clone();
        let (kind, object) = self.seen(&event)?;
        if self.pending.len() > 1 && object.json.len() < LONG {
            return None;
        }
        let line = if self.shows_stored(object) { object.line(kind)? } else { self.made(kind, object).await };
        self.pending.pop_front();
        Some(line)
    }

    /// Whether this watcher is shown the stored bytes.
    fn shows_stored(&self, object: &Object) -> bool {
        self.shape == Shape::Object && self.encoding != Encoding::Protobuf && self.resource.serves_bytes(object)
    }

    /// The line of an event that is not shown as it is stored.
    async fn made(&mut self, kind: EventKind, object: &Arc<Object>) -> Bytes {
        let table = matches!(self.shape, Shape::Table(_));
        let telling = Telling {
            resource: self.resource.clone(),
            revision: object.revision,
            kind,
            shape: self.shape,
            encoding: self.encoding,
            include: self.include.clone(),
            header: table && !self.header_sent,
            second: if table { kit::clock::now().as_second() } else { 0 },
        };
        let header = telling.header;
        let make = async || {
            let mut line = Vec::new();
            match self.bytes(object) {
                Some(bytes) => write_line(&mut line, kind.line_head(), &bytes),
                None => {
                    let value = self.server.in_version(&self.resource, object).await?;
                    self.write(&mut line, kind, value, header);
                }
            }
            Ok(line.into())
        };
        match self.server.lines().line(telling, make).await {
            Ok(line) => {
                self.header_sent |= table;
                line
            }
            Err(error) => {
                let mut line = Vec::new();
                self.error_line(&mut line, &error);
                line.into()
            }
        }
    }

    /// Takes over what a definition says by now; false when it serves this version no more, and when the definition itself
    /// has gone and all is told: its objects went before it.
    fn renewed(&mut self, told: bool) -> bool {
        if self.resource.crd.is_none() {
            return true;
        }
        let registry = self.server.registry();
        let resource = &self.resource;
        match registry.find(&resource.group, &resource.version, &resource.plural) {
            Some(now) => self.resource = now.clone(),
            None => return !told && !registry.resources.iter().any(|r| r.crd == resource.crd),
        }
        true
    }

    /// An event as this watcher sees it.
    fn seen<'e>(&self, event: &'e Event) -> Option<(EventKind, &'e Arc<Object>)> {
        let now = event.kind != EventKind::Deleted && self.filter.matches(&event.object);
        let before = event.previous.as_ref().is_some_and(|previous| self.filter.matches(previous));
        event.seen(before, now)
    }

    /// Objects that exist when the watch begins, converted together.
    async fn existing(&mut self, out: &mut Vec<u8>, objects: &[Arc<Object>]) {
        let ready: Vec<_> = objects.iter().map(|object| self.bytes(object)).collect();
        let others = objects.iter().zip(&ready).filter(|(_, ready)| ready.is_none());
        let others: Vec<_> = others.map(|(object, _)| object.clone()).collect();
        let mut converted = match self.server.in_versions(&self.resource, &others).await {
            Ok(converted) => converted.into_iter(),
            Err(error) => return self.error_line(out, &error),
        };
        for ready in ready {
            if let Some(bytes) = ready {
                write_line(out, EventKind::Added.line_head(), &bytes);
            } else if let Some(value) = converted.next() {
                self.write(out, EventKind::Added, value, !self.header_sent);
                self.header_sent = true;
            }
        }
    }

    /// The object as this watcher wants it, where that takes no tree.
    fn bytes(&self, object: &Object) -> Option<Bytes> {
        match self.shape {
            _ if self.encoding == Encoding::Protobuf || !self.resource.serves_bytes(object) => None,
            Shape::Object => Some(object.json.clone()),
            Shape::Metadata(Meta::V1) => Some(respond::partial_bytes(object)),
            _ => None,
        }
    }

    async fn line(&mut self, out: &mut Vec<u8>, kind: EventKind, object: &Arc<Object>) {
        if self.shows_stored(object) {
            write_line(out, kind.line_head(), &object.json);
        } else {
            let line = self.made(kind, object).await;
            out.extend_from_slice(&line);
        }
    }

    /// Writes the line of an object in the version of the watch; a Table begins with its columns if `header` is set.
    fn write(&self, out: &mut Vec<u8>, kind: EventKind, value: Value, header: bool) {
        let shaped = match self.shape {
            Shape::Object => value,
            Shape::Metadata(meta) | Shape::MetadataList(meta) => respond::partial(&value, meta),
            Shape::Table(meta) => {
                let revision = value["metadata"]["resourceVersion"].clone();
                let mut table = respond::render(&self.resource, &[value], &self.include, meta);
                table["metadata"] = json!({"resourceVersion": revision});
                if !header {
                    table["columnDefinitions"] = Value::Null;
                }
                table
            }
        };
        match self.encoding {
            Encoding::Protobuf => self.frame(out, kind.word(), &shaped),
            _ => write_line(out, kind.line_head(), shaped.to_string().as_bytes()),
        }
    }

    fn frame(&self, out: &mut Vec<u8>, event: &str, object: &Value) {
        match protobuf::frame(event, object) {
            Ok(frame) => out.extend_from_slice(&frame),
            // A Status has a protobuf form.
            Err(unfit) => self.error_line(out, &ApiError::internal(unfit.to_string())),
        }
    }

    fn error_line(&self, out: &mut Vec<u8>, error: &ApiError) {
        match self.encoding {
            Encoding::Protobuf => {
                let frame = protobuf::frame("ERROR", &error.to_status());
                out.extend_from_slice(&frame.unwrap_or_default());
            }
            _ => write_line(out, br#"{"type":"ERROR","object":"#, error.to_status().to_string().as_bytes()),
        }
    }

    fn bookmark(&mut self, out: &mut Vec<u8>, position: u64, initial_end: bool) {
        let mut metadata = json!({"resourceVersion": position.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.shape {
            Shape::Object => {
                json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata})
            }
            Shape::Metadata(meta) | Shape::MetadataList(meta) => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": meta.api_version(), "metadata": metadata})
            }
            Shape::Table(meta) => json!({"kind": "Table", "apiVersion": meta.api_version(), "metadata": metadata,
                "columnDefinitions": null, "rows": []}),
        };
        match self.encoding {
            Encoding::Protobuf => self.frame(out, "BOOKMARK", &object),
            _ => write_line(out, br#"{"type":"BOOKMARK","object":"#, object.to_string().as_bytes()),
        }
    }
}

fn write_line(out: &mut Vec<u8>, head: &[u8], object: &[u8]) {
    out.reserve(head.len() + object.len() + LINE_TAIL.len());
    out.extend_from_slice(head);
    out.extend_from_slice(object);
    out.extend_from_slice(LINE_TAIL);
}
