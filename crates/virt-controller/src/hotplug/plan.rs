//! Which attachment pods a guest needs. Pure.
//!
//! A pod keeps the volumes it was made with, so what is added comes in a pod of its own, at once. While many are starting, what
//! is added then waits and comes in one pod together: a node has room for so many pods. When too many run, one new pod
//! takes over the volumes of the small ones: to mount all of them anew each time would take longer with each; and when a volume has gone, a new pod takes over what else its pod has. No pod
//! goes before another one that runs has what the guest still uses. A claim that one pod at a time may use
//! (ReadWriteOncePod) has a pod to itself, and is never taken over.

use std::collections::BTreeSet;

/// Pods that run beside which no further one is made: their volumes are put together. And pods that are starting beside which
/// none is made.
const MANY: usize = 6;

/// A volume that is to be on the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// Its name.
    pub volume: String,
    /// Its claim.
    pub claim: String,
    /// It is a block device.
    pub block: bool,
    /// Nothing is written to it.
    pub read_only: bool,
    /// No second pod may use its claim.
    pub alone: bool,
}

/// An attachment pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Names of volumes, and their claims.
    pub volumes: BTreeSet<(String, String)>,
    /// Its container runs.
    pub runs: bool,
    /// It was deleted.
    pub ending: bool,
    /// It has run to its end.
    pub ended: bool,
}

impl Holder {
    /// Whether volumes are to be had of it, now or soon.
    pub fn is_live(&self) -> bool {
        !self.ending && !self.ended
    }

    /// Whether it has the volume `name` on this claim.
    pub fn has(&self, name: &str, claim: &str) -> bool {
        self.volumes.iter().any(|(volume, on)| volume == name && on == claim)
    }
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Pods to create, by their volumes.
    pub create: Vec<Vec<Wanted>>,
    /// Names of pods to delete.
    pub delete: Vec<String>,
}

/// The plan for a guest that is to have `wanted` and still has `used`, volumes that nothing names any more.
pub fn plan(wanted: &[Wanted], used: &BTreeSet<String>, holders: &[Holder]) -> Plan {
    let mut plan = Plan::default();
    let ended = holders.iter().filter(|holder| holder.ended && !holder.ending);
    plan.delete.extend(ended.map(|holder| holder.name.clone()));

    let is_wanted = |volume: &str, claim: &str| wanted.iter().any(|w| w.volume == volume && w.claim == claim);
    let live: Vec<&Holder> = holders.iter().filter(|holder| holder.is_live()).collect();
    // A pod whose every volume is needed stays as it is.
    let whole = |holder: &Holder| holder.volumes.iter().all(|(name, on)| is_wanted(name, on) || used.contains(name));
    let kept: Vec<&Holder> = live.iter().copied().filter(|holder| whole(holder)).collect();
    let missing: Vec<&Wanted> =
        wanted.iter().filter(|w| !kept.iter().any(|holder| holder.has(&w.volume, &w.claim))).collect();
    let (alone, shared): (Vec<&Wanted>, Vec<&Wanted>) = missing.into_iter().partition(|w| w.alone);
    // In whole it goes with its pod, which no other may replace.
    let replaceable = |w: &&Wanted| !w.alone;
    let (running, starting): (Vec<&Holder>, Vec<&Holder>) = kept.iter().partition(|holder| holder.runs);
    // However many run, once none is starting, one more takes over what they have, and then they go.
    let has_room = starting.is_empty() || (starting.len() < MANY && kept.len() < 2 * MANY);
    if !shared.is_empty() && has_room {
        let taken =
            if running.len() >= MANY && starting.is_empty() { small(&running, shared.len()) } else { Vec::new() };
        let comes = |w: &&Wanted| shared.contains(w) || taken.iter().any(|holder| holder.has(&w.volume, &w.claim));
        plan.create.push(wanted.iter().filter(replaceable).filter(comes).cloned().collect());
    }
    plan.create.extend(alone.into_iter().map(|w| vec![w.clone()]));

    // The smallest first: what is left is few pods with much.
    let mut rest: Vec<&Holder> = live;
    rest.sort_by_key(|holder| (holder.volumes.len(), &holder.name));
    for holder in rest.clone() {
        // One that is to go itself takes nothing over.
        let others = || rest.iter().filter(|other| other.runs && other.name != holder.name && whole(other));
        let spare = holder.volumes.iter().all(|(name, on)| {
            let needed = is_wanted(name, on) || used.contains(name);
            !needed || others().any(|other| other.has(name, on))
        });
        if spare {
            plan.delete.push(holder.name.clone());
            rest.retain(|other| other.name != holder.name);
        }
    }
    plan
}

/// Pods whose volumes a new one with `count` others takes over: each that has no more than the new one has by then. What is
/// left are few pods, each much larger than the next, and a volume is taken over seldom.
fn small<'a>(running: &[&'a Holder], count: usize) -> Vec<&'a Holder> {
    let mut by_size = running.to_vec();
    by_size.sort_by_key(|holder| (holder.volumes.len(), &holder.name));
    let mut sum = count;
    let fits = |holder: &&Holder| {
        let fits = holder.volumes.len() <= sum;
        sum += holder.volumes.len();
        fits
    };
    by_size.into_iter().take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(names: &str) -> Vec<Wanted> {
        names
            .split_whitespace()
            .map(|name| Wanted {
                volume: name.to_lowercase(),
                claim: name.to_lowercase(),
                block: false,
                read_only: false,
                alone: name.chars().all(char::is_uppercase),
            })
            .collect()
    }

    /// `p:ab` runs, `p?ab` does not yet, `p!ab` has ended.
    fn holders(text: &str) -> Vec<Holder> {
        let one = |word: &str| {
            let at = word.find([':', '?', '!']).unwrap();
            let (name, rest) = word.split_at(at);
            let (kind, volumes) = rest.split_at(1);
            Holder {
                name: name.to_owned(),
                volumes: volumes.chars().map(|c| (c.to_string(), c.to_string())).collect(),
                runs: kind == ":",
                ended: kind == "!",
                ..Holder::default()
            }
        };
        text.split_whitespace().map(one).collect()
    }

    /// `create` are sets of volumes, `delete` names of pods.
    #[track_caller]
    fn check(want: &str, used: &str, have: &str, create: &str, delete: &str) {
        let used = used.split_whitespace().map(str::to_owned).collect();
        let plan = plan(&wanted(want), &used, &holders(have));
        let sets: Vec<String> = plan.create.iter().map(|set| set.iter().map(|w| w.volume.as_str()).collect()).collect();
        assert_eq!((sets.join(" "), plan.delete.join(" ")), (create.to_owned(), delete.to_owned()));
    }

    #[test]
    fn added_volumes_get_a_new_attachment_pod() {
        check("", "", "", "", "");
        check("a b", "", "", "ab", "");
        check("a b", "", "p?ab", "", "");
        check("a b c", "", "p:ab", "c", "");
    }

    #[test]
    fn many_pods_become_one() {
        let six = "p1:a p2:b p3:c p4:d p5:e p6:f";
        check("a b c d e f g", "", six, "abcdefg", "");
        check("a b c d e f g", "", &format!("{six} p7?abcdefg"), "", "");
        check("a b c d e f g", "", &format!("{six} p7:abcdefg"), "", "p1 p2 p3 p4 p5 p6");
    }

    #[test]
    fn pods_with_much_are_left_alone() {
        let six = "p1:abcd p2:efgh p3:ij p4:k p5:l p6:m";
        check("a b c d e f g h i j k l m n", "", six, "abcdefghijklmn", "");
        let six = "p1:abcdefghij p2:klmn p3:o p4:p p5:q p6:r";
        let all = "a b c d e f g h i j k l m n o p q r s";
        check(all, "", six, "klmnopqrs", "");
        check(all, "", &format!("{six} p7:klmnopqrs"), "", "p3 p4 p5 p6 p2");
        let six = "p1:abcdefgh p2:ijkl p3:mnop p4:qr p5:st p6:uv";
        check("a b c d e f g h i j k l m n o p q r s t u v w", "", six, "w", "");
    }

    #[test]
    fn while_many_start_what_is_added_waits_and_comes_together() {
        let five = "p1?a p2?b p3?c p4?d p5?e";
        check("a b c d e f", "", five, "f", "");
        check("a b c d e f g h", "", &format!("{five} p6?f"), "", "");
        check("a b c d e f g h", "", &format!("{five} p6:f"), "gh", "");
        let six = "p1:a p2:b p3:c p4:d p5:e p6:f";
        check("a b c d e f g h", "", &format!("{six} p7?g"), "h", "");
        check("a b c d e f g h", "", &format!("{six} p7:g"), "abcdefgh", "");
        let twelve = format!("{six} p7:g p8:h p9:i q1:j q2:k");
        check("a b c d e f g h i j k l m", "", &format!("{twelve} q3?l"), "", "");
        check("a b c d e f g h i j k l m", "", &format!("{twelve} q3:l"), "abcdefghijklm", "");
    }

    #[test]
    fn an_attachment_pod_is_deleted_once_another_holds_its_remaining_volumes() {
        check("a", "b", "p:ab", "", "");
        check("a", "", "p:ab", "a", "");
        check("a", "", "p:ab q?a", "", "");
        check("a", "", "p:ab q:a", "", "p");
        check("", "", "p:ab", "", "p");
        check("", "a", "p:ab", "", "");
    }

    #[test]
    fn a_pod_that_ended_is_made_anew() {
        check("a", "", "p!a", "a", "p");
    }

    #[test]
    fn a_claim_for_one_pod_has_it_to_itself() {
        check("a B", "", "", "a b", "");
        check("a B c", "", "p:a q:b", "c", "");
        check("a B", "", "p1:b p2:c p3:d p4:e p5:f p6:g p7:h", "a", "p2 p3 p4 p5 p6 p7");
    }
}
