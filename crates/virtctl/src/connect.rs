//! From the options and the kubeconfig to a client, by kubectl's rules.

mod proxy;

use std::path::{Path, PathBuf};
use std::{env, fs};

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::fault::{Fault, chain};

/// Where the embedded cluster keeps its state unless told otherwise.
const STATE: &str = "/var/lib/ferrovirt";

/// Options of every command, as kubectl has them.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Globals {
    /// Path of the kubeconfig.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Cluster of the kubeconfig to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig to use.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Namespace of the machine.
    #[arg(long, short, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Address of the API server.
    #[arg(long, short, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Bearer token to authenticate with.
    #[arg(long, global = true)]
    pub(crate) token: Option<String>,
    /// Accept any certificate of the server. Insecure.
    #[arg(long, global = true, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(crate) insecure_skip_tls_verify: Option<bool>,
    /// File with the certificate authority of the server.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) certificate_authority: Option<String>,
    /// File with the client certificate.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) client_certificate: Option<String>,
    /// File with the key of the client certificate.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) client_key: Option<String>,
    /// Name the server's certificate must carry.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
    /// User to act as.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) act_as: Option<String>,
    /// Group to act as; may be repeated.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub(crate) act_as_group: Vec<String>,
    /// UID to act as.
    #[arg(long = "as-uid", global = true, value_name = "UID")]
    pub(crate) act_as_uid: Option<String>,
}

/// A cluster, and the namespace commands are about.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Globals {
    /// Connects. Nothing is sent yet.
    pub(crate) async fn cluster(&self) -> Result<Cluster, Fault> {
        let config = self.config().await?;
        let namespace = config.default_namespace.clone();
        let client = proxy::client(config).map_err(|error| match error {
            proxy::Error::Client(error) => Fault::new("cannot use the kubeconfig").because(chain(&*error)),
            error => Fault::new("cannot use the proxy").because(chain(&error)),
        })?;
        Ok(Cluster { client, namespace })
    }

    async fn config(&self) -> Result<Config, Fault> {
        let mut config = match self.kubeconfig()? {
            Some(kubeconfig) => self.chosen(kubeconfig).await?,
            None => match &self.server {
                Some(_) => Config::new(http::Uri::from_static("https://localhost")),
                None if env::var_os("KUBERNETES_SERVICE_HOST").is_some() => Config::incluster()
                    .map_err(|error| Fault::new("cannot use the pod's service account").because(chain(&error)))?,
                None => return Err(nowhere()),
            },
        };
        self.apply(&mut config)?;
        Ok(config)
    }

    async fn chosen(&self, mut kubeconfig: Kubeconfig) -> Result<Config, Fault> {
        if let Some(path) = &self.certificate_authority {
            for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
                cluster.certificate_authority = Some(path.clone());
                cluster.certificate_authority_data = None;
            }
        }
        let proxy = self.proxy_of(&kubeconfig);
        let options =
            KubeConfigOptions { context: self.context.clone(), cluster: self.cluster.clone(), user: self.user.clone() };
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
            Fault::new("cannot use the kubeconfig")
                .because(chain(&error))
                .hint("`kubectl config get-contexts` lists what is there; choose with --context")
        })?;
        config.proxy_url = match proxy {
            Some(text) => Some(proxy::parse(&text).map_err(|e| Fault::new("cannot use the proxy").because(chain(&e)))?),
            None => None,
        };
        Ok(config)
    }

    /// The proxy the kubeconfig asks for; one of the environment is looked for once the address is known.
    fn proxy_of(&self, kubeconfig: &Kubeconfig) -> Option<String> {
        let context = self.context.as_ref().or(kubeconfig.current_context.as_ref())?;
        let of_context = kubeconfig.contexts.iter().find(|named| &named.name == context)?.context.as_ref()?;
        let name = self.cluster.as_ref().unwrap_or(&of_context.cluster);
        let cluster = kubeconfig.clusters.iter().find(|named| &named.name == name)?.cluster.as_ref()?;
        cluster.proxy_url.clone().filter(|url| !url.is_empty())
    }

    fn apply(&self, config: &mut Config) -> Result<(), Fault> {
        if let Some(server) = &self.server {
            let full = if server.contains("://") { server.clone() } else { format!("https://{server}") };
            config.cluster_url = full
                .parse()
                .map_err(|error| Fault::usage(format!("--server {server:?} is not an address")).because(error))?;
        }
        if let Some(namespace) = &self.namespace {
            config.default_namespace.clone_from(namespace);
        }
        if let Some(skip) = self.insecure_skip_tls_verify {
            config.accept_invalid_certs = skip;
        }
        if let Some(name) = &self.tls_server_name {
            config.tls_server_name = Some(name.clone());
        }
        let auth = &mut config.auth_info;
        if let Some(token) = &self.token {
            auth.token = Some(token.clone().into());
            auth.token_file = None;
            auth.exec = None;
        }
        if let Some(path) = &self.client_certificate {
            auth.client_certificate = Some(path.clone());
            auth.client_certificate_data = None;
        }
        if let Some(path) = &self.client_key {
            auth.client_key = Some(path.clone());
            auth.client_key_data = None;
        }
        if let Some(user) = &self.act_as {
            auth.impersonate = Some(user.clone());
        }
        if !self.act_as_group.is_empty() {
            auth.impersonate_groups = Some(self.act_as_group.clone());
        }
        if let Some(uid) = &self.act_as_uid {
            auth.impersonate_uid = Some(uid.clone());
        }
        if config.proxy_url.is_none()
            && let Some(text) = proxy::of_environment(&config.cluster_url, |name| env::var(name).ok())
        {
            config.proxy_url =
                Some(proxy::parse(&text).map_err(|e| Fault::new("cannot use the proxy").because(chain(&e)))?);
        }
        Ok(())
    }

    fn kubeconfig(&self) -> Result<Option<Kubeconfig>, Fault> {
        let paths = match &self.kubeconfig {
            Some(path) => vec![path.clone()],
            None => found(env::var_os("KUBECONFIG").map(|text| env::split_paths(&text).collect()), &standing_places()),
        };
        let mut whole: Option<Kubeconfig> = None;
        for path in paths {
            let cannot =
                |error| Fault::new(format!("cannot read kubeconfig {}", path.display())).because(chain(&error));
            let next = Kubeconfig::read_from(&path).map_err(cannot)?;
            whole = Some(match whole {
                Some(before) => before.merge(next).map_err(cannot)?,
                None => next,
            });
        }
        Ok(whole)
    }
}

fn nowhere() -> Fault {
    Fault::new("no cluster to talk to")
        .because("there is neither --kubeconfig nor $KUBECONFIG nor ~/.kube/config")
        .hint("`ferrovirt up` starts a cluster on this machine, and its kubeconfig is then found")
}

/// Where a kubeconfig may lie, best first: the user's, then that of the embedded cluster.
fn standing_places() -> Vec<PathBuf> {
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let state = env::var_os("FERROVIRT_STATE").map_or_else(|| PathBuf::from(STATE), PathBuf::from);
    home.into_iter().chain([state.join("kubeconfig")]).collect()
}

/// The files to merge: those of `listed` that exist; when nothing is listed, the first of `places` that can be read.
fn found(listed: Option<Vec<PathBuf>>, places: &[PathBuf]) -> Vec<PathBuf> {
    let listed: Vec<PathBuf> = listed.unwrap_or_default().into_iter().filter(|p| !p.as_os_str().is_empty()).collect();
    if !listed.is_empty() {
        return listed.into_iter().filter(|path| path.exists()).collect();
    }
    places.iter().find(|path| fs::File::open(path).is_ok()).cloned().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r"
apiVersion: v1
kind: Config
current-context: a
clusters:
- {name: one, cluster: {server: 'https://one:6443', proxy-url: 'http://proxy:3128'}}
- {name: two, cluster: {server: 'https://two:6443', insecure-skip-tls-verify: true}}
users:
- {name: u, user: {token: t}}
contexts:
- {name: a, context: {cluster: one, user: u, namespace: here}}
- {name: b, context: {cluster: two, user: u}}
";

    async fn config(globals: &Globals) -> Config {
        let mut config = globals.chosen(Kubeconfig::from_yaml(TWO).unwrap()).await.unwrap();
        globals.apply(&mut config).unwrap();
        config
    }

    #[tokio::test]
    async fn contexts_and_overrides() {
        let config_a = config(&Globals::default()).await;
        assert_eq!(config_a.cluster_url, "https://one:6443/");
        assert_eq!(config_a.default_namespace, "here");
        assert_eq!(config_a.proxy_url.unwrap(), "http://proxy:3128/");

        let globals = Globals { context: Some("b".into()), namespace: Some("there".into()), ..Globals::default() };
        let config_b = config(&globals).await;
        assert_eq!(config_b.cluster_url, "https://two:6443/");
        assert_eq!(config_b.default_namespace, "there");
        assert!(config_b.accept_invalid_certs);

        let globals = Globals {
            server: Some("three:1".into()),
            act_as: Some("jane".into()),
            act_as_group: vec!["dev".into()],
            ..Globals::default()
        };
        let config_c = config(&globals).await;
        assert_eq!(config_c.cluster_url, "https://three:1/");
        assert_eq!(config_c.auth_info.impersonate.as_deref(), Some("jane"));
        assert_eq!(config_c.auth_info.impersonate_groups, Some(vec!["dev".to_owned()]));
    }

    #[tokio::test]
    async fn an_unknown_context_is_named() {
        let globals = Globals { context: Some("nope".into()), ..Globals::default() };
        let fault = globals.chosen(Kubeconfig::from_yaml(TWO).unwrap()).await.unwrap_err();
        assert!(fault.to_string().contains("nope"), "{fault}");
    }

    #[test]
    fn the_embedded_cluster_comes_last() {
        let dir = tempfile::tempdir().unwrap();
        let (home, state) = (dir.path().join("home"), dir.path().join("state"));
        let places = [home.clone(), state.clone()];
        assert!(found(None, &places).is_empty());
        fs::write(&state, "").unwrap();
        assert_eq!(found(None, &places), [state]);
        fs::write(&home, "").unwrap();
        assert_eq!(found(None, &places), std::slice::from_ref(&home));
        let missing = dir.path().join("missing");
        assert_eq!(found(Some(vec![missing, home.clone()]), &places), [home]);
    }
}
