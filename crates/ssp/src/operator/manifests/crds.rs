//! The SSP object's own CRD, part of the install manifest: sent as it is committed, never parsed.

/// The YAML.
pub const SSP: &str = include_str!("../../../../../deploy/crds/ssps.ssp.kubevirt.io.yaml");
