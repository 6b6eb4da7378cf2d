//! Plans by data.
use super::*;
