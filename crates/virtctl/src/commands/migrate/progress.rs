//! What is shown of a migration: a line for each phase, and for each step of the copy. Pure.

use api::kubevirt::constants::{annotation, migration_condition as condition, migration_phase as phase};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use serde::Deserialize;

/// What virt-handler tells of the copy. Sizes are bytes, rates bytes a second, times milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Progress {
    uid: String,
    mode: String,
    total: u64,
    processed: u64,
    remaining: u64,
    rate: u64,
    dirty_rate: u64,
    expected_downtime: u64,
    throttle: u64,
}

/// A migration as it was last seen, and what was said of it.
#[derive(Default)]
pub(super) struct Watched {
    /// The migration.
    pub(super) migration: Option<Migration>,
    /// Its machine.
    pub(super) machine: Option<VirtualMachineInstance>,
    said: String,
}

impl Watched {
    /// The migration's phase.
    pub(super) fn phase(&self) -> &str {
        let status = self.migration.as_ref().and_then(|migration| migration.status.as_ref());
        status.and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }

    /// Why it failed, as far as the nodes said so.
    pub(super) fn failure(&self) -> Option<String> {
        let own = self.migration.as_ref()?.status.as_ref()?.migration_state.as_deref();
        own.and_then(|state| state.failure_reason.clone()).filter(|reason| !reason.is_empty())
    }

    /// The next line, if there is something new to say.
    pub(super) fn line(&mut self) -> Option<String> {
        let line = match self.phase() {
            phase::UNSET => return None,
            phase::RUNNING => match self.progress() {
                Some(progress) => format!("{} {}", phase::RUNNING, figures(&progress)),
                None => phase::RUNNING.to_owned(),
            },
            phase::SUCCEEDED => match self.target() {
                Some(node) => format!("{}: runs on {node}", phase::SUCCEEDED),
                None => phase::SUCCEEDED.to_owned(),
            },
            phase::PREPARING_TARGET => match self.target() {
                Some(node) => format!("{} on {node}", phase::PREPARING_TARGET),
                None => phase::PREPARING_TARGET.to_owned(),
            },
            other => match self.waits() {
                Some(why) => format!("{other}: {why}"),
                None => other.to_owned(),
            },
        };
        if line == self.said {
            return None;
        }
        self.said.clone_from(&line);
        Some(line)
    }

    /// What it waits for.
    fn waits(&self) -> Option<&str> {
        let conditions = &self.migration.as_ref()?.status.as_ref()?.conditions;
        let waiting = conditions.iter().find(|known| known.type_ == condition::WAITING && known.status == "True")?;
        waiting.message.as_deref()
    }

    fn target(&self) -> Option<&str> {
        let of_machine = self.machine.as_ref().and_then(|machine| machine.status.as_ref()?.migration_state.as_deref());
        let of_migration = self.migration.as_ref().and_then(|one| one.status.as_ref()?.migration_state.as_deref());
        of_migration.or(of_machine)?.target_node.as_deref()
    }

    fn progress(&self) -> Option<Progress> {
        let annotations = self.machine.as_ref()?.metadata.annotations.as_ref()?;
        let progress: Progress = serde_json::from_str(annotations.get(annotation::MIGRATION_PROGRESS)?).ok()?;
        // What an earlier migration left there is no news.
        (self.migration.as_ref()?.metadata.uid.as_deref() == Some(progress.uid.as_str())).then_some(progress)
    }
}

fn figures(progress: &Progress) -> String {
    let percent = progress.processed.saturating_mul(100).checked_div(progress.total).unwrap_or(0).min(100);
    let mut text = format!(
        "{percent}%: {} of {} sent, {} left, {}/s, guest writes {}/s",
        size(progress.processed),
        size(progress.total),
        size(progress.remaining),
        size(progress.rate),
        size(progress.dirty_rate),
    );
    if progress.expected_downtime > 0 {
        text.push_str(&format!(", pause about {} ms", progress.expected_downtime));
    }
    if progress.throttle > 0 {
        text.push_str(&format!(", guest slowed by {}%", progress.throttle));
    }
    match progress.mode.as_str() {
        "PostCopy" => text.push_str(", guest runs on the target already"),
        "Paused" => text.push_str(", guest stands still"),
        _ => {}
    }
    text
}

fn size(bytes: u64) -> String {
    const MEBI: f64 = 1_048_576.0;
    let mebi = bytes as f64 / MEBI;
    if mebi >= 1024.0 { format!("{:.1} GiB", mebi / 1024.0) } else { format!("{mebi:.1} MiB") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Lines said of these states, one after the other.
    fn lines(states: &[(&str, Value)]) -> Vec<String> {
        let mut watched = Watched::default();
        let mut out = Vec::new();
        for (phase, progress) in states {
            let state = json!({ "targetNode": "n2", "failureReason": "no route" });
            let migration =
                json!({ "metadata": { "uid": "u" }, "status": { "phase": phase, "migrationState": state } });
            let machine =
                json!({ "metadata": { "annotations": { "ferrovirt.io/migration-progress": progress.to_string() } } });
            watched.migration = serde_json::from_value(migration).unwrap();
            watched.machine = serde_json::from_value(machine).unwrap();
            out.extend(watched.line());
        }
        out
    }

    #[test]
    fn each_news_once() {
        let copied = |mebi: u64| {
            json!({
                "uid": "u", "total": 100 << 20, "processed": mebi << 20, "remaining": (100 - mebi) << 20,
                "rate": 50 << 20, "dirtyRate": 1 << 20, "expectedDowntime": 120, "throttle": 20,
            })
        };
        let none = json!({});
        let found = lines(&[
            ("", none.clone()),
            ("Pending", none.clone()),
            ("Pending", none.clone()),
            ("PreparingTarget", none.clone()),
            ("Running", none),
            ("Running", json!({ "uid": "earlier", "total": 1, "processed": 1 })),
            ("Running", copied(25)),
            ("Running", copied(25)),
            ("Running", json!({ "uid": "u", "mode": "PostCopy", "total": 4_u64 << 30, "processed": 3_u64 << 30 })),
            ("Succeeded", copied(100)),
        ]);
        let expect = [
            "Pending",
            "PreparingTarget on n2",
            "Running",
            "Running 25%: 25.0 MiB of 100.0 MiB sent, 75.0 MiB left, 50.0 MiB/s, guest writes 1.0 MiB/s, pause about 120 ms, \
             guest slowed by 20%",
            "Running 75%: 3.0 GiB of 4.0 GiB sent, 0.0 MiB left, 0.0 MiB/s, guest writes 0.0 MiB/s, guest runs on the \
             target already",
            "Succeeded: runs on n2",
        ];
        assert_eq!(found, expect);
    }

    #[test]
    fn it_says_what_it_waits_for() {
        let waits =
            json!([{ "type": "ferrovirt.io/Waiting", "status": "True", "message": "no other node takes the guest" }]);
        let migration = json!({ "metadata": { "uid": "u" }, "status": { "phase": "Scheduling", "conditions": waits } });
        let mut watched = Watched { migration: serde_json::from_value(migration).unwrap(), ..Watched::default() };
        assert_eq!(watched.line().as_deref(), Some("Scheduling: no other node takes the guest"));
    }
}
