//! NetworkPolicy with packets: who reaches whom under which policies, at once, by Services, in both families, and from
//! the first moment of a pod's life.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, once, pod, ready, sh, special, with};

pub(crate) const TESTS: &[Test] = &[
    ("ingress_is_what_some_policy_admits", ingress_is_what_some_policy_admits),
    ("egress_is_what_some_policy_admits", egress_is_what_some_policy_admits),
    ("probes_reach_an_isolated_pod", probes_reach_an_isolated_pod),
    ("a_pod_is_never_unprotected", a_pod_is_never_unprotected),
];

/// A web server on 8080, which it calls `web`, and on 9090, each answering the pod's name.
fn server(name: &str) -> Value {
    let script = "mkdir -p /tmp/www && cd /tmp/www && busybox hostname > index.html && trap 'exit 0' TERM; busybox httpd -p 9090; busybox httpd -f -p 8080 & wait";
    let main = json!({"readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}, "ports": [{"name": "web", "containerPort": 8080}]});
    special(name, script, &main, &json!({}))
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": "web"}], "ipFamilyPolicy": "PreferDualStack"}})
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec})
}

/// Waits until the answer of `url` to pod `from` is as wanted.
fn expect(space: &Namespace, from: &str, url: &str, reached: bool) -> Result<()> {
    let script = format!("busybox timeout 2 busybox wget -qO- {url}");
    until(&format!("{from} to {url} being {}", if reached { "let through" } else { "held back" }), || {
        let output = space.output(&["exec", from, "--", "sh", "-c", &script])?;
        Ok((output.status.success() == reached).then_some(()))
    })
}

fn addresses(space: &Namespace, pod: &str) -> Result<Vec<String>> {
    let pod = space.get("pod", pod)?;
    let ips = pod["status"]["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str());
    Ok(ips.map(|ip| if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() }).collect())
}

fn ingress_is_what_some_policy_admits() -> Result<()> {
    let space = Namespace::new("policy-in")?;
    let other = Namespace::new("policy-from")?;
    apply(&space, &[server("db"), service("db"), pod("friend", IDLE), pod("foe", IDLE)])?;
    apply(&other, &[pod("friend", IDLE)])?;
    for name in ["db", "friend", "foe"] {
        ready(&space, name)?;
    }
    ready(&other, "friend")?;
    let ips = addresses(&space, "db")?;
    let direct: Vec<String> = ips.iter().map(|ip| format!("http://{ip}:8080")).collect();
    expect(&space, "foe", "http://db", true)?;
    let db = json!({"matchLabels": {"app": "db"}});
    apply(&space, &[policy("deny", &json!({"podSelector": db}))])?;
    for url in direct.iter().map(String::as_str).chain(["http://db"]) {
        expect(&space, "foe", url, false)?;
    }
    // By more than its own name, which leads a pod to itself without any Service.
    expect(&space, "db", &format!("http://db.{}", space.name()), true)?;
    let friends = json!([{"podSelector": {"matchLabels": {"app": "friend"}}}]);
    let admit = json!({"podSelector": db, "ingress": [{"from": friends, "ports": [{"port": "web"}]}]});
    apply(&space, &[policy("admit", &admit)])?;
    for url in direct.iter().map(String::as_str).chain(["http://db"]) {
        expect(&space, "friend", url, true)?;
    }
    expect(&space, "foe", "http://db", false)?;
    expect(&space, "friend", &format!("http://{}:9090", ips[0]), false)?;
    // The same labels in another namespace are somebody else, until the namespace is named.
    expect(&other, "friend", &direct[0], false)?;
    let near = json!({"matchLabels": {"kubernetes.io/metadata.name": other.name()}});
    let block = json!({"ipBlock": {"cidr": format!("{}/32", addresses(&space, "foe")?[0])}});
    let more = json!({"podSelector": db, "ingress": [{"from": [{"namespaceSelector": near}, block]}]});
    apply(&space, &[policy("more", &more)])?;
    expect(&other, "friend", &direct[0], true)?;
    expect(&space, "foe", &format!("http://{}:9090", ips[0]), true)?;
    space.kubectl(&["label", "pod", "friend", "app=stranger", "--overwrite"])?;
    expect(&space, "friend", "http://db", false)?;
    space.kubectl(&["delete", "networkpolicy", "--all"])?;
    expect(&space, "friend", "http://db", true)
}

fn egress_is_what_some_policy_admits() -> Result<()> {
    let space = Namespace::new("policy-out")?;
    apply(&space, &[server("db"), service("db"), server("other"), service("other"), pod("client", IDLE)])?;
    for name in ["db", "other", "client"] {
        ready(&space, name)?;
    }
    expect(&space, "client", "http://db", true)?;
    let client = json!({"matchLabels": {"app": "client"}});
    let egress = |rules: Value| json!({"podSelector": client, "policyTypes": ["Egress"], "egress": rules});
    apply(&space, &[policy("out", &egress(json!([])))])?;
    let direct = format!("http://{}:8080", addresses(&space, "db")?[0]);
    expect(&space, "client", &direct, false)?;
    let asked = space.output(&[
        "exec",
        "client",
        "--",
        "busybox",
        "timeout",
        "3",
        "busybox",
        "nslookup",
        "kubernetes.default.svc.cluster.local",
    ])?;
    ensure!(!asked.status.success(), "names are something one asks for");
    let system = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}});
    let dns = json!({"to": [system], "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]});
    let db = json!({"to": [{"podSelector": {"matchLabels": {"app": "db"}}}], "ports": [{"port": 8080}]});
    apply(&space, &[policy("out", &egress(json!([dns, db])))])?;
    // By its Service: the policy is about the pod behind it.
    expect(&space, "client", "http://db", true)?;
    expect(&space, "client", "http://other", false)?;
    // Others are not concerned, and answers are not judged again.
    expect(&space, "other", "http://db", true)
}

fn probes_reach_an_isolated_pod() -> Result<()> {
    let space = Namespace::new("policy-probe")?;
    apply(&space, &[policy("deny", &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})), server("db")])?;
    ready(&space, "db")?;
    let on_the_node = special("host", IDLE, &json!({}), &json!({"hostNetwork": true}));
    let node = space.get("pod", "db")?["spec"]["nodeName"].clone();
    apply(&space, &[with(on_the_node, &json!({"spec": {"nodeName": node}}))])?;
    ready(&space, "host")?;
    // A pod on the node's network is the node: policies neither hold it back nor keep it from the pods there.
    let address = &addresses(&space, "db")?[0];
    let answer = sh(&space, "host", &format!("busybox timeout 5 busybox wget -qO- http://{address}:8080"))?;
    ensure!(answer == "db\n", "{answer}");
    Ok(())
}

/// Each of several pods tries, as the first thing of its life, what it may not do.
fn a_pod_is_never_unprotected() -> Result<()> {
    let space = Namespace::new("policy-start")?;
    apply(
        &space,
        &[
            server("db"),
            policy("deny", &json!({"podSelector": {"matchLabels": {"early": "yes"}}, "policyTypes": ["Egress"]})),
        ],
    )?;
    ready(&space, "db")?;
    let address = &addresses(&space, "db")?[0];
    for n in 0..5 {
        let script = format!("busybox timeout 1 busybox wget -qO- http://{address}:8080 || echo held back");
        let early = with(pod(&format!("early{n}"), &script), &json!({"metadata": {"labels": {"early": "yes"}}}));
        let said = once(&space, &early)?;
        ensure!(said.contains("held back"), "{said}");
    }
    Ok(())
}
