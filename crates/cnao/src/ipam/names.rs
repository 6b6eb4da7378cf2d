//! Names of what is deployed and of what is written on objects, which several parts must agree on.

/// The command, and the component that events name.
pub const PROGRAM: &str = "kubevirt-ipam-controller";
/// The Deployment and the account of the replicas.
pub const ACCOUNT: &str = "kubevirt-ipam-controller-manager";
/// The Service in front of the webhook.
pub const SERVICE: &str = "kubevirt-ipam-controller-webhook-service";
/// Secret with the certificate of the webhook.
pub const SECRET: &str = "kubevirt-ipam-controller-serving-cert";
/// ConfigMap with the authorities.
pub const BUNDLE: &str = "kubevirt-ipam-controller-serving-ca-bundle";
/// Key of the bundle in it.
pub const BUNDLE_KEY: &str = "ca-bundle.crt";
/// The configuration of the webhook.
pub const MUTATOR: &str = "kubevirt-ipam-controller-mutating-webhook-configuration";
/// The definition of claims.
pub const DEFINITION: &str = "ipamclaims.k8s.cni.cncf.io";

/// Label of a claim: the virtual machine that it is for.
pub const MACHINE: &str = "kubevirt.io/vm";
/// Finalizer of a claim, as long as anybody may run with its addresses.
pub const FINALIZER: &str = "kubevirt.io/persistent-ipam";

/// The annotation by which a pod asks for networks beside its own.
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// The annotation by which a pod says which network its own is.
pub const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// The claim of a pod on its primary network, for versions of OVN-Kubernetes that do not read it in the annotation above.
pub const PRIMARY_CLAIM: &str = "k8s.ovn.org/primary-udn-ipamclaim";
/// The addresses that a machine asks for: `{"NETWORK": ["ADDRESS", …]}`.
pub const ADDRESSES: &str = "network.kubevirt.io/addresses";
/// In an element of either annotation about networks: the claim that has the addresses, by name and by UID.
pub const REFERENCE: &str = "ipam-claim-reference";
/// The UID: a claim that is made later under the same name is another one.
pub const REFERENCE_UID: &str = "ipam-claim-uid";
