//! What controllers are made of: kube's Controller, finalizers, events, and a lease that one of two holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::finalizer::{Event as Finalizer, finalizer};
use kube::runtime::wait::conditions;
use kube::runtime::{Controller, watcher};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::{Space, Test, object, wait};

pub(crate) const TESTS: &[Test] = &[
    ("a_controller_makes_and_cleans_up", |space| Box::pin(controller(space))),
    ("events_are_counted_in_series", |space| Box::pin(events(space))),
    ("one_of_two_holds_a_lease", |space| Box::pin(lease(space))),
];

/// What one reconciliation needs.
struct Shared {
    space: Space,
    cleaned: AtomicUsize,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("a request failed")]
    Request(#[source] kube::Error),
    #[error("the finalizer failed")]
    Finalizer(#[source] Box<kube::runtime::finalizer::Error<Failure>>),
}

/// A ConfigMap gets a Secret of its own, and is cleaned up after.
async fn reconcile(map: Arc<ConfigMap>, shared: Arc<Shared>) -> Result<Action, Failure> {
    let maps: Api<ConfigMap> = shared.space.api();
    let secrets: Api<Secret> = shared.space.api();
    let step = |event: Finalizer<ConfigMap>| async {
        match event {
            Finalizer::Apply(map) => {
                let secret = json!({"apiVersion": "v1", "kind": "Secret",
                    "metadata": {"name": map.name_any(), "ownerReferences": [map.controller_owner_ref(&())]},
                    "stringData": map.data});
                let params = PatchParams::apply("suite").force();
                secrets.patch(&map.name_any(), &params, &Patch::Apply(secret)).await.map_err(Failure::Request)?;
                Ok(Action::await_change())
            }
            Finalizer::Cleanup(_) => {
                shared.cleaned.fetch_add(1, Ordering::SeqCst);
                Ok(Action::await_change())
            }
        }
    };
    finalizer(&maps, "example.com/suite", map, step).await.map_err(|error| Failure::Finalizer(Box::new(error)))
}

async fn controller(space: Space) -> Result<()> {
    let (maps, secrets): (Api<ConfigMap>, Api<Secret>) = (space.api(), space.api());
    let shared = Arc::new(Shared { space: space.clone(), cleaned: AtomicUsize::new(0) });
    let chosen = watcher::Config::default().labels("made=here");
    let running = Controller::new(maps.clone(), chosen)
        .owns(secrets.clone(), watcher::Config::default())
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_millis(200)), shared.clone())
        .for_each(|_| std::future::ready(()));
    let running = kit::spawn("the suite's controller", running);
    let made: ConfigMap = object(json!({"metadata": {"name": "m", "labels": {"made": "here"}}, "data": {"k": "v"}}))?;
    let made = maps.create(&PostParams::default(), &made).await?;
    let has =
        |secret: Option<&Secret>| secret.and_then(|s| s.data.as_ref()?.get("k")).is_some_and(|value| value.0 == b"v");
    let secret = wait(secrets.clone(), "m", has).await?.context("no secret")?;
    // What the controller owns, it makes again.
    secrets.delete("m", &DeleteParams::default()).await?;
    let old = secret.uid();
    wait(secrets.clone(), "m", move |s: Option<&Secret>| s.is_some_and(|s| s.uid() != old)).await?;
    maps.delete("m", &DeleteParams::default()).await?;
    wait(maps, "m", conditions::is_deleted(&made.uid().unwrap_or_default())).await?;
    ensure!(shared.cleaned.load(Ordering::SeqCst) == 1, "the cleanup ran {:?} times", shared.cleaned);
    // The collector takes the secret after its owner.
    wait(secrets, "m", |secret: Option<&Secret>| secret.is_none()).await?;
    drop(running);
    Ok(())
}

async fn events(space: Space) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    let map = maps.create(&PostParams::default(), &object(json!({"metadata": {"name": "m"}}))?).await?;
    let reporter = Reporter { controller: "suite.example.com".into(), instance: Some("one".into()) };
    let recorder = Recorder::new(space.client.clone(), reporter);
    let event = Event {
        type_: EventType::Warning,
        reason: "Tested".into(),
        note: Some("by the suite".into()),
        action: "Testing".into(),
        secondary: None,
    };
    for _ in 0..3 {
        recorder.publish(&event, &map.object_ref(&())).await?;
    }
    let all: Api<k8s_openapi::api::core::v1::Event> = space.api();
    let chosen = ListParams::default().fields("involvedObject.name=m,reason=Tested");
    let found = all.list(&chosen).await?.items;
    ensure!(found.len() == 1, "{found:?}");
    let series = found[0].series.as_ref().and_then(|series| series.count);
    ensure!(found[0].message.as_deref() == Some("by the suite") && series == Some(3), "{found:?}");
    Ok(())
}

/// A lease changes hands only when its holder is late, and the revision decides between two who want it.
async fn lease(space: Space) -> Result<()> {
    let leases: Api<Lease> = space.api();
    let held = |holder: &str| {
        json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 1,
        "acquireTime": "2026-01-02T03:04:05.000006Z", "renewTime": "2026-01-02T03:04:05.000006Z"}})
    };
    let first: Lease = leases.create(&PostParams::default(), &object(held("one"))?).await?;
    let time = first.spec.as_ref().and_then(|spec| spec.renew_time.clone()).context("no time")?;
    ensure!(time.0.subsec_microsecond() == 6, "{time:?}");
    let with = |holder: &str| -> Result<Lease> {
        let mut lease: Lease = object(held(holder))?;
        lease.metadata.resource_version = first.resource_version();
        Ok(lease)
    };
    let (two, three) = (with("two")?, with("three")?);
    let default = PostParams::default();
    let both = tokio::join!(leases.replace("l", &default, &two), leases.replace("l", &default, &three));
    let won = [both.0.is_ok(), both.1.is_ok()].into_iter().filter(|won| *won).count();
    ensure!(won == 1, "{both:?}");
    Ok(())
}
