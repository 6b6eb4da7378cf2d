//! Endpoints, namespaces' defaults.

use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::IPAddress;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use kube_controllers::{endpoints, ipaddress, scheduler};
use serde_json::json;

use crate::cluster::Cluster;

#[tokio::test]
async fn a_service_shows_its_ready_pods() {
    let cluster = Cluster::new().await;
    cluster.start(endpoints::run);
    cluster.start(scheduler::run);
    cluster.node("n1", json!({})).await;
    cluster
        .create::<Service>(json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "a"},
        "ports": [{"port": 80, "targetPort": "http"}]}}))
        .await;
    let ours = |slices: &[EndpointSlice]| {
        slices.iter().find(|s| s.labels().get("kubernetes.io/service-name").is_some_and(|n| n == "web")).cloned()
    };
    cluster.until_all::<EndpointSlice>(|slices| ours(slices).is_some_and(|s| s.endpoints.is_empty())).await;
    cluster.run_pods();
    for (name, annotations) in [("p1", json!({})), ("p2", json!({"test/unready": ""}))] {
        cluster
            .create::<Pod>(json!({"metadata": {"name": name, "labels": {"app": "a"}, "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 8080}]}]}}))
            .await;
    }
    let slices =
        cluster.until_all::<EndpointSlice>(|slices| ours(slices).is_some_and(|s| s.endpoints.len() == 2)).await;
    let slice = ours(&slices).unwrap();
    assert_eq!(slice.ports.unwrap()[0].port, Some(8080));
    let ready = slice.endpoints.iter().filter(|e| e.conditions.as_ref().unwrap().ready == Some(true));
    assert_eq!(ready.map(|e| e.target_ref.as_ref().unwrap().name.as_deref()).collect::<Vec<_>>(), [Some("p1")]);
    let classic = cluster
        .until(cluster.api::<Endpoints>(), "web", |e| {
            e.is_some_and(|e| {
                e.subsets.as_ref().is_some_and(|s| s[0].addresses.is_some() && s[0].not_ready_addresses.is_some())
            })
        })
        .await
        .unwrap();
    assert_eq!(classic.subsets.unwrap()[0].addresses.as_ref().unwrap().len(), 1);

    cluster.api::<Pod>().delete("p1", &DeleteParams::default()).await.unwrap();
    cluster.until_all::<EndpointSlice>(|slices| ours(slices).is_some_and(|s| s.endpoints.len() == 1)).await;
    cluster.api::<Service>().delete("web", &DeleteParams::default()).await.unwrap();
    cluster.until_all::<EndpointSlice>(|slices| ours(slices).is_none()).await;
    cluster.until(cluster.api::<Endpoints>(), "web", |e| e.is_none()).await;
}

#[tokio::test]
async fn endpoints_written_by_hand_become_a_slice() {
    let cluster = Cluster::new().await;
    cluster.start(endpoints::run);
    cluster.create::<Service>(json!({"metadata": {"name": "db"}, "spec": {"ports": [{"port": 5432}]}})).await;
    let subset = |ip: &str| json!([{"addresses": [{"ip": ip}], "ports": [{"port": 5432}]}]);
    cluster.create::<Endpoints>(json!({"metadata": {"name": "db"}, "subsets": subset("192.0.2.1")})).await;
    let shows = |slices: &[EndpointSlice], ip: &str| {
        let of_db = |s: &&EndpointSlice| s.labels().get("kubernetes.io/service-name").is_some_and(|n| n == "db");
        let all: Vec<_> = slices.iter().filter(of_db).flat_map(|s| &s.endpoints).flat_map(|e| &e.addresses).collect();
        all == [ip]
    };
    cluster.until_all::<EndpointSlice>(|slices| shows(slices, "192.0.2.1")).await;
    let change = json!({"subsets": subset("192.0.2.2")});
    cluster.api::<Endpoints>().patch("db", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    cluster.until_all::<EndpointSlice>(|slices| shows(slices, "192.0.2.2")).await;
    cluster.api::<Endpoints>().delete("db", &DeleteParams::default()).await.unwrap();
    cluster.until_all::<EndpointSlice>(|slices| slices.is_empty()).await;
}

#[tokio::test]
async fn cluster_ips_are_shown_as_objects() {
    let cluster = Cluster::new().await;
    cluster.start(ipaddress::run);
    let both = json!({"ports": [{"port": 80}], "ipFamilyPolicy": "PreferDualStack"});
    let service = cluster.create::<Service>(json!({"metadata": {"name": "web"}, "spec": both})).await;
    let ips = service.spec.unwrap().cluster_ips.unwrap();
    let of_web = |addresses: &[IPAddress]| {
        let of = |address: &&IPAddress| address.spec.as_ref().is_some_and(|spec| spec.parent_ref.name == "web");
        let mut names: Vec<_> = addresses.iter().filter(of).map(ResourceExt::name_any).collect();
        names.sort();
        names
    };
    let mut expected = ips.clone();
    expected.sort();
    cluster.until_all::<IPAddress>(|addresses| of_web(addresses) == expected).await;
    // What somebody deletes comes back, and goes with its Service.
    cluster.all::<IPAddress>().delete(&ips[0], &DeleteParams::default()).await.unwrap();
    cluster.until_all::<IPAddress>(|addresses| of_web(addresses) == expected).await;
    let single = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    cluster.api::<Service>().patch("web", &PatchParams::default(), &Patch::Merge(single)).await.unwrap();
    cluster.until_all::<IPAddress>(|addresses| of_web(addresses) == ips[..1]).await;
    cluster.api::<Service>().delete("web", &DeleteParams::default()).await.unwrap();
    cluster.until_all::<IPAddress>(|addresses| of_web(addresses).is_empty()).await;
}

#[tokio::test]
async fn every_namespace_has_an_account_and_the_ca() {
    let cluster = Cluster::new().await;
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "new"}})).unwrap();
    cluster.all::<Namespace>().create(&PostParams::default(), &namespace).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), "new");
    let bundles: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), "new");
    cluster.until(accounts.clone(), "default", |a| a.is_some()).await;
    let has_ca = |b: Option<&ConfigMap>| {
        b.is_some_and(|b| b.data.as_ref().is_some_and(|d| d["ca.crt"].starts_with("-----BEGIN")))
    };
    cluster.until(bundles.clone(), "kube-root-ca.crt", has_ca).await;
    let uid = accounts.get("default").await.unwrap().uid();
    accounts.delete("default", &DeleteParams::default()).await.unwrap();
    cluster.until(accounts, "default", |a| a.is_some_and(|a| a.uid() != uid)).await;
    bundles.delete("kube-root-ca.crt", &DeleteParams::default()).await.unwrap();
    cluster.until(bundles, "kube-root-ca.crt", has_ca).await;
}
