//! The machinery of the Kubernetes API, apart from any server: what a schema says of objects, how they are checked, changed and
//! selected, and the refusals. Everything here is a function of its arguments: no I/O, no store.
//!
//! ```text
//! error, names, quantity, pointer, tree -> schema -> cel -> rules (x-kubernetes-validations)
//!            labels -> request          \----> patch (strategic merge, server-side apply, field managers)
//! ```

pub mod cel;
pub mod error;
pub mod labels;
pub mod names;
pub mod patch;
pub mod pointer;
pub mod request;
pub mod rules;
pub mod schema;
pub mod tree;
