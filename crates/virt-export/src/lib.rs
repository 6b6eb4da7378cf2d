//! Exports: the server that shows volumes and machines' manifests to whoever has the token, and the proxy before it.
//!
//! ```text
//!                      Ingress or Route ─▶ virt-exportproxy ─┐
//!  inside of the cluster, or through the API server ─────────┴▶ virt-exportserver ─▶ volumes of one export, read only
//! ```
//!
//! The server is the pod of one export: it has that export's volumes, its token and a certificate of its own, and no account. The
//! proxy holds no token and looks at none. Volumes are what their guests made of them: nothing outside of a volume is reached
//! through one.

mod error;
pub mod proxy;
pub mod server;

pub use error::Error;
