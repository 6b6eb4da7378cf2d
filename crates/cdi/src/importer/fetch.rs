//! The way to the image: which source it is, and whether it is there.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use disk::Source;
use disk::source::{Error, ImageDisk, Transfer, Web, gcs, image, imageio, openstack, s3, web};

use super::job::{From, Job};

/// How long a server on the same node may take to say that it is ready.
const READY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);
/// No environment is larger.
const INFORMATION: u64 = 1 << 20;

/// A source that answered.
#[expect(clippy::large_enum_variant, reason = "there is one, for the time of one import")]
pub(super) enum Opened {
    Any(Box<dyn Source>),
    Image(ImageDisk),
    Lent(Transfer),
}

impl Opened {
    pub(super) fn source(&self) -> &dyn Source {
        match self {
            Self::Any(source) => source.as_ref(),
            Self::Image(disk) => disk,
            Self::Lent(transfer) => transfer,
        }
    }

    /// What a container image sets for those who run it.
    pub(super) fn environment(&self) -> &[String] {
        match self {
            Self::Any(_) | Self::Lent(_) => &[],
            Self::Image(disk) => disk.environment(),
        }
    }

    /// Makes sure that what was imported is what its name says, where a name says anything.
    pub(super) fn confirm(&self) -> io::Result<()> {
        match self {
            Self::Any(_) | Self::Lent(_) => Ok(()),
            Self::Image(disk) => disk.confirm(),
        }
    }

    /// Gives back what was lent.
    pub(super) async fn finish(&self, whole: bool) {
        if let Self::Lent(transfer) = self {
            transfer.finish(whole).await;
        }
    }
}

/// Asks for the image. Nothing is fetched when nothing is to be.
pub(super) async fn open(job: &Job) -> Result<Option<Opened>, Error> {
    let connection = &job.connection;
    Ok(Some(match &job.from {
        From::Nowhere => return Ok(None),
        From::Web(from) => Opened::Any(Box::new(web(from, connection).await?)),
        From::Image(from) => Opened::Image(image(from, connection).await?),
        From::S3(from) => Opened::Any(Box::new(s3(from, connection).await?)),
        From::Engine(from) => Opened::Lent(imageio(from, connection).await?),
        From::Gcs(from) => Opened::Any(Box::new(gcs(from, connection).await?)),
        From::Cloud(from) => Opened::Any(Box::new(openstack(from, connection).await?)),
    }))
}

/// The environment of a container image that a server on this node serves: it says so beside the disk.
pub(super) async fn information(job: &Job) -> Result<Vec<String>, String> {
    #[derive(serde::Deserialize)]
    struct Information {
        #[serde(default)]
        env: Vec<String>,
    }
    let From::Web(from) = &job.from else { return Ok(Vec::new()) };
    let directory = from.url.rsplit_once('/').map_or("", |(directory, _)| directory);
    let unread = |error: &(dyn std::error::Error + 'static)| {
        format!("cannot read what the image says of itself: {}", kit::Chain(error))
    };
    let asked = Web { url: format!("{directory}/info"), ..Web::default() };
    let source = web(&asked, &job.connection).await.map_err(|e| unread(&e))?;
    let read = tokio::task::spawn_blocking(move || {
        let mut text = Vec::new();
        source.open(0)?.take(INFORMATION).read_to_end(&mut text)?;
        Ok::<_, io::Error>(text)
    });
    let text = read.await.map_err(|e| unread(&e))?.map_err(|e| unread(&e))?;
    let information: Information = serde_json::from_slice(&text).map_err(|e| unread(&e))?;
    Ok(information.env)
}

/// Waits for the file that says that the image can be fetched, and returns what it holds.
pub(super) async fn ready(path: &Path) -> Result<String, String> {
    let wait = async {
        loop {
            match tokio::fs::read_to_string(path).await {
                Ok(text) => return Ok(text.trim().to_owned()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => tokio::time::sleep(LOOK).await,
                Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
            }
        }
    };
    let late = |_| format!("Timeout waiting for file {}", path.display());
    tokio::time::timeout(READY, wait).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readiness_is_waited_for_a_minute() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ready");
        let error = ready(&path).await.unwrap_err();
        assert!(error.starts_with("Timeout waiting for file /"), "{error}");
        std::fs::write(&path, "fedora.qcow2\n").unwrap();
        assert_eq!(ready(&path).await.unwrap(), "fedora.qcow2");
    }
}
