//! What several commands need of the cluster: keys, clients, a runtime.

use std::path::{Path, PathBuf};

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube_apiserver::pki::{Pki, kubeconfig};
use kubelet::node;
use serde_json::Value;

use crate::state::{API_PORT, State};

/// A runtime for one command or one long-lived process.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the async runtime")
}

/// The cluster's keys, made if they are not there.
pub(crate) fn pki(state: &State) -> anyhow::Result<Pki> {
    Pki::open(Some(&state.pki())).context("cannot open the cluster's keys")
}

/// Writes the administrator's kubeconfig, unless there is one that still works: it is where kubectl keeps what its user
/// chose, such as a namespace.
///
/// It names the loopback address: when the cluster is down, the bridge's address is routed off this machine, and kubectl
/// would wait for, or believe, whoever answers there.
pub(crate) fn write_kubeconfig(state: &State) -> anyhow::Result<()> {
    let pki = pki(state)?;
    let admin = pki.admin()?;
    let text = kubeconfig(&format!("https://127.0.0.1:{API_PORT}"), pki.ca_pem(), "admin", &admin);
    match std::fs::read_to_string(state.kubeconfig()) {
        Ok(present) if still_works(&present, &text) => Ok(()),
        _ => write_secret(&state.kubeconfig(), &text),
    }
}

/// Whether a kubeconfig has the cluster, the user and the context of another, and some current context.
fn still_works(present: &str, wanted: &str) -> bool {
    let parse = |text| Kubeconfig::from_yaml(text).ok().and_then(|config| serde_json::to_value(config).ok());
    let (Some(present), Some(wanted)) = (parse(present), parse(wanted)) else { return false };
    let list = |config: &Value, what: &str| config[what].as_array().cloned().unwrap_or_default();
    let has = |what: &str| list(&wanted, what).iter().all(|one| list(&present, what).contains(one));
    let contexts = list(&present, "contexts");
    let joins = |one: &Value, other: &Value| {
        ["/name", "/context/cluster", "/context/user"].into_iter().all(|at| one.pointer(at) == other.pointer(at))
    };
    has("clusters")
        && has("users")
        && list(&wanted, "contexts").iter().all(|one| contexts.iter().any(|other| joins(one, other)))
        && contexts.iter().any(|context| context["name"] == present["current-context"])
}

/// Puts what the node proves itself with where its init picks it up.
pub(crate) fn write_node_secrets(state: &State, config: &node::Config) -> anyhow::Result<()> {
    let pki = pki(state)?;
    let dir = config.secrets();
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut names = vec![config.name.clone()];
    names.extend(config.addresses.iter().map(|address| address.addr().to_string()));
    let server = pki.kubelet_server(&config.name, &names)?;
    let client = pki.kubelet(&config.name)?;
    let network = pki.network_agent(&config.name)?;
    let user = format!("system:node:{}", config.name);
    let files = [
        ("kubeconfig", kubeconfig(&config.api_server, pki.ca_pem(), &user, &client)),
        ("network.kubeconfig", kubeconfig(&config.api_server, pki.ca_pem(), "system:network-agent", &network)),
        ("ca.crt", pki.ca_pem().to_owned()),
        ("kubelet.crt", server.certificate),
        ("kubelet.key", server.key),
    ];
    for (name, text) in files {
        write_secret(&dir.join(name), &text)?;
    }
    Ok(())
}

/// A client of this cluster, whichever context the user of the kubeconfig has made the current one. What it writes is
/// `component`'s, in managed fields and in logs.
pub(crate) async fn client(path: &Path, component: &str) -> anyhow::Result<kube::Client> {
    const CONTEXT: &str = "ferrovirt";
    let read = Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
    let options = KubeConfigOptions { context: Some(CONTEXT.to_owned()), ..KubeConfigOptions::default() };
    let mut config = kube::Config::from_custom_kubeconfig(read, &options)
        .await
        .with_context(|| format!("cannot use {}", path.display()))?;
    if let Ok(agent) = http::HeaderValue::from_str(&format!("{component}/{}", env!("CARGO_PKG_VERSION"))) {
        config.headers.push((http::header::USER_AGENT, agent));
    }
    kube::Client::try_from(config).context("cannot make a client")
}

/// Writes a file for root's eyes; it appears whole or not at all.
fn write_secret(path: &PathBuf, text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    if std::fs::read_to_string(path).is_ok_and(|now| now == text) {
        return Ok(());
    }
    let fresh = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&fresh, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use kube_apiserver::pki::Pair;

    use super::*;

    #[track_caller]
    fn check(change: impl Fn(String) -> String, expect: bool) {
        let pair = Pair { certificate: "certificate".into(), key: "key".into() };
        let wanted = kubeconfig("https://127.0.0.1:6443", "authority", "admin", &pair);
        assert_eq!(still_works(&change(wanted.clone()), &wanted), expect);
    }

    #[test]
    fn kubeconfig_choices_are_kept_and_broken_entries_repaired() {
        check(|same| same, true);
        check(|text| text.replace("    user: admin", "    user: admin\n    namespace: mine"), true);
        check(|text| text.replace("127.0.0.1", "10.0.0.1"), false);
        check(|text| text.replace("client-key-data: ", "client-key-data: Zm9v"), false);
        check(|text| text.replace("    user: admin", "    user: somebody"), false);
        check(|text| text.replace("current-context: ferrovirt", "current-context: gone"), false);
        check(|_| String::new(), false);
        check(|_| ": rubbish".into(), false);
    }
}
