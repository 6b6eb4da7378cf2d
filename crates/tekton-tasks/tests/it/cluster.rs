//! A cluster with the kinds that tasks touch, and a step with the rights of its Task.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::Parser;
use kit::apply::{self, Applied};
use kube::Client;
use kube::client::Body;
use kube_apiserver::ApiServer;
use kube_apiserver::request::User;
use serde_json::{Value, json};
use tekton_tasks::{Args, Error, lists, manifests};

use crate::power::Power;

pub(crate) const NAMESPACE: &str = "ci";
const DEFINITIONS: [&str; 8] = [
    "virtualmachines.kubevirt.io",
    "virtualmachineinstances.kubevirt.io",
    "virtualmachinetemplates.template.kubevirt.io",
    "datavolumes.cdi.kubevirt.io",
    "datasources.cdi.kubevirt.io",
    "virtualmachinesnapshots.snapshot.kubevirt.io",
    "virtualmachinesnapshotcontents.snapshot.kubevirt.io",
    "virtualmachineexports.export.kubevirt.io",
];

#[derive(Parser)]
struct Wrapped {
    #[command(flatten)]
    args: Args,
}

pub(crate) struct Cluster {
    server: ApiServer,
    pub(crate) client: Client,
    results: tempfile::TempDir,
    pub(crate) power: Arc<Power>,
    /// How many questions about one object by its name are not answered yet.
    pub(crate) broken: Arc<AtomicU32>,
}

pub(crate) async fn cluster() -> Cluster {
    let server = ApiServer::in_memory().await.unwrap();
    let client = server.client();
    let mut all: Vec<Value> = DEFINITIONS
        .iter()
        .map(|name| Path::new("../../deploy/crds").join(format!("{name}.yaml")))
        .map(|path| serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
        .collect();
    all.push(json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }));
    let by = Applied::by("test");
    apply::all(&client, &by, &all).await.unwrap();
    apply::all(&client, &by, &manifests::rights(NAMESPACE)).await.unwrap();
    Cluster { server, client, results: tempfile::tempdir().unwrap(), power: Arc::default(), broken: Arc::default() }
}

fn unavailable() -> http::Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "ServiceUnavailable",
        "message": "the server is being started anew", "code": 503,
    });
    http::Response::builder().status(503).body(Body::from(status.to_string().into_bytes())).unwrap()
}

impl Cluster {
    /// Runs the step of a Task as Tekton would: with the words of its manifest, params in their places, and the rights of its account.
    pub(crate) async fn run(&self, task: &str, params: &[(&str, Value)]) -> Result<u8, Error> {
        self.run_with(task, params, &[]).await
    }

    /// The same, with further words.
    pub(crate) async fn run_with(&self, task: &str, params: &[(&str, Value)], more: &[String]) -> Result<u8, Error> {
        let words = lists::expand(self.words(task, params)).unwrap();
        let words = [&["tekton-task".to_owned()], &words[..], more].concat();
        let args = Wrapped::try_parse_from(words).unwrap_or_else(|error| panic!("{error}")).args;
        let client = self.client_of(User {
            name: format!("system:serviceaccount:{NAMESPACE}:{task}-task"),
            groups: vec!["system:serviceaccounts".into(), "system:authenticated".into()],
            ..User::default()
        });
        let pod = Some(("step".to_owned(), "7".to_owned()));
        tekton_tasks::run_on(&tekton_tasks::Cluster::new(client, NAMESPACE, pod), args).await
    }

    /// A user's client. What virt-api serves is answered by `power`, and what is broken is not answered.
    fn client_of(&self, user: User) -> Client {
        let (inner, admin) = (self.server.client_as(user), self.client.clone());
        let (power, broken) = (self.power.clone(), self.broken.clone());
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (inner, admin, power, broken) = (inner.clone(), admin.clone(), power.clone(), broken.clone());
            async move {
                if request.uri().path().starts_with("/apis/subresources.kubevirt.io/") {
                    return Ok(power.answer(&admin, request.uri().path()).await);
                }
                let by_name = request.uri().query().is_some_and(|query| query.contains("fieldSelector="));
                let fewer = |left: u32| left.checked_sub(1);
                if by_name && broken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok() {
                    return Ok(unavailable());
                }
                inner.send(request).await
            }
        });
        Client::new(service, NAMESPACE)
    }

    fn spec(task: &str) -> Value {
        if task == "prepare-windows" {
            return manifests::pipelines("home", "i", "v")[0]["spec"]["tasks"][0]["taskSpec"].clone();
        }
        let all = manifests::tasks("i", "d", "v");
        all.iter().find(|one| one["metadata"]["name"] == task).unwrap()["spec"].clone()
    }

    fn words(&self, task: &str, params: &[(&str, Value)]) -> Vec<String> {
        let spec = Self::spec(task);
        let mut values: Vec<(String, Value)> = Vec::new();
        for param in spec["params"].as_array().unwrap() {
            let name = param["name"].as_str().unwrap();
            let given = params.iter().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
            let value = given.or(Some(param["default"].clone()).filter(|value| !value.is_null()));
            values.push((name.to_owned(), value.unwrap_or_else(|| panic!("{task}: {name} is not given"))));
        }
        for (given, _) in params {
            assert!(values.iter().any(|(name, _)| name == given), "{task} has no param {given}");
        }
        let mut out = Vec::new();
        'words: for word in spec["steps"][0]["args"].as_array().unwrap() {
            let mut word = word.as_str().unwrap().to_owned();
            for (name, value) in &values {
                if word == format!("$(params.{name}[*])") {
                    out.extend(value.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()));
                    continue 'words;
                }
                word = word.replace(&format!("$(params.{name})"), value.as_str().unwrap_or_default());
            }
            for result in spec["results"].as_array().into_iter().flatten() {
                let name = result["name"].as_str().unwrap();
                let file = self.results.path().join(name);
                word = word.replace(&format!("$(results.{name}.path)"), &file.to_string_lossy());
            }
            out.push(word);
        }
        out
    }

    /// What the step wrote as a result.
    pub(crate) fn result(&self, name: &str) -> String {
        std::fs::read_to_string(self.results.path().join(name)).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        match self.client.request(request).await {
            Ok(object) => Some(object),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) async fn delete(&self, path: &str) {
        let request = http::Request::delete(path).body(Vec::new()).unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }

    pub(crate) async fn apply(&self, manifest: Value) {
        apply::all(&self.client, &Applied::by("test"), &[manifest]).await.unwrap();
    }

    /// Changes an object, or its status.
    pub(crate) async fn merge(&self, path: &str, change: Value) {
        let request = http::Request::patch(path)
            .header("content-type", "application/merge-patch+json")
            .body(change.to_string().into_bytes())
            .unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }

    /// Until the object is there.
    pub(crate) async fn there(&self, path: &str) -> Value {
        for _ in 0..3000 {
            if let Some(object) = self.get(path).await {
                return object;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{path} never came");
    }
}

impl Cluster {
    /// Until the object is gone.
    pub(crate) async fn gone(&self, path: &str) {
        for _ in 0..3000 {
            if self.get(path).await.is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{path} never went");
    }
}

/// The sentence of a failure.
#[track_caller]
pub(crate) fn refusal(result: Result<u8, Error>) -> String {
    let error = result.expect_err("it was done");
    kit::Chain(&error).to_string()
}
