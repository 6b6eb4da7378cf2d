//! What is watched, where it is kept, and which queues hear of a change.

mod cluster;
mod copies;
mod guests;

use kit::Task;

use crate::{Context, stores::Changes};

/// Subscribes to everything, and watches what is read in one place, for as long as the tasks are held.
pub(crate) fn all(context: &Context, changes: &mut Changes) -> Vec<Task<()>> {
    guests::subscribe(context, changes);
    let mut tasks = copies::watches(context, changes);
    tasks.extend(cluster::watches(context, changes));
    tasks
}
