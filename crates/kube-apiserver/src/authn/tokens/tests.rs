//! Tokens live and die with the objects they are bound to.

use super::*;
use crate::view::Fixed;

fn tokens(view: Fixed, pkcs8: &[u8]) -> Tokens {
    Tokens::new(Signer::from_pkcs8(pkcs8).unwrap(), Arc::new(view))
}

fn account() -> Fixed {
    Fixed::default().with("", "serviceaccounts", json!({"metadata": {"name": "sa", "namespace": "ns", "uid": "u1"}}))
}

fn pod(uid: &str) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns", "uid": uid}, "spec": {"serviceAccountName": "sa", "nodeName": "n1"}})
}

fn node() -> Value {
    json!({"metadata": {"name": "n1", "uid": "n-uid"}})
}

fn info() -> RequestInfo {
    RequestInfo {
        namespace: "ns".into(),
        name: "sa".into(),
        resource: "serviceaccounts".into(),
        ..RequestInfo::default()
    }
}

#[test]
fn a_pod_token_carries_its_pod_and_node_and_dies_with_the_pod() {
    let (_, key) = Signer::generate().unwrap();
    let issued = tokens(account().with("", "pods", pod("p1")).with("", "nodes", node()), &key)
        .request(&info(), &json!({"spec": {"boundObjectRef": {"kind": "Pod", "name": "p", "uid": "p1"}}}))
        .unwrap();
    let token = text(&issued, "/status/token").to_owned();
    let check = |view: Fixed, audiences: &[&str], expect: Result<&str, TokenError>| {
        let audiences: Vec<String> = audiences.iter().map(|a| (*a).to_owned()).collect();
        let got = tokens(view, &key).authenticate(&token, &audiences).map(|(user, _)| user.name);
        assert_eq!(got, expect.map(ToOwned::to_owned));
    };
    let name = "system:serviceaccount:ns:sa";
    check(account().with("", "pods", pod("p1")), &[], Ok(name));
    check(account().with("", "pods", pod("p1")), &["other"], Err(TokenError::Audience));
    check(account().with("", "pods", pod("p2")), &[], Err(TokenError::Revoked));
    check(account(), &[], Err(TokenError::Revoked));
    check(Fixed::default().with("", "pods", pod("p1")), &[], Err(TokenError::Revoked));
    let view = account().with("", "pods", pod("p1")).with("", "nodes", node());
    let (user, _) = tokens(view, &key).authenticate(&token, &[]).unwrap();
    assert_eq!(user.extra["authentication.kubernetes.io/node-name"], ["n1"]);
    assert_eq!(user.extra["authentication.kubernetes.io/pod-uid"], ["p1"]);
}

#[test]
fn requests_are_validated() {
    let (_, key) = Signer::generate().unwrap();
    let check = |body: Value, expect: &str| {
        let error = tokens(account().with("", "pods", pod("p1")), &key).request(&info(), &body).unwrap_err();
        assert!(error.message.contains(expect), "{}", error.message);
    };
    check(json!({"spec": {"expirationSeconds": 5}}), "may not specify a duration less than 10 minutes");
    check(json!({"spec": {"boundObjectRef": {"kind": "Pod", "name": "q"}}}), "pods \"q\" not found");
    check(
        json!({"spec": {"boundObjectRef": {"kind": "Pod", "name": "p", "uid": "x"}}}),
        "does not match the UID in record",
    );
}
