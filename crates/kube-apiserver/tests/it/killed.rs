//! A server that is killed, by SIGKILL, in the middle of what several clients ask of it: afterwards every acknowledged write is
//! there, no other one by half, no revision stands for two things, and watches go on without a gap.
//!
//! `STORE_SEED=n` repeats the clients' choices, `STORE_KILLS=n` makes more rounds.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use kube_apiserver::pki::kubeconfig;
use kube_apiserver::serve::tls::Tls;
use kube_apiserver::{ApiServer, Config};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

/// Where the child finds its directory.
const DIR: &str = "KILLED_SERVER_DIR";
const CLIENTS: usize = 4;
const NAMES: usize = 5;

/// Not a test of its own: the server, in the process that is killed.
#[tokio::test]
async fn the_server_that_is_killed() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let dir = Path::new(&dir);
    let config = Config { data_dir: Some(dir.join("data")), pki_dir: Some(dir.join("pki")), ..Config::default() };
    let server = ApiServer::open(config).await.unwrap();
    let pki = &server.edges().pki;
    let pair = pki.api_server(&["127.0.0.1".into()]).unwrap();
    let tls = Tls::from_pem(&pair.certificate, &pair.key, pki.ca_pem()).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::fs::write(dir.join("kubeconfig"), kubeconfig(&url, pki.ca_pem(), "admin", &pki.admin().unwrap())).unwrap();
    println!("\nlistening");
    server.serve(vec![listener], Arc::new(tls), tokio_util::sync::CancellationToken::new()).await;
}

struct Server(Child);

impl Server {
    fn start(dir: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "killed::the_server_that_is_killed", "--nocapture"]).env(DIR, dir);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "listening"), "the server does not start");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn client(dir: &Path) -> Client {
    let read = kube::config::Kubeconfig::read_from(dir.join("kubeconfig")).unwrap();
    let config = kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// A state of a key: its revision and its text; None when it was removed.
type State = Option<(u64, String)>;

/// What a client knows of a name that only it writes to.
#[derive(Clone, Debug, Default)]
struct Known {
    /// After the last write that was answered.
    sure: State,
    /// What unanswered writes may have made of it since.
    perhaps: Vec<Option<String>>,
}

/// What every revision was, by whoever was told first.
#[derive(Debug, Default)]
struct Told(BTreeMap<u64, (String, State)>);

impl Told {
    fn tell(&mut self, revision: u64, name: &str, state: &State) {
        let told = (name.to_owned(), state.clone());
        let first = self.0.entry(revision).or_insert_with(|| told.clone());
        assert_eq!(*first, told, "revision {revision} was told to be two things");
    }
}

fn state(map: &ConfigMap) -> State {
    let text = map.data.as_ref().and_then(|data| data.get("text")).cloned().unwrap_or_default();
    Some((revision(map), text))
}

fn revision(map: &ConfigMap) -> u64 {
    map.resource_version().unwrap().parse().unwrap()
}

fn map(name: &str, text: &str, client: usize) -> ConfigMap {
    let labels = json!({"client": client.to_string()});
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "data": {"text": text}})).unwrap()
}

/// Writes to its own names until the server is gone.
async fn work(
    api: Api<ConfigMap>,
    client: usize,
    mut rng: StdRng,
    known: &mut BTreeMap<String, Known>,
    told: &Mutex<Told>,
) {
    loop {
        let name = format!("c{client}-{}", rng.random_range(0..NAMES));
        let text = format!("{}{}", rng.random::<u32>(), "x".repeat(rng.random_range(0..3000)));
        if rng.random_bool(0.04) {
            let mine = ListParams::default().labels(&format!("client={client}"));
            if api.delete_collection(&DeleteParams::default(), &mine).await.is_err() {
                known.values_mut().for_each(|known| known.perhaps.push(None));
                return;
            }
            known.values_mut().for_each(|known| *known = Known::default());
            continue;
        }
        let entry = known.entry(name.clone()).or_default();
        let (wish, answer) = match &entry.sure {
            None => {
                (Some(text.clone()), api.create(&PostParams::default(), &map(&name, &text, client)).await.map(Some))
            }
            Some((seen, _)) => match rng.random_range(0..4) {
                0 => {
                    let version = Some(seen.to_string());
                    let only = Preconditions { resource_version: version, uid: None };
                    let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
                    (None, api.delete(&name, &params).await.map(|_| None))
                }
                1 => {
                    let mut changed = map(&name, &text, client);
                    changed.metadata.resource_version = Some(seen.to_string());
                    (Some(text.clone()), api.replace(&name, &PostParams::default(), &changed).await.map(Some))
                }
                _ => {
                    let patch = Patch::Merge(json!({"data": {"text": text}}));
                    (Some(text.clone()), api.patch(&name, &PatchParams::default(), &patch).await.map(Some))
                }
            },
        };
        match answer {
            Ok(object) => {
                entry.sure = object.as_ref().and_then(state);
                if let Some(object) = object {
                    told.lock().unwrap().tell(revision(&object), &name, &state(&object));
                }
            }
            Err(kube::Error::Api(status)) => panic!("{name}: {status:?}"),
            Err(_) => {
                entry.perhaps.push(wish);
                return;
            }
        }
    }
}

/// Follows all of them from `position`, or from a list when that is too old; returns where it got to.
async fn follow(api: Api<ConfigMap>, position: &mut u64, told: &Mutex<Told>) {
    if *position == 0 {
        let Ok(list) = api.list(&ListParams::default()).await else { return };
        *position = list.metadata.resource_version.unwrap().parse().unwrap();
    }
    let Ok(events) = api.watch(&WatchParams::default(), &position.to_string()).await else { return };
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        let (object, gone) = match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => (object, false),
            Ok(WatchEvent::Deleted(object)) => (object, true),
            Ok(WatchEvent::Error(status)) => {
                assert_eq!(status.code, 410, "{status:?}");
                *position = 0;
                return;
            }
            Ok(WatchEvent::Bookmark(_)) => continue,
            Err(_) => return,
        };
        let now = revision(&object);
        assert!(now > *position, "{now} was told after {position}");
        let mut told = told.lock().unwrap();
        if object.name_any().starts_with('c') {
            told.tell(now, &object.name_any(), &if gone { None } else { state(&object) });
        }
        *position = now;
    }
}

/// What the server has, against what its clients know.
async fn compare(api: &Api<ConfigMap>, known: &mut [BTreeMap<String, Known>], told: &Mutex<Told>) {
    let list = api.list(&ListParams::default()).await.unwrap();
    let newest: u64 = list.metadata.resource_version.unwrap().parse().unwrap();
    let mut told = told.lock().unwrap();
    let last = told.0.last_key_value().map_or(0, |(revision, _)| *revision);
    assert!(newest >= last, "revision {last} was told, and the server is at {newest}");
    let found: BTreeMap<String, State> = list.items.iter().map(|map| (map.name_any(), state(map))).collect();
    for (name, known) in known.iter_mut().flatten() {
        let found = found.get(name).cloned().flatten();
        if found != known.sure {
            let text = found.as_ref().map(|(_, text)| text.clone());
            assert!(known.perhaps.contains(&text), "{name} is {found:?}, and was {known:?}");
            if let (Some((revision, _)), Some((sure, _))) = (&found, &known.sure) {
                assert!(revision > sure, "{name} is older than what was acknowledged");
            }
        }
        if let Some((revision, _)) = &found {
            told.tell(*revision, name, &found);
        }
        *known = Known { sure: found, perhaps: Vec::new() };
    }
    let unknown: Vec<_> =
        found.keys().filter(|name| name.starts_with('c') && !known.iter().any(|k| k.contains_key(*name))).collect();
    assert!(unknown.is_empty(), "nobody made {unknown:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_has_lost_nothing_that_it_acknowledged() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("STORE_SEED").unwrap_or_else(rand::random);
    println!("to repeat the clients' choices: STORE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    // Refused when there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let told = Mutex::new(Told::default());
    let mut known = vec![BTreeMap::new(); CLIENTS];
    let mut positions = [0; 2];
    for _ in 0..number("STORE_KILLS").unwrap_or(6) {
        let server = Server::start(dir.path());
        let maps: Api<ConfigMap> = Api::default_namespaced(client(dir.path()).await);
        compare(&maps, &mut known, &told).await;
        let moment = Duration::from_millis(rng.random_range(1..500));
        let clients = known.iter_mut().enumerate().map(|(n, known)| {
            let (api, rng) = (maps.clone(), StdRng::seed_from_u64(rng.random()));
            work(api, n, rng, known, &told)
        });
        let watchers = positions.iter_mut().map(|position| follow(maps.clone(), position, &told));
        let death = async {
            tokio::time::sleep(moment).await;
            server.kill();
        };
        tokio::join!(futures::future::join_all(clients), futures::future::join_all(watchers), death);
    }
    let server = Server::start(dir.path());
    let maps: Api<ConfigMap> = Api::default_namespaced(client(dir.path()).await);
    compare(&maps, &mut known, &told).await;
    server.kill();
    assert!(told.into_inner().unwrap().0.len() > 20, "hardly anything was written");
}
