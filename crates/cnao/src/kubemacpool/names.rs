//! Names of what is deployed, which several parts must agree on.

/// The account of the replicas.
pub const ACCOUNT: &str = "kubemacpool-sa";
/// The Service in front of the webhooks.
pub const SERVICE: &str = "kubemacpool-service";
/// Secret with the certificate, and its key.
pub const SECRET: &str = "kubemacpool-service";
/// ConfigMap with the authorities.
pub const BUNDLE: &str = "kubemacpool-service-ca-bundle";
/// Key of the bundle in it.
pub const BUNDLE_KEY: &str = "ca-bundle.crt";
