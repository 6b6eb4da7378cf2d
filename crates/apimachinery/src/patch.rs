//! Ways to change an object other than replacing it, each driven by the schema.
//!
//! ```text
//! strategic merge ─┐                        ┌─ managed::update (who owns what after any write)
//! server-side apply┴─> the object's new value ┴─ apply::apply
//! ```
//!
//! Who wrote in another version of the API than the one written in now is dealt with in [`versions`] and
//! [`apply::across`].

pub mod apply;
mod check;
pub mod fieldset;
pub mod json;
mod lastapplied;
pub mod managed;
pub mod merge;
pub mod strategic;
pub mod typed;
pub mod versions;
