//! The common instance types and preferences: there with the product, as they are meant to be, and gone when nobody wants them.

use kube::api::DynamicObject;
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use virt_operator::manifests::instancetypes::{INSTANCETYPES, PREFERENCES};
use virt_operator::manifests::{self, instancetypes};

use super::*;

/// All of a kind.
fn all_of(client: &Client, (kind, plural): (&str, &str)) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(instancetypes::GROUP, instancetypes::VERSION, kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, plural))
}

async fn switch(kubevirts: &Api<KubeVirt>, enabled: Option<bool>) {
    let spec = json!({ "configuration": { "commonInstancetypesDeployment": { "enabled": enabled } } });
    let patch = Patch::Merge(json!({ "spec": spec }));
    kubevirts.patch("kubevirt", &PatchParams::default(), &patch).await.unwrap();
}

/// Has `webhooks` take the place of what judges objects, and the instance types deployed.
async fn judged_by(kubevirts: &Api<KubeVirt>, webhooks: &Value) {
    let mut customized = lenient();
    customized["patches"].as_array_mut().unwrap().push(json!({
        "resourceType": "ValidatingWebhookConfiguration", "resourceName": "virt-api-validator", "type": "merge",
        "patch": json!({ "webhooks": webhooks }).to_string(),
    }));
    let spec = json!({ "configuration": null, "customizeComponents": customized });
    let patch = Patch::Merge(json!({ "spec": spec }));
    kubevirts.patch("kubevirt", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn the_product_is_available_while_its_preferences_are_not() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let kubevirts = cluster(&client).await;
    let silent = json!([{
        "name": "silent.kubevirt.io", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
        "clientConfig": { "service": { "namespace": NAMESPACE, "name": "virt-api" } },
        "rules": [{
            "apiGroups": [instancetypes::GROUP], "apiVersions": ["*"], "operations": ["CREATE"],
            "resources": [PREFERENCES.1],
        }],
    }]);
    judged_by(&kubevirts, &silent).await;
    let stop = CancellationToken::new();
    let _running = Operator::new(account(&server), release(), Material::new()).start(&stop);
    ready(&client).await;
    wait(&kubevirts, "kubevirt", "available", |found: Option<&KubeVirt>| {
        let conditions = found.and_then(|found| found.status.as_ref()).map(|status| status.conditions.as_slice());
        conditions.unwrap_or_default().iter().any(|c| c.type_ == "Available" && c.status == "True")
    })
    .await;
    wait_for(&all_of(&client, INSTANCETYPES), 65).await;
    assert_eq!(count(&all_of(&client, PREFERENCES)).await, 0);
}

#[tokio::test]
async fn instance_types_are_there_with_the_product_and_go_when_they_are_switched_off() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let kubevirts = cluster(&client).await;
    judged_by(&kubevirts, &json!([])).await;
    let stop = CancellationToken::new();
    let _running = Operator::new(account(&server), release(), Material::new()).start(&stop);
    ready(&client).await;

    let (types, preferences) = (all_of(&client, INSTANCETYPES), all_of(&client, PREFERENCES));
    for wanted in instancetypes::render(&manifests::labels("v1")) {
        let api = if wanted["kind"] == INSTANCETYPES.0 { &types } else { &preferences };
        let name = wanted["metadata"]["name"].as_str().unwrap();
        let found = wait(api, name, "deployed", exists).await.unwrap();
        // What the schema does not know would be missing.
        assert_eq!(found.data["spec"], wanted["spec"], "{name}");
        assert_eq!(json!(found.metadata.labels), wanted["metadata"]["labels"], "{name}");
    }
    assert_eq!(count(&types).await, 65);
    assert_eq!(count(&preferences).await, 54);

    let grown = Patch::Merge(json!({
        "spec": { "cpu": { "guest": 7 }, "nodeSelector": { "a": "b" } },
        "metadata": { "labels": { "app.kubernetes.io/component": null } },
    }));
    types.patch("u1.small", &PatchParams::default(), &grown).await.unwrap();
    wait(&types, "u1.small", "put right", |found: Option<&DynamicObject>| {
        found.is_some_and(|found| {
            found.data["spec"] == json!({ "cpu": { "guest": 1 }, "memory": { "guest": "2Gi" } })
                && found.labels().contains_key("app.kubernetes.io/component")
        })
    })
    .await;
    preferences.delete("fedora", &DeleteParams::default()).await.unwrap();
    wait(&preferences, "fedora", "put back", exists).await;

    let own = json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
        "metadata": { "name": "own", "labels": { "app.kubernetes.io/managed-by": "somebody" } },
        "spec": { "cpu": { "guest": 1 }, "memory": { "guest": "1Gi" } },
    });
    types.create(&PostParams::default(), &serde_json::from_value(own).unwrap()).await.unwrap();
    switch(&kubevirts, Some(false)).await;
    for (api, one) in [(&types, "u1.small"), (&types, "rt1.8xlarge"), (&preferences, "fedora")] {
        wait(api, one, "deleted", gone).await;
    }
    wait_for(&types, 1).await;
    wait_for(&preferences, 0).await;
    assert!(types.get_opt("own").await.unwrap().is_some());

    switch(&kubevirts, None).await;
    wait_for(&types, 66).await;
    wait_for(&preferences, 54).await;
    kubevirts.delete("kubevirt", &DeleteParams::default()).await.unwrap();
    wait(&kubevirts, "kubevirt", "gone", gone).await;
    assert_eq!(ours(&Api::all(client.clone())).await, 1, "their kinds go with the product");
}

async fn count(api: &Api<DynamicObject>) -> usize {
    api.list_metadata(&ListParams::default()).await.unwrap().items.len()
}

/// Until there are so many.
async fn wait_for(api: &Api<DynamicObject>, expect: usize) {
    let all = kube::runtime::watcher(api.clone(), kube::runtime::watcher::Config::default());
    let mut changes = std::pin::pin!(all);
    let reached = async {
        while count(api).await != expect {
            changes.try_next().await.unwrap();
        }
    };
    let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
    assert!(reached.is_ok(), "{} are there, and not {expect}", count(api).await);
}
