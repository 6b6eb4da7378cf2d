//! The words of the KubeVirt API that are not in its schema: labels, annotations, finalizers, phases, conditions, reasons.

#![expect(missing_docs, reason = "a word is what its value says")]

pub const GROUP: &str = "kubevirt.io";
pub const API_VERSION: &str = "kubevirt.io/v1";

/// Tracking of changed blocks: values of `status.changedBlockTracking.state`, of machines and of their instances.
pub mod tracking {
    /// The machine is started with layers that track changes, or will be.
    pub const INITIALIZING: &str = "Initializing";
    /// It has to be started again for its tracking to begin or to end.
    pub const PENDING_RESTART: &str = "PendingRestart";
    /// What changes is counted.
    pub const ENABLED: &str = "Enabled";
    /// It was once counted, and is not any more.
    pub const DISABLED: &str = "Disabled";
    /// The machine is selected, and the gate of incremental backups is off.
    pub const GATE_DISABLED: &str = "IncrementalBackupFeatureGateDisabled";
    /// The feature gate.
    pub const GATE: &str = "IncrementalBackup";
    /// The layer beside the disk of a claim with a file system.
    pub const LAYER: &str = "disk.img.cbt";
}

/// Label keys.
pub mod label {
    pub const APP: &str = "kubevirt.io";
    pub const APP_VIRT_LAUNCHER: &str = "virt-launcher";
    pub const APP_VIRT_HANDLER: &str = "virt-handler";
    pub const CREATED_BY: &str = "kubevirt.io/created-by";
    pub const NODE_NAME: &str = "kubevirt.io/nodeName";
    pub const SCHEDULABLE: &str = "kubevirt.io/schedulable";
    pub const VM_NAME: &str = "vm.kubevirt.io/name";
    /// Holds [`instance_id`](crate::kubevirt::identity::instance_id).
    pub const VMI_ID: &str = "vmi.kubevirt.io/id";
    pub const MIGRATION_JOB: &str = "kubevirt.io/migrationJobUID";
    pub const MIGRATION_TARGET_NODE: &str = "kubevirt.io/migrationTargetNodeName";
    pub const MIGRATION_SELECTOR: &str = "kubevirt.io/vmi-name";
    /// On migrations that were made to copy disks into other claims: their guest's name.
    pub const VOLUME_UPDATE_MIGRATION: &str = "kubevirt.io/volume-update-migration";
    pub const CPU_MANAGER: &str = "cpumanager";
    pub const CPU_FEATURE_PREFIX: &str = "cpu-feature.node.kubevirt.io/";
    pub const CPU_MODEL_PREFIX: &str = "cpu-model.node.kubevirt.io/";
    pub const MACHINE_TYPE_PREFIX: &str = "machine-type.node.kubevirt.io/";
    pub const HOST_MODEL_CPU_PREFIX: &str = "host-model-cpu.node.kubevirt.io/";
    /// Ours as KubeVirt's: on a node, a model that a guest moved here may have been started with.
    pub const CPU_MODEL_MIGRATION_PREFIX: &str = "cpu-model-migration.node.kubevirt.io/";
    pub const CPU_VENDOR_PREFIX: &str = "cpu-vendor.node.kubevirt.io/";
    pub const CPU_TIMER_PREFIX: &str = "cpu-timer.node.kubevirt.io/";
    pub const HYPERV_PREFIX: &str = "hyperv.node.kubevirt.io/";
    pub const HOST_MODEL_FEATURES_PREFIX: &str = "host-model-required-features.node.kubevirt.io/";
    pub const OBSOLETE_HOST_MODEL: &str = "node-labeller.kubevirt.io/obsolete-host-model";
    pub const REALTIME: &str = "kubevirt.io/realtime";
    pub const SEV: &str = "kubevirt.io/sev";
    pub const SEV_ES: &str = "kubevirt.io/sev-es";
    /// On a PodDisruptionBudget: the migration during which it protects both pods.
    pub const MIGRATION_NAME: &str = "kubevirt.io/migrationName";
    /// On a VMI whose launcher is of another build than new ones.
    pub const OUTDATED_LAUNCHER: &str = "kubevirt.io/outdatedLauncherImage";
    pub const INSTALL_STRATEGY: &str = "kubevirt.io/install-strategy-identifier";
    /// On a machine of a pool and its instance: the revision of the pool's template that they are of.
    pub const POOL_REVISION: &str = "kubevirt.io/vm-pool-revision-name";
    /// What components write on machines and instances while these live. No selector of a set or a pool may ask for one: what it selects when it is
    /// made is not selected for long.
    pub const OF_COMPONENTS: [&str; 8] = [
        CREATED_BY,
        INSTALL_STRATEGY,
        MIGRATION_JOB,
        MIGRATION_TARGET_NODE,
        NODE_NAME,
        OUTDATED_LAUNCHER,
        POOL_REVISION,
        SCHEDULABLE,
    ];
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    pub const VERSION: &str = "app.kubernetes.io/version";
}

/// Ours: signs the certificates by which virt-handlers know each other's nodes.
pub const SIGNER: &str = "ferrovirt.io/virt-handler";

/// Annotation keys.
pub mod annotation {
    pub const DOMAIN: &str = "kubevirt.io/domain";
    pub const CREATED_BY: &str = "kubevirt.io/created-by";
    pub const LATEST_OBSERVED_API_VERSION: &str = "kubevirt.io/latest-observed-api-version";
    pub const STORAGE_OBSERVED_API_VERSION: &str = "kubevirt.io/storage-observed-api-version";
    pub const PCI_TOPOLOGY_VERSION: &str = "kubevirt.io/pci-topology-version";
    pub const VM_GENERATION: &str = "kubevirt.io/vm-generation";
    pub const MIGRATION_TRANSPORT_UNIX: &str = "kubevirt.io/migrationTransportUnix";
    /// Ours: how far a migration is, as `domain::MigrationProgress`.
    pub const MIGRATION_PROGRESS: &str = "ferrovirt.io/migration-progress";
    /// Ours: UID of the migration whose target is lost and can do no harm, so that its source need not ask it.
    pub const MIGRATION_TARGET_FENCED: &str = "ferrovirt.io/migration-target-fenced";
    pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
    pub const EPHEMERAL_PROVISIONING: &str = "kubevirt.io/ephemeral-provisioning";
    pub const HEARTBEAT: &str = "kubevirt.io/heartbeat";
    pub const FREE_PAGE_REPORTING_DISABLED: &str = "kubevirt.io/free-page-reporting-disabled";
    /// On a VMI: its bridged guest may be moved, though the pod's address changes.
    pub const ALLOW_POD_BRIDGE_MIGRATION: &str = "kubevirt.io/allow-pod-bridge-network-live-migration";
    /// On a migration: the node that is being emptied.
    pub const EVACUATION_MIGRATION: &str = "kubevirt.io/evacuationMigration";
    /// On a migration: it brings a guest to the newest launcher.
    pub const WORKLOAD_UPDATE_MIGRATION: &str = "kubevirt.io/workloadUpdateMigration";
    /// On a node whose labels somebody else keeps.
    pub const LABELLER_SKIP_NODE: &str = "node-labeller.kubevirt.io/skip-node";
    /// On a pod that is being evicted by other means than its end.
    pub const EVICTION_IN_PROGRESS: &str = "descheduler.alpha.kubernetes.io/eviction-in-progress";
    pub const NON_ROOT: &str = "kubevirt.io/nonroot";
    pub const OS: &str = "vm.kubevirt.io/os";
    pub const INSTALL_STRATEGY_VERSION: &str = "kubevirt.io/install-strategy-version";
    pub const GENERATION: &str = "kubevirt.io/generation";
    /// On a migration's target pod: the migration's name.
    pub const MIGRATION_JOB_NAME: &str = "kubevirt.io/migrationJobName";
    /// On a migration: seconds its target pod may be unschedulable.
    pub const MIGRATION_UNSCHEDULABLE_TIMEOUT: &str = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds";
    /// On a migration: seconds its target pod may be pending.
    pub const MIGRATION_PENDING_TIMEOUT: &str = "kubevirt.io/migrationPendingPodTimeoutSeconds";
}

/// Finalizers.
pub mod finalizer {
    pub const VM: &str = "kubevirt.io/virtualMachineControllerFinalize";
    /// On a VMI: virt-controller removes it once the pods are gone.
    pub const VMI: &str = "kubevirt.io/foregroundDeleteVirtualMachine";
    pub const MIGRATION: &str = "kubevirt.io/migrationJobFinalize";
    pub const KUBEVIRT: &str = "foregroundDeleteKubeVirt";
    pub const FOREGROUND: &str = "foregroundDeletion";
}

/// `status.phase` of a VirtualMachineInstance.
pub mod phase {
    pub const UNSET: &str = "";
    pub const PENDING: &str = "Pending";
    pub const SCHEDULING: &str = "Scheduling";
    pub const SCHEDULED: &str = "Scheduled";
    pub const RUNNING: &str = "Running";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
    pub const WAITING_FOR_SYNC: &str = "WaitingForSync";
    pub const UNKNOWN: &str = "Unknown";
}

/// `status.phase` of a VirtualMachineInstanceMigration, in their order.
pub mod migration_phase {
    pub const UNSET: &str = "";
    pub const PENDING: &str = "Pending";
    pub const SCHEDULING: &str = "Scheduling";
    pub const SCHEDULED: &str = "Scheduled";
    pub const PREPARING_TARGET: &str = "PreparingTarget";
    pub const TARGET_READY: &str = "TargetReady";
    pub const RUNNING: &str = "Running";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
}

/// Condition types of a VirtualMachineInstanceMigration.
pub mod migration_condition {
    pub const ABORT_REQUESTED: &str = "migrationAbortRequested";
    pub const REJECTED_BY_QUOTA: &str = "migrationRejectedByResourceQuota";
    /// The launcher has claims for work of its own, such as a backup's, which stay on their node.
    pub const BLOCKED_BY_UTILITY_VOLUMES: &str = "migrationBlockedByUtilityVolumes";
    /// Ours: what the migration waits for. KubeVirt says that in its log only.
    pub const WAITING: &str = "ferrovirt.io/Waiting";
}

/// `spec.priority` of a VirtualMachineInstanceMigration, the most urgent first.
pub mod migration_priority {
    pub const SYSTEM_CRITICAL: &str = "system-critical";
    pub const USER_TRIGGERED: &str = "user-triggered";
    pub const SYSTEM_MAINTENANCE: &str = "system-maintenance";
}

/// `status.migrationState.abortStatus` of a VirtualMachineInstance.
pub mod abort_status {
    pub const ABORTING: &str = "Aborting";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
}

/// Condition types of VirtualMachineInstance and VirtualMachine.
pub mod condition {
    pub const READY: &str = "Ready";
    /// The guest's processor is translated in software, and why.
    pub const SOFTWARE_EMULATION: &str = "SoftwareEmulation";
    pub const AGENT_CONNECTED: &str = "AgentConnected";
    pub const ACCESS_CREDENTIALS_SYNCHRONIZED: &str = "AccessCredentialsSynchronized";
    pub const LIVE_MIGRATABLE: &str = "LiveMigratable";
    pub const STORAGE_LIVE_MIGRATABLE: &str = "StorageLiveMigratable";
    pub const PAUSED: &str = "Paused";
    pub const PROVISIONING: &str = "Provisioning";
    pub const SYNCHRONIZED: &str = "Synchronized";
    pub const UNSUPPORTED_AGENT: &str = "AgentVersionNotSupported";
    pub const DATA_VOLUMES_READY: &str = "DataVolumesReady";
    pub const FAILURE: &str = "Failure";
    pub const RESTART_REQUIRED: &str = "RestartRequired";
    pub const MANUAL_RECOVERY_REQUIRED: &str = "ManualRecoveryRequired";
    pub const INITIALIZED: &str = "Initialized";
    pub const POD_SCHEDULED: &str = "PodScheduled";
    pub const VCPU_CHANGE: &str = "HotVCPUChange";
    pub const MEMORY_CHANGE: &str = "HotMemoryChange";
    pub const VOLUMES_CHANGE: &str = "VolumesChange";
}

/// Reasons of the conditions HotVCPUChange and HotMemoryChange: how far the launcher pod is on its way to the guest's new size.
pub mod resize {
    /// The pod has it: the node's agent tells the guest.
    pub const MADE: &str = "PodResized";
    pub const IN_PROGRESS: &str = "PodResizeInProgress";
    /// The node has no room at present.
    pub const DEFERRED: &str = "PodResizeDeferred";
    /// The pod cannot have it where it is.
    pub const IMPOSSIBLE: &str = "PodNotResizable";
}

/// Condition types of the KubeVirt object.
pub mod kubevirt_condition {
    pub const AVAILABLE: &str = "Available";
    pub const PROGRESSING: &str = "Progressing";
    pub const DEGRADED: &str = "Degraded";
    pub const CREATED: &str = "Created";
    pub const SYNCHRONIZED: &str = "Synchronized";
}

/// `status.phase` of the KubeVirt object.
pub mod kubevirt_phase {
    pub const DEPLOYING: &str = "Deploying";
    pub const DEPLOYED: &str = "Deployed";
    pub const DELETING: &str = "Deleting";
    pub const DELETED: &str = "Deleted";
}

/// `spec.evictionStrategy` of a VirtualMachineInstance.
pub mod eviction_strategy {
    pub const NONE: &str = "None";
    pub const LIVE_MIGRATE: &str = "LiveMigrate";
    pub const LIVE_MIGRATE_IF_POSSIBLE: &str = "LiveMigrateIfPossible";
    pub const EXTERNAL: &str = "External";
}

/// `status.printableStatus` of a VirtualMachine.
pub mod printable {
    pub const STOPPED: &str = "Stopped";
    pub const PROVISIONING: &str = "Provisioning";
    pub const STARTING: &str = "Starting";
    pub const RUNNING: &str = "Running";
    pub const PAUSED: &str = "Paused";
    pub const STOPPING: &str = "Stopping";
    pub const TERMINATING: &str = "Terminating";
    pub const CRASH_LOOP_BACK_OFF: &str = "CrashLoopBackOff";
    pub const MIGRATING: &str = "Migrating";
    pub const UNKNOWN: &str = "Unknown";
    pub const UNSCHEDULABLE: &str = "ErrorUnschedulable";
    pub const ERR_IMAGE_PULL: &str = "ErrImagePull";
    pub const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";
    pub const PVC_NOT_FOUND: &str = "ErrorPvcNotFound";
    pub const DATA_VOLUME_ERROR: &str = "DataVolumeError";
    pub const WAITING_FOR_VOLUME_BINDING: &str = "WaitingForVolumeBinding";
    pub const WAITING_FOR_RECEIVER: &str = "WaitingForReceiver";
}

/// `spec.runStrategy` of a VirtualMachine.
pub mod run_strategy {
    pub const ALWAYS: &str = "Always";
    pub const HALTED: &str = "Halted";
    pub const MANUAL: &str = "Manual";
    pub const RERUN_ON_FAILURE: &str = "RerunOnFailure";
    pub const ONCE: &str = "Once";
    pub const WAIT_AS_RECEIVER: &str = "WaitAsReceiver";
    pub const UNKNOWN: &str = "Unknown";
}

/// Extended resources the node agent offers.
pub mod device {
    pub const KVM: &str = "devices.kubevirt.io/kvm";
    pub const TUN: &str = "devices.kubevirt.io/tun";
    pub const VHOST_NET: &str = "devices.kubevirt.io/vhost-net";
}

/// What a field is when nobody says.
pub mod default {
    pub const MACHINE_TYPE: &str = "q35";
    pub const ARCHITECTURE: &str = "amd64";
    pub const CPU_MODEL: &str = "host-model";
    pub const DISK_BUS: &str = "virtio";
    pub const CDROM_BUS: &str = "sata";
    pub const INTERFACE_MODEL: &str = "virtio";
    pub const TERMINATION_GRACE_PERIOD_SECONDS: i64 = 180;
    pub const VM_NETWORK_CIDR: &str = "10.0.2.0/24";
    pub const VM_IPV6_NETWORK_CIDR: &str = "fd10:0:2::/120";
}
