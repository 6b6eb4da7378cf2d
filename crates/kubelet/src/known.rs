//! The pods of this node, as its workers know them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

/// The pods the API wants here, for the server and for collection: published by the dispatcher only.
pub(crate) type Known = watch::Receiver<Arc<BTreeMap<String, Arc<Pod>>>>;
