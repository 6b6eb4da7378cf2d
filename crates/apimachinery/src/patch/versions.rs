//! Owners who wrote in other versions of the object's API.
//!
//! An owner's fields have the names of the version it wrote in. Where versions differ in more than their own name, what a
//! write does to such an owner is seen in the object as that version shows it.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::typed::Node;
use crate::error::ApiError;
use crate::schema::Schema;

/// What a version is to the one that is written in.
#[derive(Clone, Debug)]
pub enum Form {
    /// Fields have the same names in both.
    Alike,
    /// Objects must be converted; this is their schema then.
    Other(Arc<Schema>),
    /// It is no version of this API any more.
    Gone,
}

/// The versions of one API.
pub trait Versions: Sync {
    /// What `api_version` is to the version written in.
    fn form(&self, api_version: &str) -> Form;

    /// Objects of one version in another, all of them together.
    fn convert(
        &self,
        objects: Vec<Value>,
        api_version: &str,
    ) -> impl Future<Output = Result<Vec<Value>, ApiError>> + Send;
}

/// A write as another version shows it.
#[derive(Debug)]
pub struct Shown {
    schema: Arc<Schema>,
    pub(super) before: Option<Value>,
    pub(super) after: Value,
}

impl Shown {
    pub(super) fn root(&self) -> Node<'_> {
        Node::root(&self.schema)
    }
}

/// A write as the versions of its object's owners show it. Those not named are like the version written in.
#[derive(Debug, Default)]
pub struct Elsewhere {
    shown: HashMap<String, Result<Shown, ApiError>>,
    gone: Vec<String>,
}

impl Elsewhere {
    /// Shows the change from `before` to `after` in each of `names`.
    pub async fn look(versions: &impl Versions, names: Vec<String>, before: Option<&Value>, after: &Value) -> Self {
        let mut elsewhere = Self::default();
        for name in names {
            match versions.form(&name) {
                Form::Alike => {}
                Form::Gone => elsewhere.gone.push(name),
                Form::Other(schema) => {
                    let both: Vec<Value> = before.into_iter().chain([after]).cloned().collect();
                    let shown = versions.convert(both, &name).await.map(|mut both| {
                        let after = both.pop().unwrap_or_default();
                        Shown { schema, before: both.pop(), after }
                    });
                    elsewhere.shown.insert(name, shown);
                }
            }
        }
        elsewhere
    }

    /// The write in this version; None when it is like the version written in.
    pub(super) fn of(&self, api_version: &str) -> Option<&Result<Shown, ApiError>> {
        self.shown.get(api_version)
    }

    /// Whether this is no version any more: what its owners own can no longer be told.
    pub(super) fn has_lost(&self, api_version: &str) -> bool {
        self.gone.iter().any(|gone| gone == api_version)
    }

    /// Why the object could not be shown in all versions.
    pub fn failure(&self) -> Option<&ApiError> {
        self.shown.values().find_map(|shown| shown.as_ref().err())
    }
}
