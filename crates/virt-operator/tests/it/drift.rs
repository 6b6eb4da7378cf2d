//! What others do to the product's webhooks: it does not last.

use std::fmt::Debug;
use std::time::Duration;

use api::kubevirt::v1::KubeVirt;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kit::shutdown::CancellationToken;
use kit::tls::Material;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Resource, ResourceExt};
use kube_apiserver::ApiServer;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use virt_operator::Operator;

use crate::{account, cluster, ready, release, wait};

/// Far less than the time after which everything is applied again.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn comes_back<K>(api: &Api<K>, name: &str, what: &str, as_it_was: impl Fn(&K) -> bool + Send)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let back = await_condition(api.clone(), name, move |found: Option<&K>| found.is_some_and(&as_it_was));
    let back = tokio::time::timeout(AT_ONCE, back).await;
    assert!(back.is_ok(), "{name} was {what}, and is now {:?}", api.get_opt(name).await);
}

async fn stays<K>(client: &Client, name: &str)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize + Send + Sync + 'static,
{
    let api: Api<K> = Api::all(client.clone());
    let hooks = |found: &K| serde_json::to_value(found).map(|found| found["webhooks"].clone()).unwrap_or_default();
    let before = api.get(name).await.unwrap();
    let (uid, wanted) = (before.uid(), hooks(&before));
    assert_ne!(wanted, json!([]));

    api.delete(name, &DeleteParams::default()).await.unwrap();
    comes_back(&api, name, "deleted", |found| found.uid() != uid && hooks(found) == wanted).await;

    let mut lenient = wanted.clone();
    lenient[0]["failurePolicy"] = json!("Ignore");
    lenient[0]["rules"][0]["operations"] = json!(["CONNECT"]);
    for attack in [lenient, json!([])] {
        let patch = Patch::Merge(json!({ "webhooks": attack }));
        api.patch(name, &PatchParams::default(), &patch).await.unwrap();
        comes_back(&api, name, "changed", |found| hooks(found) == wanted).await;
    }
}

#[tokio::test]
async fn webhooks_that_others_delete_or_change_are_put_back_at_once() {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let kubevirts = cluster(&client).await;
    let stop = CancellationToken::new();
    let _running = Operator::new(account(&server), release(), Material::new()).start(&stop);
    ready(&client).await;
    wait(&kubevirts, "kubevirt", "deployed", |found: Option<&KubeVirt>| {
        let phase = found.and_then(|found| found.status.as_ref()?.phase.as_deref());
        phase == Some("Deployed")
    })
    .await;
    for name in ["virt-api-validator", "virt-operator-validator"] {
        stays::<ValidatingWebhookConfiguration>(&client, name).await;
    }
    stays::<MutatingWebhookConfiguration>(&client, "virt-api-mutator").await;
}
