//! What is watched, where it is kept, and which queues hear of a change.

mod cluster;
mod copies;
mod guests;

use kit::Task;

use crate::Context;

/// Watches everything, for as long as the tasks are held.
pub(crate) fn all(context: &Context) -> Vec<Task<()>> {
    [guests::watches(context), copies::watches(context), cluster::watches(context)].into_iter().flatten().collect()
}
