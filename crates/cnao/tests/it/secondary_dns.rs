//! Names follow machines, and are asked for by UDP and TCP.

use std::sync::Arc;

use cnao::base::Base;
use cnao::secondary_dns::zone::{Zone, origin};
use cnao::secondary_dns::{Served, follow, serve};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use http::Method;
use kit::health::Ready;
use kit::shutdown::CancellationToken;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::cluster::{Cluster, documents, until};

const VMIS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances";
const NAMESPACE: &str = "cluster-network-addons";

fn query(name: &str) -> Vec<u8> {
    let mut query = Message::query();
    query.queries.push(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    query.to_vec().unwrap()
}

/// The code and the addresses.
fn read(reply: &[u8]) -> (ResponseCode, Vec<String>) {
    let reply = Message::from_vec(reply).unwrap();
    let all = reply.answers.iter().map(|record| record.data.to_string()).collect();
    (reply.metadata.response_code, all)
}

#[tokio::test(flavor = "multi_thread")]
async fn names_come_and_go_with_machines() {
    let mut all = documents("crds/virtualmachineinstances.kubevirt.io.yaml");
    all.extend(documents("network-addons-operator.yaml"));
    let cluster = Cluster::with(all).await;
    let input = cnao::secondary_dns::manifests::Input {
        base: Base { namespace: NAMESPACE.into(), ..Base::default() },
        ..Default::default()
    };
    let rights = cnao::secondary_dns::manifests::render(&input);
    let rights: Vec<Value> = rights
        .into_iter()
        .filter(|one| one["kind"] == "ServiceAccount" || one["kind"].as_str().unwrap().contains("Role"))
        .collect();
    kit::apply::all(&cluster.client, &kit::apply::Applied::by("test"), &rights).await.unwrap();

    let (served, ready, stop) = (Arc::new(Served::default()), Ready::default(), CancellationToken::new());
    let server = serve(([127, 0, 0, 1], 0).into(), served.clone()).await.unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let ask = async |name: &str| {
        udp.send_to(&query(name), server.address).await.unwrap();
        let mut buffer = [0; 1500];
        let length = udp.recv(&mut buffer).await.unwrap();
        read(&buffer[..length])
    };
    assert_eq!(ask("web.default.vm.").await.0, ResponseCode::ServFail, "machines are not known yet");
    // With the account's rights and no other.
    let client = cluster.account_in(NAMESPACE, "secondary");
    let (followed, until_stop) = (served.clone(), stop.clone());
    let following = tokio::spawn(async move {
        follow(client, Zone::new(origin("").unwrap(), None), &followed, &ready, &until_stop).await;
    });
    until("machines are known", async || (ask("web.default.vm.").await.0 == ResponseCode::NXDomain).then_some(()))
        .await;

    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": { "name": "web" },
        "spec": { "domain": { "devices": {} }, "networks": [{ "name": "blue", "multus": { "networkName": "b" } }] },
    });
    cluster.call(Method::POST, VMIS, &machine).await.unwrap();
    let status = json!({ "status": { "interfaces": [{ "name": "blue", "ipAddress": "192.168.1.2" }] } });
    cluster.call(Method::PATCH, &format!("{VMIS}/web"), &status).await.unwrap();
    let there = (ResponseCode::NoError, vec!["192.168.1.2".to_owned()]);
    until("the machine has a name", async || (ask("blue.web.default.vm.").await == there).then_some(())).await;
    assert_eq!(ask("web.default.vm.").await, there);

    let mut tcp = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..2 {
        let query = query("web.default.vm.");
        tcp.write_u16(u16::try_from(query.len()).unwrap()).await.unwrap();
        tcp.write_all(&query).await.unwrap();
        let length = tcp.read_u16().await.unwrap();
        let mut reply = vec![0; usize::from(length)];
        tcp.read_exact(&mut reply).await.unwrap();
        assert_eq!(read(&reply), there);
    }
    cluster.call(Method::DELETE, &format!("{VMIS}/web"), &Value::Null).await.unwrap();
    until("its name is gone", async || (ask("web.default.vm.").await.0 == ResponseCode::NXDomain).then_some(())).await;
    stop.cancel();
    following.await.unwrap();
}
