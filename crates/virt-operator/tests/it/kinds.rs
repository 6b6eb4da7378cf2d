//! Kinds that no controller acts on: whoever makes an object of one is warned, and it is stored.

use api::unserved::KINDS;
use kube_apiserver::ApiServer;
use serde_json::{Value, json};
use virt_operator::manifests::{crds, kinds};

use super::*;

/// The warnings that come with the creation of `object` in the collection `path`.
async fn warnings(client: &Client, path: &str, object: &Value) -> Vec<String> {
    let body = kube::client::Body::from(serde_json::to_vec(object).unwrap());
    let request = http::Request::post(path).header("content-type", "application/json").body(body).unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!(response.status(), 201, "{path}");
    let warnings = response.headers().get_all("warning");
    warnings.iter().map(|warning| warning.to_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn creating_a_kind_without_a_controller_is_warned_of() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let named = ["plugins.plugin.kubevirt.io", "virtualmachineinstances.kubevirt.io"];
    for (_, yaml) in crds::ALL.iter().filter(|(name, _)| named.contains(name)) {
        let definition: CustomResourceDefinition = serde_saphyr::from_str(yaml).unwrap();
        definitions.create(&PostParams::default(), &definition).await.unwrap();
    }
    kit::apply::all(&client, &Applied::by(virt_operator::MANAGER), &kinds::render()).await.unwrap();
    let plugin = json!({
        "apiVersion": "plugin.kubevirt.io/v1alpha1", "kind": "Plugin", "metadata": { "name": "small" }, "spec": {},
    });
    let told = warnings(&client, "/apis/plugin.kubevirt.io/v1alpha1/plugins", &plugin).await;
    let sentence = "Plugin is stored, and no controller acts on it in this version: there are no plugins of components";
    assert!(told.iter().any(|one| one.contains(sentence)), "{told:?}");
    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": "vm" }, "spec": { "domain": { "devices": {} } },
    });
    let path = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";
    assert_eq!(warnings(&client, path, &machine).await, Vec::<String>::new());
}

#[test]
fn every_kind_that_is_warned_of_is_served() {
    for kind in KINDS {
        let name = format!("{}.{}", kind.plural, kind.group);
        let (_, yaml) = crds::ALL.iter().find(|(found, _)| *found == name).unwrap_or_else(|| panic!("{name}"));
        let definition: CustomResourceDefinition = serde_saphyr::from_str(yaml).unwrap();
        assert_eq!(definition.spec.names.kind, kind.kind);
    }
}
