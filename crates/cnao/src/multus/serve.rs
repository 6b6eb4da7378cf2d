//! Answers to the shim.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::api::core::v1::Pod;
use kit::shutdown::CancellationToken;
use kube::Client;
use net::cni::{Attachment, Network};
use pod_networks::{Interface, Networks, Sandbox};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::{Mutex, MutexGuard};

use super::call::{self, Call, Failure, LATER, Request, Verb};
use super::{default_network, install, pods};

/// Bytes of a request.
const LARGEST: usize = 1 << 20;
/// A call takes no longer, whatever plugins and the API server do: the container runtime waits for it.
const LIMIT: Duration = Duration::from_secs(200);
/// Sandboxes that may be worked on at once without waiting for each other.
const LANES: usize = 64;

/// What answers.
pub(super) struct Daemon {
    client: Client,
    pub(super) networks: Networks,
    config_dir: PathBuf,
    lanes: [Mutex<()>; LANES],
}

impl Daemon {
    pub(super) fn new(client: Client, networks: Networks, config_dir: PathBuf) -> Self {
        Self { client, networks, config_dir, lanes: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Nobody else changes the sandbox meanwhile.
    pub(super) async fn alone_with(&self, sandbox: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        sandbox.hash(&mut hasher);
        let lane = usize::try_from(hasher.finish() % LANES as u64).unwrap_or_default();
        self.lanes[lane].lock().await
    }

    /// The result for the container runtime; nothing for what has none.
    async fn answer(&self, call: Call) -> Result<Option<Value>, Failure> {
        let id = call.attachment.container.clone();
        match call.verb {
            Verb::Status => {
                let why = |message| Failure { code: 50, message };
                default_network::choose(&install::read(&self.config_dir)).map(|_| None).map_err(why)
            }
            Verb::Gc => {
                for known in self.networks.sandboxes().map_err(|error| Failure::new(&error))? {
                    if !call.valid.contains(&known) {
                        self.leave(&known).await?;
                    }
                }
                Ok(None)
            }
            Verb::Del => self.leave(&id).await.map(|()| None),
            Verb::Check => {
                let _alone = self.alone_with(&id).await;
                self.networks.check(&id).await.map(|()| None).map_err(|error| Failure::new(&error))
            }
            Verb::Add => {
                let _alone = self.alone_with(&id).await;
                // What an interrupted attempt left is in the way of this one.
                self.networks.detach(&id).await.map_err(|error| Failure::new(&error))?;
                let added = self.add(call).await;
                if added.is_err()
                    && let Err(error) = self.networks.detach(&id).await
                {
                    tracing::warn!(sandbox = id, error = %kit::Chain(&error), "networks of a sandbox were not left");
                }
                added.map(Some)
            }
        }
    }

    async fn leave(&self, id: &str) -> Result<(), Failure> {
        let _alone = self.alone_with(id).await;
        self.networks.detach(id).await.map_err(|error| Failure::new(&error))
    }

    async fn add(&self, call: Call) -> Result<Value, Failure> {
        let failed = |error: pod_networks::Error| Failure::new(&error);
        let pod = pods::of_call(&self.client, &call).await?;
        // All that the pod names is known before anything is made.
        let (title, network, attachment) = self.own_network(&pod, call.attachment).await?;
        let wanted = self.networks.wanted(&pod).await.map_err(failed)?;
        let sandbox = Sandbox { id: attachment.container.clone(), netns: attachment.netns.clone().into() };
        let interface = attachment.interface.clone();
        let result = self.networks.attach_own(&title, network, attachment).await.map_err(failed)?;
        let made = net::cni::made(&result, &interface);
        let own = Interface { network: title, name: interface, made, default: true };
        self.networks.attach(&pod, &sandbox, own, wanted).await.map_err(failed)?;
        Ok(result)
    }

    /// Title, plugins and arguments of the pod's own network.
    async fn own_network(&self, pod: &Pod, attachment: Attachment) -> Result<(String, Network, Attachment), Failure> {
        let Some(selected) = pods::default_network(pod)? else {
            let later = |message| Failure { code: LATER, message };
            let network = default_network::choose(&install::read(&self.config_dir)).map_err(later)?;
            return Ok((network.name.clone(), network, attachment));
        };
        let network = self.networks.definition(pod, &selected).await.map_err(|error| Failure::new(&error))?;
        let title = format!("{}/{}", selected.namespace, selected.name);
        Ok((title, network, pod_networks::asked_for(&selected, attachment)))
    }
}

/// Serves the socket until `stop`.
pub(super) async fn serve(listener: UnixListener, daemon: Arc<Daemon>, stop: CancellationToken) {
    let router = Router::new().route("/cni", post(cni)).layer(DefaultBodyLimit::max(LARGEST)).with_state(daemon);
    let served = axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await });
    if let Err(error) = served.await {
        tracing::error!(%error, "the socket of the node is not served any more");
    }
}

async fn cni(State(daemon): State<Arc<Daemon>>, Json(request): Json<Request>) -> Response {
    let version = request.config["cniVersion"].as_str().unwrap_or("0.3.1").to_owned();
    let answered = match call::parse(&request) {
        Ok(call) => {
            let (verb, id) = (call.verb, call.attachment.container.clone());
            let late = || Failure { code: LATER, message: format!("not done within {} s", LIMIT.as_secs()) };
            let answered = tokio::time::timeout(LIMIT, daemon.answer(call)).await.unwrap_or_else(|_| Err(late()));
            if let Err(failure) = &answered {
                tracing::warn!(?verb, sandbox = id, why = failure.message, "a call of the container runtime failed");
            }
            answered
        }
        Err(failure) => Err(failure),
    };
    match answered {
        // A plugin without a result has made nothing that could be told.
        Ok(Some(Value::Null)) => Json(json!({ "cniVersion": version })).into_response(),
        Ok(Some(result)) => Json(result).into_response(),
        Ok(None) => StatusCode::NO_CONTENT.into_response(),
        Err(failure) => (StatusCode::INTERNAL_SERVER_ERROR, Json(failure.body(&version))).into_response(),
    }
}
