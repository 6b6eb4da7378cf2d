//! Virtual machines: what they get, keep and give back.

use api::kubevirt::v1::VirtualMachine;
use cnao::kubemacpool::TRANSACTION;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use serde_json::json;

use super::cluster::{Cluster, NAMESPACE, addresses, create, machine, refused, until};

#[tokio::test]
async fn interfaces_get_addresses_and_keep_them() {
    let cluster = Cluster::new([0, 0, 9]).await;
    let _replica = cluster.replica().await;
    let machines = cluster.machines();
    let made = create(&machines, &machine("vm", &["p", "m", "given=02-00-00-00-00-07"])).await;
    let got = addresses(&made);
    assert_eq!(got[2], "02-00-00-00-00-07", "what a user writes stays as it is");
    let mut chosen = got[..2].to_vec();
    chosen.sort();
    assert_eq!(chosen, ["02:00:00:00:00:00", "02:00:00:00:00:01"]);
    let stamp = made.annotations()[TRANSACTION].parse::<jiff::Timestamp>().unwrap();
    cluster.until_reserved(&["02:00:00:00:00:00", "02:00:00:00:00:01", "02:00:00:00:00:07"]).await;

    // Whoever applies the manifest again does not take the addresses away, and gets one for what is new.
    let mut again = machine("vm", &["m2", "m", "p"]);
    again.metadata.resource_version = made.resource_version();
    let updated = machines.replace("vm", &PostParams::default(), &again).await.unwrap();
    assert_eq!(addresses(&updated), ["02:00:00:00:00:02", &got[1], &got[0]]);
    assert!(updated.annotations()[TRANSACTION].parse::<jiff::Timestamp>().unwrap() > stamp);
    // What it had given up is free again once that was stored.
    cluster.until_reserved(&["02:00:00:00:00:00", "02:00:00:00:00:01", "02:00:00:00:00:02"]).await;

    let labelled = json!({ "metadata": { "labels": { "a": "b" } } });
    let same = machines.patch("vm", &PatchParams::default(), &Patch::Merge(labelled)).await.unwrap();
    assert_eq!((addresses(&same), same.annotations()), (addresses(&updated), updated.annotations()));
}

#[tokio::test]
async fn a_full_range_is_said_and_deleted_machines_make_room() {
    let cluster = Cluster::new([0, 0, 1]).await;
    let _replica = cluster.replica().await;
    let machines = cluster.machines();
    create(&machines, &machine("first", &["p", "m"])).await;
    let (code, message) = refused(machines.create(&PostParams::default(), &machine("second", &["p"])).await);
    let sentence = "the range is full: every address of 02:00:00:00:00:00-02:00:00:00:00:01 is taken: widen RANGE_START and RANGE_END in ConfigMap kubemacpool-system/kubemacpool-mac-range-config, or delete what is not needed any more";
    assert!(code == 403 && message.ends_with(sentence), "{code} {message}");
    // A machine that needs none is made all the same.
    create(&machines, &machine("none", &[])).await;
    machines.delete("first", &DeleteParams::default()).await.unwrap();
    let made =
        until("room", async || machines.create(&PostParams::default(), &machine("second", &["p"])).await.ok()).await;
    assert_eq!(addresses(&made).len(), 1);
    cluster.until_reserved(&[&addresses(&made)[0]]).await;
}

#[tokio::test]
async fn dry_run_allocates_nothing() {
    let cluster = Cluster::new([0, 0, 9]).await;
    let _replica = cluster.replica().await;
    let machines = cluster.machines();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let shown = machines.create(&dry, &machine("vm", &["p", "m", "given=02:00:00:00:00:07"])).await.unwrap();
    assert_eq!(addresses(&shown), ["02:00:00:00:00:00", "02:00:00:00:00:01", "02:00:00:00:00:07"]);
    assert!(shown.annotations().contains_key(TRANSACTION));
    assert!(cluster.reserved().await.is_empty());
    let twice = machine("vm", &["p=02:00:00:00:00:07", "m=02:00:00:00:00:07"]);
    assert_eq!(refused(machines.create(&dry, &twice).await).0, 422);
    // What it showed is what the request gets.
    let made = create(&machines, &machine("vm", &["p"])).await;
    assert_eq!(addresses(&made), ["02:00:00:00:00:00"]);
}

#[tokio::test]
async fn one_machine_has_no_address_and_no_interface_twice() {
    let cluster = Cluster::new([0, 0, 9]).await;
    let _replica = cluster.replica().await;
    let machines = cluster.machines();
    let twice = machine("vm", &["p=02:00:00:00:00:07", "m=02-00-00-00-00-07"]);
    let Err(kube::Error::Api(status)) = machines.create(&PostParams::default(), &twice).await else { panic!("made") };
    let cause = &status.details.as_ref().unwrap().causes[0];
    assert_eq!(cause.field, "spec.template.spec.domain.devices.interfaces[1].macAddress");
    assert!(cause.message.contains("which is the MAC address of spec.template.spec.domain.devices.interfaces[0]"));
    let names = machine("vm", &["p", "p"]);
    assert!(refused(machines.create(&PostParams::default(), &names).await).1.contains("interfaces[1].name is p"));
    let malformed = machine("vm", &["p=02:00"]);
    let (code, message) = refused(machines.create(&PostParams::default(), &malformed).await);
    assert!(code == 422 && message.contains("interfaces[0].macAddress is \"02:00\": not a MAC address"), "{message}");
    assert!(cluster.reserved().await.is_empty());
}

#[tokio::test]
async fn namespaces_decide_whether_they_are_served() {
    let cluster = Cluster::new([0, 0, 9]).await;
    let _replica = cluster.replica().await;
    cluster.namespace("closed", json!({ "mutatevirtualmachines.kubemacpool.io": "ignore" })).await;
    cluster.namespace("early", json!({ "openshift.io/run-level": "0" })).await;
    // Whoever takes the selectors out of the configuration does not decide for the namespaces.
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kubemacpool-mutator";
    let open = json!([{ "op": "remove", "path": "/webhooks/0/namespaceSelector" }]);
    let request = http::Request::patch(path).header("content-type", "application/json-patch+json");
    let request = request.body(open.to_string().into_bytes()).unwrap();
    cluster.client.request::<serde_json::Value>(request).await.unwrap();
    for namespace in ["closed", "early"] {
        let made = create(&cluster.of::<VirtualMachine>(namespace), &machine("vm", &["p"])).await;
        assert_eq!(addresses(&made), [""], "{namespace}");
    }
    let made = create(&cluster.machines(), &machine("vm", &["p"])).await;
    assert_eq!(addresses(&made), ["02:00:00:00:00:00"]);
    // What machines have there is not given to others.
    let foreign = machine("other", &["p=02:00:00:00:00:01"]);
    create(&cluster.of::<VirtualMachine>("closed"), &foreign).await;
    let next = async || {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let shown = cluster.machines().create(&dry, &machine("next", &["p"])).await.unwrap();
        (addresses(&shown) == ["02:00:00:00:00:02"]).then_some(())
    };
    until("passed over", next).await;
}

#[tokio::test]
async fn a_restored_machine_keeps_an_address_that_is_taken_and_its_user_is_warned() {
    let cluster = Cluster::new([0, 0, 9]).await;
    let _replica = cluster.replica().await;
    cluster.namespace("other", json!({})).await;
    let made = create(&cluster.machines(), &machine("vm", &["p"])).await;
    let mac = addresses(&made).remove(0);
    let copy = machine("copy", &[&format!("p={mac}")]);
    for (namespace, whose) in [("ns", "VirtualMachine ns/vm"), ("other", "an object of another namespace")] {
        let request = http::Request::post(format!("/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines"))
            .header("content-type", "application/json")
            .body(Body::from(serde_json::to_vec(&copy).unwrap()))
            .unwrap();
        let response = cluster.client.send(request).await.unwrap();
        let warning = response.headers()["warning"].to_str().unwrap();
        let sentence = format!("MAC address {mac} is also that of {whose}: do not run both in one network");
        assert_eq!((response.status().as_u16(), warning), (201, &*format!("299 - \"{sentence}\"")));
    }
    // It is free when nobody has it any more, not when the first one has not.
    cluster.machines().delete("vm", &DeleteParams::default()).await.unwrap();
    cluster.machines().delete("copy", &DeleteParams::default()).await.unwrap();
    let next = create(&cluster.machines(), &machine("next", &["p"])).await;
    assert_ne!(addresses(&next), [mac.as_str()]);
    assert!(cluster.reserved().await.contains(&mac));
}

#[tokio::test]
async fn the_range_is_followed_and_a_wrong_one_is_told() {
    let cluster = Cluster::new([0, 0, 1]).await;
    let _replica = cluster.replica().await;
    let machines = cluster.machines();
    create(&machines, &machine("first", &["p", "m"])).await;
    let maps = cluster.of::<ConfigMap>(NAMESPACE);
    let set = async |start: &str, end: &str| {
        let data = json!({ "data": { "RANGE_START": start, "RANGE_END": end } });
        maps.patch("kubemacpool-mac-range-config", &PatchParams::default(), &Patch::Merge(data)).await.unwrap();
    };
    set("02:10:00:00:00:00", "02:00:FF:00:00:00").await;
    let events = cluster.of::<Event>(NAMESPACE);
    let told = until("told", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().find(|event| event.reason.as_deref() == Some("InvalidRange"))
    });
    let expect = "RANGE_START is 02:10:00:00:00:00, which is above RANGE_END, 02:00:ff:00:00:00: exchange them; the range stays 02:00:00:00:00:00-02:00:00:00:00:01";
    assert_eq!(told.await.message.as_deref(), Some(expect));
    assert_eq!(refused(machines.create(&PostParams::default(), &machine("second", &["p"])).await).0, 403);
    set("02:00:00:00:01:00", "02:00:00:00:01:0F").await;
    let made =
        until("widened", async || machines.create(&PostParams::default(), &machine("second", &["p"])).await.ok());
    assert_eq!(addresses(&made.await), ["02:00:00:00:01:00"]);
}

#[tokio::test]
async fn without_a_range_it_says_what_is_missing() {
    let cluster = Cluster::new([0, 0, 1]).await;
    let maps = cluster.of::<ConfigMap>(NAMESPACE);
    maps.delete("kubemacpool-mac-range-config", &DeleteParams::default()).await.unwrap();
    let _replica = cluster.replica().await;
    let (code, message) = refused(cluster.machines().create(&PostParams::default(), &machine("vm", &["p"])).await);
    let sentence = "there is no range to take an address from: ConfigMap kubemacpool-system/kubemacpool-mac-range-config is missing";
    assert!(code == 503 && message.ends_with(sentence), "{code} {message}");
    create(&cluster.machines(), &machine("own", &["p=02:00:00:00:00:07"])).await;
}
