//! What this build is.

/// Default image of the components.
pub const COMPONENT_IMAGE: &str = concat!("ferrovirt.local/component:v", env!("CARGO_PKG_VERSION"));
/// Where everything lies.
pub const NAMESPACE: &str = "cluster-network-addons";

/// The product's version, as images are tagged.
pub fn version() -> String {
    format!("v{}", env!("CARGO_PKG_VERSION"))
}
