//! template-validator: holds machines to the rules of the templates that they were made of.
//!
//! ```text
//! API server --webhook--> rules (the machine's own, or its template's) -> evaluate (pure) -> verdict
//! ```

pub mod defaults;
pub mod evaluate;
pub mod path;
pub mod reference;
pub mod rules;
