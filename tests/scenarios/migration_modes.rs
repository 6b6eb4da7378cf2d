//! A guest that has no time: what its migration policy allows is done to get it over.

use anyhow::Result;
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::mover::{Mover, Policy, with_mover};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("migration_modes_end_in_post_copy", end_in_post_copy)]
}

/// Moves the guest under this policy; the migration ends in `mode`.
fn moves(mover: &mut Mover, policy: &Value, mode: &str) -> Result<()> {
    let _policy = Policy::new(&mover.space, policy)?;
    let from = mover.node()?;
    let migration = mover.leave()?;
    mover.ended(&migration, "Succeeded")?;
    mover.arrived_in(&from, mode)
}

fn end_in_post_copy() -> Result<()> {
    with_mover(|mover| {
        let policy = json!({ "bandwidthPerMigration": "8Mi", "completionTimeoutPerGiB": 3, "allowPostCopy": true });
        moves(mover, &policy, "PostCopy")?;
        // What memory was still on the other node has come, every byte of it.
        mover.unharmed()
    })
}
