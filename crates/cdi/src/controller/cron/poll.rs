//! What a cron's source is now: the digest of an image, asked of its registry.
//!
//! The controller asks itself, by one request, where others start a job for it: a job that is scheduled, pulls its image and ends costs
//! seconds of a node and asks no better. But a registry is its tenant's choice, and may be slow, large or silent. So it is asked beside what
//! the controller does for everybody, for [`LONGEST`] at the most, [`AT_ONCE`] for each namespace, and nothing that it answers is repeated.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use disk::source::{Connection, ContainerImage, Error, Patience, Proxies, image_digest};
use kit::Chain;

/// How long a registry is given, its token service included.
const LONGEST: Duration = Duration::from_secs(30);
/// How many registries are asked at once for the crons of one namespace.
const AT_ONCE: usize = 2;

/// An image, and how its registry is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// `docker://host/name:tag`.
    pub url: String,
    /// User and password.
    pub login: Option<(String, String)>,
    /// Certificates to trust beside the system's, in PEM.
    pub certificates: Vec<String>,
    /// No certificate is checked, and none needs to be there.
    pub insecure: bool,
    /// The proxies on the way, as imports go: for http, for https, and for what there is none.
    pub proxies: [Option<String>; 3],
}

/// Asks what images are now.
pub trait Digests: Send + Sync {
    /// The digest of `image`, or why it is not known.
    fn of(&self, image: Image) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send + '_>>;
}

/// Asks registries.
#[derive(Debug)]
pub struct Registries;

impl Digests for Registries {
    fn of(&self, image: Image) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send + '_>> {
        Box::pin(async move {
            let [http, https, none] = image.proxies;
            let second = Duration::from_secs(1);
            let connection = Connection {
                certificates: image.certificates,
                insecure: image.insecure,
                proxies: Proxies { http, https, none },
                // It is asked again by and by.
                patience: Patience {
                    connect: 10 * second,
                    answer: 10 * second,
                    idle: 10 * second,
                    first: second,
                    longest: second,
                    attempts: 1,
                },
                ..Connection::default()
            };
            let name = image.url.strip_prefix("docker://").unwrap_or(&image.url);
            let asked =
                ContainerImage { url: format!("docker://{name}"), login: image.login, ..ContainerImage::default() };
            let why = match tokio::time::timeout(LONGEST, image_digest(&asked, &connection)).await {
                Ok(Ok(digest)) => return Ok(digest),
                Ok(Err(error)) => {
                    tracing::debug!(image = image.url, error = %Chain(&error), "the registry does not answer as it should");
                    reason(&error)
                }
                Err(_) => format!("it took longer than {} s", LONGEST.as_secs()),
            };
            Err(format!("the registry of {} does not say what it is: {why}", image.url))
        })
    }
}

/// Why, in words that hold nothing of what was answered: the controller hears more than the tenant who has it ask.
fn reason(error: &Error) -> String {
    match error {
        Error::Address { why, .. } => why.clone(),
        // Nothing was answered yet.
        Error::Request { source, .. } if source.is_connect() => format!("cannot connect: {}", Chain(source)),
        Error::Request { .. } => "it does not answer in HTTP".to_owned(),
        Error::Silent { .. } => "it does not answer".to_owned(),
        Error::Status { status, .. } => format!("it answered {status}"),
        Error::Credentials { .. } => "its token service refuses; check the name and password of the secret".to_owned(),
        Error::Redirects { .. } | Error::Redirect { .. } => "it leads elsewhere without an end".to_owned(),
        Error::Large { limit, .. } => format!("it answered with more than {limit} bytes"),
        Error::Setup { what, .. } => format!("cannot set up {what}"),
        _ => "its answer is not a manifest".to_owned(),
    }
}

/// Polls that go on, and what has come of them.
#[derive(Debug, Default)]
pub struct Polls(Mutex<BTreeMap<String, Poll>>);

#[derive(Debug)]
struct Poll {
    namespace: String,
    outcome: Option<Result<String, String>>,
}

/// What a poll is at.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// It has ended so.
    Ended(Result<String, String>),
    /// It goes on.
    Asking,
    /// Others of the namespace go on.
    Queued,
    /// It may begin, and counts from now on.
    Begins,
}

impl Polls {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Poll>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The poll of the cron with this UID: an end is told once.
    pub fn turn(&self, uid: &str, namespace: &str) -> Turn {
        let mut all = self.all();
        if all.get(uid).is_some_and(|poll| poll.outcome.is_none()) {
            return Turn::Asking;
        }
        if let Some(outcome) = all.remove(uid).and_then(|poll| poll.outcome) {
            return Turn::Ended(outcome);
        }
        let others = all.values().filter(|poll| poll.namespace == namespace && poll.outcome.is_none());
        if others.count() >= AT_ONCE {
            return Turn::Queued;
        }
        all.insert(uid.to_owned(), Poll { namespace: namespace.to_owned(), outcome: None });
        Turn::Begins
    }

    /// It has come to this.
    pub fn end(&self, uid: &str, outcome: Result<String, String>) {
        if let Some(poll) = self.all().get_mut(uid) {
            poll.outcome = Some(outcome);
        }
    }

    /// Nobody asks for it any more.
    pub fn forget(&self, uid: &str) {
        self.all().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registries_of_one_namespace_hold_up_that_namespace_only() {
        let polls = Polls::default();
        assert_eq!(polls.turn("a", "ns"), Turn::Begins);
        assert_eq!(polls.turn("a", "ns"), Turn::Asking);
        assert_eq!(polls.turn("b", "ns"), Turn::Begins);
        assert_eq!(polls.turn("c", "ns"), Turn::Queued);
        assert_eq!(polls.turn("d", "other"), Turn::Begins);
        polls.end("a", Ok("sha256:1".to_owned()));
        assert_eq!(polls.turn("c", "ns"), Turn::Begins);
        assert_eq!(polls.turn("a", "ns"), Turn::Ended(Ok("sha256:1".to_owned())));
        assert_eq!(polls.turn("a", "ns"), Turn::Queued);
        polls.forget("b");
        polls.end("b", Err("late".to_owned()));
        assert_eq!(polls.turn("a", "ns"), Turn::Begins);
    }
}
