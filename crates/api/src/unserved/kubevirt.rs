//! Of the KubeVirt object.

use super::{Row, When, refused, warned};

const RATES: &str = "requests are not limited by rate in clients";
const MONITORS: &str = "no ServiceMonitor and no PrometheusRule are made";
const LABELS: &str = "the labels of what is deployed are fixed";
const ONE: &str = "guests have the processor's architecture of their nodes, x86-64";
const FIRMWARE: &str = "the firmware is that of the launcher's image";
const DEVICES: &str = "devices of the host are not handed to guests";

/// The feature gates that something asks for.
pub const FEATURE_GATES: [&str; 3] = ["IncrementalBackup", "MigrationDowntimeTuning", "MigrationStallDetection"];

/// Of the whole object.
pub const KUBEVIRT: &[Row] = &[
    warned("spec.monitorAccount", When::Set, MONITORS),
    warned("spec.monitorNamespace", When::Set, MONITORS),
    warned("spec.serviceMonitorNamespace", When::Set, MONITORS),
    warned("spec.productComponent", When::Set, LABELS),
    warned("spec.productName", When::Set, LABELS),
    warned("spec.productVersion", When::Set, LABELS),
    warned("spec.synchronizationPort", When::Set, "there is no synchronization between clusters"),
    warned(
        "spec.workloads.replicas",
        When::Set,
        "virt-handler runs on every node that spec.workloads.nodePlacement selects",
    ),
    warned(
        "spec.configuration.cpuRequest",
        When::Set,
        "a guest requests a share of a CPU for each of its own, by developerConfiguration.cpuAllocationRatio",
    ),
    warned("spec.configuration.imagePullPolicy", When::Set, "the policy of all images is spec.imagePullPolicy"),
    warned("spec.configuration.apiConfiguration", When::Set, RATES),
    warned("spec.configuration.controllerConfiguration", When::Set, RATES),
    warned("spec.configuration.handlerConfiguration", When::Set, RATES),
    warned("spec.configuration.webhookConfiguration", When::Set, RATES),
    warned("spec.configuration.architectureConfiguration.amd64.ovmfPath", When::Set, FIRMWARE),
    warned("spec.configuration.architectureConfiguration.arm64", When::Set, ONE),
    warned("spec.configuration.architectureConfiguration.ppc64le", When::Set, ONE),
    warned("spec.configuration.architectureConfiguration.s390x", When::Set, ONE),
    warned("spec.configuration.ovmfPath", When::Set, FIRMWARE),
    warned("spec.configuration.confidentialCompute", When::Set, "guests are not measured"),
    warned("spec.configuration.developerConfiguration.clusterProfiler", When::Set, "components have no profiler"),
    warned(
        "spec.configuration.developerConfiguration.diskVerification",
        When::Set,
        "images are judged by their headers, in little memory",
    ),
    warned(
        "spec.configuration.developerConfiguration.logVerbosity",
        When::Set,
        "how much a component logs is set by FERROVIRT_LOG in its environment: see customizeComponents.patches",
    ),
    warned(
        "spec.configuration.developerConfiguration.minimumClusterTSCFrequency",
        When::Set,
        "the frequency of each node is taken",
    ),
    warned("spec.configuration.hypervisors", When::Set, "guests run on KVM, or are emulated"),
    warned("spec.configuration.ksmConfiguration", When::Set, "KSM of the nodes is left as it is"),
    warned("spec.configuration.mediatedDevicesConfiguration", When::Set, DEVICES),
    warned("spec.configuration.permittedHostDevices", When::Set, DEVICES),
    warned("spec.configuration.memBalloonStatsPeriod", When::Set, "the figures of guests' memory are taken every 10 s"),
    warned("spec.configuration.minCPUModel", When::Set, "it has no effect in the API either"),
    warned("spec.configuration.network.binding", When::Set, "network binding plugins are not served"),
    warned("spec.configuration.network.permitSlirpInterface", When::Set, "slirp is not served"),
    warned(
        "spec.configuration.persistentReservationConfiguration",
        When::Set,
        "there is no helper for persistent reservations",
    ),
    warned("spec.configuration.seccompConfiguration", When::Set, "launcher pods have the container runtime's profile"),
    warned("spec.configuration.selinuxLauncherType", When::Set, "launcher pods are given no SELinux type of their own"),
    warned(
        "spec.configuration.supportContainerResources",
        When::Set,
        "containers beside a guest request what was measured",
    ),
    warned("spec.configuration.supportedGuestAgentVersions", When::Set, "every version of the guest agent is asked"),
    warned(
        "spec.configuration.virtTemplateDeployment",
        When::Set,
        "templates are served without a deployment of their own",
    ),
    warned("spec.configuration.virtualMachineInstancesPerNode", When::Set, "each node offers 1000 of each device"),
    warned("spec.configuration.architectureConfiguration.defaultArchitecture", When::Set, ONE),
    warned(
        "spec.configuration.developerConfiguration.disabledFeatureGates",
        When::Set,
        "what a gate guards cannot be switched off",
    ),
    warned(
        "spec.configuration.migrations.matchSELinuxLevelOnMigration",
        When::Present,
        "launcher pods are given no SELinux level of their own",
    ),
    refused(
        "spec.configuration.roleAggregationStrategy",
        When::Is("Manual"),
        "the roles are always aggregated to admin, edit and view: set AggregateToDefault, or remove it",
    ),
];
