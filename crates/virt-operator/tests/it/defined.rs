//! The operator on a cluster that lacks the kind by which the product is asked for.

use std::fmt;
use std::time::Duration;

use api::kubevirt::v1::KubeVirt;
use kit::apply::{self, Applied};
use kit::health::{self, Ready};
use kit::shutdown::CancellationToken;
use kit::tls::Material;
use kube::api::PostParams;
use kube::{Api, Client};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::{Event, Level, Metadata, Subscriber, field, span};
use virt_operator::{Operator, install};

use crate::{NAMESPACE, account, release, wait};

const PATIENCE: Duration = Duration::from_secs(60);

/// What this thread logs as errors.
struct Errors(UnboundedSender<String>);

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said(String::new());
        event.record(&mut said);
        let _ = self.0.send(said.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Said(String);

impl field::Visit for Said {
    fn record_debug(&mut self, field: &field::Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// The next error that is logged.
async fn logged(errors: &mut UnboundedReceiver<String>) -> String {
    tokio::time::timeout(PATIENCE, errors.recv()).await.expect("nothing is logged").unwrap()
}

/// What the kubelet's probe is answered.
async fn answer(probe: &Client) -> u16 {
    match probe.request_text(http::Request::get("/readyz").body(Vec::new()).unwrap()).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn without_its_own_kind_the_operator_is_not_ready_and_says_so() {
    let (send, mut errors) = unbounded_channel();
    let _logging = tracing::subscriber::set_default(Errors(send));
    let server = ApiServer::in_memory().await.unwrap();
    let (client, ready) = (server.client(), Ready::default());
    let manifests: Vec<Value> = serde_saphyr::from_multiple(&install::operator().unwrap()).unwrap();
    let (definitions, rest): (Vec<Value>, Vec<Value>) = manifests
        .into_iter()
        .filter(|manifest| manifest["kind"] != "Deployment")
        .partition(|manifest| manifest["kind"] == "CustomResourceDefinition");
    apply::all(&client, &Applied::by("test"), &rest).await.unwrap();
    let stop = CancellationToken::new();
    let _running = Operator::new(account(&server), release(), Material::new()).start(&stop);
    let _defined = virt_operator::defined(&account(&server), ready.clone());
    let probe = Client::new(health::router(ready.clone()), "default");

    let said = logged(&mut errors).await;
    for words in ["not ready", "kubevirts.kubevirt.io is missing", "kubevirt-operator.yaml"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(answer(&probe).await, 503);

    apply::all(&client, &Applied::by("test"), &definitions).await.unwrap();
    let kubevirts: Api<KubeVirt> = Api::namespaced(client, NAMESPACE);
    let object = json!({ "metadata": { "name": "kubevirt", "namespace": NAMESPACE }, "spec": {} });
    kubevirts.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let is_ready = async {
        while answer(&probe).await != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_ready).await.expect("the operator is never ready");
    wait(&kubevirts, "kubevirt", "taken up", |found: Option<&KubeVirt>| {
        found.is_some_and(|found| found.status.as_ref().is_some_and(|status| status.phase.is_some()))
    })
    .await;
}
