//! Who may do what on a cluster that has all of the product. The roles and bindings are those that the code makes, and the judgement is
//! that of our API server.
//!
//! * `rights/COMPONENT.txt` says what everybody may; `UPDATE_EXPECT=1` writes it anew.
//! * `rights/upstream.txt` says what the same accounts have in the projects that this one takes the place of, and
//!   `rights/broader.txt` where ours have more, and why. Whoever needs more says so there.
//! * What nobody may have, whatever the files say, is in the tests.

mod attacks;
mod matrix;
mod objects;
mod table;

use std::collections::BTreeSet;
use std::path::Path;

use kube_apiserver::authz::rbac::{Rule, compact, uncovered};

use self::matrix::{OWN_NODE, matrix};
use self::objects::{Cluster, components};
use self::table::{EVERYWHERE, Line, Table};

fn read(name: &str) -> String {
    std::fs::read_to_string(Path::new("tests/it/rights").join(name)).unwrap_or_default()
}

#[test]
fn what_everybody_may_do_is_written_down() {
    for (name, manifests) in components() {
        let (file, found) = (format!("{name}.txt"), matrix(&Cluster::new(&manifests)).to_string());
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(Path::new("tests/it/rights").join(&file), &found).unwrap();
        }
        assert!(read(&file) == found, "rights/{file} says something else: look at what UPDATE_EXPECT=1 changes in it");
    }
}

/// In `broader.txt`, whoever asks which kinds a cluster has.
const ANYBODY: &str = "anybody";

#[test]
fn what_is_broader_than_elsewhere_has_a_reason() {
    let (upstream, broader) = (Table::parse(&read("upstream.txt")), Table::parse(&read("broader.txt")));
    let mut used: BTreeSet<(String, String, Line)> = BTreeSet::new();
    let mut unlisted = Vec::new();
    for (_, manifests) in components() {
        for ((who, place), lines) in matrix(&Cluster::new(&manifests)).0 {
            // Elsewhere, what is of one node is of all.
            let elsewhere = if place == OWN_NODE { EVERYWHERE } else { &place };
            let held: Vec<Rule> = upstream.rules(&who, elsewhere).into_iter().map(as_strong).collect();
            let wanted: Vec<Rule> = lines.iter().map(Line::rule).collect();
            for missing in uncovered(&held, &wanted) {
                let mut found = false;
                for (name, at) in [(who.as_str(), place.as_str()), (ANYBODY, EVERYWHERE)] {
                    for line in broader.of(name, at) {
                        if uncovered(&[line.rule()], std::slice::from_ref(&missing)).is_empty() {
                            used.insert((name.to_owned(), at.to_owned(), line));
                            found = true;
                        }
                    }
                }
                if !found {
                    unlisted.push(format!("{who} {place}: {}", compact(&missing)));
                }
            }
        }
    }
    assert!(
        unlisted.is_empty(),
        "take it away, or say in rights/broader.txt why it is needed:\n{}",
        unlisted.join("\n")
    );
    for ((who, place), lines) in broader.0 {
        for line in lines {
            assert!(!line.reason.is_empty(), "rights/broader.txt: {who} {place}: {}: no reason", line.of);
            let is_used = used.contains(&(who.clone(), place.clone(), line.clone()));
            assert!(is_used, "rights/broader.txt: {who} {place}: {}: is not broader: take it out", line.of);
        }
    }
}

/// A rule with the verbs that are as strong as those it has: a patch is an update, and whoever lists reads.
fn as_strong(mut rule: Rule) -> Rule {
    let also: [(&str, &[&str]); 4] =
        [("update", &["patch"]), ("patch", &["update"]), ("list", &["get", "watch"]), ("watch", &["get", "list"])];
    for (verb, more) in also {
        if rule.verbs.iter().any(|held| held == verb) {
            rule.verbs.extend(more.iter().map(|verb| (*verb).to_owned()));
        }
    }
    rule
}
