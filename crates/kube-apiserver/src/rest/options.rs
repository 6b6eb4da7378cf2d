//! Query parameters, decoded once.

use std::time::Duration;

use apimachinery::error::{ApiError, Cause};
use apimachinery::request::is_true;

/// Longest name a writer may have.
const MANAGER: usize = 128;

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
    pub(super) fn flag(&self, key: &str) -> bool {
        self.maybe_flag(key).unwrap_or(false)
    }
    pub(super) fn maybe_flag(&self, key: &str) -> Option<bool> {
        self.all(key).next().map(is_true)
    }
    pub(super) fn signed(&self, key: &str) -> Result<Option<i64>, ApiError> {
        match self.get(key) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                ApiError::bad_request(format!("invalid value {text:?} for {key}: expected a whole number"))
            }),
        }
    }
    /// A number of at least zero; a negative one asks for as much as none.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, ApiError> {
        Ok(self.signed(key)?.and_then(|number| u64::try_from(number).ok()))
    }
    /// Checks parameters of writes that would otherwise be ignored silently; `kind` is that of the options they make.
    pub(super) fn check_write(&self, kind: &str) -> Result<(), ApiError> {
        let mut causes = Vec::new();
        let manager = self.get("fieldManager");
        if manager.len() > MANAGER {
            let message = format!("Too long: may not be more than {MANAGER} bytes");
            causes.push(cause("FieldValueTooLong", "fieldManager", message));
        } else if let Some(c) = manager.chars().find(|c| c.is_control()) {
            let message = format!("Invalid value: {manager:?}: should only contain printable characters (found {c:?})");
            causes.push(cause("FieldValueInvalid", "fieldManager", message));
        }
        if self.all("dryRun").any(|value| value != "All") {
            let said: Vec<&str> = self.all("dryRun").collect();
            causes.push(not_supported("dryRun", &format!("{said:?}"), &["All"]));
        }
        let validation = self.get("fieldValidation");
        let known = ["", "Ignore", "Strict", "Warn"];
        if !known.contains(&validation) {
            causes.push(not_supported("fieldValidation", &format!("{validation:?}"), &known));
        }
        invalid(kind, causes)
    }

    /// What only a patch may say.
    pub(super) fn check_patch(&self, apply: bool) -> Result<(), ApiError> {
        let mut causes = Vec::new();
        if !apply && !self.get("force").is_empty() {
            let message = "Forbidden: may not be specified for non-apply patch".to_owned();
            causes.push(cause("FieldValueForbidden", "force", message));
        }
        if apply && self.get("fieldManager").is_empty() {
            let message = "Required value: is required for apply patch".to_owned();
            causes.push(cause("FieldValueRequired", "fieldManager", message));
        }
        invalid("PatchOptions", causes)
    }
}

fn cause(reason: &str, field: &str, message: String) -> Cause {
    Cause { reason: reason.into(), message, field: field.into() }
}

fn not_supported(field: &str, said: &str, known: &[&str]) -> Cause {
    let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
    let message = format!("Unsupported value: {said}: supported values: {}", known.join(", "));
    cause("FieldValueNotSupported", field, message)
}

fn forbidden(field: &str, why: &str) -> Cause {
    cause("FieldValueForbidden", field, format!("Forbidden: {why}"))
}

fn invalid(kind: &str, causes: Vec<Cause>) -> Result<(), ApiError> {
    if causes.is_empty() { Ok(()) } else { Err(ApiError::invalid("meta.k8s.io", kind, "", causes)) }
}

/// What a list or watch asks for.
#[derive(Clone, Debug)]
pub(super) struct ListOptions {
    pub(super) limit: usize,
    pub(super) resume: String,
    pub(super) revision: Option<u64>,
    pub(super) exact: bool,
    pub(super) bookmarks: bool,
    /// Whether a watch begins with what exists; None leaves that to the position.
    pub(super) initial_events: Option<bool>,
    pub(super) timeout: Option<Duration>,
}

impl ListOptions {
    pub(super) fn parse(query: &Query, watch: bool) -> Result<Self, ApiError> {
        let initial = query.maybe_flag("sendInitialEvents");
        check_match(query, watch, initial.is_some())?;
        let revision = match revision(query) {
            // The code that Kubernetes answers a watch with.
            Err(_) if watch => {
                let why = wrong_number(query.get("resourceVersion"));
                let said = format!("resourceVersion: Invalid value: {:?}: {why}", query.get("resourceVersion"));
                return Err(ApiError::new(500, "", said));
            }
            revision => revision?,
        };
        let limit = usize::try_from(query.number("limit")?.unwrap_or(0)).unwrap_or(usize::MAX);
        let exact = match query.get("resourceVersionMatch") {
            "" => limit > 0 && revision.is_some_and(|revision| revision > 0),
            word => word == "Exact",
        };
        Ok(Self {
            limit,
            resume: query.get("continue").to_owned(),
            revision,
            exact,
            bookmarks: query.flag("allowWatchBookmarks"),
            initial_events: initial,
            timeout: query.number("timeoutSeconds")?.filter(|s| *s > 0).map(Duration::from_secs),
        })
    }
}

/// The revision a read names.
pub(super) fn revision(query: &Query) -> Result<Option<u64>, ApiError> {
    let text = query.get("resourceVersion");
    let wrong = |_| ApiError::bad_request(format!("invalid resource version {text:?}: expected a whole number"));
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(wrong) }
}

/// What Kubernetes says of a text that is no revision.
pub(super) fn wrong_number(text: &str) -> String {
    format!("strconv.ParseUint: parsing {text:?}: invalid syntax")
}

/// Refuses combinations that contradict one another.
fn check_match(query: &Query, watch: bool, initial: bool) -> Result<(), ApiError> {
    const FIELD: &str = "resourceVersionMatch";
    let word = query.get(FIELD);
    let mut causes = Vec::new();
    let resumed = "resourceVersionMatch is forbidden when continue is provided";
    if watch {
        if initial && word != "NotOlderThan" {
            causes.push(forbidden(FIELD, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
        }
        if !word.is_empty() {
            if !initial {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                causes.push(forbidden(FIELD, why));
            }
            if word != "NotOlderThan" {
                causes.push(not_supported(FIELD, &format!("{word:?}"), &["NotOlderThan"]));
            }
        }
        if !query.get("continue").is_empty() {
            causes.push(forbidden(FIELD, resumed));
        }
        return invalid("ListOptions", causes);
    }
    if !word.is_empty() {
        if query.get("resourceVersion").is_empty() {
            causes.push(forbidden(FIELD, "resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !query.get("continue").is_empty() {
            causes.push(forbidden(FIELD, resumed));
        }
        if !matches!(word, "Exact" | "NotOlderThan") {
            causes.push(not_supported(FIELD, &format!("{word:?}"), &["Exact", "NotOlderThan", ""]));
        }
        if word == "Exact" && query.get("resourceVersion") == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            causes.push(forbidden(FIELD, why));
        }
    }
    if initial {
        causes.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    invalid("ListOptions", causes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(query: &str, watch: bool, expect: &[&str]) {
        let got = ListOptions::parse(&Query::parse(query), watch).err();
        let causes: Vec<String> =
            got.into_iter().flat_map(|e| e.causes).map(|c| format!("{}: {}", c.field, c.message)).collect();
        assert_eq!(causes, expect, "{query}");
    }

    #[test]
    fn contradictions_are_refused() {
        check("resourceVersion=5&resourceVersionMatch=Exact&limit=2", false, &[]);
        check("resourceVersion=5&resourceVersionMatch=NotOlderThan", false, &[]);
        check(
            "resourceVersionMatch=Exact",
            false,
            &["resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"],
        );
        check(
            "resourceVersion=0&resourceVersionMatch=Exact",
            false,
            &["resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""],
        );
        check(
            "resourceVersion=1&resourceVersionMatch=Never&continue=x",
            false,
            &[
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
                "resourceVersionMatch: Unsupported value: \"Never\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
            ],
        );
        check(
            "sendInitialEvents=true",
            false,
            &["sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"],
        );
        check(
            "sendInitialEvents=true",
            true,
            &[
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ],
        );
        check(
            "resourceVersionMatch=NotOlderThan",
            true,
            &[
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            ],
        );
        check("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", true, &[]);
        check(
            "continue=x",
            true,
            &["resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided"],
        );
        check(
            "allowWatchBookmarks=maybe&sendInitialEvents=False",
            true,
            &[
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ],
        );
    }

    #[test]
    fn parameters_of_writes_are_checked() {
        let check = |query: &str, expect: &str| {
            let error = Query::parse(query).check_write("CreateOptions").unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (422, expect));
        };
        check(
            "dryRun=some",
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"some\"]: supported values: \"All\"",
        );
        check(
            "fieldValidation=Maybe",
            "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Maybe\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
        );
        check(
            &format!("fieldManager={}", "x".repeat(129)),
            "CreateOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes",
        );
        assert!(Query::parse("dryRun=All&fieldManager=me&fieldValidation=Warn").check_write("CreateOptions").is_ok());
        assert!(Query::parse("force=true").check_patch(false).is_err());
    }

    #[test]
    fn a_limited_list_of_a_revision_is_exact() {
        let exact = |query: &str| ListOptions::parse(&Query::parse(query), false).unwrap().exact;
        assert!(exact("resourceVersion=5&limit=2"));
        assert!(!exact("resourceVersion=0&limit=2"));
        assert!(!exact("resourceVersion=5"));
        assert!(!exact("resourceVersion=5&limit=2&resourceVersionMatch=NotOlderThan"));
    }
}
