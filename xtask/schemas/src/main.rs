//! Prints the JSON schema definitions of every built-in kind the API server ships, as k8s-openapi knows them. List kinds
//! have no definition there; the API server derives them from the item.

use k8s_openapi::api::admissionregistration::v1 as admissionregistration_v1;
use k8s_openapi::api::apps::v1 as apps_v1;
use k8s_openapi::api::authentication::v1 as authentication_v1;
use k8s_openapi::api::authorization::v1 as authorization_v1;
use k8s_openapi::api::autoscaling::{v1 as autoscaling_v1, v2 as autoscaling_v2};
use k8s_openapi::api::batch::v1 as batch_v1;
use k8s_openapi::api::certificates::v1 as certificates_v1;
use k8s_openapi::api::coordination::v1 as coordination_v1;
use k8s_openapi::api::core::v1 as core_v1;
use k8s_openapi::api::discovery::v1 as discovery_v1;
use k8s_openapi::api::events::v1 as events_v1;
use k8s_openapi::api::flowcontrol::v1 as flowcontrol_v1;
use k8s_openapi::api::networking::v1 as networking_v1;
use k8s_openapi::api::node::v1 as node_v1;
use k8s_openapi::api::policy::v1 as policy_v1;
use k8s_openapi::api::rbac::v1 as rbac_v1;
use k8s_openapi::api::resource::v1 as resource_v1;
use k8s_openapi::api::scheduling::v1 as scheduling_v1;
use k8s_openapi::api::storage::v1 as storage_v1;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;

/// Registers each kind with the generator.
macro_rules! kinds {
    ($generator:ident; $($module:ident { $($kind:ident),* $(,)? })*) => {
        $($( $generator.subschema_for::<$module::$kind>(); )*)*
    };
}

fn main() {
    let mut generator = SchemaGenerator::new(SchemaSettings::openapi3());
    kinds! { generator;
        core_v1 {
            ComponentStatus, ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim,
            Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, Service, ServiceAccount,
        }
        admissionregistration_v1 {
            MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
            ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
        }
        apps_v1 { ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet }
        autoscaling_v1 { HorizontalPodAutoscaler }
        autoscaling_v2 { HorizontalPodAutoscaler }
        batch_v1 { CronJob, Job }
        certificates_v1 { CertificateSigningRequest }
        coordination_v1 { Lease }
        discovery_v1 { EndpointSlice }
        events_v1 { Event }
        flowcontrol_v1 { FlowSchema, PriorityLevelConfiguration }
        networking_v1 { Ingress, IngressClass, IPAddress, NetworkPolicy, ServiceCIDR }
        node_v1 { RuntimeClass }
        policy_v1 { PodDisruptionBudget }
        rbac_v1 { ClusterRole, ClusterRoleBinding, Role, RoleBinding }
        resource_v1 { DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice }
        scheduling_v1 { PriorityClass }
        storage_v1 { CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass }
        apiextensions { CustomResourceDefinition }
        apiregistration { APIService }
        core_v1 { Binding }
        authentication_v1 { SelfSubjectReview, TokenRequest, TokenReview }
        authorization_v1 {
            LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
        }
        autoscaling_v1 { Scale }
        policy_v1 { Eviction }
        meta { DeleteOptions, ListMeta, Patch, Status }
    }
    let definitions = generator.take_definitions(true);
    println!("{}", serde_json::Value::Object(definitions));
}
