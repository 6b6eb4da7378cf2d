//! Query parameters, decoded once.

use std::time::Duration;

use crate::error::ApiError;

/// The pairs of a query string, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        Self(url::form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }
    /// The first value of a key, empty when absent.
    pub(super) fn get(&self, key: &str) -> &str {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str()).unwrap_or_default()
    }
    pub(super) fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, v)| v.as_str())
    }
    pub(super) fn flag(&self, key: &str) -> Result<bool, ApiError> {
        self.maybe_flag(key).map(|flag| flag.unwrap_or(false))
    }
    pub(super) fn maybe_flag(&self, key: &str) -> Result<Option<bool>, ApiError> {
        match self.get(key) {
            "" => Ok(None),
            "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(Some(true)),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(Some(false)),
            other => Err(ApiError::bad_request(format!("invalid value {other:?} for {key}: expected true or false"))),
        }
    }
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, ApiError> {
        match self.get(key) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| ApiError::bad_request(format!("invalid value {text:?} for {key}: expected a number"))),
        }
    }
    /// Checks parameters of writes that would otherwise be ignored silently.
    pub(super) fn check_write(&self) -> Result<(), ApiError> {
        if let Some(other) = self.all("dryRun").find(|value| !matches!(*value, "All" | "")) {
            return Err(ApiError::bad_request(format!("invalid dryRun value {other:?}: supported values: \"All\"")));
        }
        match self.get("fieldValidation") {
            "" | "Strict" | "Warn" | "Ignore" => Ok(()),
            other => Err(ApiError::bad_request(format!(
                "invalid fieldValidation value {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// What a list or watch asks for.
#[derive(Clone, Debug)]
pub(super) struct ListOptions {
    pub(super) limit: usize,
    pub(super) resume: String,
    pub(super) revision: Option<u64>,
    pub(super) exact: bool,
    pub(super) bookmarks: bool,
    pub(super) initial_events: bool,
    pub(super) timeout: Option<Duration>,
}

impl ListOptions {
    pub(super) fn parse(query: &Query, watch: bool) -> Result<Self, ApiError> {
        let revision = match query.get("resourceVersion") {
            "" => None,
            text => Some(
                text.parse()
                    .map_err(|_| ApiError::bad_request(format!("invalid resource version {text:?}: not a number")))?,
            ),
        };
        let matching = query.get("resourceVersionMatch");
        let initial = query.maybe_flag("sendInitialEvents")?;
        let forbidden = |field: &str, why: &str| {
            Err(ApiError::new(
                422,
                "Invalid",
                format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: Forbidden: {why}"),
            ))
        };
        match (matching, watch) {
            ("", true) if initial.is_some() => {
                return forbidden(
                    "resourceVersionMatch",
                    "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
                );
            }
            ("", _) => {}
            ("NotOlderThan", true) if initial.is_some() => {}
            (_, true) => {
                return forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                );
            }
            ("Exact" | "NotOlderThan", false) if revision.is_none() => {
                return forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                );
            }
            ("Exact", false) if revision == Some(0) => {
                return forbidden(
                    "resourceVersionMatch",
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                );
            }
            ("Exact" | "NotOlderThan", false) => {}
            (other, false) => {
                return Err(ApiError::bad_request(format!("invalid resourceVersionMatch {other:?}")));
            }
        }
        if initial.is_some() && !watch {
            return forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
        }
        let limit = query.number("limit")?.unwrap_or(0);
        Ok(Self {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            resume: query.get("continue").to_owned(),
            revision,
            exact: matching == "Exact",
            bookmarks: query.flag("allowWatchBookmarks")?,
            initial_events: initial.unwrap_or(false),
            timeout: query.number("timeoutSeconds")?.filter(|s| *s > 0).map(Duration::from_secs),
        })
    }
}
