//! A migration is given up at any moment and from any side: one guest runs, the one that ran, and nothing is left.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machine::{phase, uid};
use e2e::wait::{SOON, throughout, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::eviction::evict;
use crate::long;
use crate::mover::{Mover, NAME, Policy, with_mover};
use crate::two_nodes;

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("migration_is_cancelled_at_any_moment", at_any_moment)]
}

/// Who gives it up, and how.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// The migration is deleted.
    Object,
    /// `virtctl migrate-cancel`.
    Machine,
}

fn cancel(mover: &Mover, migration: &str, side: Side) -> Result<()> {
    match side {
        Side::Object => mover.space.kubectl(&["delete", "vmim", migration, "--wait=false"]).map(drop),
        Side::Machine => mover.space.virtctl(&["migrate-cancel", NAME]).map(drop),
    }
}

/// Nothing is left of it, and the guest is alone where it was.
fn gone(mover: &Mover, migration: &str, on: &str) -> Result<()> {
    mover.space.wait_for(2 * SOON, "vmim", migration, "was gone", Value::is_null)?;
    mover.alone()?;
    ensure!(mover.node()? == on, "it was on {on} and is on {}", mover.node()?);
    Ok(())
}

fn at_any_moment() -> Result<()> {
    with_mover(|mover| {
        let on = mover.node()?;

        // At once: whatever was begun of it by then.
        let migration = mover.leave()?;
        cancel(mover, &migration, Side::Object)?;
        gone(mover, &migration, &on)?;

        // No node has what it asks for.
        let migration = mover.leave_for(&json!({ "e2e/nowhere": "" }))?;
        mover.reaches(&migration, "Scheduling")?;
        cancel(mover, &migration, Side::Machine)?;
        gone(mover, &migration, &on)?;

        // All is ready, and the source's agent does not come to it.
        let stopped = two_nodes::handler(&on)?.freeze()?;
        let migration = mover.leave()?;
        mover.reaches(&migration, "TargetReady")?;
        cancel(mover, &migration, Side::Machine)?;
        drop(stopped);
        gone(mover, &migration, &on)?;

        // Just begun, and while memory is sent.
        let slow = Policy::new(&mover.space, &json!({ "bandwidthPerMigration": "1Mi" }))?;
        let migration = mover.leave()?;
        mover.reaches(&migration, "Running")?;
        cancel(mover, &migration, Side::Machine)?;
        gone(mover, &migration, &on)?;
        let migration = mover.leave()?;
        mover.under_way()?;
        mover.space.kubectl(&["delete", "vmim", &migration, "--timeout=60s"])?;
        let state = mover.vmi()?["status"]["migrationState"].clone();
        ensure!(state["abortStatus"] == "Succeeded" && state["failed"] == true, "{state}");
        ensure!(state["failureReason"] == "Live migration aborted", "{state}");
        gone(mover, &migration, &on)?;
        an_evacuation(mover, &on)?;
        drop(slow);
        mover.unharmed()?;
        near_the_end(mover)
    })
}

/// Somebody drains the node, and thinks better of it.
fn an_evacuation(mover: &Mover, on: &str) -> Result<()> {
    let pod = mover.pod()?;
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let refused = evict(&mover.space, name)?;
    ensure!(!refused.status.success(), "the pod of a guest that can move was evicted");
    mover.under_way()?;
    until("the evacuation to be cancelled", SOON, || {
        mover.space.virtctl(&["evacuate-cancel", "vmi", NAME])?;
        Ok(mover.vmi()?["status"]["evacuationNodeName"].is_null().then_some(()))
    })?;
    // What is under way goes on until that is cancelled too, and nothing comes after it.
    mover.space.virtctl(&["migrate-cancel", NAME])?;
    let running = || -> Result<usize> {
        let all = mover.space.list("vmim", "")?;
        Ok(all.iter().filter(|found| !matches!(phase(found), "Succeeded" | "Failed")).count())
    };
    until("the migration of the evacuation to end", 2 * SOON, || Ok((running()? == 0).then_some(())))?;
    mover.alone()?;
    ensure!(mover.node()? == on, "it was on {on} and is on {}", mover.node()?);
    Ok(())
}

/// Ever later after its start: the guest stays or has moved, and the status says which.
fn near_the_end(mover: &mut Mover) -> Result<()> {
    for after in [400, 900, 1500] {
        let from = mover.node()?;
        let migration = mover.leave()?;
        let this = uid(&mover.space.get("vmim", &migration)?).to_owned();
        let begun = |vmi: &Value| {
            let state = &vmi["status"]["migrationState"];
            state["startTimestamp"].is_string() && state["migrationUid"] == this.as_str()
        };
        mover.space.wait_for(2 * SOON, "vmi", NAME, "had begun to move", begun)?;
        throughout(Duration::from_millis(after), || Ok(()))?;
        cancel(mover, &migration, Side::Object)?;
        mover.space.wait_for(2 * SOON, "vmim", &migration, "was gone", Value::is_null)?;
        mover.alone()?;
        let vmi = mover.vmi()?;
        let state = &vmi["status"]["migrationState"];
        let moved = vmi["status"]["nodeName"] != from.as_str();
        ensure!(state["endTimestamp"].is_string(), "{state}");
        ensure!((state["completed"] == true && state["failed"] != true) == moved, "moved: {moved}, but {state}");
    }
    mover.unharmed().context("after migrations that were cancelled near their end")
}
