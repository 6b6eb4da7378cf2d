//! Where the operator's webhooks are looked for, and that it answers there.

use kit::certs::{Authority, Leaf};
use kit::health::{Ready, Report};
use kit::shutdown::CancellationToken;
use kit::tls::{Changing, Material};
use kube::{Client, Config};
use kube_apiserver::ApiServer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use virt_operator::manifests::admission::OPERATOR_SERVICE;
use virt_operator::manifests::{self, Input};
use virt_operator::{Args, Operator, install};

use crate::release;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

#[test]
fn the_service_of_the_webhooks_leads_to_where_the_operator_listens_for_them() {
    let Line { args } = clap::Parser::parse_from(["virt-operator"]);
    let installed: Vec<Value> = serde_saphyr::from_multiple(&install::operator().unwrap()).unwrap();
    let deployment = installed.iter().find(|manifest| manifest["kind"] == "Deployment").unwrap();
    let pod = &deployment["spec"]["template"];
    let ports = json!([
        { "name": "metrics", "containerPort": args.port, "protocol": "TCP" },
        { "name": "webhooks", "containerPort": args.webhook_port, "protocol": "TCP" },
    ]);
    assert_eq!(pod["spec"]["containers"][0]["ports"], ports);
    assert_eq!(args.webhook_port, 8444);

    let rendered = manifests::render(&Input { namespace: "kubevirt".into(), replicas: 1, ..Default::default() });
    let service =
        rendered.iter().find(|found| found["kind"] == "Service" && found["metadata"]["name"] == OPERATOR_SERVICE);
    let spec = &service.unwrap()["spec"];
    assert_eq!(spec["ports"], json!([{ "name": "webhooks", "port": 443, "targetPort": "webhooks" }]));
    for (key, value) in spec["selector"].as_object().unwrap() {
        assert_eq!(pod["metadata"]["labels"][key], *value, "{key}");
    }
}

/// A client of the server on that port, whatever certificate it shows.
fn client(port: u16) -> Client {
    let mut config = Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
    config.accept_invalid_certs = true;
    Client::try_from(config).unwrap()
}

async fn judged(client: &Client) -> Value {
    let object = json!({ "metadata": { "name": "kubevirt" }, "spec": { "infra": { "replicas": 0 } } });
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": { "uid": "u", "operation": "UPDATE", "name": "kubevirt", "object": object },
    });
    let request = http::Request::post("/kubevirt-validate-update").header("content-type", "application/json");
    client.request(request.body(review.to_string().into_bytes()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn webhooks_answer_on_both_ports_and_all_else_on_one() {
    let server = ApiServer::in_memory().await.unwrap();
    let (material, stop) = (Material::new(), CancellationToken::new());
    let (now, hour) = (kit::clock::now(), std::time::Duration::from_secs(3600));
    let authority = Authority::generate("test", now, hour).unwrap();
    let leaf = Leaf { name: "virt-operator".into(), ..Default::default() };
    material.set(&authority.issue(&leaf, now, hour).unwrap()).unwrap();
    let operator = Operator::new(server.client(), release(), material.clone());
    let listen = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listeners = [listen().await, listen().await];
    let [all, webhooks] = listeners.each_ref().map(|listener| client(listener.local_addr().unwrap().port()));
    let config = Changing::new(material, None).unwrap();
    let report = Report::new(server.client());
    let _servers = virt_operator::serve(&operator, listeners, &config, Ready::default(), report, &stop);
    for client in [&all, &webhooks] {
        let answer = judged(client).await;
        assert_eq!(answer["response"]["allowed"], false, "{answer}");
        assert_eq!(answer["response"]["status"]["details"]["causes"][0]["field"], "spec.infra.replicas", "{answer}");
    }
    let metrics = || http::Request::get("/metrics").body(Vec::new()).unwrap();
    assert!(all.request_text(metrics()).await.is_ok());
    assert!(matches!(webhooks.request_text(metrics()).await, Err(kube::Error::Api(status)) if status.code == 404));
}
