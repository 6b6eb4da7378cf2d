//! SSP: the operator, templates, boot sources and the template validator.
//!
//! ```text
//! SSP object ──▶ operator ──deploys──▶ template-validator, boot sources, templates
//! machine ──▶ API server ──webhook──▶ template-validator: does it keep the rules of its template?
//! ```

pub mod console_proxy;
pub mod error;
pub mod object;
pub mod operator;
mod security;
pub mod templates;
pub mod validator;
pub mod words;

pub use error::Error;
