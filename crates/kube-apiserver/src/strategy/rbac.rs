//! Roles and their bindings.

use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::invalid;
use super::rules::{self, Must, Rules};

const GROUP: &str = "rbac.authorization.k8s.io";

const RESOURCE_RULE: Rules = &[
    ("apiGroups", &[Must::BeFor("resource rules must supply at least one api group")]),
    ("resources", &[Must::BeFor("resource rules must supply at least one resource")]),
];

const CLUSTER_ROLE: Rules = &[
    (
        "aggregationRule?.clusterRoleSelectors",
        &[Must::BeFor("at least one clusterRoleSelector required if aggregationRule is non-nil")],
    ),
    ("aggregationRule?.clusterRoleSelectors[]", &[Must::Select]),
];

const REFERENCE: Rules =
    &[("roleRef.apiGroup", &[Must::Exactly(&[GROUP])]), ("roleRef.name", &[Must::Be, Must::ReadIfAny(path_segment)])];

fn path_segment(text: &str) -> Option<String> {
    apimachinery::names::path_segment_problem(text).map(str::to_owned)
}

/// Checks an object of the group.
pub(super) fn validate(plural: &str, object: &Value, causes: &mut Vec<Cause>) {
    let namespaced = matches!(plural, "roles" | "rolebindings");
    match plural {
        "roles" | "clusterroles" => {
            for (index, rule) in each(&object["rules"]) {
                self::rule(rule, &format!("rules[{index}]"), namespaced, causes);
            }
            if !namespaced {
                rules::check(object, CLUSTER_ROLE, causes);
                for (index, selector) in each(&object["aggregationRule"]["clusterRoleSelectors"]) {
                    let before = causes.len();
                    let at = format!("aggregationRule.clusterRoleSelectors[{index}]");
                    super::label_selector::check(&at, selector, causes);
                    if causes.len() > before {
                        causes.truncate(before);
                        invalid(&at, selector, "invalid label selector.", causes);
                    }
                }
            }
        }
        _ => {
            rules::check(object, REFERENCE, causes);
            let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
            let kind = json!(object["roleRef"]["kind"].as_str().unwrap_or_default());
            super::one_of("roleRef.kind", &kind, kinds, causes);
            for (index, subject) in each(&object["subjects"]) {
                self::subject(subject, &format!("subjects[{index}]"), namespaced, causes);
            }
        }
    }
}

fn rule(rule: &Value, at: &str, namespaced: bool, causes: &mut Vec<Cause>) {
    rules::check_at(at, rule, &[("verbs", &[Must::BeFor("verbs must contain at least one value")])], causes);
    let urls = &rule["nonResourceURLs"];
    if rules::empty(urls) {
        rules::check_at(at, rule, RESOURCE_RULE, causes);
        return;
    }
    let field = format!("{at}.nonResourceURLs");
    if namespaced {
        invalid(&field, urls, "namespaced rules cannot apply to non-resource URLs", causes);
    }
    if ["apiGroups", "resources", "resourceNames"].iter().any(|part| !rules::empty(&rule[*part])) {
        let why = "rules cannot apply to both regular resources and non-resource URLs";
        invalid(&field, urls, why, causes);
    }
}

fn subject(subject: &Value, at: &str, namespaced: bool, causes: &mut Vec<Cause>) {
    const KINDS: [&str; 3] = ["ServiceAccount", "User", "Group"];
    rules::check_at(at, subject, &[("name", &[Must::Be])], causes);
    match subject["kind"].as_str().unwrap_or_default() {
        "ServiceAccount" => {
            let account: Rules =
                &[("name", &[Must::ReadIfAny(rules::subdomain)]), ("apiGroup", &[Must::Exactly(&[""])])];
            rules::check_at(at, subject, account, causes);
            if !namespaced && rules::empty(&subject["namespace"]) {
                causes.push(cause("FieldValueRequired", &format!("{at}.namespace"), "Required value".into()));
            }
        }
        "User" | "Group" => {
            rules::check_at(at, subject, &[("apiGroup", &[Must::Exactly(&[GROUP])])], causes);
        }
        other => super::one_of(&format!("{at}.kind"), &json!(other), &KINDS, causes),
    }
}

fn each(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}
