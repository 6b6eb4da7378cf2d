//! Group `ssp.kubevirt.io`, v1beta3: the SSP object.
//!
//! It is also served as v1beta2, and the two are converted by their names alone. v1beta2 has fields beside these that ask for
//! nothing any more, and lacks `cluster` and `enableMultipleArchitectures`: written as v1beta2, an object asks for what it asks
//! for as v1beta3 without them.

use std::collections::BTreeMap;

use api::cdi::v1beta1::TLSSecurityProfile;
use k8s_openapi::api::core::v1::{Affinity, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// On an SSP: nothing is done for it, whatever it asks for, while this is `true`.
pub const PAUSED: &str = "kubevirt.io/operator.paused";

/// Which templates, boot sources and rules there are to be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SSP {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Spec,
    /// What is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Who holds machines to the rules of their templates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_validator: Option<TemplateValidator>,
    /// Templates and what their machines boot from.
    pub common_templates: CommonTemplates,
    /// What servers offer to who connects by TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_security_profile: Option<TLSSecurityProfile>,
    /// Who hands out tokens for consoles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_generation_service: Option<TokenGenerationService>,
    /// Whether there are boot sources and templates for each architecture of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_multiple_architectures: Option<bool>,
    /// Which architectures these are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Cluster>,
}

/// How the validator is deployed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TemplateValidator {
    /// How often it runs; 2 unless it is said, and 0 for nobody to be held to anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Where it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// Which nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Labels they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Rules they satisfy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints they may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
}

/// Templates and boot sources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CommonTemplates {
    /// Where the templates are.
    pub namespace: String,
    /// DataImportCrons that keep boot sources up to date.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data_import_cron_templates: Vec<CronTemplate>,
}

/// A DataImportCron that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronTemplate {
    /// Its name, labels and annotations; in the namespace of boot sources unless another one is named.
    pub metadata: CronMetadata,
    /// Its spec, which CDI reads.
    pub spec: Value,
}

/// What is said of an object before it is made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronMetadata {
    /// The name.
    pub name: String,
    /// The namespace, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Finalizers, which are refused: nobody would ever take them off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
}

/// The service of tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenGenerationService {
    /// Whether there is one.
    pub enabled: bool,
}

/// The architectures of the cluster's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cluster {
    /// Of those that the control plane runs on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub control_plane_architectures: Vec<String>,
    /// Of those that machines run on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub workload_architectures: Vec<String>,
}

/// What is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Facts that are true, false or not known.
    pub conditions: Vec<Condition>,
    /// `Deploying`, `Deployed`, `Deleting` or `Deleted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Nothing is done for the object.
    pub paused: bool,
    /// The generation that was acted on last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The version that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_version: Option<String>,
    /// The version of the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    /// The version that is to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
}

/// One fact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was last found so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Since when it is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

meta::kind!(SSP, "ssp.kubevirt.io", "v1beta3", "ssps", NamespaceResourceScope);
meta::condition!(Condition, last_heartbeat_time);

impl SSP {
    /// Whether somebody is to hand out tokens for screens.
    pub fn wants_tokens(&self) -> bool {
        self.spec.token_generation_service.as_ref().is_some_and(|service| service.enabled)
    }

    /// Whether nothing is to be done for it.
    pub fn is_paused(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(PAUSED)).is_some_and(|said| said == "true")
    }

    /// Whether the condition of that type is said to be true.
    pub fn is(&self, type_: &str) -> bool {
        self.status.as_ref().is_some_and(|status| meta::conditions::is_true(&status.conditions, type_))
    }
}
