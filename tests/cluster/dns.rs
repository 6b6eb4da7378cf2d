//! Names from inside of pods: of Services, of pods behind headless Services, backwards, by port, by search domain.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::json;

use crate::Test;
use crate::pods::{IDLE, apply, idle, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[
    ("names_resolve_in_every_way", names_resolve_in_every_way),
    ("a_pod_may_have_its_own_dns", a_pod_may_have_its_own_dns),
];

fn names_resolve_in_every_way() -> Result<()> {
    let space = Namespace::new("dns")?;
    apply(
        &space,
        &[
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"app": "named"}, "ports": [{"name": "web", "port": 80}], "ipFamilyPolicy": "PreferDualStack"}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "selector": {"app": "named"}, "ports": [{"name": "web", "port": 80}]}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "outside"}, "spec": {"type": "ExternalName", "externalName": "kubernetes.default.svc.cluster.local"}}),
            special("named", IDLE, &json!({}), &json!({"hostname": "host", "subdomain": "headless"})),
        ],
    )?;
    idle(&space, "client")?;
    ready(&space, "named")?;
    let name = space.name();
    let ask = |kind: &str, name: &str| -> Result<String> {
        let output = space.output(&["exec", "client", "--", "busybox", "nslookup", &format!("-type={kind}"), name])?;
        // The first lines name the server.
        let answer = crate::pods::text(&output.stdout).lines().skip(2).collect::<Vec<_>>().join("\n");
        Ok(answer + &crate::pods::text(&output.stderr))
    };
    let service = space.get("service", "s")?;
    let address = |n: usize| service["spec"]["clusterIPs"][n].as_str().unwrap_or_default().to_owned();
    let pod = space.get("pod", "named")?["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    let check = |kind: &str, name: &str, expect: &str| {
        until(&format!("{kind} of {name} was {expect}"), || {
            let answer = ask(kind, name)?;
            ensure!(answer.contains(expect), "{answer}");
            Ok(Some(()))
        })
    };
    check("a", &format!("s.{name}.svc.cluster.local"), &address(0))?;
    check("a", &format!("headless.{name}.svc.cluster.local"), &pod)?;
    check("a", &format!("host.headless.{name}.svc.cluster.local"), &pod)?;
    check("srv", &format!("_web._tcp.s.{name}.svc.cluster.local"), &format!("80 s.{name}.svc.cluster.local"))?;
    check("ptr", &backwards(&address(0)), &format!("s.{name}.svc.cluster.local"))?;
    check("ptr", &backwards(&pod), &format!("host.headless.{name}.svc.cluster.local"))?;
    check("a", &format!("outside.{name}.svc.cluster.local"), "10.96.0.1")?;
    check("a", &format!("none.{name}.svc.cluster.local"), "NXDOMAIN")?;
    if service["spec"]["clusterIPs"].as_array().is_some_and(|ips| ips.len() == 2) {
        check("aaaa", &format!("s.{name}.svc.cluster.local"), &address(1))?;
    }
    // By the search list, from the same namespace and from another.
    let found = sh(
        &space,
        "client",
        &format!(
            "busybox ping -4 -c 1 -W 1 s | grep PING; busybox ping -4 -c 1 -W 1 s.{name} | grep PING; busybox ping -4 -c 1 -W 1 kubernetes.default.svc | grep PING"
        ),
    )?;
    ensure!(found.matches(&address(0)).count() == 2 && found.contains("10.96.0.1"), "{found}");
    Ok(())
}

fn backwards(address: &str) -> String {
    let parts: Vec<_> = address.split('.').rev().collect();
    format!("{}.in-addr.arpa", parts.join("."))
}

fn a_pod_may_have_its_own_dns() -> Result<()> {
    let space = Namespace::new("own-dns")?;
    let spec = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["example.org"], "options": [{"name": "ndots", "value": "2"}]},
                      "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["alias.example.org"]}], "hostname": "named"});
    apply(&space, &[special("p", IDLE, &json!({}), &spec)])?;
    ready(&space, "p")?;
    let file = sh(&space, "p", "cat /etc/resolv.conf")?;
    ensure!(
        file.contains("nameserver 192.0.2.53")
            && file.contains("search example.org")
            && file.contains("options ndots:2"),
        "{file}"
    );
    let hosts = sh(&space, "p", "cat /etc/hosts; busybox hostname")?;
    ensure!(hosts.contains("192.0.2.1\talias.example.org") && hosts.ends_with("named\n"), "{hosts}");
    Ok(())
}
