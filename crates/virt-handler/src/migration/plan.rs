//! Which part this node has in a VMI's migration, and what is to be done next. Pure.
//!
//! ```text
//!   source:  target says where it listens --Send--> runs --abort asked: Abort--> outcome
//!                                                        \-way broke in the last moment: Resolve--> outcome
//!   target:  Connect, Plug, Expect, Listen --> the domain runs here, the source says so --> this node's VMI
//!                                          \-> failed --TurnAway-->
//! ```

use std::net::{IpAddr, SocketAddr};

use api::kubevirt::constants::{annotation, label};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState as State};
use domain::MigrationProgress;

use super::uid;

/// Whether the domain is to come here.
pub(crate) fn arrives(vmi: &VirtualMachineInstance, node: &str) -> bool {
    let labelled = vmi.metadata.labels.as_ref().and_then(|labels| labels.get(label::MIGRATION_TARGET_NODE));
    let here = vmi.status.as_ref().and_then(|status| status.node_name.as_deref()) == Some(node);
    let target = state(vmi).and_then(|state| state.target_node.as_deref()) == Some(node);
    !here && target && labelled.is_some_and(|label| label == node)
}

/// Whether the domain has left for another node, which only has to say so.
pub(crate) fn has_left(vmi: &VirtualMachineInstance, node: &str) -> bool {
    state(vmi).is_some_and(|state| is_source(state, node) && succeeded(state))
}

/// Whether a migration from this node has begun and not ended.
pub(crate) fn is_leaving(vmi: &VirtualMachineInstance, node: &str) -> bool {
    state(vmi).is_some_and(|state| is_source(state, node) && state.start_timestamp.is_some() && !ended(state))
}

pub(crate) fn state(vmi: &VirtualMachineInstance) -> Option<&State> {
    vmi.status.as_ref()?.migration_state.as_deref()
}

pub(crate) fn is_source(state: &State, node: &str) -> bool {
    let other = state.target_node.as_deref().is_some_and(|target| target != node);
    state.source_node.as_deref() == Some(node) && other && !uid(state).is_empty()
}

/// The target does not answer, and virt-controller has found that it can do no harm: the guest stays.
pub(crate) fn is_fenced(vmi: &VirtualMachineInstance, state: &State) -> bool {
    let told = vmi.metadata.annotations.as_ref().and_then(|all| all.get(annotation::MIGRATION_TARGET_FENCED));
    told.is_some_and(|of| of == uid(state) && !of.is_empty())
}

pub(crate) fn ended(state: &State) -> bool {
    state.end_timestamp.is_some() || state.completed == Some(true) || state.failed == Some(true)
}

pub(crate) fn succeeded(state: &State) -> bool {
    state.completed == Some(true) && state.failed != Some(true)
}

/// What the source knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// The launcher has told something since this process connected.
    pub heard: bool,
    /// The newest it told of a migration, this one or one before.
    pub progress: Option<MigrationProgress>,
    /// This process has had the launcher begin.
    pub(crate) sent: bool,
    /// Why the launcher was not asked to migrate, or refused.
    pub refused: Option<String>,
    /// What went wrong on the way to the other node.
    pub trouble: Option<String>,
    /// The launcher was told to end it.
    pub abort_told: bool,
    /// The launcher has ended, and did not say how the migration did.
    pub launcher_gone: bool,
}

impl Leaving {
    /// What the launcher told of this migration.
    pub(crate) fn progress_of(&self, state: &State) -> Option<&MigrationProgress> {
        self.progress.as_ref().filter(|progress| progress.uid == uid(state))
    }
}

/// One thing to do on the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceStep {
    /// Have the launcher migrate.
    Send,
    /// Have the launcher end it.
    Abort,
    /// Ask the target whether the guest runs there, and tell the launcher.
    Resolve,
}

pub(crate) fn source(state: &State, known: &Leaving) -> Option<SourceStep> {
    if ended(state) || !known.heard || known.launcher_gone || known.refused.is_some() {
        return None;
    }
    let asked = state.abort_requested == Some(true);
    match known.progress_of(state) {
        Some(progress) if progress.outcome.is_some() => None,
        Some(progress) if progress.uncertain => Some(SourceStep::Resolve),
        None if !known.sent => (!asked && state.start_timestamp.is_some()).then_some(SourceStep::Send),
        _ => (asked && !known.abort_told).then_some(SourceStep::Abort),
    }
}

/// Whether the source may say that it begins. It says so before it does: until then virt-controller may give the migration
/// up without asking.
pub(crate) fn begins(state: &State, known: &Leaving) -> bool {
    let asked = state.abort_requested == Some(true);
    known.heard && !asked && state.start_timestamp.is_none() && state.target_node_address.is_some()
}

/// What the target knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coming {
    /// Connected to the launcher.
    pub connected: bool,
    /// The interfaces exist.
    pub plugged: bool,
    /// The launcher waits for this migration.
    pub expected: bool,
    /// This process takes the migration's streams.
    pub listening: bool,
    /// The domain runs here, or stands still as it did.
    pub arrived: bool,
    /// The launcher was told that nothing will come.
    pub turned_away: bool,
    /// A disk does not fit here.
    pub unfit: bool,
}

/// One thing to do on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetStep {
    Connect,
    Plug,
    Expect,
    Listen,
    /// Nothing will come: the launcher is to end.
    TurnAway,
}

pub(crate) fn target(state: &State, known: Coming) -> Vec<TargetStep> {
    if known.unfit || (ended(state) && !succeeded(state)) {
        let told = !known.connected || known.turned_away;
        return if told { Vec::new() } else { vec![TargetStep::TurnAway] };
    }
    let mut steps = Vec::new();
    let mut unless = |done: bool, step| steps.extend((!done).then_some(step));
    unless(known.connected, TargetStep::Connect);
    unless(known.plugged, TargetStep::Plug);
    unless(known.expected || known.arrived, TargetStep::Expect);
    unless(known.listening || ended(state), TargetStep::Listen);
    steps
}

/// Where the target's agent listens, if its address is one.
pub(crate) fn address(state: &State, usual_port: u16) -> Option<SocketAddr> {
    let address: IpAddr = state.target_node_address.as_deref()?.parse().ok()?;
    let named = state.target_direct_migration_node_ports.keys().find_map(|port| port.parse().ok());
    Some(SocketAddr::new(address, named.unwrap_or(usual_port)))
}

/// Whether the administrator chose that the streams are not encrypted.
pub(crate) fn is_plain(state: &State) -> bool {
    state.migration_configuration.as_ref().and_then(|wanted| wanted.disable_tls) == Some(true)
}

#[cfg(test)]
mod tests {
    use domain::MigrationOutcome;
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn vmi(invited: Option<&str>, node: &str, state: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": invited.map(|node| json!({label::MIGRATION_TARGET_NODE: node}))},
            "spec": {"domain": {"devices": {}}},
            "status": {"nodeName": node, "migrationState": state},
        }))
        .unwrap()
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn a_to_b(more: Value) -> State {
        let mut state = json!({"migrationUid": "m", "sourceNode": "a", "targetNode": "b", "targetPod": "p"});
        state.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn each_node_has_one_part() {
        let on = |node: &str, more: Value| vmi(Some("b"), node, json!(a_to_b(more)));
        let moving = on("a", json!({}));
        assert!(arrives(&moving, "b") && !arrives(&moving, "a") && !arrives(&moving, "c"));
        assert!(!arrives(&vmi(None, "a", json!(a_to_b(json!({})))), "b"), "the label is the invitation");
        let started = json!({"startTimestamp": "2026-01-01T00:00:00Z"});
        assert!(is_leaving(&on("a", started.clone()), "a") && !is_leaving(&on("a", started), "b"));
        let done = json!({"completed": true, "endTimestamp": "2026-01-01T00:00:00Z"});
        let done = on("a", done);
        assert!(has_left(&done, "a") && !has_left(&done, "b") && arrives(&done, "b"));
        assert!(!has_left(&on("a", json!({"completed": true, "failed": true})), "a"));
        assert!(!arrives(&on("b", json!({"completed": true})), "b"), "it is here");
    }

    #[test]
    fn a_target_is_fenced_for_one_migration() {
        let told = |annotations: Value| {
            let mut moving = vmi(Some("b"), "a", json!(a_to_b(json!({}))));
            moving.metadata.annotations = serde_json::from_value(annotations).unwrap();
            is_fenced(&moving, state(&moving).unwrap())
        };
        assert!(told(json!({ (annotation::MIGRATION_TARGET_FENCED): "m" })));
        assert!(!told(json!({ (annotation::MIGRATION_TARGET_FENCED): "before" })) && !told(json!(null)));
    }

    #[test]
    fn the_source_sends_when_the_target_listens() {
        let heard = Leaving { heard: true, ..Leaving::default() };
        let told = |uid: &str, outcome| {
            let progress = MigrationProgress { uid: uid.into(), outcome, ..MigrationProgress::default() };
            Leaving { progress: Some(progress), ..heard.clone() }
        };
        let listens = || json!({"targetNodeAddress": "10.0.0.1"});
        let begun = || json!({"targetNodeAddress": "10.0.0.1", "startTimestamp": "2026-01-01T00:00:00Z"});
        let asked = || {
            let mut state = begun();
            state["abortRequested"] = json!(true);
            state
        };
        let check = |state: Value, known: &Leaving, expect| assert_eq!(source(&a_to_b(state), known), expect);
        check(json!({}), &heard, None);
        check(listens(), &heard, None);
        assert!(begins(&a_to_b(listens()), &heard) && !begins(&a_to_b(listens()), &Leaving::default()));
        assert!(!begins(&a_to_b(json!({})), &heard) && !begins(&a_to_b(begun()), &heard));
        check(begun(), &Leaving::default(), None);
        check(begun(), &heard, Some(SourceStep::Send));
        check(begun(), &Leaving { sent: true, ..heard.clone() }, None);
        check(begun(), &told("before", Some(MigrationOutcome::Aborted)), Some(SourceStep::Send));
        check(begun(), &told("m", None), None);
        check(begun(), &Leaving { refused: Some("no".into()), ..heard.clone() }, None);
        check(asked(), &heard, None);
        let mut uncertain = told("m", None);
        uncertain.progress.as_mut().unwrap().uncertain = true;
        check(begun(), &uncertain, Some(SourceStep::Resolve));
        check(asked(), &uncertain, Some(SourceStep::Resolve));
        check(asked(), &Leaving { sent: true, ..heard.clone() }, Some(SourceStep::Abort));
        check(asked(), &told("m", None), Some(SourceStep::Abort));
        check(asked(), &Leaving { abort_told: true, ..told("m", None) }, None);
        check(asked(), &told("m", Some(MigrationOutcome::Moved)), None);
        check(json!({"targetNodeAddress": "10.0.0.1", "failed": true}), &heard, None);
    }

    #[test]
    fn the_target_makes_ready_and_turns_away() {
        use TargetStep::{Connect, Expect, Listen, Plug, TurnAway};
        let check = |state: Value, known, expect: &[TargetStep]| assert_eq!(target(&a_to_b(state), known), expect);
        let fresh = Coming::default();
        let ready = Coming { connected: true, plugged: true, expected: true, listening: true, ..fresh };
        check(json!({}), fresh, &[Connect, Plug, Expect, Listen]);
        check(json!({}), ready, &[]);
        check(json!({}), Coming { connected: false, expected: false, ..ready }, &[Connect, Expect]);
        check(json!({"completed": true}), Coming { listening: false, arrived: true, ..ready }, &[]);
        check(json!({"completed": true}), Coming { arrived: true, plugged: true, ..fresh }, &[Connect]);
        check(json!({"failed": true, "completed": true}), ready, &[TurnAway]);
        check(json!({}), Coming { unfit: true, connected: true, ..Coming::default() }, &[TurnAway]);
        check(json!({"failed": true}), Coming { turned_away: true, ..ready }, &[]);
        check(json!({"failed": true}), fresh, &[]);
    }

    #[test]
    fn addresses() {
        let check = |state: Value, expect: Option<&str>| {
            assert_eq!(address(&a_to_b(state), 8187).map(|address| address.to_string()).as_deref(), expect);
        };
        check(json!({}), None);
        check(json!({"targetNodeAddress": "host"}), None);
        check(json!({"targetNodeAddress": "10.0.0.1"}), Some("10.0.0.1:8187"));
        let ports = json!({"targetNodeAddress": "fd00::1", "targetDirectMigrationNodePorts": {"9": 0}});
        check(ports, Some("[fd00::1]:9"));
    }
}
