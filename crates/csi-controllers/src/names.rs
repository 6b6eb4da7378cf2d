//! The annotations and finalizers the storage controllers and the drivers' sidecars agree on.

/// On a claim: the binding is complete, both sides know of each other.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// On a claim or volume: the controller, not the user, chose the other side.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// On a volume: the provisioner that made it, and so may delete it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a claim: the node the scheduler chose for its first consumer.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On a claim: the provisioner that is to make its volume, in both spellings.
pub const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// The class of a claim or volume as it was named before there was a field.
pub const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// What marks the class of claims that name none.
pub const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
/// Keeps a provisioned volume until its data is deleted.
pub const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// On a volume: where the secrets for its deletion are.
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
/// See [`DELETION_SECRET_NAME`].
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";
/// The provisioner of classes whose volumes are made by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
