//! All pods of the node: the watch on the API, containerd's events, and one worker for each pod between them.

mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use prost::Message;
use rpc::containerd::events::{Envelope, SubscribeRequest, TaskExit, TaskOom, TaskStart};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::known::Known;
use crate::pod::steps;
use crate::pod::worker::{self, Happened, Wish};
use crate::runtime::label;
use crate::{csi, device_claims, volumes};
use told::Told;

struct Handle {
    wish: watch::Sender<Wish>,
    happened: mpsc::UnboundedSender<Happened>,
    _task: kit::Task<()>,
}

struct Dispatcher {
    context: Arc<Context>,
    workers: BTreeMap<String, Handle>,
    known: watch::Sender<Arc<BTreeMap<String, Arc<Pod>>>>,
    ended: mpsc::UnboundedSender<String>,
    orphans: Option<kit::Task<()>>,
}

enum Event {
    Pod(Box<Result<watcher::Event<Told>, watcher::Error>>),
    Runtime(Happened),
    Ended(String),
    /// The node is to be empty before its power goes.
    Emptied,
}

/// Runs the pods of this node until `shutdown`. Containers go on running after it: the next life takes them over. When the
/// power is about to go it ends once all of them have stopped.
pub(crate) async fn run(
    context: Arc<Context>,
    known: watch::Sender<Arc<BTreeMap<String, Arc<Pod>>>>,
    shutdown: CancellationToken,
) -> Result<()> {
    let (send_event, mut events) = mpsc::unbounded_channel();
    let _subscription = kit::spawn("containerd-events", subscribe(context.clone(), send_event));
    let api: Api<Told> = Api::all(context.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", context.config.node_name));
    let mut pods = watcher(api, config).default_backoff().boxed();
    let (ended, mut endings) = mpsc::unbounded_channel();
    let mut dispatcher = Dispatcher { context, workers: BTreeMap::new(), known, ended, orphans: None };
    let mut listed: Option<BTreeSet<String>> = None;
    let mut emptying = false;
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            event = pods.next() => match event {
                Some(event) => Event::Pod(Box::new(event)),
                None => return Ok(()),
            },
            Some(happened) = events.recv() => Event::Runtime(happened),
            Some(uid) = endings.recv() => Event::Ended(uid),
            () = dispatcher.context.config.power_off.cancelled(), if !emptying => {
                tracing::info!(pods = dispatcher.workers.len(), "the power is about to go: stopping all pods");
                emptying = true;
                Event::Emptied
            }
        };
        match event {
            Event::Pod(event) => match *event {
                Ok(watcher::Event::Init) => listed = Some(BTreeSet::new()),
                Ok(watcher::Event::InitApply(Told(pod))) => {
                    if let (Some(listed), Some(uid)) = (&mut listed, &pod.metadata.uid) {
                        listed.insert(uid.clone());
                    }
                    dispatcher.apply(pod);
                }
                Ok(watcher::Event::InitDone) => {
                    if let Some(listed) = listed.take() {
                        dispatcher.forget_all_but(&listed);
                    }
                    dispatcher.context.allocations.settle();
                }
                Ok(watcher::Event::Apply(Told(pod))) => dispatcher.apply(pod),
                Ok(watcher::Event::Delete(Told(pod))) => dispatcher.deleted(&pod),
                Err(error) => tracing::warn!(error = %kit::Chain(&error), "the watch on pods broke"),
            },
            Event::Runtime(happened) => dispatcher.happened(happened),
            Event::Ended(uid) => dispatcher.ended(&uid),
            Event::Emptied => {}
        }
        if emptying && dispatcher.workers.is_empty() {
            return Ok(());
        }
    }
}

impl Dispatcher {
    fn apply(&mut self, pod: Pod) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let pod = Arc::new(pod);
        self.known.send_modify(|known| {
            Arc::make_mut(known).insert(uid.clone(), pod.clone());
        });
        match self.workers.get(&uid) {
            Some(handle) => {
                handle.wish.send_replace(Wish { pod, gone: false });
            }
            // What would be begun now would be stopped at once.
            None if self.context.config.power_off.is_cancelled() => {}
            None => self.begin(uid, pod),
        }
    }

    fn begin(&mut self, uid: String, pod: Arc<Pod>) {
        self.context.allocations.admit(&pod);
        let (wish, wishes) = watch::channel(Wish { pod, gone: false });
        let (happened, happenings) = mpsc::unbounded_channel();
        let (context, ended, own) = (self.context.clone(), self.ended.clone(), uid.clone());
        let task = kit::spawn("pod", async move {
            Box::pin(worker::run(context, wishes, happenings)).await;
            // The dispatcher outlives its workers.
            let _ = ended.send(own);
        });
        self.workers.insert(uid, Handle { wish, happened, _task: task });
    }

    fn deleted(&mut self, pod: &Pod) {
        let Some(uid) = &pod.metadata.uid else { return };
        self.known.send_modify(|known| {
            Arc::make_mut(known).remove(uid);
        });
        if let Some(handle) = self.workers.get(uid) {
            handle.wish.send_modify(|wish| wish.gone = true);
        }
    }

    /// After a list: who is not in it was deleted unseen, here or before this process began.
    fn forget_all_but(&mut self, listed: &BTreeSet<String>) {
        let unseen: Vec<String> = self.workers.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in unseen {
            self.known.send_modify(|known| {
                Arc::make_mut(known).remove(&uid);
            });
            if let Some(handle) = self.workers.get(&uid) {
                handle.wish.send_modify(|wish| wish.gone = true);
            }
        }
        let keep: BTreeSet<String> = listed.iter().chain(self.workers.keys()).cloned().collect();
        let task = kit::spawn("orphans", remove_orphans(self.context.clone(), keep, self.known.subscribe()));
        // The newest list counts.
        self.orphans = Some(task);
    }

    fn ended(&mut self, uid: &str) {
        self.workers.remove(uid);
        self.context.allocations.forget(uid);
        // Deleted and made again under the same uid does not happen; a pod still known would be begun by its next event.
    }

    fn happened(&self, happened: Happened) {
        let Some(uid) = self.context.runtime.owner(&happened.id) else { return };
        if let Some(handle) = self.workers.get(&uid) {
            // A worker that just ended needs no news.
            let _ = handle.happened.send(happened);
        }
    }
}

/// Removes containers, files, volumes and cgroups of pods that no longer exist; goes on until all are gone, because a
/// volume's driver may have to come first.
async fn remove_orphans(context: Arc<Context>, keep: BTreeSet<String>, known: Known) {
    let mut failures = 0;
    while let Err(error) = orphans(&context, &keep, &known).await {
        failures += 1;
        tracing::warn!(error = %kit::Chain(&error), "leftovers of deleted pods were not removed");
        tokio::time::sleep(kit::backoff::Backoff::QUEUE.delay(failures)).await;
    }
}

async fn orphans(context: &Context, keep: &BTreeSet<String>, known: &Known) -> Result<()> {
    let sandboxes = context.runtime.sandboxes(None).await?;
    let containers = context.runtime.list_containers(None).await?;
    let labels = sandboxes.into_iter().map(|s| s.labels).chain(containers.into_iter().map(|c| c.labels));
    let mut uids: BTreeSet<String> = labels.filter_map(|mut labels| labels.remove(label::POD_UID)).collect();
    uids.extend(context.device_claims.pods());
    let pods = context.config.root.join("pods");
    if let Ok(entries) = std::fs::read_dir(&pods) {
        uids.extend(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()));
    }
    let logs = std::fs::read_dir(&context.config.log_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs: Vec<_> = logs.collect();
    // A pod is known before anything is made for it: what was listed above and is still unknown belongs to nobody.
    let known = known.borrow().clone();
    let wanted = |uid: &str| keep.contains(uid) || known.contains_key(uid);
    let mut failed = None;
    for uid in uids.iter().filter(|uid| !wanted(uid)) {
        tracing::info!(pod = uid, "removing what is left of a deleted pod");
        // One that cannot go yet does not keep the others.
        failed = remove_orphan(context, uid).await.err().or(failed);
    }
    for dir in logs {
        let uid = dir.file_name().and_then(|name| name.to_str()?.rsplit('_').next()).unwrap_or_default();
        if !wanted(uid) {
            steps::remove_dir(&dir)?;
        }
    }
    csi::teardown::release_unused(context).await;
    volumes::local::release_unused(context).await;
    failed.map_or(Ok(()), Err)
}

async fn remove_orphan(context: &Context, uid: &str) -> Result<()> {
    steps::remove_from_runtime(context, uid).await?;
    device_claims::release(context, uid).await?;
    csi::teardown::release(context, uid).await?;
    volumes::tear_down(&context.pod_dir(uid))?;
    steps::remove_cgroups(context, &format!("/ferrovirt/{}/pod{uid}", context.config.node_name))
}

/// Passes on what containerd says about tasks; reconnects for as long as it runs.
async fn subscribe(context: Arc<Context>, send: mpsc::UnboundedSender<Happened>) {
    let mut failures = 0;
    loop {
        match stream(&context, &send).await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                tracing::warn!(error = %kit::Chain(&error), "containerd's events are interrupted");
            }
        }
        tokio::time::sleep(kit::backoff::Backoff::QUEUE.delay(failures.max(1))).await;
    }
}

async fn stream(context: &Context, send: &mpsc::UnboundedSender<Happened>) -> Result<()> {
    let filters = vec![format!("namespace=={},topic~=\"/tasks/(start|exit|oom)\"", rpc::containerd::CRI_NAMESPACE)];
    let reply = context.runtime.events().subscribe(SubscribeRequest { filters }).await;
    let mut stream = reply.map_err(Error::runtime("subscribe to events"))?.into_inner();
    while let Some(envelope) = stream.message().await.map_err(Error::runtime("read events"))? {
        if let Some(happened) = read(&envelope) {
            // The dispatcher ends with the process.
            let _ = send.send(happened);
        }
    }
    Ok(())
}

fn read(envelope: &Envelope) -> Option<Happened> {
    let body = envelope.event.as_ref()?.value.as_slice();
    match envelope.topic.as_str() {
        "/tasks/start" => TaskStart::decode(body).ok().map(|event| Happened { id: event.container_id, exited: false }),
        "/tasks/oom" => TaskOom::decode(body).ok().map(|event| Happened { id: event.container_id, exited: false }),
        // The exit of an exec says nothing about the container.
        "/tasks/exit" => TaskExit::decode(body)
            .ok()
            .filter(|event| event.id == event.container_id)
            .map(|event| Happened { id: event.container_id, exited: true }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
