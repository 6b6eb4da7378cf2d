//! Names of what is deployed, which several parts must agree on.

/// The validator's Deployment, the Service that the API server asks, and the configuration of the webhooks.
pub const DEPLOYMENT: &str = "virt-template-validator";
/// The Secret with the validator's certificate, which it mounts.
pub const SECRET: &str = "virt-template-validator-certs";
/// Annotation of the Deployment that names the configuration it was made from.
pub const CONFIGURATION: &str = "operator.ssp.kubevirt.io/configuration";
/// The Service of the operator's metrics.
pub const METRICS_SERVICE: &str = "ssp-operator-metrics";
/// The Secret with the certificate of vm-console-proxy, which it mounts.
pub const PROXY_SECRET: &str = "vm-console-proxy-cert";
