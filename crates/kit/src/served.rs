//! Kinds that a cluster may lack: whether one is served, without asking again and again.
//!
//! ```text
//! CustomResourceDefinition PLURAL.GROUP or APIService VERSION.GROUP changes -> discovery -> served, or not
//! ```
//!
//! Two watches of one name each are all that goes on while a kind is missing; on an idle cluster they are silent.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::core::PartialObjectMeta;
use kube::discovery::ApiResource;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::health::Ready;
use crate::store::{Change, Kept, Mirror, Store, Watch, follow as follow_all};
use crate::{Chain, Task};

/// How often discovery is asked after news that it does not reflect yet, with pauses that double.
const LOOKS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause while the API server does not answer.
const LONGEST: Duration = Duration::from_secs(30);

/// The rights that an account needs for this, as rules of a ClusterRole.
pub fn rules() -> [Value; 2] {
    let rule = |group: &str, resource: &str| json!({ "apiGroups": [group], "resources": [resource], "verbs": ["get", "list", "watch"] });
    [rule("apiextensions.k8s.io", "customresourcedefinitions"), rule("apiregistration.k8s.io", "apiservices")]
}

/// What a definition or a service says about a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    There,
    Gone,
    Unclear,
}

/// Follows whether a kind is served.
pub struct Served {
    client: Client,
    resource: ApiResource,
    known: Option<bool>,
    news: SelectAll<BoxStream<'static, News>>,
}

impl Served {
    /// Of `resource`.
    pub fn new(client: &Client, resource: &ApiResource) -> Self {
        let definition = format!("{}.{}", resource.plural, resource.group);
        let service = format!("{}.{}", resource.version, resource.group);
        let news = [news::<CustomResourceDefinition>(client, &definition), news::<APIService>(client, &service)];
        Served { client: client.clone(), resource: resource.clone(), known: None, news: stream::select_all(news) }
    }

    /// Waits for news, and returns whether the kind is served now. The first answer comes at once; the same may come again.
    /// Who does not wait to the end misses the news.
    pub async fn next(&mut self) -> bool {
        let mut news = self.one().await;
        // What came at the same time is one piece of news.
        while let Some(Some(more)) = self.news.next().now_or_never() {
            news = if more == News::Unclear { news } else { more };
        }
        let expected = match news {
            News::There => Some(true),
            News::Gone => Some(false),
            News::Unclear => None,
        };
        let looks = if expected.is_some() && expected != self.known { LOOKS } else { 1 };
        let (mut pause, mut look) = (PAUSE, 0);
        loop {
            match self.ask().await {
                Ok(served) => {
                    look += 1;
                    if look >= looks || Some(served) == expected {
                        self.known = Some(served);
                        return served;
                    }
                }
                Err(error) => tracing::debug!(kind = self.resource.kind, error = %Chain(&error), "discovery failed"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Waits until the kind is not served any more.
    pub async fn ends(&mut self) {
        while self.next().await {}
    }

    async fn one(&mut self) -> News {
        match self.news.next().await {
            Some(news) => news,
            // The watches never end.
            None => std::future::pending().await,
        }
    }

    async fn ask(&mut self) -> Result<bool, kube::Error> {
        match self.client.list_api_group_resources(&self.resource.api_version).await {
            Ok(known) => Ok(known.resources.iter().any(|known| known.name == self.resource.plural)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What happens to the object `name`.
fn news<K>(client: &Client, name: &str) -> BoxStream<'static, News>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher(Api::<PartialObjectMeta<K>>::all(client.clone()), config).default_backoff();
    let says = |event: Result<Event<PartialObjectMeta<K>>, watcher::Error>| async move {
        match event {
            Ok(Event::Apply(_) | Event::InitApply(_)) => Some(News::There),
            Ok(Event::Delete(_)) => Some(News::Gone),
            Ok(Event::Init) => None,
            // A list in which it may be missing; or nothing can be learnt this way, and discovery is asked as often as that is tried.
            Ok(Event::InitDone) | Err(_) => Some(News::Unclear),
        }
    };
    events.filter_map(says).boxed()
}

/// Calls `changed` with whether `resource` is served: once at the start, and each time that this changes.
pub fn follow(client: &Client, resource: &ApiResource, mut changed: impl FnMut(bool) + Send + 'static) -> Task<()> {
    let mut served = Served::new(client, resource);
    crate::spawn("served", async move {
        let mut before = None;
        loop {
            let now = served.next().await;
            if before != Some(now) {
                changed(now);
            }
            before = Some(now);
        }
    })
}

/// Keeps `ready` while `resource` is served. Without its own kind an operator cannot be asked for anything, and says so.
pub fn required(client: &Client, resource: &ApiResource, ready: Ready, remedy: &'static str) -> Task<()> {
    let definition = format!("{}.{}", resource.plural, resource.group);
    follow(client, resource, move |served| {
        ready.set(served);
        if !served {
            tracing::error!(
                "not ready: the CustomResourceDefinition {definition} is missing, so nothing can be asked for: {remedy}"
            );
        }
    })
}

/// As [`store::watch`](crate::store::watch), of a kind that the cluster may lack: while it does, `store` is empty and
/// [synced](Store::synced).
pub fn watch<K, F>(
    client: &Client,
    resource: &ApiResource,
    api: Api<K>,
    how: Watch<K>,
    store: Store<K>,
    notify: F,
) -> Task<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
    F: FnMut(Change<'_, K>) + Send + 'static,
{
    let served = Served::new(client, resource);
    let config = how.config.clone();
    crate::spawn("watch", async move { mirror(served, api, config, &mut Kept { store, how, notify }).await })
}

/// Keeps `mirror` equal to the cluster, and empty while the kind is not `served`.
pub(crate) async fn mirror<K>(mut served: Served, api: Api<K>, config: watcher::Config, mirror: &mut impl Mirror<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    loop {
        while !served.next().await {
            mirror.clear();
        }
        tokio::select! {
            () = follow_all(api.clone(), config.clone(), mirror) => {}
            () = served.ends() => {}
        }
        mirror.clear();
    }
}
