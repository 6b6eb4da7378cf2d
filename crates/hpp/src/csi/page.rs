//! Lists in pages.

use tonic::Status;

use crate::record;

/// The entries of a page, and what the next one is asked for with.
///
/// A token is the last id of the page before: it holds also when entries come and go meanwhile.
pub(super) fn of<T>(
    mut all: Vec<T>,
    id: impl Fn(&T) -> &str,
    max_entries: i32,
    starting_token: &str,
) -> Result<(Vec<T>, String), Status> {
    let most = usize::try_from(max_entries).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
    if !starting_token.is_empty() {
        if !record::is_id(starting_token) {
            return Err(Status::aborted(format!("starting_token {starting_token:?} is not one of this driver")));
        }
        all.retain(|entry| id(entry) > starting_token);
    }
    let mut next = String::new();
    if most > 0 && all.len() > most {
        all.truncate(most);
        next = all.last().map(|last| id(last).to_owned()).unwrap_or_default();
    }
    Ok((all, next))
}
