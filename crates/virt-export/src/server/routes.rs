//! What is at which path, and whether whoever asks has the token.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use api::export::constants::{READY, TOKEN};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use percent_encoding::percent_decode_str;

use super::backup::{Backup, Form as Shown, Served};
use super::files::{self, Found};
use super::manifests::{self, Form, Side};
use super::{Volume, archive, gzip, raw};

const OCTETS: &str = "application/octet-stream";
const NO_GUEST: &str = "the guest's disks are not lent to this server";

/// What is served.
#[derive(Clone, Debug, Default)]
pub struct Export {
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The file with the token: it is read for each request, since whoever made it may change it.
    pub token: PathBuf,
    /// The export's name.
    pub name: String,
    /// Path of the machine's manifests, if there is a machine.
    pub machine: Option<String>,
    /// Path of the Secret with which disks are fetched.
    pub secret: Option<String>,
    /// Directory of what the manifests are made of.
    pub manifests: PathBuf,
    /// The backup that is pulled, if it is one.
    pub backup: Option<Backup>,
}

/// The server's paths.
pub fn router(export: Export) -> Router {
    let export = Arc::new(export);
    let lender = export.backup.as_ref().map(|backup| backup.lender.clone());
    let ready = move || {
        let ready = lender.as_ref().is_none_or(|lender| lender.is_there());
        async move { if ready { (StatusCode::OK, "OK") } else { (StatusCode::SERVICE_UNAVAILABLE, NO_GUEST) } }
    };
    let handler = move |request: Request| {
        let export = export.clone();
        // Nothing that is asked for is in a body.
        let (parts, _) = request.into_parts();
        async move { handle(&export, &parts).await }
    };
    Router::new().route(READY, get(ready)).fallback(handler)
}

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Raw(&'a Volume),
    Gzip(&'a Volume),
    Archive(&'a Volume),
    /// With the path in the volume.
    Files(&'a Volume, &'a str),
    /// The directory of the files, as if it were a file: it is said where it is.
    Directory,
    Machine(Side),
    Secret,
    /// A volume of the backup.
    Pulled(&'a Served, Shown),
}

impl Export {
    fn place<'a>(&'a self, path: &'a str) -> Option<Place<'a>> {
        for side in [Side::Internal, Side::External] {
            let Some(rest) = path.strip_prefix('/').and_then(|path| path.strip_prefix(side.word())) else { continue };
            if self.machine.as_deref() == Some(rest) {
                return Some(Place::Machine(side));
            }
            if self.secret.as_deref() == Some(rest) {
                return Some(Place::Secret);
            }
        }
        if let Some((volume, form)) = self.backup.as_ref().and_then(|backup| backup.place(path)) {
            return Some(Place::Pulled(volume, form));
        }
        self.volumes.iter().filter(|_| path.starts_with('/')).find_map(|volume| {
            let files = Some(volume.dir.as_str()).filter(|dir| !dir.is_empty());
            match path {
                path if path == volume.raw => Some(Place::Raw(volume)),
                path if path == volume.gzip => Some(Place::Gzip(volume)),
                path if path == volume.archive => Some(Place::Archive(volume)),
                path if files.is_some_and(|dir| dir.strip_suffix('/') == Some(path)) => Some(Place::Directory),
                path => files.and_then(|dir| path.strip_prefix(dir)).map(|rest| Place::Files(volume, rest)),
            }
        })
    }
}

async fn handle(export: &Export, request: &Parts) -> Response {
    match tokio::fs::read_to_string(&export.token).await {
        Ok(token) if shown(&request.headers, &request.uri, token.trim_end_matches(['\r', '\n'])) => {}
        Ok(_) => return StatusCode::UNAUTHORIZED.into_response(),
        Err(error) => {
            tracing::error!(path = %export.token.display(), %error, "the token cannot be read");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    }
    let Some(place) = export.place(request.uri.path()) else { return StatusCode::NOT_FOUND.into_response() };
    let method = &request.method;
    if method != Method::GET && method != Method::HEAD {
        return (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, HEAD")]).into_response();
    }
    serve(export, place, request).await.unwrap_or_else(|error| refused(&request.uri, &error))
}

/// Whether the request shows `token`, in the header or in the query. An empty token is shown by nobody.
fn shown(headers: &HeaderMap, uri: &Uri, token: &str) -> bool {
    let parameters = uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let asked = parameters.filter(|(name, _)| *name == TOKEN);
    let asked = asked.map(|(_, value)| percent_decode_str(&value.replace('+', " ")).collect::<Vec<u8>>());
    let headers = headers.get_all(TOKEN).iter().map(|value| value.as_bytes().to_vec());
    // As long for a token that is nearly right as for one that is not.
    let same = |candidate: &[u8]| {
        let digest = |bytes: &[u8]| ring::digest::digest(&ring::digest::SHA256, bytes);
        digest(candidate).as_ref() == digest(token.as_bytes()).as_ref()
    };
    !token.is_empty() && headers.chain(asked).any(|candidate| same(&candidate))
}

fn refused(uri: &Uri, error: &io::Error) -> Response {
    let status = match error.kind() {
        io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
        // A guest that is not there, or not yet.
        io::ErrorKind::NotConnected => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    tracing::warn!(path = uri.path(), %error, "not served");
    status.into_response()
}

async fn serve(export: &Export, place: Place<'_>, request: &Parts) -> io::Result<Response> {
    let (method, asked) = (&request.method, &request.headers);
    let stream = |kind: &'static str, body: Body| {
        let body = if method == Method::HEAD { Body::empty() } else { body };
        ([(header::CONTENT_TYPE, kind)], body).into_response()
    };
    match place {
        Place::Raw(volume) => {
            let disk = blocking(volume, |volume| volume.open()).await?;
            Ok(raw::answer(disk, OCTETS, method, asked))
        }
        Place::Gzip(volume) => {
            let disk = blocking(volume, |volume| volume.open()).await?;
            Ok(stream("application/gzip", Body::from_stream(gzip::stream(disk.file, disk.size))))
        }
        Place::Archive(volume) if method == Method::HEAD => {
            blocking(volume, |volume| volume.check()).await?;
            Ok(stream("application/gzip", Body::empty()))
        }
        Place::Archive(volume) => {
            blocking(volume, |volume| volume.check()).await?;
            Ok(stream("application/gzip", Body::from_stream(archive::stream(volume.path.clone()))))
        }
        Place::Files(volume, rest) => {
            // Relative to what was asked for: a proxy knows this directory by another path.
            let here = format!("{}/", rest.rsplit('/').next().unwrap_or_default());
            let rest = rest.to_owned();
            match blocking(volume, move |volume| files::find(&volume.path, &rest)).await? {
                Found::File(disk) => Ok(raw::answer(disk, OCTETS, method, asked)),
                Found::Listing(page) => Ok(stream("text/html; charset=utf-8", Body::from(page))),
                Found::Directory => Ok((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, here)]).into_response()),
            }
        }
        Place::Directory => Ok((StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, "dir/")]).into_response()),
        Place::Machine(side) => {
            let directory = export.manifests.clone();
            let found = tokio::task::spawn_blocking(move || manifests::machine(&directory, side));
            written(&found.await.map_err(io::Error::other)??, asked)
        }
        Place::Secret => {
            let token = tokio::fs::read_to_string(&export.token).await?;
            written(&[manifests::header_secret(&export.name, token.trim_end_matches(['\r', '\n']))], asked)
        }
        Place::Pulled(volume, form) => match &export.backup {
            Some(backup) => backup.answer((volume, form), method, &request.uri, asked).await,
            None => Ok(StatusCode::NOT_FOUND.into_response()),
        },
    }
}

fn written(objects: &[serde_json::Value], asked: &HeaderMap) -> io::Result<Response> {
    let form = Form::of(asked.get(header::ACCEPT).and_then(|value| value.to_str().ok()));
    let text = manifests::write(objects, form)?;
    Ok(([(header::CONTENT_TYPE, form.content_type())], text).into_response())
}

async fn blocking<T, F>(volume: &Volume, work: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce(Volume) -> io::Result<T> + Send + 'static,
{
    let volume = volume.clone();
    tokio::task::spawn_blocking(move || work(volume)).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_what_is_offered() {
        let disk =
            Volume { raw: "/volumes/a/disk.img".into(), gzip: "/volumes/a/disk.img.gz".into(), ..Volume::default() };
        let files =
            Volume { dir: "/volumes/b/dir/".into(), archive: "/volumes/b/disk.tar.gz".into(), ..Volume::default() };
        let export = Export {
            volumes: vec![disk.clone(), files.clone()],
            machine: Some("/manifests/all".into()),
            secret: Some("/manifests/secret".into()),
            ..Export::default()
        };
        let check = |path: &str, expect: Option<Place<'_>>| assert_eq!(export.place(path), expect, "{path}");
        check("/volumes/a/disk.img", Some(Place::Raw(&disk)));
        check("/volumes/a/disk.img.gz", Some(Place::Gzip(&disk)));
        check("/volumes/b/disk.tar.gz", Some(Place::Archive(&files)));
        check("/volumes/b/dir", Some(Place::Directory));
        check("/volumes/b/dir/", Some(Place::Files(&files, "")));
        check("/volumes/b/dir/x/y", Some(Place::Files(&files, "x/y")));
        check("/internal/manifests/all", Some(Place::Machine(Side::Internal)));
        check("/external/manifests/all", Some(Place::Machine(Side::External)));
        check("/external/manifests/secret", Some(Place::Secret));
        for nothing in ["/", "", "/volumes/c/disk.img", "/volumes/a/dir/", "/manifests/all", "/internal"] {
            check(nothing, None);
        }
    }

    #[test]
    fn the_token_is_in_the_header_or_in_the_query() {
        let check = |header: Option<&'static str>, query: &str, token: &str| {
            let mut headers = HeaderMap::new();
            headers.extend(header.map(|value| (TOKEN.parse::<http::HeaderName>().unwrap(), value.parse().unwrap())));
            shown(&headers, &format!("/x?{query}").parse().unwrap(), token)
        };
        assert!(check(Some("secret"), "", "secret"));
        assert!(check(None, "a=b&x-kubevirt-export-token=se%2Bcret", "se+cret"));
        assert!(check(Some("wrong"), "x-kubevirt-export-token=secret", "secret"));
        assert!(!check(Some("wrong"), "", "secret"));
        assert!(!check(None, "token=secret", "secret"));
        assert!(!check(Some(""), "x-kubevirt-export-token=", ""));
        assert!(!check(None, "", ""));
    }
}
