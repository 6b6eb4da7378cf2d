//! Tables of rights, as they are written in files:
//!
//! ```text
//! kubevirt/kubevirt-controller
//!   everywhere
//!     # why, where somebody is to be told
//!     pods: create delete get
//!     configmaps[kubevirt-ca]: get
//!     virtualmachines.kubevirt.io/status: patch
//!   in kubevirt
//!     leases.coordination.k8s.io: create get update
//! ```
//!
//! Somebody is an account as NAMESPACE/NAME, a group, or a ClusterRole that is given to people.

use std::collections::BTreeMap;
use std::fmt::Write;

use kube_apiserver::authz::rbac::Rule;

/// Where rights hold that hold everywhere.
pub(super) const EVERYWHERE: &str = "everywhere";

/// What is allowed of one kind of objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Line {
    /// The kind, its subresource and names of objects; or a path.
    pub(super) of: String,
    pub(super) verbs: Vec<String>,
    pub(super) reason: String,
}

impl Line {
    pub(super) fn new(of: &str, verbs: impl IntoIterator<Item = String>) -> Self {
        Line { of: of.to_owned(), verbs: verbs.into_iter().collect(), reason: String::new() }
    }

    /// The line as a rule of RBAC.
    pub(super) fn rule(&self) -> Rule {
        let verbs = self.verbs.clone();
        if self.of.starts_with('/') {
            return Rule { verbs, non_resource_urls: vec![self.of.clone()], ..Rule::default() };
        }
        let (kind, names) = self.of.split_once('[').unwrap_or((&self.of, ""));
        let (kind, subresource) = kind.split_once('/').unwrap_or((kind, ""));
        let (resource, group) = kind.split_once('.').unwrap_or((kind, ""));
        let resource = if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") };
        Rule {
            verbs,
            api_groups: vec![group.to_owned()],
            resources: vec![resource],
            resource_names: names.trim_end_matches(']').split_whitespace().map(str::to_owned).collect(),
            ..Rule::default()
        }
    }
}

/// What is written of a kind: `deployments.apps/scale`.
pub(super) fn kind(group: &str, resource: &str) -> String {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let subresource = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    format!("{resource}{group}{subresource}")
}

/// Who may do what, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table(pub(super) BTreeMap<(String, String), Vec<Line>>);

impl Table {
    pub(super) fn parse(text: &str) -> Self {
        let (mut who, mut place, mut reason, mut all) = ("", "", String::new(), BTreeMap::new());
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let depth = line.len() - line.trim_start().len();
            let line = line.trim();
            match depth {
                0 if line.starts_with('#') => {}
                0 => who = line,
                2 => place = line,
                _ if line.starts_with('#') => reason = line.trim_start_matches(['#', ' ']).to_owned(),
                _ => {
                    let (of, verbs) = line.split_once(": ").unwrap_or_else(|| panic!("not a right: {line}"));
                    let mut right = Line::new(of, verbs.split_whitespace().map(str::to_owned));
                    right.reason.clone_from(&reason);
                    all.entry((who.to_owned(), place.to_owned())).or_insert_with(Vec::new).push(right);
                }
            }
            // A reason is that of all lines up to the next place.
            if depth < 4 {
                reason.clear();
            }
        }
        Table(all)
    }

    pub(super) fn of(&self, who: &str, place: &str) -> Vec<Line> {
        self.0.get(&(who.to_owned(), place.to_owned())).cloned().unwrap_or_default()
    }

    /// What somebody has in a place, there and everywhere.
    pub(super) fn rules(&self, who: &str, place: &str) -> Vec<Rule> {
        let mut lines = self.of(who, EVERYWHERE);
        if place != EVERYWHERE {
            lines.extend(self.of(who, place));
        }
        lines.iter().map(Line::rule).collect()
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut before = "";
        for ((who, place), lines) in &self.0 {
            if who != before {
                writeln!(f, "{who}")?;
            }
            before = who;
            writeln!(f, "  {place}")?;
            for line in lines {
                writeln!(f, "    {}: {}", line.of, line.verbs.join(" "))?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_table_is_read_as_it_is_written() {
    let mut text = String::from("ns/a\n  everywhere\n    /metrics: get\n    pods.g/log[x y]: get list\n  in ns\n");
    writeln!(text, "    secrets: *").unwrap();
    let table = Table::parse(&text);
    assert_eq!(table.to_string(), text);
    let rule = &table.rules("ns/a", "in ns")[1];
    assert_eq!((&rule.api_groups[0], &rule.resources[0]), (&"g".to_owned(), &"pods/log".to_owned()));
    assert_eq!(rule.resource_names, ["x", "y"]);
}
