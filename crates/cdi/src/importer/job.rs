//! What is to be done, read from what the controller says. No file and no server is asked here.

use std::path::PathBuf;

use disk::Checksum;
use disk::source::{CloudImage, Connection, ContainerImage, EngineDisk, GcsObject, Patience, Proxies, S3Object, Web};
use meta::quantity::Amount;

use super::Args;

/// One import.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) from: From,
    pub(super) connection: Connection,
    pub(super) content: Content,
    pub(super) checksum: Option<Checksum>,
    /// What was requested of the volume.
    pub(super) size: Option<u64>,
    pub(super) overhead: f64,
    pub(super) preallocate: bool,
    /// Write past the page cache.
    pub(super) uncached: bool,
    /// The UID of the object that wants the import.
    pub(super) owner: String,
    /// A file to wait for.
    pub(super) ready: Option<PathBuf>,
    /// A file to leave.
    pub(super) done: Option<PathBuf>,
}

/// Where the image comes from.
#[derive(Clone, Debug)]
pub(super) enum From {
    Nowhere,
    Web(Web),
    Image(ContainerImage),
    S3(S3Object),
    Gcs(GcsObject),
    Engine(EngineDisk),
    Cloud(CloudImage),
}

/// What the volume is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Disk,
    Archive,
}

impl From {
    /// As it is called in messages.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Nowhere => "none",
            Self::Web(_) => "http",
            Self::Image(_) => "registry",
            Self::S3(_) => "s3",
            Self::Gcs(_) => "gcs",
            Self::Engine(_) => "imageio",
            Self::Cloud(_) => "openstack",
        }
    }

    /// Puts the name that a server on this node found for the disk in place of the usual one.
    pub(super) fn rename(&mut self, name: &str) {
        if let (Self::Web(web), false) = (self, name.is_empty())
            && let Some(directory) = web.url.strip_suffix("disk.img")
        {
            web.url = format!("{directory}{name}");
        }
    }
}

impl Job {
    pub(super) fn new(args: &Args, secret_headers: Vec<String>) -> Result<Self, String> {
        let content = match args.content_type.as_str() {
            "" | "kubevirt" => Content::Disk,
            "archive" => Content::Archive,
            other => return Err(format!("IMPORTER_CONTENTTYPE is {other:?}, and it has to be kubevirt or archive")),
        };
        let from = from(args, secret_headers)?;
        if content == Content::Archive && matches!(from, From::Image(_) | From::Engine(_)) {
            let word = from.word();
            return Err(format!("the content type of a source of kind {word} has to be kubevirt, and it is archive"));
        }
        Ok(Self {
            from,
            connection: connection(args)?,
            content,
            checksum: checksum(&args.checksum).map_err(|e| e.to_string())?,
            size: set(&args.image_size).map(bytes).transpose()?,
            overhead: overhead(&args.filesystem_overhead)?,
            preallocate: truth("PREALLOCATION", &args.preallocation)?,
            uncached: uncached(&args.cache_mode)?,
            owner: args.owner_uid.clone(),
            ready: set(&args.ready_file).map(PathBuf::from),
            done: set(&args.done_file).map(PathBuf::from),
        })
    }
}

/// The sum that the source's bytes have to have, if any.
pub(super) fn checksum(text: &str) -> Result<Option<Checksum>, disk::ChecksumError> {
    set(text).map(str::parse).transpose()
}

fn uncached(mode: &str) -> Result<bool, String> {
    match mode.to_ascii_uppercase().as_str() {
        "" => Ok(false),
        "TRYNONE" => Ok(true),
        _ => Err(format!("CACHE_MODE is {mode:?}, and it has to be TRYNONE or empty")),
    }
}

fn from(args: &Args, secret_headers: Vec<String>) -> Result<From, String> {
    let url = args.endpoint.clone();
    let pair = match (set(&args.access_key), set(&args.secret_key)) {
        (None, None) => None,
        _ => Some((args.access_key.clone(), args.secret_key.clone())),
    };
    Ok(match args.source.as_str() {
        "none" | "blank" => From::Nowhere,
        "http" => From::Web(Web { url, basic: pair, headers: args.extra_headers.clone(), secret_headers }),
        "registry" => {
            From::Image(ContainerImage { url, login: pair, architecture: set(&args.architecture).map(str::to_owned) })
        }
        "s3" => From::S3(S3Object { url, key: pair }),
        "gcs" => From::Gcs(GcsObject { url, account: set(&args.google_credentials).map(PathBuf::from) }),
        "imageio" => {
            let snapshot = set(&args.checkpoint).map(str::to_owned);
            From::Engine(EngineDisk { url, disk: args.disk_id.clone(), snapshot, login: pair })
        }
        "vddk" => {
            return Err(
                "a vddk source is read by VMware's VDDK library and nbdkit's plugin for it, and this importer \
                        has no such plugin, whatever initImageURL brings: export the disk as a file, and import it by \
                        http or upload it"
                    .into(),
            );
        }
        other => return Err(format!("Unknown data source: {other}")),
    })
}

/// The way to the image.
pub(crate) fn connection(args: &Args) -> Result<Connection, String> {
    let owned = |text: &str| set(text).map(str::to_owned);
    let authorities = [&args.cert_dir, &args.proxy_cert_dir];
    Ok(Connection {
        authorities: authorities.into_iter().filter_map(|path| set(path)).map(PathBuf::from).collect(),
        certificates: Vec::new(),
        insecure: truth("INSECURE_TLS", &args.insecure_tls)?,
        modern: match args.tls_min_version.as_str() {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            other => {
                return Err(format!("TLS_MIN_VERSION is {other:?}, and it has to be VersionTLS10 to VersionTLS13"));
            }
        },
        proxies: Proxies {
            http: owned(&args.http_proxy),
            https: owned(&args.https_proxy),
            none: owned(&args.no_proxy),
        },
        patience: Patience::default(),
    })
}

fn set(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// A size as a count of bytes.
pub(crate) fn bytes(quantity: &str) -> Result<u64, String> {
    let amount: Amount = quantity.parse().map_err(|e| format!("the size {quantity:?} is not a quantity: {e}"))?;
    Ok(amount.bytes())
}

/// A yes or no of the environment.
pub(crate) fn truth(variable: &str, text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "t" => Ok(true),
        "false" | "0" | "f" | "" => Ok(false),
        _ => Err(format!("{variable} is {text:?}, and it has to be \"true\" or \"false\"")),
    }
}

/// A part of one.
pub(crate) fn overhead(text: &str) -> Result<f64, String> {
    let parsed = set(text).map_or(Ok(0.0), str::parse);
    let refused = || format!("FILESYSTEM_OVERHEAD is {text:?}, and it has to be a number from 0 to 1");
    parsed.ok().filter(|part| (0.0..=1.0).contains(part)).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(change: impl Fn(&mut Args)) -> Args {
        let mut args = Args { source: "http".into(), endpoint: "http://host/disk.img".into(), ..Args::default() };
        change(&mut args);
        args
    }

    #[track_caller]
    fn check(change: impl Fn(&mut Args), expect: &str) {
        let found = match Job::new(&args(change), vec!["X-Secret: s".into()]) {
            Ok(job) => format!("{job:?}"),
            Err(error) => error,
        };
        assert!(found.contains(expect), "{found}");
    }

    #[test]
    fn variables_make_a_job() {
        check(
            |_| {},
            "checksum: None, size: None, overhead: 0.0, preallocate: false, uncached: false, owner: \"\", ready: None",
        );
        check(|a| a.image_size = "1Gi".into(), "size: Some(1073741824)");
        check(|a| a.filesystem_overhead = "0.06".into(), "overhead: 0.06");
        check(|a| a.preallocation = "true".into(), "preallocate: true");
        check(|a| a.content_type = "archive".into(), "content: Archive");
        check(|a| a.cache_mode = "trynone".into(), "uncached: true");
        check(|a| a.access_key = "me".into(), "basic: Some((\"me\", \"\"))");
        check(|a| a.extra_headers = vec!["X: y".into()], "headers: [\"X: y\"], secret_headers: [\"X-Secret: s\"]");
        check(|a| a.source = "registry".into(), "Image(ContainerImage");
        check(|a| a.source = "s3".into(), "S3(Object { url: \"http://host/disk.img\", key: None");
        check(|a| a.source = "none".into(), "Nowhere");
        let engine = |a: &mut Args| (a.source, a.disk_id) = ("imageio".into(), "d1".into());
        check(engine, "Engine(EngineDisk { url: \"http://host/disk.img\", disk: \"d1\"");
        check(|a| a.https_proxy = "http://proxy:3128".into(), "https: Some(\"http://proxy:3128\")");
        check(|a| a.tls_min_version = "VersionTLS13".into(), "modern: true");
        check(|a| a.cert_dir = "/certs".into(), "authorities: [\"/certs\"]");
    }

    #[test]
    fn variables_that_cannot_be_used_are_named() {
        check(|a| a.source = "ftp".into(), "Unknown data source: ftp");
        check(|a| a.source = "vddk".into(), "initImageURL");
        check(|a| a.content_type = "iso".into(), "IMPORTER_CONTENTTYPE is \"iso\"");
        check(|a| a.image_size = "big".into(), "the size \"big\" is not a quantity");
        check(|a| a.preallocation = "maybe".into(), "PREALLOCATION is \"maybe\"");
        check(|a| a.cache_mode = "none".into(), "CACHE_MODE is \"none\"");
        check(|a| a.tls_min_version = "1.3".into(), "TLS_MIN_VERSION is \"1.3\"");
        check(|a| a.insecure_tls = "maybe".into(), "INSECURE_TLS is \"maybe\"");
        check(|a| a.filesystem_overhead = "6%".into(), "FILESYSTEM_OVERHEAD is \"6%\"");
        check(|a| a.filesystem_overhead = "1.5".into(), "a number from 0 to 1");
        check(|a| a.checksum = "sha256:xyz".into(), "the checksum has the character 'x'");
        let archive = |a: &mut Args| (a.source, a.content_type) = ("registry".into(), "archive".into());
        check(archive, "has to be kubevirt");
    }

    #[test]
    fn a_server_on_the_node_says_what_the_disk_is_called() {
        let renamed = |name: &str| {
            let mut from = From::Web(Web { url: "http://localhost:8100/disk.img".into(), ..Web::default() });
            from.rename(name);
            format!("{from:?}")
        };
        assert!(renamed("fedora.qcow2").contains("\"http://localhost:8100/fedora.qcow2\""));
        assert!(renamed("").contains("\"http://localhost:8100/disk.img\""));
    }
}
