//! Labels and annotations that templates, machines and boot sources are known by.

/// On a machine: the name of its template.
pub const TEMPLATE: &str = "vm.kubevirt.io/template";
/// On a machine: the namespace of its template.
pub const TEMPLATE_NAMESPACE: &str = "vm.kubevirt.io/template.namespace";
/// The same, as it was written before.
pub const TEMPLATE_NAMESPACE_OLD: &str = "vm.kubevirt.io/template-namespace";
/// On a machine: its own rules, which count instead of its template's.
pub const VALIDATIONS: &str = "vm.kubevirt.io/validations";
/// On a template: the rules of its machines.
pub const TEMPLATE_VALIDATIONS: &str = "validations";
/// On a machine: it is held to nothing.
pub const SKIP_VALIDATIONS: &str = "vm.kubevirt.io/skip-validations";

/// On a template: whether it comes with the cluster (`base`) or is somebody's (`vm`).
pub const TYPE: &str = "template.kubevirt.io/type";
/// The type of those that come with the cluster.
pub const BASE: &str = "base";

/// Group of OpenShift's templates, and their plural.
pub const OPENSHIFT: (&str, &str) = ("template.openshift.io", "templates");
/// Group of templates of KubeVirt, and their plural.
pub const KUBEVIRT: (&str, &str) = ("template.kubevirt.io", "virtualmachinetemplates");
