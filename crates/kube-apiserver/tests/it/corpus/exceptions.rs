//! The differences that are known: `testdata/corpus/exceptions/GROUP.txt`, a line each: id, class and reason, divided by two spaces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::compare::Difference;

/// Id and class to the reason.
pub(super) struct Exceptions {
    groups: BTreeSet<String>,
    known: BTreeMap<(String, String), String>,
}

fn file(group: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/corpus/exceptions/{group}.txt"))
}

impl Exceptions {
    /// Those of some groups.
    pub(super) fn read(groups: &[String]) -> Self {
        let groups: BTreeSet<String> = groups.iter().cloned().collect();
        let mut known = BTreeMap::new();
        for group in &groups {
            for line in std::fs::read_to_string(file(group)).unwrap_or_default().lines() {
                let mut parts = line.splitn(3, "  ").map(ToOwned::to_owned);
                let (Some(id), Some(class), Some(reason)) = (parts.next(), parts.next(), parts.next()) else {
                    panic!("{group}.txt: not an id, a class and a reason, divided by two spaces: {line}");
                };
                assert!(!reason.trim().is_empty(), "{group}.txt: no reason: {line}");
                assert_eq!(id.split('/').next(), Some(group.as_str()), "{group}.txt: of another group: {line}");
                assert!(known.insert((id, class), reason).is_none(), "{group}.txt: twice: {line}");
            }
        }
        Self { groups, known }
    }

    /// What differs and is not known, and what is known and does not differ.
    pub(super) fn judge(&self, differences: &[Difference]) -> Vec<String> {
        let found: BTreeSet<(&str, &str)> = differences.iter().map(|d| (d.id.as_str(), d.class)).collect();
        let new = differences.iter().filter(|d| !self.known.contains_key(&(d.id.clone(), d.class.to_owned())));
        let new = new.map(|d| format!("{}: {}: {}", d.class, d.id, d.text));
        let gone = self.known.keys().filter(|(id, class)| !found.contains(&(id.as_str(), class.as_str())));
        let gone = gone.map(|(id, class)| format!("alike now, take it out of the exceptions: {id}  {class}"));
        new.chain(gone).collect()
    }

    /// Writes the files as they should be; reasons that are there stay.
    pub(super) fn write(&mut self, differences: &[Difference]) {
        let mut files: BTreeMap<&str, String> = self.groups.iter().map(|g| (g.as_str(), String::new())).collect();
        for d in differences {
            let known = self.known.get(&(d.id.clone(), d.class.to_owned()));
            let brief: String = d.brief.replace('\n', " ").chars().take(200).collect();
            let text = files.get_mut(d.id.split('/').next().unwrap()).unwrap();
            text.push_str(&format!("{}  {}  {}\n", d.id, d.class, known.unwrap_or(&brief)));
        }
        for (group, text) in files {
            if text.is_empty() {
                let _ = std::fs::remove_file(file(group));
            } else {
                std::fs::write(file(group), text).unwrap();
            }
        }
    }
}
