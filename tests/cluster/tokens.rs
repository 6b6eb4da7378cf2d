//! The service account of a pod: its token, its namespace, the API from inside, and none where none is wanted.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::json;

use crate::Test;
use crate::pods::{IDLE, apply, idle, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[
    ("a_pod_reaches_the_api_with_its_token", a_pod_reaches_the_api_with_its_token),
    ("a_token_is_made_for_its_pod_and_audience", a_token_is_made_for_its_pod_and_audience),
];

const DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn a_pod_reaches_the_api_with_its_token() -> Result<()> {
    let space = Namespace::new("token")?;
    idle(&space, "p")?;
    ensure!(sh(&space, "p", &format!("cat {DIR}/namespace"))? == space.name(), "the namespace file");
    ensure!(sh(&space, "p", &format!("cat {DIR}/ca.crt"))?.contains("BEGIN CERTIFICATE"), "the authority");
    let ask = "busybox wget -qO- --no-check-certificate --header \"Authorization: Bearer $(cat /var/run/secrets/kubernetes.io/serviceaccount/token)\" \
               https://kubernetes.default.svc/apis/authentication.k8s.io/v1 | grep -c selfsubjectreviews; echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT";
    let answer = sh(&space, "p", ask)?;
    ensure!(answer.ends_with("10.96.0.1:443\n"), "{answer}");
    let token = sh(&space, "p", &format!("cat {DIR}/token"))?;
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let said = space.feed(&["create", "-o", "json", "-f", "-"], review.to_string().as_bytes())?;
    let status = serde_json::from_slice::<serde_json::Value>(&said.stdout)?["status"].clone();
    ensure!(
        status["authenticated"] == true
            && status["user"]["username"] == format!("system:serviceaccount:{}:default", space.name()),
        "{status}"
    );
    ensure!(status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == json!(["p"]), "{status}");
    apply(&space, &[special("none", IDLE, &json!({}), &json!({"automountServiceAccountToken": false}))])?;
    ready(&space, "none")?;
    ensure!(sh(&space, "none", &format!("ls {DIR}")).is_err(), "a token is there that nobody wanted");
    Ok(())
}

fn a_token_is_made_for_its_pod_and_audience() -> Result<()> {
    let space = Namespace::new("audience")?;
    let volume = json!({"volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}}]}}]});
    apply(&space, &[special("p", IDLE, &json!({"volumeMounts": [{"name": "t", "mountPath": "/t"}]}), &volume)])?;
    ready(&space, "p")?;
    let token = sh(&space, "p", "cat /t/vault")?;
    let review = |audiences: serde_json::Value| -> Result<serde_json::Value> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, "audiences": audiences}});
        let said = space.feed(&["create", "-o", "json", "-f", "-"], review.to_string().as_bytes())?;
        Ok(serde_json::from_slice::<serde_json::Value>(&said.stdout)?["status"].clone())
    };
    ensure!(review(json!(["vault"]))?["authenticated"] == true, "{}", review(json!(["vault"]))?);
    ensure!(review(json!(["other"]))?["authenticated"] != true, "the token serves another audience");
    space.kubectl(&["delete", "pod", "p", "--timeout=60s"])?;
    ensure!(review(json!(["vault"]))?["authenticated"] != true, "the token outlived its pod");
    Ok(())
}
