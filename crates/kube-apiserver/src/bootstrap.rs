//! What a new cluster starts with: keys, roles, bindings, priority classes and the published authentication facts.

pub mod pki;
