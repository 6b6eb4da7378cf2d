//! What is admitted of CDI's kinds, in the words that clients of CDI know. Pure but for what is looked up before.

pub(crate) mod cron;
pub(crate) mod datavolume;
pub(crate) mod installation;
pub(crate) mod populator;
pub(crate) mod source;
pub(crate) mod transfer;

use kit::admission::{Cause, Verdict};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Longest name of an object.
pub(crate) const NAME: usize = 253;
/// Longest label, and so the longest name of what becomes one.
pub(crate) const LABEL: usize = 63;

fn invalid(field: impl Into<String>, message: impl Into<String>) -> Cause {
    Cause { reason: "FieldValueInvalid", field: field.into(), message: message.into() }
}

/// One thing is wrong; clients of CDI look at the first.
fn refuse(field: impl Into<String>, message: impl Into<String>) -> Result<(), Cause> {
    Err(invalid(field, message))
}

fn length(name: &str, longest: usize) -> Result<(), Cause> {
    if name.len() > longest {
        return refuse("", format!("Name cannot be longer than {longest} characters"));
    }
    Ok(())
}

/// The object was changed where it may not be.
fn fixed(kind: &str) -> Cause {
    Cause {
        reason: "FieldValueDuplicate",
        field: format!("{kind}.Spec"),
        message: format!("Cannot update {kind} Spec"),
    }
}

/// No, in a sentence, as CDI's webhooks say what is about no field.
pub(crate) fn deny(message: impl Into<String>) -> Verdict {
    Verdict::Deny { code: 400, reason: "BadRequest", message: message.into() }
}

/// The object as its type.
///
/// # Errors
/// A refusal that says what does not fit.
pub(crate) fn read<T: DeserializeOwned>(object: &Value) -> Result<T, Verdict> {
    T::deserialize(object).map_err(|error| deny(format!("the object cannot be read: {error}")))
}

fn verdict(found: Result<(), Cause>) -> Verdict {
    Verdict::of_causes(found.err().into_iter().collect())
}
