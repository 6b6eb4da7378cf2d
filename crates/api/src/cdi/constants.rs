//! The words of CDI's API that are not in its schema: labels, annotations, finalizers, phases, conditions, reasons, variables.
//!
//! The annotations of a claim are read by importers of other makers, by consoles and by backup tools: they are as much an
//! interface as the schemas are.

#![expect(missing_docs, reason = "a word is what its value says")]

pub const GROUP: &str = "cdi.kubevirt.io";
pub const API_VERSION: &str = "cdi.kubevirt.io/v1beta1";
pub const UPLOAD_GROUP: &str = "upload.cdi.kubevirt.io";

/// Namespaces the components live in unless they are deployed elsewhere: HyperConverged's, and the importer's own.
pub const NAMESPACES: [&str; 2] = ["kubevirt-hyperconverged", "cdi"];

/// Name of the only [`CDIConfig`](super::v1beta1::CDIConfig).
pub const CONFIG: &str = "config";

/// The `logVerbosity` from which components log what helps to find a defect.
pub const VERBOSE: i32 = 3;

/// Label keys, and the values that have one.
pub mod label {
    pub const APP: &str = "app";
    pub const APP_VALUE: &str = "containerized-data-importer";
    /// Which part of CDI an object is of: one of the values that follow.
    pub const COMPONENT: &str = "cdi.kubevirt.io";
    pub const IMPORTER: &str = "importer";
    pub const UPLOAD_SERVER: &str = "cdi-upload-server";
    pub const CLONER: &str = "cdi-clone-source";
    pub const SMART_CLONER: &str = "cdi-smart-clone";
    /// Whose metrics are scraped.
    pub const PROMETHEUS: &str = "prometheus.cdi.kubevirt.io";
    /// Selects the pod of an upload's service: holds the service's name.
    pub const SERVICE: &str = "service";
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    pub const PART_OF: &str = "app.kubernetes.io/part-of";
    pub const K8S_COMPONENT: &str = "app.kubernetes.io/component";
    pub const VERSION: &str = "app.kubernetes.io/version";
    /// On an importer pod: its claim.
    pub const IMPORT_PVC: &str = "cdi.kubevirt.io/storage.import.importPvcName";
    /// On a claim made plainly by a user: it is rendered with the profile of its storage class.
    pub const APPLY_STORAGE_PROFILE: &str = "cdi.kubevirt.io/applyStorageProfile";
    /// On what a cron made: the cron's name.
    pub const DATA_IMPORT_CRON: &str = "cdi.kubevirt.io/dataImportCron";
    /// On a cron's cleanup job: what it cleans up after.
    pub const DATA_IMPORT_CRON_CLEANUP: &str = "cdi.kubevirt.io/dataImportCron.cleanup";
    /// On a pod that asks registries what images are now.
    pub const POLLER: &str = "cdi.kubevirt.io/dataImportCron.poller";
    /// On a pod that asks the API server and DNS, for policies of networks that are closed otherwise.
    pub const CLUSTER_SERVICES: &str = "np.kubevirt.io/allow-access-cluster-services";
    /// On the service and the pod of an upload: the claim's UID.
    pub const UPLOAD_TARGET: &str = "cdi.kubevirt.io/uploadTarget";
    /// On what is remade from the claim it serves: a backup leaves it out.
    pub const EXCLUDE_FROM_BACKUP: &str = "velero.io/exclude-from-backup";
    /// On a claim that is filled to the brim on purpose.
    pub const NO_FILLING_UP_ALERT: &str = "alerts.k8s.io/KubePersistentVolumeFillingUp";
    /// On what is made for a clone: the identity of its target.
    pub const CLONE_OWNER_UID: &str = "cdi.kubevirt.io/OwnedByUID";
    /// Prefix of the labels that say what machine an image wants to be run by.
    pub const INSTANCETYPE_PREFIX: &str = "instancetype.kubevirt.io/";
    /// On a DataVolume's claim: how the guest of the disk takes credentials while it runs.
    pub const DYNAMIC_CREDENTIALS: &str = "kubevirt.io/dynamic-credentials-support";
}

/// Annotation keys.
pub mod annotation {
    // --- what a claim is to be filled with ---
    pub const SOURCE: &str = "cdi.kubevirt.io/storage.import.source";
    pub const ENDPOINT: &str = "cdi.kubevirt.io/storage.import.endpoint";
    pub const SECRET: &str = "cdi.kubevirt.io/storage.import.secretName";
    pub const CERT_CONFIG_MAP: &str = "cdi.kubevirt.io/storage.import.certConfigMap";
    pub const CHECKSUM: &str = "cdi.kubevirt.io/storage.import.checksum";
    pub const EXTRA_HEADERS: &str = "cdi.kubevirt.io/storage.import.extraHeaders";
    pub const SECRET_EXTRA_HEADERS: &str = "cdi.kubevirt.io/storage.import.secretExtraHeaders";
    pub const INSECURE_SKIP_VERIFY: &str = "cdi.kubevirt.io/storage.import.insecureSkipVerify";
    pub const REGISTRY_IMPORT_METHOD: &str = "cdi.kubevirt.io/storage.import.registryImportMethod";
    pub const REGISTRY_IMAGE_STREAM: &str = "cdi.kubevirt.io/storage.import.registryImageStream";
    pub const REGISTRY_ARCHITECTURE: &str = "cdi.kubevirt.io/storage.import.registryImageArchitecture";
    pub const DISK_ID: &str = "cdi.kubevirt.io/storage.import.diskId";
    pub const UUID: &str = "cdi.kubevirt.io/storage.import.uuid";
    pub const BACKING_FILE: &str = "cdi.kubevirt.io/storage.import.backingFile";
    pub const THUMBPRINT: &str = "cdi.kubevirt.io/storage.import.vddk.thumbprint";
    pub const VDDK_INIT_IMAGE: &str = "cdi.kubevirt.io/storage.pod.vddk.initimageurl";
    pub const VDDK_EXTRA_ARGS: &str = "cdi.kubevirt.io/storage.pod.vddk.extraargs";
    pub const CONTENT_TYPE: &str = "cdi.kubevirt.io/storage.contentType";
    pub const UPLOAD: &str = "cdi.kubevirt.io/storage.upload.target";
    /// `NAMESPACE/NAME` of the claim that is copied.
    pub const CLONE_REQUEST: &str = "k8s.io/CloneRequest";
    pub const CLONE_OF: &str = "k8s.io/CloneOf";
    pub const SOURCE_VOLUME_MODE: &str = "cdi.kubevirt.io/storage.import.sourceVolumeMode";
    pub const PREALLOCATION_REQUESTED: &str = "cdi.kubevirt.io/storage.preallocation.requested";

    // --- the pod that fills it ---
    pub const IMPORT_POD: &str = "cdi.kubevirt.io/storage.import.importPodName";
    pub const UPLOAD_POD: &str = "cdi.kubevirt.io/storage.uploadPodName";
    pub const CLONE_SOURCE_POD: &str = "cdi.kubevirt.io/storage.sourceClonePodName";
    pub const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
    pub const POD_READY: &str = "cdi.kubevirt.io/storage.pod.ready";
    pub const POD_RESTARTS: &str = "cdi.kubevirt.io/storage.pod.restarts";
    pub const POD_SCHEDULABLE: &str = "cdi.kubevirt.io/storage.pod.schedulable";
    pub const POD_RETAIN: &str = "cdi.kubevirt.io/storage.pod.retainAfterCompletion";
    pub const PRIORITY_CLASS: &str = "cdi.kubevirt.io/storage.pod.priorityclassname";
    pub const SERVICE_ACCOUNT: &str = "cdi.kubevirt.io/storage.pod.serviceAccountName";
    pub const VDDK_VERSION: &str = "cdi.kubevirt.io/storage.pod.vddk.version";
    pub const VDDK_HOST: &str = "cdi.kubevirt.io/storage.pod.vddk.host";
    pub const REQUIRES_SCRATCH: &str = "cdi.kubevirt.io/storage.import.requiresScratch";
    pub const REQUIRES_DIRECT_IO: &str = "cdi.kubevirt.io/storage.import.requiresDirectIo";
    /// The import failed for good: the data are not what was asked for.
    pub const FATAL_ERROR: &str = "cdi.kubevirt.io/storage.import.fatalError";
    pub const PREALLOCATION_APPLIED: &str = "cdi.kubevirt.io/storage.preallocation";

    // --- conditions, from a claim to its DataVolume ---
    pub const RUNNING: &str = "cdi.kubevirt.io/storage.condition.running";
    pub const RUNNING_MESSAGE: &str = "cdi.kubevirt.io/storage.condition.running.message";
    pub const RUNNING_REASON: &str = "cdi.kubevirt.io/storage.condition.running.reason";
    pub const BOUND: &str = "cdi.kubevirt.io/storage.condition.bound";
    pub const BOUND_MESSAGE: &str = "cdi.kubevirt.io/storage.condition.bound.message";
    pub const BOUND_REASON: &str = "cdi.kubevirt.io/storage.condition.bound.reason";
    pub const SOURCE_RUNNING: &str = "cdi.kubevirt.io/storage.condition.source.running";
    pub const SOURCE_RUNNING_MESSAGE: &str = "cdi.kubevirt.io/storage.condition.source.running.message";
    pub const SOURCE_RUNNING_REASON: &str = "cdi.kubevirt.io/storage.condition.source.running.reason";

    // --- multistage imports ---
    pub const CHECKPOINT_PREVIOUS: &str = "cdi.kubevirt.io/storage.checkpoint.previous";
    pub const CHECKPOINT_CURRENT: &str = "cdi.kubevirt.io/storage.checkpoint.current";
    pub const CHECKPOINT_FINAL: &str = "cdi.kubevirt.io/storage.checkpoint.final";
    /// Prefix: followed by `.CHECKPOINT`.
    pub const CHECKPOINTS_COPIED: &str = "cdi.kubevirt.io/storage.checkpoint.copied";
    pub const CHECKPOINT_POD_ID: &str = "cdi.kubevirt.io/storage.checkpoint.pod.id";
    pub const MULTISTAGE_DONE: &str = "cdi.kubevirt.io/storage.checkpoint.done";

    // --- populators ---
    pub const POPULATED_FOR: &str = "cdi.kubevirt.io/storage.populatedFor";
    pub const PRE_POPULATED: &str = "cdi.kubevirt.io/storage.prePopulated";
    pub const USE_POPULATOR: &str = "cdi.kubevirt.io/storage.usePopulator";
    pub const POPULATOR_KIND: &str = "cdi.kubevirt.io/storage.populator.kind";
    pub const POPULATOR_PROGRESS: &str = "cdi.kubevirt.io/storage.populator.progress";
    pub const PVC_PRIME: &str = "cdi.kubevirt.io/storage.populator.pvcPrime";
    pub const EXTERNAL_POPULATION: &str = "cdi.kubevirt.io/externalPopulation";
    pub const IMMEDIATE_BINDING: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
    pub const CREATED_FOR_DATA_VOLUME: &str = "cdi.kubevirt.io/createdForDataVolume";
    pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
    pub const CHECK_STATIC_VOLUME: &str = "cdi.kubevirt.io/storage.checkStaticVolume";
    pub const PERSISTENT_VOLUME_LIST: &str = "cdi.kubevirt.io/storage.persistentVolumeList";

    // --- clones ---
    pub const CLONE_TOKEN: &str = "cdi.kubevirt.io/storage.clone.token";
    pub const EXTENDED_CLONE_TOKEN: &str = "cdi.kubevirt.io/storage.extended.clone.token";
    pub const CLONE_TYPE: &str = "cdi.kubevirt.io/cloneType";
    pub const CLONE_PHASE: &str = "cdi.kubevirt.io/clonePhase";
    pub const CLONE_FALLBACK_REASON: &str = "cdi.kubevirt.io/cloneFallbackReason";
    pub const CLONE_ERROR: &str = "cdi.kubevirt.io/cloneError";
    pub const PERMISSIVE_CLONE: &str = "cdi.kubevirt.io/permissiveClone";
    /// On a VolumeCloneSource's claim: where the source is, when elsewhere.
    pub const DATA_SOURCE_NAMESPACE: &str = "cdi.kubevirt.io/dataSourceNamespace";

    // --- DataVolumes ---
    pub const ALLOW_CLAIM_ADOPTION: &str = "cdi.kubevirt.io/allowClaimAdoption";
    pub const DELETE_AFTER_COMPLETION: &str = "cdi.kubevirt.io/storage.deleteAfterCompletion";
    pub const OWNER_UID: &str = "cdi.kubevirt.io/ownerUID";
    pub const CREATED_BY_CONTROLLER: &str = "cdi.kubevirt.io/storage.createdByController";

    // --- the CDI object ---
    /// Its `spec.config` is what the CDIConfig says.
    pub const CONFIG_AUTHORITY: &str = "cdi.kubevirt.io/configAuthority";

    // --- storage classes ---
    pub const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
    pub const DEFAULT_VIRT_CLASS: &str = "storageclass.kubevirt.io/is-default-virt-class";
    pub const DEFAULT_SNAPSHOT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
    pub const CLONE_STRATEGY: &str = "cdi.kubevirt.io/clone-strategy";
    pub const MINIMUM_PVC_SIZE: &str = "cdi.kubevirt.io/minimumSupportedPvcSize";
    /// On a StorageProfile: a cron's volumes are ReadWriteOnce although the class offers more.
    pub const CRON_READ_WRITE_ONCE: &str = "cdi.kubevirt.io/useReadWriteOnceForDataImportCron";
    /// On a StorageProfile: the snapshot class of a cron's snapshots.
    pub const CRON_SNAPSHOT_CLASS: &str = "cdi.kubevirt.io/snapshotClassForDataImportCron";

    // --- DataImportCrons ---
    pub const DESIRED_DIGEST: &str = "cdi.kubevirt.io/storage.import.sourceDesiredDigest";
    pub const IMAGE_STREAM_REFERENCE: &str = "cdi.kubevirt.io/storage.import.imageStreamDockerRef";
    pub const NEXT_CRON_TIME: &str = "cdi.kubevirt.io/storage.import.nextCronTime";
    pub const LAST_CRON_TIME: &str = "cdi.kubevirt.io/storage.import.lastCronTime";
    pub const LAST_USE_TIME: &str = "cdi.kubevirt.io/storage.import.lastUseTime";
    pub const CRON_STORAGE_CLASS: &str = "cdi.kubevirt.io/storage.import.storageClass";

    /// Networks of a pod, which are passed on to the pods that work for a DataVolume.
    pub const PASSED_ON: [&str; 6] = [
        "k8s.v1.cni.cncf.io/networks",
        "v1.multus-cni.io/default-network",
        "sidecar.istio.io/inject",
        "linkerd.io/inject",
        "kuma.io/sidecar-injection",
        "k8s.ovn.org/primary-user-defined-network-ipamclaim",
    ];
}

/// Finalizers.
pub mod finalizer {
    pub const CDI: &str = "operator.cdi.kubevirt.io";
    /// On a DataVolume whose clone left something in another namespace.
    pub const CROSS_NAMESPACE_CLONE: &str = "cdi.kubevirt.io/dataVolumeFinalizer";
    /// On a claim that a populator fills.
    pub const POPULATOR: &str = "cdi.kubevirt.io/cloneSourceFinalizer";
    pub const DATA_IMPORT_CRON: &str = "cdi.kubevirt.io/dataImportCronFinalizer";
    pub const OBJECT_TRANSFER: &str = "cdi.kubevirt.io/objectTransferFinalizer";
}

/// `status.phase` of a DataVolume.
pub mod phase {
    pub const UNSET: &str = "";
    pub const PENDING: &str = "Pending";
    pub const PVC_BOUND: &str = "PVCBound";
    pub const IMPORT_SCHEDULED: &str = "ImportScheduled";
    pub const IMPORT_IN_PROGRESS: &str = "ImportInProgress";
    pub const CLONE_SCHEDULED: &str = "CloneScheduled";
    pub const CLONE_IN_PROGRESS: &str = "CloneInProgress";
    pub const CLONE_FROM_SNAPSHOT_SOURCE_IN_PROGRESS: &str = "CloneFromSnapshotSourceInProgress";
    pub const SNAPSHOT_FOR_SMART_CLONE_IN_PROGRESS: &str = "SnapshotForSmartCloneInProgress";
    pub const SMART_CLONE_PVC_IN_PROGRESS: &str = "SmartClonePVCInProgress";
    pub const CSI_CLONE_IN_PROGRESS: &str = "CSICloneInProgress";
    pub const EXPANSION_IN_PROGRESS: &str = "ExpansionInProgress";
    pub const NAMESPACE_TRANSFER_IN_PROGRESS: &str = "NamespaceTransferInProgress";
    pub const PREP_CLAIM_IN_PROGRESS: &str = "PrepClaimInProgress";
    pub const REBIND_IN_PROGRESS: &str = "RebindInProgress";
    pub const UPLOAD_SCHEDULED: &str = "UploadScheduled";
    pub const UPLOAD_READY: &str = "UploadReady";
    pub const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";
    pub const PENDING_POPULATION: &str = "PendingPopulation";
    pub const PAUSED: &str = "Paused";
    pub const SUCCEEDED: &str = "Succeeded";
    pub const FAILED: &str = "Failed";
    pub const UNKNOWN: &str = "Unknown";
}

/// Types of conditions.
pub mod condition {
    pub const READY: &str = "Ready";
    pub const BOUND: &str = "Bound";
    pub const RUNNING: &str = "Running";
    /// Of a DataImportCron.
    pub const PROGRESSING: &str = "Progressing";
    /// Of a DataImportCron.
    pub const UP_TO_DATE: &str = "UpToDate";
    /// Of a StorageProfile.
    pub const RECOGNIZED: &str = "Recognized";
}

/// Values of `storage.import.source`.
pub mod source {
    pub const HTTP: &str = "http";
    pub const S3: &str = "s3";
    pub const GCS: &str = "gcs";
    pub const REGISTRY: &str = "registry";
    pub const IMAGEIO: &str = "imageio";
    pub const VDDK: &str = "vddk";
    /// An empty disk.
    pub const NONE: &str = "none";
}

/// Values of `status.progress` of a DataVolume that are no percentage.
pub const NO_PROGRESS: &str = "N/A";

/// Ways of a clone, as profiles and annotations name them.
pub mod clone_strategy {
    pub const COPY: &str = "copy";
    pub const SNAPSHOT: &str = "snapshot";
    pub const CSI: &str = "csi-clone";
}

/// Feature gates of `CDIConfig`.
pub mod gate {
    pub const HONOR_WAIT_FOR_FIRST_CONSUMER: &str = "HonorWaitForFirstConsumer";
    pub const CLAIM_ADOPTION: &str = "DataVolumeClaimAdoption";
    pub const WEBHOOK_PVC_RENDERING: &str = "WebhookPvcRendering";
}

/// Environment of the programs that fill a volume.
pub mod env {
    pub const SOURCE: &str = "IMPORTER_SOURCE";
    pub const ENDPOINT: &str = "IMPORTER_ENDPOINT";
    pub const CONTENT_TYPE: &str = "IMPORTER_CONTENTTYPE";
    pub const IMAGE_SIZE: &str = "IMPORTER_IMAGE_SIZE";
    pub const ACCESS_KEY: &str = "IMPORTER_ACCESS_KEY_ID";
    pub const SECRET_KEY: &str = "IMPORTER_SECRET_KEY";
    pub const CERT_DIR: &str = "IMPORTER_CERT_DIR";
    pub const DISK_ID: &str = "IMPORTER_DISK_ID";
    pub const UUID: &str = "IMPORTER_UUID";
    pub const PULL_METHOD: &str = "IMPORTER_PULL_METHOD";
    pub const READY_FILE: &str = "IMPORTER_READY_FILE";
    pub const DONE_FILE: &str = "IMPORTER_DONE_FILE";
    pub const BACKING_FILE: &str = "IMPORTER_BACKING_FILE";
    pub const THUMBPRINT: &str = "IMPORTER_THUMBPRINT";
    pub const CURRENT_CHECKPOINT: &str = "IMPORTER_CURRENT_CHECKPOINT";
    pub const PREVIOUS_CHECKPOINT: &str = "IMPORTER_PREVIOUS_CHECKPOINT";
    pub const FINAL_CHECKPOINT: &str = "IMPORTER_FINAL_CHECKPOINT";
    pub const CHECKSUM: &str = "IMPORTER_CHECKSUM";
    /// Prefix: followed by a number.
    pub const EXTRA_HEADER: &str = "IMPORTER_EXTRA_HEADER_";
    /// Where secrets with further headers are mounted.
    pub const SECRET_EXTRA_HEADERS_DIR: &str = "/extraheaders";
    pub const PROXY_CERT_DIR: &str = "IMPORTER_PROXY_CERT_DIR";
    pub const GOOGLE_CREDENTIALS: &str = "IMPORTER_GOOGLE_CREDENTIALS_FILE";
    /// The size of an upload's target, as [`IMAGE_SIZE`] is an import's.
    pub const UPLOAD_IMAGE_SIZE: &str = "UPLOAD_IMAGE_SIZE";
    pub const REGISTRY_ARCHITECTURE: &str = "IMPORTER_REGISTRY_IMAGE_ARCHITECTURE";
    pub const INSECURE_TLS: &str = "INSECURE_TLS";
    pub const TLS_MIN_VERSION: &str = "TLS_MIN_VERSION";
    pub const TLS_CIPHERS: &str = "TLS_CIPHERS";
    pub const FILESYSTEM_OVERHEAD: &str = "FILESYSTEM_OVERHEAD";
    pub const PREALLOCATION: &str = "PREALLOCATION";
    pub const CACHE_MODE: &str = "CACHE_MODE";
    pub const OWNER_UID: &str = "OWNER_UID";
    pub const HTTP_PROXY: &str = "HTTP_PROXY";
    pub const HTTPS_PROXY: &str = "HTTPS_PROXY";
    pub const NO_PROXY: &str = "NO_PROXY";
}

/// Where the programs that fill a volume find things.
pub mod path {
    /// The volume, when it is a file system.
    pub const DATA: &str = "/data";
    /// The volume, when it is a block device.
    pub const BLOCK: &str = "/dev/cdi-block-volume";
    /// Certificates to trust beside the system's.
    pub const CERTS: &str = "/certs";
    /// Certificates to trust of a proxy.
    pub const PROXY_CERTS: &str = "/proxycerts/";
    /// Google's credentials.
    pub const GOOGLE: &str = "/google";
    /// Further arguments of the VDDK.
    pub const VDDK_ARGS: &str = "/vddk-args";
}
