//! virt-api: defaults and validation of machines at admission, and the subresources that reach into them.
//!
//! ```text
//! API server --webhook--> defaults, validate (pure)
//!            --aggregation, front-proxy certificate--> path (parsed once) -> auth -> subresource -> virt-handler
//! ```

mod chosen;
mod cluster;
mod copies;
pub mod defaults;
pub mod discovery;
mod eviction;
mod hyperv;
mod migration;
mod networks;
mod openapi;
pub mod path;
mod presets;
mod restore;
mod sets;
mod status;
mod subresource;
mod template;
pub mod validate;
mod written;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::tls::asked;
use api::kubevirt::v1::{KubeVirt, KubeVirtConfiguration};
use axum::extract::DefaultBodyLimit;
use axum::routing::{any, get, post};
use axum::{Json, Router};
use defaults::Defaults;
use kit::health::{self, Ready, Report};
use kit::peer::Peers;
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Store, Watch};
use kit::{Task, admission, clock, gate, metrics, server, tls};
use kube::runtime::watcher;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use subresource::Context;
use validate::Rules;

/// Largest AdmissionReview: two objects of the API server's own limit.
const REVIEW: usize = 4 << 20;

/// Command line of virt-api.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the components and of their KubeVirt object.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt")]
    pub namespace: String,
    /// Port to serve on.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/etc/virt-api/certificates")]
    pub cert_dir: PathBuf,
    /// File with the trust bundle of the components.
    #[arg(long, default_value = "/etc/kubevirt/ca/ca-bundle")]
    pub ca_bundle: PathBuf,
    /// Image with tools for disks, that `virtctl guestfs` runs.
    #[arg(long, env = "GS_IMAGE", default_value = "")]
    pub guestfs_image: String,
}

/// virt-api could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct Error {
    what: &'static str,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

fn setup<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error { what, source: Box::new(source) }
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(setup("handle signals"))?;
    let client = kit::client::connect("virt-api").await.map_err(setup("reach the API server"))?;
    let (material, trust) = (tls::Material::new(), tls::Trust::new());
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let _reload = tls::load(files, material.clone(), trust.clone()).await.map_err(setup("load the certificate"))?;
    let front = tls::Trust::new();
    let listener =
        tokio::net::TcpListener::bind((std::net::Ipv6Addr::UNSPECIFIED, args.port)).await.map_err(setup("listen"))?;
    let whole = client.clone();
    let server = Server::start(client, &args.namespace, material.clone(), trust, front.clone()).await?;
    let server = server.offer(&args.guestfs_image);
    let config = tls::Changing::new(material, Some(tls::Clients::Optional(front))).map_err(setup("configure TLS"))?;
    let copy = Store::default();
    server.context.report.obeys(&copy);
    let all = Api::<KubeVirt>::all(whole);
    let _obeying = tls::follow(all, watcher::Config::default(), copy, vec![config.clone()], asked);
    let gone = CancellationToken::new();
    let _leaving = kit::spawn("leaving", leave(server.ready.clone(), stop, gone.clone()));
    serve(listener, config, server, gone).await;
    Ok(())
}

/// How long this replica goes on serving after it was told to end: until then a request may still be sent to it, and one
/// that meets nobody fails what it was about, such as the drain of this very node.
const LINGER: Duration = Duration::from_secs(3);

async fn leave(ready: Ready, stop: CancellationToken, gone: CancellationToken) {
    stop.cancelled().await;
    ready.set(false);
    tokio::time::sleep(LINGER).await;
    gone.cancel();
}

async fn serve(listener: tokio::net::TcpListener, config: Arc<tls::Changing>, server: Server, stop: CancellationToken) {
    let router = server.router().merge(metrics::router(Registry::default()));
    server::serve_tls(listener, config, router, stop).await;
}

/// Everything behind the listener.
pub struct Server {
    context: Arc<Context>,
    ready: Ready,
    _tasks: Vec<Task<()>>,
}

impl Server {
    /// Reads what it needs of the cluster and keeps it current. `front` is filled with the front proxy's authority.
    ///
    /// # Errors
    /// When the cluster cannot be read.
    pub async fn start(
        client: Client,
        namespace: &str,
        material: Arc<tls::Material>,
        trust: Arc<tls::Trust>,
        front: Arc<tls::Trust>,
    ) -> Result<Self, Error> {
        let (gate, vouching) =
            gate::Gate::open(client.clone(), front).await.map_err(setup("read how the API server vouches"))?;
        let handlers = Peers::new("virt-handler", material, trust);
        let kubevirts: Store<KubeVirt> = Store::default();
        let watch = store::watch(
            Api::<KubeVirt>::namespaced(client.clone(), namespace),
            Watch { trim: |kv| kv.status = None, ..Watch::default() },
            kubevirts.clone(),
            |_| {},
        );
        kubevirts.synced().await;
        let ready = Ready::default();
        ready.set(true);
        let report = Report::new(client.clone());
        report.obeys(&kubevirts);
        let context = Arc::new(Context {
            client,
            report,
            gate,
            handlers,
            namespace: namespace.to_owned(),
            kubevirts,
            guestfs_image: std::sync::OnceLock::new(),
        });
        Ok(Server { context, ready, _tasks: vec![vouching, watch] })
    }

    /// Names the image with tools for disks to clients that ask.
    #[must_use]
    pub fn offer(self, guestfs_image: &str) -> Self {
        // Said once, before anything is served.
        let _ = self.context.guestfs_image.set(guestfs_image.to_owned());
        self
    }

    /// Webhooks, discovery, subresources and health.
    pub fn router(&self) -> Router {
        let subresources = Router::new()
            .route("/apis", get(|| async { Json(discovery::groups()) }))
            .route("/apis/subresources.kubevirt.io", get(|| async { Json(discovery::group()) }))
            .route("/apis/subresources.kubevirt.io/v1", get(|| async { Json(discovery::resources("v1")) }))
            .route("/apis/subresources.kubevirt.io/v1alpha3", get(|| async { Json(discovery::resources("v1alpha3")) }))
            .route("/apis/subresources.kubevirt.io/{*rest}", any(subresource::serve))
            .with_state(self.context.clone());
        let migrations = Router::new()
            .route("/migration-validate-create", post(migration::validate))
            .with_state(self.context.clone());
        let guard = eviction::Guard { client: self.context.client.clone(), kubevirts: self.context.kubevirts.clone() };
        let evictions =
            Router::new().route("/pod-eviction-validate", post(eviction::review)).with_state(Arc::new(guard));
        let client = self.context.client.clone();
        let restores = admission::route_looking(Router::new(), "/virtualmachinerestores-validate", move |request| {
            restore::review(client.clone(), request)
        });
        others(&self.context.kubevirts, &self.context.namespace)
            .merge(self.machines())
            .merge(self.noting())
            .merge(self.sets())
            .merge(self.giving())
            .merge(migrations)
            .merge(restores)
            .merge(evictions)
            .layer(DefaultBodyLimit::max(REVIEW))
            .merge(subresources)
            .merge(template::router(&self.context))
            .merge(openapi::router())
            .merge(health::reporting(self.ready.clone(), self.context.report.clone()))
    }
}

impl Server {
    /// The webhooks of machines: they are judged by themselves, and by what their writer may use.
    fn machines(&self) -> Router {
        MACHINES.into_iter().fold(Router::new(), |router, (path, check)| {
            let context = self.context.clone();
            admission::route_looking(router, path, move |request| {
                let context = context.clone();
                async move {
                    let configuration = configuration(&context.kubevirts);
                    let rules = Rules::of(&configuration, &context.namespace);
                    let binding = Defaults::of(&configuration).binding().to_owned();
                    let template = match chosen::template(&context.client, &request, &binding).await {
                        Ok(template) => template,
                        Err(refused) => return refused,
                    };
                    let verdict = check(&request, template.as_ref(), &rules);
                    if rules.is_component(&request.user_info.username) {
                        return verdict;
                    }
                    let verdict = networks::judge(&context.client, &request, verdict).await;
                    copies::judge(&context.client, &request, verdict).await
                }
            })
        })
    }

    /// The webhook that completes instances, with what presets give them.
    fn giving(&self) -> Router {
        let context = self.context.clone();
        admission::route_looking(Router::new(), "/virtualmachineinstances-mutate", move |request| {
            let context = context.clone();
            async move {
                match presets::apply(&context.client, &request).await {
                    Ok(given) => {
                        mutate_instance(&request, given, &configuration(&context.kubevirts), &context.namespace)
                    }
                    Err(refused) => refused,
                }
            }
        })
    }

    /// The webhooks of what makes machines: their writers are asked what the machines' would be.
    fn sets(&self) -> Router {
        let context = self.context.clone();
        let router = admission::route_looking(Router::new(), "/virtualmachinereplicaset-validate", move |request| {
            let context = context.clone();
            async move {
                let rules = Rules::of(&configuration(&context.kubevirts), &context.namespace);
                sets::set(&context.client, &request, &rules).await
            }
        });
        let context = self.context.clone();
        admission::route_looking(router, "/virtualmachinepool-validate", move |request| {
            let context = context.clone();
            async move {
                let configuration = configuration(&context.kubevirts);
                let rules = Rules::of(&configuration, &context.namespace);
                sets::pool(&context.client, &request, &rules, &Defaults::of(&configuration)).await
            }
        })
    }

    /// The webhook that completes VMs, and notes what their disks may be copied from.
    fn noting(&self) -> Router {
        let context = self.context.clone();
        admission::route_looking(Router::new(), "/virtualmachines-mutate", move |request| {
            let context = context.clone();
            async move {
                let configuration = configuration(&context.kubevirts);
                let component = Rules::of(&configuration, &context.namespace).is_component(&request.user_info.username);
                let noted = match copies::note(&context.client, &request, component).await {
                    Ok(noted) => noted,
                    Err(unanswered) => return unanswered,
                };
                let asking = if component { chosen::by_own_account(&request) } else { request.clone() };
                match chosen::complete(&context.client, &asking, noted).await {
                    Ok(whole) => defaults::mutate_machine(&request, whole, &Defaults::of(&configuration)),
                    Err(refused) => refused,
                }
            }
        })
    }
}

fn configuration(kubevirts: &Store<KubeVirt>) -> KubeVirtConfiguration {
    kubevirts
        .list()
        .into_iter()
        .next()
        .and_then(|kubevirt| kubevirt.spec.configuration)
        .map(|configuration| *configuration)
        .unwrap_or_default()
}

type Check = fn(&admission::Request, &Rules) -> admission::Verdict;

/// A check of a machine whose template may be another than the one that is written.
type MachineCheck = fn(&admission::Request, Option<&serde_json::Value>, &Rules) -> admission::Verdict;

const MACHINES: [(&str, MachineCheck); 2] = [
    ("/virtualmachines-validate", validate::vm),
    ("/virtualmachineinstances-validate-create", |request, _, rules| validate::vmi_create(request, rules)),
];

/// The same by themselves.
const MACHINES_ALONE: [(&str, Check); 2] = [
    ("/virtualmachines-validate", |request, rules| validate::vm(request, None, rules)),
    ("/virtualmachineinstances-validate-create", validate::vmi_create),
];

/// The admission webhooks under `kubevirts`' configuration as far as they look at nothing else of the cluster.
pub fn webhooks(kubevirts: &Store<KubeVirt>, namespace: &str) -> Router {
    let held = kubevirts.clone();
    let defaulting = admission::route(Router::new(), "/virtualmachines-mutate", move |request| {
        defaults::mutate_machine(request, request.object.clone(), &Defaults::of(&configuration(&held)))
    });
    let (held, own) = (kubevirts.clone(), namespace.to_owned());
    let defaulting = admission::route(defaulting, "/virtualmachineinstances-mutate", move |request| {
        mutate_instance(request, request.object.clone(), &configuration(&held), &own)
    });
    others(kubevirts, namespace).merge(defaulting).merge(judges(kubevirts, namespace, &MACHINES_ALONE))
}

/// `/virtualmachineinstances-mutate`, where `given` is the object with what else it is given.
fn mutate_instance(
    request: &admission::Request,
    given: serde_json::Value,
    configuration: &KubeVirtConfiguration,
    namespace: &str,
) -> admission::Verdict {
    let now = clock::seconds(clock::now()).to_string();
    let (defaults, rules) = (Defaults::of(configuration), Rules::of(configuration, namespace));
    defaults::mutate_instance(request, given, &defaults, &rules, &now)
}

fn judges(kubevirts: &Store<KubeVirt>, namespace: &str, checks: &[(&str, Check)]) -> Router {
    checks.iter().fold(Router::new(), |router, (path, check)| {
        let (held, namespace, check) = (kubevirts.clone(), namespace.to_owned(), *check);
        admission::route(router, path, move |request| check(request, &Rules::of(&configuration(&held), &namespace)))
    })
}

/// Those that are not about whether a machine may be made as it is.
fn others(kubevirts: &Store<KubeVirt>, namespace: &str) -> Router {
    let mut router = Router::new();
    router = admission::route(router, "/migration-mutate-create", validate::migration::mutate);
    router = admission::route(router, "/vm-clone-mutate-create", validate::clone::mutate);
    let validators: [(&str, Check); 14] = [
        ("/virtualmachineinstances-validate-update", validate::vmi_update),
        ("/status-validate", |request, _| validate::status(request)),
        ("/migration-validate-update", |request, _| validate::migration::update(request)),
        ("/migration-policy-validate-create", validate::policy::policy),
        ("/virtualmachinesnapshots-validate", |request, _| validate::snapshot::snapshot(request)),
        ("/vm-clone-validate-create", |request, _| validate::clone::validate(request)),
        ("/vmipreset-validate", |request, _| validate::preset::preset(request)),
        ("/virtualmachinebackups-validate", validate::backup::backup),
        ("/virtualmachinebackuptrackers-validate", validate::backup::tracker),
        ("/virtualmachineexports-validate", |request, _| validate::export::export(request)),
        ("/virtualmachineinstancetypes-validate", |request, _| validate::chosen::instancetype(request)),
        ("/virtualmachineclusterinstancetypes-validate", |request, _| validate::chosen::instancetype(request)),
        ("/virtualmachinepreferences-validate", |request, _| validate::chosen::preference(request)),
        ("/virtualmachineclusterpreferences-validate", |request, _| validate::chosen::preference(request)),
    ];
    router.merge(judges(kubevirts, namespace, &validators))
}
