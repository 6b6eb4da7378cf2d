//! Objects: discovery, every kind of patch, apply and its conflicts, pages, metadata, scale, waiting.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
    Preconditions,
};
use kube::core::PartialObjectMetaExt;
use kube::discovery::{Discovery, Scope, verbs};
use kube::runtime::wait::conditions;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{Space, Test, object, wait};

pub(crate) const TESTS: &[Test] = &[
    ("discovery_finds_every_kind", |space| Box::pin(discovery(space))),
    ("patches_of_every_type", |space| Box::pin(patches(space))),
    ("apply_knows_its_owners", |space| Box::pin(apply(space))),
    ("pages_are_of_one_moment", |space| Box::pin(pages(space))),
    ("metadata_and_scale", |space| Box::pin(metadata_and_scale(space))),
    ("preconditions_and_conflicts", |space| Box::pin(conflicts(space))),
    ("a_kind_is_defined_and_used", |space| Box::pin(defined(space))),
];

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn map(name: &str, data: serde_json::Value) -> Result<ConfigMap> {
    object(json!({"metadata": {"name": name}, "data": data}))
}

/// The status code and reason of a refusal.
fn refused<T: std::fmt::Debug>(outcome: Result<T, kube::Error>) -> Result<(u16, String, String)> {
    match outcome {
        Err(kube::Error::Api(status)) => Ok((status.code, status.reason, status.message)),
        other => bail!("expected a refusal, got {other:?}"),
    }
}

async fn discovery(space: Space) -> Result<()> {
    let each = Discovery::new(space.client.clone()).run().await?;
    let together = Discovery::new(space.client.clone()).run_aggregated().await?;
    for found in [&each, &together] {
        for (group, kind) in
            [("", "Pod"), ("apps", "Deployment"), ("batch", "CronJob"), ("coordination.k8s.io", "Lease")]
        {
            let group = found.get(group).with_context(|| format!("group {group:?}"))?;
            let (resource, may) = group.recommended_kind(kind).with_context(|| kind.to_owned())?;
            ensure!(may.scope == Scope::Namespaced && may.supports_operation(verbs::WATCH), "{resource:?}");
        }
    }
    // Tests beside this one define kinds in groups of their own, between one discovery and the other.
    let names = |found: &Discovery| {
        let all = found.groups_alphabetical().iter().map(|group| group.name().to_owned()).collect::<Vec<_>>();
        all.into_iter().filter(|name| !name.ends_with(".example.com")).collect::<Vec<_>>()
    };
    ensure!(names(&each) == names(&together), "{:?} is not {:?}", names(&each), names(&together));
    let version = space.client.apiserver_version().await?;
    ensure!(version.major == "1" && version.minor.starts_with("33"), "{version:?}");
    Ok(())
}

async fn patches(space: Space) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    maps.create(&PostParams::default(), &map("m", json!({"a": "1", "b": "2"}))?).await?;
    let (none, data) = (PatchParams::default(), |m: ConfigMap| json!(m.data.unwrap_or_default()));
    let merged = maps.patch("m", &none, &Patch::Merge(json!({"data": {"a": null, "c": "3"}}))).await?;
    ensure!(data(merged) == json!({"b": "2", "c": "3"}));
    let operations: json_patch::Patch = serde_json::from_value(
        json!([{"op": "test", "path": "/data/c", "value": "3"}, {"op": "remove", "path": "/data/c"}]),
    )?;
    ensure!(data(maps.patch("m", &none, &Patch::<ConfigMap>::Json(operations.clone())).await?) == json!({"b": "2"}));
    let (code, reason, _) = refused(maps.patch("m", &none, &Patch::<ConfigMap>::Json(operations)).await)?;
    ensure!((code, reason.as_str()) == (422, "Invalid"), "{code} {reason}");
    let strategic = Patch::Strategic(json!({"metadata": {"finalizers": ["example.com/a"]}}));
    maps.patch("m", &none, &strategic).await?;
    let strategic = Patch::Strategic(json!({"metadata": {"finalizers": ["example.com/b"]}}));
    let both = maps.patch("m", &none, &strategic).await?;
    ensure!(both.finalizers() == ["example.com/b", "example.com/a"], "{:?}", both.finalizers());
    maps.patch("m", &none, &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await?;
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    ensure!(data(maps.patch("m", &dry, &Patch::Merge(json!({"data": {"d": "4"}}))).await?)["d"] == "4");
    ensure!(data(maps.get("m").await?) == json!({"b": "2"}), "a dry run was stored");
    Ok(())
}

async fn apply(space: Space) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    let say = |data: serde_json::Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
    let made = maps.patch("m", &PatchParams::apply("one"), &Patch::Apply(say(json!({"a": "1", "b": "1"})))).await?;
    let owner = made.managed_fields().first().context("no managed fields")?;
    ensure!(owner.manager.as_deref() == Some("one") && owner.operation.as_deref() == Some("Apply"), "{owner:?}");
    let (code, reason, message) =
        refused(maps.patch("m", &PatchParams::apply("two"), &Patch::Apply(say(json!({"a": "2"})))).await)?;
    ensure!((code, reason.as_str()) == (409, "Conflict") && message.contains("conflict with \"one\""), "{message}");
    let forced = PatchParams::apply("two").force();
    maps.patch("m", &forced, &Patch::Apply(say(json!({"a": "2"})))).await?;
    let left = maps.patch("m", &PatchParams::apply("one"), &Patch::Apply(say(json!({})))).await?;
    ensure!(json!(left.data) == json!({"a": "2"}), "{:?}", left.data);
    let again = maps.patch("m", &forced, &Patch::Apply(say(json!({"a": "2"})))).await?;
    ensure!(again.resource_version() == left.resource_version(), "an apply that changes nothing was a write");
    let strict = PatchParams::apply("two").validation_strict();
    let mut odd = say(json!({"a": "2"}));
    odd["metadata"]["lables"] = json!({});
    let (code, _, message) = refused(maps.patch("m", &strict, &Patch::Apply(odd)).await)?;
    ensure!(code == 400 && message.contains("lables") || message.contains("field not declared in schema"), "{message}");
    Ok(())
}

async fn pages(space: Space) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    for number in 0..9 {
        maps.create(&PostParams::default(), &map(&format!("m{number}"), json!({}))?).await?;
    }
    let (mut names, mut token, mut revision) = (Vec::new(), None::<String>, None);
    loop {
        let page = ListParams { continue_token: token, ..ListParams::default().limit(4) };
        let page = maps.list(&page).await?;
        ensure!(*revision.get_or_insert(page.metadata.resource_version.clone()) == page.metadata.resource_version);
        names.extend(page.items.iter().map(ResourceExt::name_any));
        maps.create(&PostParams::default(), &object(json!({"metadata": {"generateName": "m9"}}))?).await?;
        token = page.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            break;
        }
    }
    names.retain(|name| name != "kube-root-ca.crt");
    ensure!(names == (0..9).map(|n| format!("m{n}")).collect::<Vec<_>>(), "{names:?}");
    let bad = ListParams { continue_token: Some("nonsense".into()), ..ListParams::default() };
    ensure!(refused(maps.list(&bad).await)?.0 == 400);
    Ok(())
}

async fn metadata_and_scale(space: Space) -> Result<()> {
    let deployments: Api<Deployment> = space.api();
    let deployment =
        object(json!({"metadata": {"name": "d"}, "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}))?;
    deployments.create(&PostParams::default(), &deployment).await?;
    wait(deployments.clone(), "d", conditions::is_deployment_completed()).await?;
    let head = deployments.get_metadata("d").await?;
    ensure!(head.types.as_ref().is_some_and(|t| t.kind == "PartialObjectMetadata"), "{:?}", head.types);
    let heads = deployments.list_metadata(&ListParams::default()).await?;
    ensure!(heads.items.len() == 1 && heads.items[0].metadata.uid == head.metadata.uid);
    let label = object::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>(json!({"labels": {"x": "y"}}))?;
    let label = label.into_request_partial::<Deployment>();
    let patched = deployments.patch_metadata("d", &PatchParams::apply("one"), &Patch::Apply(&label)).await?;
    ensure!(patched.labels().get("x").is_some_and(|value| value == "y"));
    let scale =
        deployments.patch_scale("d", &PatchParams::default(), &Patch::Merge(json!({"spec": {"replicas": 0}}))).await?;
    ensure!(scale.spec.and_then(|s| s.replicas).unwrap_or(0) == 0);
    let status = Patch::Merge(json!({"status": {"observedGeneration": 9}, "spec": {"replicas": 7}}));
    let told = deployments.patch_status("d", &PatchParams::default(), &status).await?;
    ensure!(told.spec.and_then(|s| s.replicas) == Some(0), "a status write changed the spec");
    Ok(())
}

async fn conflicts(space: Space) -> Result<()> {
    let maps: Api<ConfigMap> = space.api();
    let first = maps.create(&PostParams::default(), &map("m", json!({}))?).await?;
    let mut newer = first.clone();
    newer.data = Some([("a".to_owned(), "1".to_owned())].into());
    maps.replace("m", &PostParams::default(), &newer).await?;
    let (code, _, message) = refused(maps.replace("m", &PostParams::default(), &newer).await)?;
    ensure!(code == 409 && message.contains("the object has been modified"), "{message}");
    let other = Preconditions { uid: Some("other".into()), resource_version: None };
    ensure!(refused(maps.delete("m", &DeleteParams::default().preconditions(other)).await)?.0 == 409);
    let own = Preconditions { uid: first.uid(), resource_version: None };
    ensure!(maps.delete("m", &DeleteParams::default().preconditions(own)).await?.is_right());
    ensure!(maps.get_opt("m").await?.is_none());
    let pods: Api<Pod> = space.api();
    let bad = object(json!({"metadata": {"name": "p"}, "spec": {"containers": []}}))?;
    let (code, reason, message) = refused(pods.create(&PostParams::default(), &bad).await)?;
    ensure!(
        (code, reason.as_str()) == (422, "Invalid") && message.contains("spec.containers: Required value"),
        "{message}"
    );
    Ok(())
}

async fn defined(space: Space) -> Result<()> {
    let group = format!("{}.example.com", space.name);
    let name = format!("widgets.{group}");
    let definition: CustomResourceDefinition =
        object(json!({"metadata": {"name": name}, "spec": {"group": group, "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "size": {"type": "integer", "maximum": 3, "default": 1}}}}}}}]}}))?;
    let definitions: Api<CustomResourceDefinition> = Api::all(space.client.clone());
    definitions.create(&PostParams::default(), &definition).await?;
    let outcome = use_widgets(&space, &definitions, &group).await;
    definitions.delete(&name, &DeleteParams::default()).await?;
    outcome
}

async fn use_widgets(space: &Space, definitions: &Api<CustomResourceDefinition>, group: &str) -> Result<()> {
    wait(definitions.clone(), &format!("widgets.{group}"), conditions::is_crd_established()).await?;
    let kind = GroupVersionKind::gvk(group, "v1", "Widget");
    let (resource, _): (ApiResource, _) = kube::discovery::pinned_kind(&space.client, &kind).await?;
    let widgets: Api<DynamicObject> = Api::namespaced_with(space.client.clone(), &space.name, &resource);
    let widget = |size: i64| DynamicObject::new("w", &resource).data(json!({"spec": {"size": size}}));
    ensure!(refused(widgets.create(&PostParams::default(), &widget(4)).await)?.0 == 422);
    let empty = DynamicObject::new("w", &resource).data(json!({"spec": {}}));
    let made = widgets.create(&PostParams::default(), &empty).await?;
    ensure!(made.data["spec"]["size"] == 1, "{}", made.data);
    let applied = widgets.patch("w", &PatchParams::apply("one").force(), &Patch::Apply(widget(2))).await?;
    ensure!(applied.data["spec"]["size"] == 2, "{}", applied.data);
    Ok(())
}
