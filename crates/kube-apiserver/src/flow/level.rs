//! A PriorityLevelConfiguration, compiled: how many seats of the server's its requests have, lend and may borrow.

use serde_json::Value;

use apimachinery::pointer::text;

/// What is done with a request for which there is no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// It is refused.
    Reject,
    /// It waits in the shortest of a hand of queues that its flow is dealt.
    Queue {
        /// How many there are.
        queues: u64,
        /// How many a flow may wait in.
        hand: u64,
        /// How many requests one holds.
        length: usize,
    },
}

/// Seats of a limited level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seats {
    /// Its share of all.
    pub(crate) nominal: usize,
    /// What of these nobody else gets, though they are empty.
    pub(crate) kept: usize,
    /// What it may have at most, others' seats included.
    pub(crate) most: usize,
    pub(crate) full: Full,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) name: String,
    /// None is as many as come.
    pub(crate) seats: Option<Seats>,
}

/// Shares `total` seats out among the levels.
pub(super) fn share(levels: &[&Value], total: usize) -> Vec<Level> {
    let shares = |level: &Value| {
        let part = if is_limited(level) { "limited" } else { "exempt" };
        let default = if is_limited(level) { 30 } else { 0 };
        count(&level["spec"][part]["nominalConcurrencyShares"], default)
    };
    let all: u64 = levels.iter().map(|level| shares(level)).sum();
    let compiled = levels.iter().map(|level| Level {
        name: text(level, "/metadata/name").to_owned(),
        seats: is_limited(level).then(|| {
            let nominal = (total as u64 * shares(level)).div_ceil(all.max(1));
            seats(&level["spec"]["limited"], nominal, total)
        }),
    });
    compiled.collect()
}

fn is_limited(level: &Value) -> bool {
    text(level, "/spec/type") != "Exempt"
}

fn count(value: &Value, default: u64) -> u64 {
    // Stored numbers are below 2^31.
    value.as_u64().unwrap_or(default).min(i32::MAX as u64)
}

fn seats(limited: &Value, nominal: u64, total: usize) -> Seats {
    let percent = |percent: u64| (nominal * percent + 50) / 100;
    let lent = percent(count(&limited["lendablePercent"], 0)).min(nominal);
    let most = match &limited["borrowingLimitPercent"] {
        Value::Null => total,
        limit => size(nominal + percent(count(limit, 0))).min(total),
    };
    let response = &limited["limitResponse"];
    let queuing = &response["queuing"];
    let full = match text(response, "/type") {
        "Queue" => Full::Queue {
            queues: count(&queuing["queues"], 64).max(1),
            hand: count(&queuing["handSize"], 8).clamp(1, count(&queuing["queues"], 64).max(1)),
            length: size(count(&queuing["queueLengthLimit"], 50)),
        },
        _ => Full::Reject,
    };
    Seats { nominal: size(nominal), kept: size(nominal - lent), most: most.max(size(nominal)).min(total), full }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Bits of a hash that are used up when `hand` of `queues` are dealt; those of a larger hand are at least as many.
pub(crate) fn entropy(queues: u64, hand: u64) -> u32 {
    const LARGEST: u64 = 100;
    let bits: f64 = (0..hand.min(queues).min(LARGEST)).map(|dealt| ((queues - dealt) as f64).log2()).sum();
    bits.ceil() as u32
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::flow::shipped;

    #[test]
    fn seats_are_shared_as_shares_say() {
        let objects = shipped::levels();
        let levels = share(&objects.iter().collect::<Vec<_>>(), 400);
        let said: Vec<String> = levels
            .iter()
            .map(|level| match level.seats {
                Some(seats) => format!("{} {} {} {}", level.name, seats.nominal, seats.kept, seats.most),
                None => level.name.clone(),
            })
            .collect();
        let expect = [
            "exempt",
            "catch-all 9 9 400",
            "system 49 33 400",
            "node-high 66 49 400",
            "leader-election 17 17 400",
            "workload-high 66 33 400",
            "workload-low 164 16 400",
            "global-default 33 16 400",
        ];
        assert_eq!(said, expect);
    }

    #[test]
    fn borrowing_has_the_limit_that_is_set() {
        let level = |limit: Value| {
            let object = json!({"metadata": {"name": "l"}, "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": 10, "borrowingLimitPercent": limit, "limitResponse": {"type": "Reject"}}}});
            share(&[&object, &json!({"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 30}}})], 40)[0]
                .seats
                .unwrap()
        };
        assert_eq!((level(json!(null)).nominal, level(json!(null)).most), (10, 40));
        assert_eq!(level(json!(0)).most, 10);
        assert_eq!(level(json!(150)).most, 25);
        assert_eq!(level(json!(2_000_000_000)).most, 40);
        assert_eq!(level(json!(0)).full, Full::Reject);
    }

    #[test]
    fn hands_need_bits() {
        let check = |queues, hand, expect| assert_eq!(entropy(queues, hand), expect, "{hand} of {queues}");
        check(1, 1, 0);
        check(64, 6, 36);
        check(128, 6, 42);
        check(512, 8, 72);
        check(10_000_000, 2, 47);
        assert!(entropy(10_000_000, 10_000_000) > 60);
    }
}
