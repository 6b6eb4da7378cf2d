//! What `virtctl create instancetype` and `virtctl create preference` have in common: an object of a namespace or of the cluster.

use serde_json::{Value, json};

/// Of which name, and where.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Named {
    /// Name of the object [default: random].
    #[arg(long)]
    name: Option<String>,
    /// Make it for one namespace, and not for the whole cluster.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    namespaced: bool,
}

impl Named {
    /// The manifest of a `VirtualMachine<kind>`, or of its namesake for the whole cluster.
    pub(super) fn object(
        &self,
        kind: &str,
        namespace: Option<&str>,
        spec: &Value,
        suffix: &mut dyn FnMut() -> String,
    ) -> Value {
        let name = self.name.clone().filter(|name| !name.is_empty());
        let mut metadata = json!({ "name": name.unwrap_or_else(|| format!("{}-{}", kind.to_lowercase(), suffix())) });
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            metadata["namespace"] = json!(namespace);
        }
        let scope = if self.namespaced { "" } else { "Cluster" };
        json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": format!("VirtualMachine{scope}{kind}"),
            "metadata": metadata, "spec": spec,
        })
    }
}
