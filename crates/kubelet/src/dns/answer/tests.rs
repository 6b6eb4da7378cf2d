//! Answers by data: a question in words, the reply in words.

use std::fmt::Write as _;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::service_view::View;

fn view() -> View {
    let service = |name: &str, spec: serde_json::Value| {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec})).unwrap(),
        )
    };
    let slice = json!({"metadata": {"namespace": "shop", "name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
    "addressType": "IPv4", "ports": [{"name": "sql", "port": 5432, "protocol": "TCP"}],
    "endpoints": [
        {"addresses": ["10.244.0.5"], "hostname": "db-0", "conditions": {"ready": true}},
        {"addresses": ["10.244.0.6"], "conditions": {"ready": true}},
        {"addresses": ["10.244.0.7"], "conditions": {"ready": false}},
    ]});
    View {
        zone: None,
        services: vec![
            service(
                "web",
                json!({"clusterIPs": ["10.96.1.1", "fd00:10:96::1"], "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}),
            ),
            service("db", json!({"clusterIP": "None", "clusterIPs": ["None"]})),
            service("idle", json!({"clusterIP": "None", "clusterIPs": ["None"]})),
            service("far", json!({"type": "ExternalName", "externalName": "example.org"})),
            service("near", json!({"type": "ExternalName", "externalName": "web.shop.svc.cluster.local."})),
            service("loop", json!({"type": "ExternalName", "externalName": "loop.shop.svc.cluster.local"})),
        ],
        slices: vec![Arc::new(serde_json::from_value(slice).unwrap())],
    }
}

fn settings() -> Settings {
    Settings {
        addresses: Vec::new(),
        domain: "cluster.local".into(),
        own_ranges: ["10.96.0.0/16", "10.244.0.0/16", "fd00:10:96::/112"].map(|net| net.parse().unwrap()).to_vec(),
        resolvers: Vec::new(),
    }
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.queries.push(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

fn tell(outcome: Outcome) -> String {
    match outcome {
        Outcome::Silence => "silence".into(),
        Outcome::Forward(pending) => {
            let mut text = format!("ask others for {} {}", pending.question.name, pending.question.query_type);
            for known in &pending.reply.answers {
                let _ = write!(text, "; {} {}", known.record_type(), known.data);
            }
            text
        }
        Outcome::Reply(bytes) => {
            let reply = Message::from_vec(&bytes).unwrap();
            assert_eq!(reply.metadata.id, 7);
            let mut text = format!("{:?}", reply.metadata.response_code);
            let mut answers: Vec<_> = reply.answers.iter().map(|r| format!("{} {}", r.record_type(), r.data)).collect();
            answers.sort();
            for answer in answers {
                let _ = write!(text, "; {answer}");
            }
            if reply.metadata.truncation {
                text.push_str("; cut");
            }
            if reply.authorities.iter().any(|record| record.record_type() == RecordType::SOA) {
                text.push_str("; SOA");
            }
            text
        }
    }
}

fn ask(message: &Message) -> String {
    let zone = Zone::build(&view(), "cluster.local");
    tell(answer(Some(&zone), &settings(), &message.to_vec().unwrap(), Transport::Datagram, 0))
}

#[track_caller]
fn check(name: &str, kind: RecordType, expect: &str) {
    assert_eq!(ask(&query(name, kind)), expect);
}

#[test]
fn services_with_an_address() {
    check("web.shop.svc.cluster.local.", RecordType::A, "NoError; A 10.96.1.1");
    check("WEB.Shop.svc.cluster.local.", RecordType::AAAA, "NoError; AAAA fd00:10:96::1");
    check("web.shop.svc.cluster.local.", RecordType::MX, "NoError; SOA");
    check(
        "_http._tcp.web.shop.svc.cluster.local.",
        RecordType::SRV,
        "NoError; SRV 0 100 80 web.shop.svc.cluster.local.",
    );
    check("1.1.96.10.in-addr.arpa.", RecordType::PTR, "NoError; PTR web.shop.svc.cluster.local.");
    let v6 = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa.";
    check(v6, RecordType::PTR, "NoError; PTR web.shop.svc.cluster.local.");
}

#[test]
fn services_without_one() {
    check("db.shop.svc.cluster.local.", RecordType::A, "NoError; A 10.244.0.5; A 10.244.0.6");
    check("db-0.db.shop.svc.cluster.local.", RecordType::A, "NoError; A 10.244.0.5");
    check("10-244-0-6.db.shop.svc.cluster.local.", RecordType::A, "NoError; A 10.244.0.6");
    check("10-244-0-7.db.shop.svc.cluster.local.", RecordType::A, "NXDomain; SOA");
    check(
        "_sql._tcp.db.shop.svc.cluster.local.",
        RecordType::SRV,
        "NoError; SRV 0 100 5432 10-244-0-6.db.shop.svc.cluster.local.; SRV 0 100 5432 db-0.db.shop.svc.cluster.local.",
    );
    check("5.0.244.10.in-addr.arpa.", RecordType::PTR, "NoError; PTR db-0.db.shop.svc.cluster.local.");
    check("6.0.244.10.in-addr.arpa.", RecordType::PTR, "NoError; PTR 10-244-0-6.db.shop.svc.cluster.local.");
    check("idle.shop.svc.cluster.local.", RecordType::A, "NoError; SOA");
}

#[test]
fn aliases() {
    check("far.shop.svc.cluster.local.", RecordType::A, "ask others for example.org. A; CNAME example.org.");
    check("far.shop.svc.cluster.local.", RecordType::CNAME, "NoError; CNAME example.org.");
    check("near.shop.svc.cluster.local.", RecordType::A, "NoError; A 10.96.1.1; CNAME web.shop.svc.cluster.local.");
    assert!(ask(&query("loop.shop.svc.cluster.local.", RecordType::A)).starts_with("ServFail"));
}

#[test]
fn pods_and_what_lies_between() {
    check("10-244-0-9.shop.pod.cluster.local.", RecordType::A, "NoError; A 10.244.0.9");
    check("fd00--9.shop.pod.cluster.local.", RecordType::AAAA, "NoError; AAAA fd00::9");
    check("not-an-address.shop.pod.cluster.local.", RecordType::A, "NXDomain; SOA");
    check("shop.svc.cluster.local.", RecordType::A, "NoError; SOA");
    check("_tcp.web.shop.svc.cluster.local.", RecordType::SRV, "NoError; SOA");
    check("cluster.local.", RecordType::A, "NoError; SOA");
    let apex = "NoError; SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5";
    check("cluster.local.", RecordType::SOA, apex);
    check("dns-version.cluster.local.", RecordType::TXT, "NoError; TXT 1.1.0");
    check("none.shop.svc.cluster.local.", RecordType::A, "NXDomain; SOA");
    check("example.org.default.svc.cluster.local.", RecordType::A, "NXDomain; SOA");
    check("9.9.96.10.in-addr.arpa.", RecordType::PTR, "NXDomain; SOA");
}

#[test]
fn the_rest_of_the_world() {
    check("example.org.", RecordType::A, "ask others for example.org. A");
    check("notcluster.local.", RecordType::A, "ask others for notcluster.local. A");
    check("8.8.8.8.in-addr.arpa.", RecordType::PTR, "ask others for 8.8.8.8.in-addr.arpa. PTR");
}

#[test]
fn odd_messages() {
    let mut two = query("a.", RecordType::A);
    two.queries.push(two.queries[0].clone());
    assert_eq!(ask(&two), "FormErr");
    let mut update = query("a.", RecordType::A);
    update.metadata.op_code = OpCode::Update;
    assert_eq!(ask(&update), "NotImp");
    let mut chaos = query("version.bind.", RecordType::TXT);
    chaos.queries[0].query_class = DNSClass::CH;
    assert_eq!(ask(&chaos), "Refused");
    let mut response = query("a.", RecordType::A);
    response.metadata.message_type = MessageType::Response;
    assert_eq!(ask(&response), "silence");
}

#[test]
fn before_the_services_are_known() {
    let ask = |name: &str| {
        let bytes = query(name, RecordType::A).to_vec().unwrap();
        tell(answer(None, &settings(), &bytes, Transport::Datagram, 0))
    };
    assert_eq!(ask("web.shop.svc.cluster.local."), "ServFail");
    assert_eq!(ask("example.org."), "ask others for example.org. A");
}

#[test]
fn long_answers_are_cut_for_datagrams_only() {
    let addresses: Vec<_> = (0..100).map(|n| json!({"addresses": [format!("10.244.1.{n}")]})).collect();
    let mut view = view();
    let slice = json!({"metadata": {"namespace": "shop", "name": "i", "labels": {"kubernetes.io/service-name": "idle"}},
        "addressType": "IPv4", "ports": [], "endpoints": addresses});
    view.slices.push(Arc::new(serde_json::from_value(slice).unwrap()));
    let zone = Zone::build(&view, "cluster.local");
    let bytes = query("idle.shop.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    let Outcome::Reply(short) = answer(Some(&zone), &settings(), &bytes, Transport::Datagram, 3) else { panic!() };
    assert!(short.len() <= 512);
    assert!(Message::from_vec(&short).unwrap().metadata.truncation);
    let Outcome::Reply(long) = answer(Some(&zone), &settings(), &bytes, Transport::Stream, 3) else { panic!() };
    assert_eq!(Message::from_vec(&long).unwrap().answers.len(), 100);
}

proptest! {
    #[test]
    fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let zone = Zone::build(&view(), "cluster.local");
        let _ = answer(Some(&zone), &settings(), &bytes, Transport::Datagram, 1);
    }

    #[test]
    fn nor_is_a_damaged_query(at in 0usize..60, value in any::<u8>(), turn in any::<usize>()) {
        let zone = Zone::build(&view(), "cluster.local");
        let mut bytes = query("_http._tcp.web.shop.svc.cluster.local.", RecordType::SRV).to_vec().unwrap();
        if let Some(byte) = bytes.get_mut(at) {
            *byte = value;
        }
        if let Outcome::Reply(reply) = answer(Some(&zone), &settings(), &bytes, Transport::Datagram, turn) {
            prop_assert!(reply.len() <= MAX_DATAGRAM);
            prop_assert!(Message::from_vec(&reply).is_ok());
        }
    }
}
