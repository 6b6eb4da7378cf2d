//! Shares of what the server has at once: no client takes so much that nothing is left for others.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// So many for everybody together, so many for one client.
#[derive(Debug)]
pub(super) struct Shares {
    all: usize,
    each: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    total: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// One of them, given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    shares: Arc<Shares>,
    client: IpAddr,
}

impl Shares {
    pub(super) fn new(all: usize, each: usize) -> Arc<Self> {
        Arc::new(Self { all, each, held: Mutex::default() })
    }

    /// A share for this client, unless it or all have as many as they may.
    pub(super) fn take(self: &Arc<Self>, client: IpAddr) -> Option<Share> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let of_client = held.by_client.get(&client).copied().unwrap_or(0);
        if held.total >= self.all || of_client >= self.each {
            return None;
        }
        held.total += 1;
        held.by_client.insert(client, of_client + 1);
        drop(held);
        Some(Share { shares: self.clone(), client })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.total = held.total.saturating_sub(1);
        match held.by_client.get_mut(&self.client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(held.by_client.remove(&self.client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_leaves_something_to_others() {
        let shares = Shares::new(3, 2);
        let (greedy, modest) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (first, second) = (shares.take(greedy).unwrap(), shares.take(greedy).unwrap());
        assert!(shares.take(greedy).is_none());
        let third = shares.take(modest).unwrap();
        assert!(shares.take(modest).is_none(), "all are taken");
        drop(first);
        assert!(shares.take(modest).is_some());
        drop((second, third));
        assert!(shares.held.lock().unwrap().by_client.is_empty());
    }
}
