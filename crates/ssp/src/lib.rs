//! SSP: the operator, templates, boot sources and the template validator.

pub mod validator;
