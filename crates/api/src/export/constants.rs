//! The words of exports: what the controller says, and what its server and its clients look for.

/// The header, or the parameter of a query, with the token of an export.
pub const TOKEN: &str = "x-kubevirt-export-token";
/// The key of the token in its Secret.
pub const TOKEN_KEY: &str = "token";
/// Labels the pod of an export, and selects it: the export's name, or a short form of one that is too long for a label.
pub const SELECTOR: &str = "kubevirt.io.virt-export-service";
/// The application of an export's Service, under the label `kubevirt.io`.
pub const APP: &str = "virt-exporter";
/// Secret and ConfigMap of the authority that signs the certificates of export servers.
pub const AUTHORITY: &str = "kubevirt-export-ca";
/// The Service behind which exports are reached from outside of the cluster.
pub const PROXY: &str = "virt-exportproxy";
/// Port of export servers.
pub const PORT: u16 = 8443;
/// Answers when the export server serves.
pub const READY: &str = "/exportready";

/// Annotation of the pod of an export: the newest certificate of its server, for the key that it began with.
pub const CERTIFICATE: &str = "ferrovirt.io/export-certificate";
/// In the environment of export servers: the file with that certificate.
pub const CERTIFICATE_FILE: &str = "RENEWED_CERT_FILE";

/// In the environment of export servers: the least version of TLS, as the KubeVirt object names it.
pub const TLS_MIN_VERSION: &str = "TLS_MIN_VERSION";
/// In the environment of export servers: the ciphers of TLS 1.2, separated by commas.
pub const TLS_CIPHERS: &str = "TLS_CIPHERS";

/// In the environment of export servers: which backup is shown, as [`super::lending::identity`] names it.
pub const BACKUP_IDENTITY: &str = "BACKUP_IDENTITY";
/// In the environment of export servers: QEMU's bitmap of what changed since the backup before.
pub const BACKUP_BITMAP: &str = "BACKUP_BITMAP";

/// What a link of a backup's volume leads to.
pub mod endpoint {
    /// The bytes.
    pub const DATA: &str = "data";
    /// Where there are data, or what changed.
    pub const MAP: &str = "map";
}

/// Values of `status.phase`.
pub mod phase {
    /// The source is waited for, or the server.
    pub const PENDING: &str = "Pending";
    /// The links can be used.
    pub const READY: &str = "Ready";
    /// The server has ended, and another one follows.
    pub const TERMINATED: &str = "Terminated";
    /// The source has nothing to export.
    pub const SKIPPED: &str = "Skipped";
}

/// Forms of a volume, as its links name them.
pub mod format {
    /// A disk as it is.
    pub const RAW: &str = "raw";
    /// A disk, compressed on the way.
    pub const GZIP: &str = "gzip";
    /// The files of a volume.
    pub const DIR: &str = "dir";
    /// The files of a volume in a compressed archive.
    pub const TAR_GZ: &str = "tar.gz";
}

/// Manifests of an export, as its links name them.
pub mod manifest {
    /// The machine and its data volumes.
    pub const ALL: &str = "all";
    /// The Secret with which data volumes fetch the disks.
    pub const HEADER_SECRET: &str = "auth-header-secret";
}
