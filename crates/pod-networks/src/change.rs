//! Interfaces of a pod that runs, as its annotation changes: those that it does not name any more go, those that are new come.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use net::cni;

use crate::records::{Entry, Record};
use crate::selection::Selected;
use crate::{Error, Interface, Networks, Result, Sandbox, about, selected};

/// What has to be done. Pure.
#[derive(Clone, Debug, Default, PartialEq)]
struct Change {
    /// Interfaces that go.
    remove: Vec<String>,
    /// Networks that come, in the order of the annotation.
    add: Vec<Selected>,
}

/// From what was made to what the annotation asks for. The error is a sentence for the pod's owner.
fn change(record: &Record, wanted: &[Selected]) -> Result<Change, String> {
    let is_of = |entry: &Entry, selected: &Selected| {
        let title = format!("{}/{}", selected.namespace, selected.name);
        entry.attachment.interface == selected.interface && (entry.title.is_empty() || entry.title == title)
    };
    let made = |entry: &Entry| !entry.result.is_null();
    let stays = |entry: &&Entry| made(entry) && wanted.iter().any(|selected| is_of(entry, selected));
    let kept: BTreeSet<&str> =
        record.entries.iter().filter(stays).map(|entry| entry.attachment.interface.as_str()).collect();
    let change = Change {
        remove: record
            .entries
            .iter()
            .map(|entry| entry.attachment.interface.clone())
            .filter(|interface| !kept.contains(interface.as_str()))
            .collect(),
        add: wanted.iter().filter(|selected| !kept.contains(selected.interface.as_str())).cloned().collect(),
    };
    // Without names, taking the first one away would rename all others.
    let unnamed = wanted.iter().find(|selected| !selected.is_named).filter(|_| change != Change::default());
    match unnamed {
        Some(selected) => Err(format!(
            "the networks of a pod that runs are changed only where each names its interface, and {}/{} does not: add \
             \"interface\": \"{}\" to it",
            selected.namespace, selected.name, selected.interface
        )),
        None => Ok(change),
    }
}

impl Networks {
    /// Brings the interfaces of a running sandbox to what the pod's annotation says. `own` is what the pod has beside them. What
    /// is as it should be is not touched, so this may be repeated at any time. True when something was changed.
    ///
    /// # Errors
    /// When the annotation cannot be followed, or a plugin fails: what that one made is taken back, what was done before it
    /// stays. An event of the pod tells of it.
    pub async fn change(&self, pod: &Pod, sandbox: &Sandbox, own: impl AsyncFnOnce() -> Interface) -> Result<bool> {
        let mut record = self.records.load(&sandbox.id)?.unwrap_or_default();
        let wanted = selected(pod);
        let change = wanted.and_then(|wanted| change(&record, &wanted).map_err(Error::Invalid));
        let change = change.inspect_err(|error| {
            self.events.warning(&about(pod), "FailedChangingInterfaces", kit::Chain(error).to_string());
        })?;
        if change == Change::default() {
            return Ok(false);
        }
        let done = self.apply(pod, sandbox, &mut record, change).await;
        self.publish(pod, &own().await, &record).await?;
        done.map(|()| true)
    }

    async fn apply(&self, pod: &Pod, sandbox: &Sandbox, record: &mut Record, change: Change) -> Result<()> {
        for interface in change.remove {
            let at = record.entries.iter().position(|entry| entry.attachment.interface == interface);
            let Some(entry) = at.map(|at| record.entries[at].clone()) else { continue };
            if let Err(error) = self.leave(&sandbox.id, record, &entry).await {
                let message = format!("cannot remove {interface} of {}: {}", entry.title, kit::Chain(&error));
                self.events.warning(&about(pod), "FailedRemovingInterface", message);
                return Err(error);
            }
            self.events.normal(&about(pod), "RemovedInterface", format!("Removed {interface} of {}", entry.title));
        }
        for selected in change.add {
            let interface = selected.interface.clone();
            let added = match self.look_up(pod, selected).await {
                Ok(wanted) => match self.must_come_with_the_sandbox(pod, &wanted).await {
                    Ok(()) => self.add(pod, sandbox, record, wanted).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            if let Err(error) = added {
                let message = kit::Chain(&error).to_string();
                self.events.warning(&about(pod), "FailedAddingInterface", message);
                let half = record.entries.iter().find(|entry| entry.attachment.interface == interface).cloned();
                if let Some(entry) = half {
                    self.leave(&sandbox.id, record, &entry).await?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes one interface back. Unlike at the end of a sandbox, a plugin that cannot is no small matter: the interface is there.
    async fn leave(&self, sandbox: &str, record: &mut Record, entry: &Entry) -> Result<()> {
        let left = cni::del(&self.plugins, &entry.network, &entry.attachment, &entry.result).await;
        left.map_err(|error| Error::Invalid(kit::Chain(&error).to_string()))?;
        crate::pool::give_back(&self.client, &entry.leases).await?;
        record.entries.retain(|other| other != entry);
        self.records.save(sandbox, record)
    }
}

#[cfg(test)]
mod tests {
    use net::cni::Attachment;
    use serde_json::{Value, json};

    use super::*;
    use crate::selection;

    fn entry(title: &str, interface: &str, result: Value) -> Entry {
        let attachment = Attachment { interface: interface.into(), ..Attachment::default() };
        Entry { title: title.into(), attachment, result, ..Entry::default() }
    }

    #[track_caller]
    fn check(entries: &[Entry], annotation: &str, remove: &[&str], add: &[&str]) {
        let wanted = selection::parse(annotation, "own").unwrap();
        let found = change(&Record { own: None, entries: entries.to_vec() }, &wanted).unwrap();
        let added: Vec<String> = found.add.iter().map(|one| format!("{}@{}", one.name, one.interface)).collect();
        assert_eq!(
            (found.remove, added),
            (remove.iter().map(ToString::to_string).collect(), add.iter().map(ToString::to_string).collect())
        );
    }

    #[test]
    fn what_is_not_named_goes_and_what_is_new_comes() {
        let a = entry("own/a", "x", json!({}));
        let b = entry("own/b", "y", json!({}));
        let both = [a, b];
        check(&both, "a@x,b@y", &[], &[]);
        check(&both, "b@y,a@x", &[], &[]);
        check(&both, "b@y", &["x"], &[]);
        check(&both, "", &["x", "y"], &[]);
        check(&both, "a@x,b@y,c@z,d@w", &[], &["c@z", "d@w"]);
        // Another network by the same name of the interface is another interface.
        check(&both, "c@x,b@y", &["x"], &["c@x"]);
        check(&[], "a@x", &[], &["a@x"]);
        // One that was interrupted is made anew.
        check(&[entry("own/a", "x", Value::Null)], "a@x", &["x"], &["a@x"]);
        // Records of earlier versions do not say whose interface it is.
        check(&[entry("", "x", json!({}))], "a@x", &[], &[]);
    }

    #[test]
    fn interfaces_without_names_are_not_moved_about() {
        let made =
            Record { own: None, entries: vec![entry("own/a", "net1", json!({})), entry("own/b", "net2", json!({}))] };
        assert_eq!(change(&made, &selection::parse("a,b", "own").unwrap()), Ok(Change::default()));
        let why = change(&made, &selection::parse("b", "own").unwrap()).unwrap_err();
        assert!(why.contains("own/b does not: add \"interface\": \"net1\""), "{why}");
    }
}
