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

/// On a template: the version of the set that it is of; as an annotation, that of its annotations.
pub const VERSION: &str = "template.kubevirt.io/version";
/// On a template or a boot source: the architecture of its machines.
pub const ARCHITECTURE: &str = "template.kubevirt.io/architecture";
/// On a template, as label and annotation: nobody is to make machines of it any more.
pub const DEPRECATED: &str = "template.kubevirt.io/deprecated";
/// Beginning of labels of a template: the system of its machines.
pub const OS: &str = "os.template.kubevirt.io/";
/// Beginning of labels of a template: what its machines are for.
pub const WORKLOAD: &str = "workload.template.kubevirt.io/";
/// Beginning of labels of a template: how large its machines are.
pub const FLAVOR: &str = "flavor.template.kubevirt.io/";
/// Beginning of annotations of a template: what people call the system.
pub const OS_NAME: &str = "name.os.template.kubevirt.io/";

/// The namespace of boot sources.
pub const IMAGES: &str = "kubevirt-os-images";

/// Group of OpenShift's templates, and their plural.
pub const OPENSHIFT: (&str, &str) = ("template.openshift.io", "templates");
/// Group of templates of KubeVirt, and their plural.
pub const KUBEVIRT: (&str, &str) = ("template.kubevirt.io", "virtualmachinetemplates");
