//! The instance type or preference that a volume's labels name.
//!
//! ```text
//! claim: its labels
//! data volume: the labels of its template, or its own, or of the claim of its name;
//!              then of what it is filled from: a claim, a snapshot, a DataSource and what that names
//! ```
//!
//! What lies in other namespaces is looked at only for whoever may get it there.

use api::cdi::v1beta1::{DataSource, DataVolume, DataVolumeSpec};
use api::kubevirt::v1::{VirtualMachine, Volume};
use instancetype::{Family, GROUP, Matcher};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kit::Chain;
use kit::admission::{Request, Verdict};
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use origin::leave;
use serde_json::Value;

/// A kind whose labels count.
struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
}

const CLAIM: Kind = Kind { group: "", version: "v1", kind: "PersistentVolumeClaim", plural: "persistentvolumeclaims" };
const SNAPSHOT: Kind =
    Kind { group: "snapshot.storage.k8s.io", version: "v1", kind: "VolumeSnapshot", plural: "volumesnapshots" };
const DATA_VOLUME: Kind =
    Kind { group: "cdi.kubevirt.io", version: "v1beta1", kind: "DataVolume", plural: "datavolumes" };
const DATA_SOURCE: Kind =
    Kind { group: "cdi.kubevirt.io", version: "v1beta1", kind: "DataSource", plural: "datasources" };

/// What labels name.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) kind: String,
}

/// Why labels name nothing.
enum Failure {
    /// The policy Ignore passes over it.
    Ignorable(String),
    /// The request is wrong.
    Wrong(String),
    /// Another answer.
    Answer(Verdict),
}

/// What the volume that `matcher` names says for `family`; none where it says nothing and that is to be ignored.
///
/// # Errors
/// The answer, when nothing is found, the user may not look there, or the cluster cannot be asked.
pub(super) async fn infer(
    client: &Client,
    request: &Request,
    vm: &VirtualMachine,
    family: Family,
    matcher: &Matcher,
) -> Result<Option<Named>, Verdict> {
    let look = Look { client, request, family };
    let found = look.volume(vm, &matcher.infer_from_volume).await;
    match found {
        Ok(named) => Ok(Some(named)),
        Err(Failure::Ignorable(_)) if matcher.infer_from_volume_failure_policy == "Ignore" => Ok(None),
        Err(Failure::Ignorable(message) | Failure::Wrong(message)) => {
            Err(Verdict::Deny { code: 400, reason: "BadRequest", message })
        }
        Err(Failure::Answer(verdict)) => Err(verdict),
    }
}

struct Look<'a> {
    client: &'a Client,
    request: &'a Request,
    family: Family,
}

impl Look<'_> {
    async fn volume(&self, vm: &VirtualMachine, name: &str) -> Result<Named, Failure> {
        let all = vm.spec.template.spec.as_ref().map(|spec| spec.volumes.as_slice()).unwrap_or_default();
        let volume = all.iter().find(|volume| volume.name == name);
        let volume = volume.ok_or_else(|| Failure::Wrong(format!("unable to find volume {name} to infer defaults")))?;
        let namespace = self.request.namespace.as_str();
        match volume {
            Volume { persistent_volume_claim: Some(claim), .. } => {
                self.labelled(&CLAIM, namespace, &claim.claim_name).await
            }
            Volume { data_volume: Some(data), .. } => self.data_volume(vm, &data.name).await,
            _ => {
                Err(Failure::Ignorable(format!("unable to infer defaults from volume {name} as type is not supported")))
            }
        }
    }

    async fn data_volume(&self, vm: &VirtualMachine, name: &str) -> Result<Named, Failure> {
        let namespace = self.request.namespace.as_str();
        let template =
            vm.spec.data_volume_templates.iter().find(|template| {
                template.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()) == Some(name)
            });
        let (labels, spec) = match template {
            Some(template) => {
                let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
                (labels.unwrap_or_default(), template.spec.clone())
            }
            None => match self.get(&DATA_VOLUME, namespace, name).await? {
                Some(found) => {
                    let labels = found.labels().clone();
                    let data: DataVolume = decoded(found)?;
                    (labels, data.spec)
                }
                // What it was filled into stays when it is collected.
                None => return self.labelled(&CLAIM, namespace, name).await,
            },
        };
        match self.named_by(&labels) {
            Ok(named) => Ok(named),
            Err(_) => self.source(&spec).await,
        }
    }

    async fn source(&self, spec: &DataVolumeSpec) -> Result<Named, Failure> {
        let own = self.request.namespace.as_str();
        if let Some(reference) = &spec.source_ref {
            if reference.kind != DATA_SOURCE.kind {
                let kind = &reference.kind;
                let what = format!("unable to infer defaults from DataVolumeSourceRef as Kind {kind} is not supported");
                return Err(Failure::Ignorable(what));
            }
            return self.data_source(reference.namespace.as_deref().unwrap_or(own), &reference.name).await;
        }
        let source = spec.source.as_ref();
        if let Some(claim) = source.and_then(|source| source.pvc.as_ref()) {
            return self.labelled(&CLAIM, or(&claim.namespace, own), &claim.name).await;
        }
        if let Some(snapshot) = source.and_then(|source| source.snapshot.as_ref()) {
            return self.labelled(&SNAPSHOT, or(&snapshot.namespace, own), &snapshot.name).await;
        }
        let what = "unable to infer defaults from DataVolumeSpec as DataVolumeSource is not supported";
        Err(Failure::Ignorable(what.to_owned()))
    }

    /// A DataSource by its labels, else by what it names; that may be another DataSource of its namespace, once.
    async fn data_source(&self, namespace: &str, name: &str) -> Result<Named, Failure> {
        let namespace = or(namespace, &self.request.namespace);
        let mut name = name.to_owned();
        for _ in 0..2 {
            let found = self.get(&DATA_SOURCE, namespace, &name).await?;
            let found = found.ok_or_else(|| missing(&DATA_SOURCE, namespace, &name))?;
            if let Ok(named) = self.named_by(found.labels()) {
                return Ok(named);
            }
            let source = decoded::<DataSource>(found)?.spec.source;
            if let Some(claim) = &source.pvc {
                return self.labelled(&CLAIM, or(&claim.namespace, namespace), &claim.name).await;
            }
            if let Some(snapshot) = &source.snapshot {
                return self.labelled(&SNAPSHOT, or(&snapshot.namespace, namespace), &snapshot.name).await;
            }
            match source.data_source.filter(|next| next.namespace == namespace) {
                Some(next) => name = next.name,
                None => break,
            }
        }
        let what = "unable to infer defaults from DataSource that doesn't provide DataVolumeSourcePVC or \
                    DataVolumeSourceSnapshot";
        Err(Failure::Ignorable(what.to_owned()))
    }

    async fn labelled(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Named, Failure> {
        let found = self.get(kind, namespace, name).await?.ok_or_else(|| missing(kind, namespace, name))?;
        self.named_by(found.labels())
    }

    fn named_by(&self, labels: &std::collections::BTreeMap<String, String>) -> Result<Named, Failure> {
        let key = format!("{GROUP}/default-{}", self.family.field());
        let name = labels.get(&key).filter(|name| !name.is_empty());
        let missing = || Failure::Ignorable(format!("unable to find required {key} label on the volume"));
        let name = name.ok_or_else(missing)?.clone();
        Ok(Named { name, kind: labels.get(&format!("{key}-kind")).cloned().unwrap_or_default() })
    }

    /// An object, if the user may look at it.
    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<DynamicObject>, Failure> {
        if namespace != self.request.namespace {
            self.ask(kind, namespace, name).await?;
        }
        let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        api.get_opt(name).await.map_err(|error| self.unanswered(kind, namespace, name, &error))
    }

    async fn ask(&self, kind: &Kind, namespace: &str, name: &str) -> Result<(), Failure> {
        let attributes = ResourceAttributes {
            group: Some(kind.group.to_owned()),
            version: Some(kind.version.to_owned()),
            resource: Some(kind.plural.to_owned()),
            verb: Some("get".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ResourceAttributes::default()
        };
        let allowed = leave::allowed(self.client, &self.request.user_info, attributes).await;
        if allowed.map_err(|error| self.unanswered(kind, namespace, name, &error))? {
            return Ok(());
        }
        let message = format!(
            "spec.{} is inferred from {} {namespace}/{name}, which User {:?} cannot get: name it with spec.{}.name",
            self.family.field(),
            kind.kind,
            self.request.user_info.username,
            self.family.field()
        );
        Err(Failure::Answer(Verdict::Deny { code: 403, reason: "Forbidden", message }))
    }

    fn unanswered(&self, kind: &Kind, namespace: &str, name: &str, error: &kube::Error) -> Failure {
        let field = self.family.field();
        let message = format!("cannot infer spec.{field} from {} {namespace}/{name}: {}", kind.kind, Chain(error));
        Failure::Answer(Verdict::Deny { code: 500, reason: "InternalError", message })
    }
}

fn or<'a>(namespace: &'a str, own: &'a str) -> &'a str {
    if namespace.is_empty() { own } else { namespace }
}

fn missing(kind: &Kind, namespace: &str, name: &str) -> Failure {
    Failure::Wrong(format!("{} {namespace}/{name} not found, whose labels name what to infer", kind.kind))
}

fn decoded<T: serde::de::DeserializeOwned>(object: DynamicObject) -> Result<T, Failure> {
    let value: Value = serde_json::to_value(object).map_err(unreadable)?;
    serde_json::from_value(value).map_err(unreadable)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unreadable(error: serde_json::Error) -> Failure {
    Failure::Wrong(format!("unable to infer defaults: {error}"))
}
