//! DataImportCrons: golden images that follow their source. What it is now is polled by a schedule; what is new is imported beside what is
//! there, and the DataSource names it once it is whole.

pub mod answer;
pub mod ask;
pub mod collect;
pub mod plan;
pub mod poll;
pub mod snapshot;

use std::time::Duration;

use answer::{Asked, Found, Unknown};
use api::cdi::constants::{annotation, finalizer, label};
use api::cdi::v1beta1::{DataImportCron, DataSource, DataVolume};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use kit::clock;
use kit::cron::Schedule;
use kit::queue::Next;
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use plan::{Import, Step};
use serde_json::json;

use crate::Error;
use crate::controller::context::{Context, annotation_of, cron_indexes, reference};
use crate::controller::settings;
use crate::controller::write::{self, Changes};

/// How soon a source that could not be asked is asked again.
const AGAIN: Duration = Duration::from_secs(60);
/// How soon what is on its way out is looked for again.
const LEAVING: Duration = Duration::from_secs(2);

/// Brings one cron in line.
pub async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(stored) = context.crons.get(key) else {
        context.polls.forget(key);
        return Ok(Next::Wait);
    };
    let passing = stored.spec.retention_policy.as_deref() == Some("None");
    let held = stored.finalizers().iter().any(|one| one == finalizer::DATA_IMPORT_CRON);
    if stored.metadata.deletion_timestamp.is_some() {
        poll::tidy(context, &stored, false).await?;
        return if held { collect::end(context, &stored, passing).await } else { Ok(Next::Wait) };
    }
    if passing && !held {
        let patch = json!({ "metadata": { "resourceVersion": stored.resource_version(), "finalizers": [finalizer::DATA_IMPORT_CRON] } });
        write::patch(context, &stored, &patch).await?;
        return Ok(Next::Wait);
    }
    if let Some(other) = manager(context, &stored) {
        let told =
            format!("DataSource {} is already managed by DataImportCron {other}", stored.spec.managed_data_source);
        context.recorder.warning(&reference(&stored), "ErrDataSourceAlreadyManaged", told);
        return Ok(Next::Wait);
    }
    let now = clock::now();
    let due = due(&stored, now);
    let (mut cron, mut problem, mut later) = (stored.clone(), None, Next::Wait);
    let asks = due.is_none_or(|due| due <= now) && polls(&stored);
    poll::tidy(context, &stored, asks).await?;
    if asks {
        match ask::source(context, &stored).await? {
            Asked::Found(found) => cron = polled(context, &stored, found, now).await?,
            // What was found before is gone on with meanwhile.
            Asked::Later(next) if annotation_of(&stored, annotation::DESIRED_DIGEST).is_none() => return Ok(next),
            Asked::Later(next) => later = next,
            Asked::Unknown(why) => problem = Some(why),
        }
    }
    let next = go_on(context, &mut cron, &mut problem, now).await?;
    let wait = due_after(&cron, now).map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    Ok(match (problem, next, wait) {
        (Some(_), _, _) => Next::After(AGAIN),
        (None, Next::Wait, Some(wait)) => Next::After(wait.max(Duration::from_secs(1))),
        (None, Next::Wait, None) => later,
        (None, next, _) => next,
    })
}

/// True when the controller asks; an empty schedule leaves it to others to say that there is something new.
fn polls(cron: &DataImportCron) -> bool {
    !cron.spec.schedule.trim().is_empty() || annotation_of(cron, annotation::DESIRED_DIGEST).is_none()
}

/// When the source is to be asked next; none when it never was.
fn due(cron: &DataImportCron, now: Timestamp) -> Option<Timestamp> {
    let last: Timestamp = annotation_of(cron, annotation::LAST_CRON_TIME)?.parse().ok()?;
    Some(
        Schedule::parse(&cron.spec.schedule)
            .ok()
            .and_then(|schedule| schedule.next(last, &TimeZone::UTC))
            .unwrap_or(now + Duration::from_secs(1 << 30)),
    )
}

fn due_after(cron: &DataImportCron, now: Timestamp) -> Option<Timestamp> {
    due(cron, now).filter(|at| *at > now)
}

/// The other cron that keeps the DataSource.
fn manager(context: &Context, cron: &DataImportCron) -> Option<String> {
    let namespace = cron.namespace().unwrap_or_default();
    let source = context.sources.get(&Key::new(namespace.as_str(), cron.spec.managed_data_source.as_str()))?;
    let other = source.labels().get(label::DATA_IMPORT_CRON)?.clone();
    (other != cron.name_any() && context.crons.contains(&Key::new(namespace, other.as_str()))).then_some(other)
}

async fn polled(
    context: &Context,
    cron: &DataImportCron,
    found: Found,
    now: Timestamp,
) -> Result<DataImportCron, Error> {
    let at = clock::seconds(now);
    let next = Schedule::parse(&cron.spec.schedule).ok().and_then(|schedule| schedule.next(now, &TimeZone::UTC));
    let said = Changes::from([
        (annotation::LAST_CRON_TIME.to_owned(), Some(at.to_string())),
        (annotation::NEXT_CRON_TIME.to_owned(), next.map(|next| next.to_string())),
        (annotation::DESIRED_DIGEST.to_owned(), Some(found.digest)),
        (annotation::IMAGE_STREAM_REFERENCE.to_owned(), found.reference),
    ]);
    let said = write::differing(cron.annotations(), said);
    let done = write::patch(context, cron, &json!({ "metadata": { "annotations": said } })).await?;
    write::remember(&context.crons, done.clone(), cron_indexes);
    Ok(done)
}

async fn go_on(
    context: &Context,
    cron: &mut DataImportCron,
    problem: &mut Option<Unknown>,
    now: Timestamp,
) -> Result<Next, Error> {
    let namespace = cron.namespace().unwrap_or_default();
    let at = |name: &str| Key::new(namespace.as_str(), name);
    let before = cron.status.as_deref().cloned().unwrap_or_default();
    let name = plan::current(cron).map(|one| one.data_volume_name.clone()).unwrap_or_default();
    let (volume, claim) = (context.volumes.get(&at(&name)), context.claims.get(&at(&name)));
    let snapshot = context.snapshots.get(&at(&name));
    let mut import = plan::import(cron, volume.as_ref(), claim.is_some() || snapshot.is_some());
    let class = claim.as_ref().and_then(|claim| context.class_of(claim)).map(|class| class.name_any());
    // Of an import that is kept as a snapshot there is no claim any more.
    let class = class.or_else(|| annotation_of(cron, annotation::CRON_STORAGE_CLASS).map(ToOwned::to_owned));
    if import == Import::Done
        && let Some(wanted) = moved(context, cron, class.as_deref())
    {
        tracing::info!(cron = %Key::of(cron), class = wanted, "the default storage class is another: importing to it");
        collect::all(context, &namespace, &name).await?;
        forget(cron);
        import = Import::None;
    }
    let profile = class.as_deref().and_then(|class| context.profiles.get(&Key::new("", class)));
    let said =
        profile.and_then(|profile| profile.status.and_then(|status| status.data_import_cron_source_format.clone()));
    let format = said.or_else(|| before.source_format.clone()).unwrap_or_else(|| "pvc".to_owned());
    let by_snapshot = format == "snapshot";
    if import == Import::Done && by_snapshot {
        import = snapshot::keep(context, cron, &name, snapshot.as_ref(), claim.is_some()).await?;
    }
    if import == Import::Done && !by_snapshot && snapshot.is_some() && volume.is_none() && claim.is_none() {
        tracing::info!(cron = %Key::of(cron), "images are kept as claims now: the snapshot goes, and is imported anew");
        collect::all(context, &namespace, &name).await?;
        return Ok(Next::After(LEAVING));
    }
    let mut step = plan::step(cron, import);
    if step == Step::Import
        && let Err(why) = ask::permitted(context, cron).await
    {
        step = Step::Rest;
        *problem = Some(why);
    }
    match step {
        Step::Rest => {}
        Step::Discard => {
            collect::all(context, &namespace, &name).await?;
            forget(cron);
            import = Import::None;
        }
        Step::Publish => publish(context, cron, by_snapshot).await?,
        Step::Import => {
            let digest = annotation_of(cron, annotation::DESIRED_DIGEST).unwrap_or_default().to_owned();
            let class = target(context, cron);
            let made = plan::volume(cron, &digest, class.as_deref().is_some_and(|class| one_writer(context, class)));
            let name = made["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if leaving(context, &at(&name)) {
                return Ok(Next::After(LEAVING));
            }
            remember_class(context, cron, class).await?;
            // What was imported before is used again.
            if !context.claims.contains(&at(&name)) && !context.snapshots.contains(&at(&name)) {
                let volume: DataVolume = serde_json::from_value(made).map_err(Error::setup("render an import"))?;
                write::create(context, &volume).await?;
            }
            let mut status = before.clone();
            status.current_imports = vec![api::cdi::v1beta1::ImportStatus { data_volume_name: name, digest }];
            cron.status = Some(status.into());
            import = Import::Running;
        }
    }
    let phase = volume.as_ref().and_then(|volume| volume.status.as_ref()?.phase.as_deref()).unwrap_or_default();
    let view = plan::View { import, phase, problem: problem.as_ref(), format: &format };
    let status = plan::status(cron, &view, now);
    if status != before {
        write_status(context, cron, &before, &status).await?;
        if status.last_imported_pvc != before.last_imported_pvc || status.source_format != before.source_format {
            return Ok(Next::After(Duration::from_secs(1)));
        }
    }
    collect::surplus(context, cron, &namespace).await?;
    Ok(Next::Wait)
}

fn forget(cron: &mut DataImportCron) {
    if let Some(status) = &mut cron.status {
        status.current_imports.clear();
    }
}

/// True when something of this name is on its way out: what has the name next would be taken for it.
fn leaving(context: &Context, key: &Key) -> bool {
    let volume = context.volumes.get(key).is_some_and(|volume| volume.metadata.deletion_timestamp.is_some());
    volume || context.claims.get(key).is_some_and(|claim| claim.metadata.deletion_timestamp.is_some())
}

/// The class that imports go to.
fn target(context: &Context, cron: &DataImportCron) -> Option<String> {
    let named = plan::class(cron);
    settings::class(&context.classes.list(), named.as_deref(), true).map(ResourceExt::name_any)
}

/// True when the golden images of `class` are to have one writer, although the class offers more.
fn one_writer(context: &Context, class: &str) -> bool {
    let profile = context.profiles.get(&Key::new("", class));
    profile.is_some_and(|profile| annotation_of(&profile, annotation::CRON_READ_WRITE_ONCE) == Some("true"))
}

async fn remember_class(context: &Context, cron: &mut DataImportCron, class: Option<String>) -> Result<(), Error> {
    if annotation_of(cron, annotation::CRON_STORAGE_CLASS) == class.as_deref() {
        return Ok(());
    }
    let patch = json!({ "metadata": { "annotations": { annotation::CRON_STORAGE_CLASS: class } } });
    *cron = write::patch(context, cron, &patch).await?;
    write::remember(&context.crons, cron.clone(), cron_indexes);
    Ok(())
}

/// The class that imports go to now, when the latest went to another and the cron leaves it to the cluster.
fn moved(context: &Context, cron: &DataImportCron, class: Option<&str>) -> Option<String> {
    if plan::class(cron).is_some() {
        return None;
    }
    let wanted = target(context, cron)?;
    class.filter(|class| *class != wanted).map(|_| wanted)
}

async fn write_status(
    context: &Context,
    cron: &DataImportCron,
    before: &api::cdi::v1beta1::DataImportCronStatus,
    status: &api::cdi::v1beta1::DataImportCronStatus,
) -> Result<(), Error> {
    // The kind has no status subresource.
    let body = write::replacing(before, status);
    let namespace = cron.namespace().unwrap_or_default();
    let api: Api<DataImportCron> = Api::namespaced(context.client.clone(), &namespace);
    let patch = json!({ "metadata": { "resourceVersion": cron.resource_version() }, "status": body });
    let done = api.patch(&cron.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
    let done = done.map_err(Error::api("write the status of", "DataImportCron", &cron.name_any()))?;
    write::remember(&context.crons, done, cron_indexes);
    Ok(())
}

/// The DataSource names the latest import.
async fn publish(context: &Context, cron: &DataImportCron, snapshot: bool) -> Result<(), Error> {
    let wanted = plan::source(cron, snapshot);
    let namespace = cron.namespace().unwrap_or_default();
    let name = cron.spec.managed_data_source.as_str();
    let Some(found) = context.sources.get(&Key::new(namespace.as_str(), name)) else {
        let made: DataSource = serde_json::from_value(wanted).map_err(Error::setup("render a DataSource"))?;
        write::create(context, &made).await?;
        return Ok(());
    };
    // One without the label is a user's own: it stays as it is.
    if found.labels().get(label::DATA_IMPORT_CRON).is_none_or(String::is_empty) {
        return Ok(());
    }
    let asked: DataSource = serde_json::from_value(wanted.clone()).map_err(Error::setup("render a DataSource"))?;
    if asked.spec != found.spec {
        let patch = json!({ "metadata": { "labels": wanted["metadata"]["labels"] }, "spec": wanted["spec"] });
        write::patch(context, &found, &patch).await?;
    }
    Ok(())
}
