//! Which devices a pod's claims get on a node. Pure.
//!
//! A search with steps back: each request takes devices in their order, the first way of it that can be had counts, and
//! what comes later may make an earlier one take others. Guarantee: it ends after a fixed number of steps.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::inventory::{Id, Inventory, reaches};
use super::kinds::{Allocated, AllocatedDevices, Allocation};
use super::order::{Amount, DEVICES, Fit, Item, Order, Way, concerns};

/// Devices looked at on one node at most; what each has to be compared with counts as well.
const STEPS: usize = 20_000;
/// The same on all nodes together, for one attempt to place a pod.
const ALL_STEPS: usize = 10 * STEPS;

/// The allocation of each claim, in the order's order. `spent` counts the steps on all nodes that were tried.
///
/// # Errors
/// Which claim cannot be satisfied on the node, and why.
pub(crate) fn allocate(
    order: &Order,
    inventory: &Inventory,
    taken: &HashSet<Id>,
    node: &Node,
    spent: &Cell<usize>,
) -> Result<Vec<Allocation>, String> {
    let here = |index: &usize| inventory.offers.get(*index).is_some_and(|offer| reaches(&offer.place, node));
    let visible: Vec<usize> = (0..inventory.offers.len()).filter(here).collect();
    let free = visible.iter().copied().filter(|index| !taken.contains(&inventory.offers[*index].id)).collect();
    let most = STEPS.min(ALL_STEPS.saturating_sub(spent.get()));
    let mut search = Search {
        order,
        inventory,
        visible,
        free,
        incomplete: inventory.incomplete_on(node),
        candidates: HashMap::new(),
        chosen: Vec::new(),
        most,
        steps: 0,
        why: None,
    };
    if let Some(why) = search.shortage() {
        return Err(format!("cannot allocate {why}"));
    }
    let found = search.request(0, 0);
    spent.set(spent.get().saturating_add(search.steps));
    if found {
        return Ok(search.allocations(node));
    }
    if search.steps > most {
        return Err(format!("cannot allocate the pod's resourceclaims: gave up after {most} combinations of devices"));
    }
    let (_, _, why) = search.why.unwrap_or_default();
    Err(format!("cannot allocate {why}"))
}

/// Devices by their number.
type Candidates = Rc<[usize]>;

/// A device for a request.
struct Pick<'a> {
    claim: usize,
    way: &'a Way,
    offer: usize,
}

/// One way to satisfy a request, as it is tried.
struct Try<'a> {
    claim: usize,
    request: usize,
    item: &'a Item,
    way: &'a Way,
    /// The devices that it could have if nothing else were asked for.
    candidates: Candidates,
}

struct Search<'a> {
    order: &'a Order,
    inventory: &'a Inventory,
    /// The devices that can be used on the node.
    visible: Vec<usize>,
    /// Those of them that no other claim has.
    free: HashSet<usize>,
    incomplete: Option<&'a str>,
    /// What ways could have, by claim, request and way; or why nothing.
    candidates: HashMap<(usize, usize, usize), Result<Candidates, String>>,
    chosen: Vec<Pick<'a>>,
    /// Steps at most.
    most: usize,
    steps: usize,
    /// How far it came at best, and what stopped it there.
    why: Option<(usize, usize, String)>,
}

impl<'a> Search<'a> {
    /// Whether requests for the same devices want more than there are. The search would try them in every order first.
    fn shortage(&mut self) -> Option<String> {
        let order = self.order;
        let mut wanted: HashMap<Candidates, usize> = HashMap::new();
        for (claim, item) in order.items.iter().enumerate() {
            for (request, ways) in item.requests.iter().enumerate() {
                let [way] = ways.as_slice() else { continue };
                let (Amount::Count(count), false) = (way.amount, way.admin) else { continue };
                let Ok(candidates) = self.candidates(claim, request, 0, item, way) else { continue };
                let many = candidates.len();
                let so_far = wanted.entry(candidates).or_default();
                *so_far += count;
                if *so_far > many {
                    return Some(self.lacking(item, way));
                }
            }
        }
        None
    }

    /// Satisfies this request of this claim and all after it.
    fn request(&mut self, claim: usize, request: usize) -> bool {
        let order = self.order;
        let Some(item) = order.items.get(claim) else { return true };
        let Some(ways) = item.requests.get(request) else { return self.request(claim + 1, 0) };
        for (number, way) in ways.iter().enumerate() {
            if self.steps > self.most {
                return false;
            }
            let candidates = match self.candidates(claim, request, number, item, way) {
                Ok(candidates) => candidates,
                Err(why) => {
                    self.stopped(claim, request, why);
                    continue;
                }
            };
            let attempt = Try { claim, request, item, way, candidates };
            let done = match way.amount {
                Amount::Count(count) => self.some(&attempt, count, 0),
                Amount::All => self.all(&attempt),
            };
            if done {
                return true;
            }
        }
        false
    }

    /// What the way could have on the node, were nothing else asked for. A selector must not fail on any device there.
    fn candidates(
        &mut self,
        claim: usize,
        request: usize,
        number: usize,
        item: &Item,
        way: &Way,
    ) -> Result<Candidates, String> {
        let key = (claim, request, number);
        if let Some(known) = self.candidates.get(&key) {
            return known.clone();
        }
        let failing = self.visible.iter().find_map(|index| match way.fits.get(*index) {
            Some(Fit::Fails(why)) => Some((*index, why)),
            _ => None,
        });
        let found: Result<Candidates, String> = match failing {
            Some((index, error)) => {
                let (driver, pool, device) = &self.inventory.offers[index].id;
                let (claim, name) = (item.name(), &way.name);
                let device = format!("{driver}/{pool}/{device}");
                Err(format!("resourceclaim {claim:?}: request {name:?}: a selector fails on device {device}: {error}"))
            }
            None => Ok(self.visible.iter().copied().filter(|index| self.suits(way, *index)).collect()),
        };
        self.candidates.insert(key, found.clone());
        found
    }

    fn suits(&self, way: &Way, offer: usize) -> bool {
        way.fits.get(offer) == Some(&Fit::Yes)
            && way.tolerates(&self.inventory.offers[offer])
            && (way.admin || self.free.contains(&offer))
    }

    /// Takes so many more devices out of the candidates from a place on.
    fn some(&mut self, attempt: &Try<'a>, more: usize, from: usize) -> bool {
        if more == 0 {
            return self.request(attempt.claim, attempt.request + 1);
        }
        for (at, offer) in attempt.candidates.iter().enumerate().skip(from) {
            if attempt.candidates.len() - at < more {
                break;
            }
            self.steps += 1 + attempt.item.claim.spec.devices.constraints.len();
            if self.steps > self.most {
                return false;
            }
            if !self.may(attempt, *offer) {
                continue;
            }
            self.chosen.push(Pick { claim: attempt.claim, way: attempt.way, offer: *offer });
            if self.some(attempt, more - 1, at + 1) {
                return true;
            }
            self.chosen.pop();
        }
        if self.is_further(attempt.claim, attempt.request) {
            let why = self.lacking(attempt.item, attempt.way);
            self.stopped(attempt.claim, attempt.request, why);
        }
        false
    }

    /// Takes every device that suits; all of them have to be free.
    fn all(&mut self, attempt: &Try<'a>) -> bool {
        let Try { claim, request, item, way, .. } = *attempt;
        let head = format!("resourceclaim {:?}: request {:?}", item.name(), way.name);
        if let Some(pool) = self.incomplete {
            self.stopped(claim, request, format!("{head} wants all devices, and pool {pool} is not complete yet"));
            return false;
        }
        let suits = |index: &&usize| way.fits.get(**index) == Some(&Fit::Yes);
        let suiting: Vec<usize> = self.visible.iter().filter(suits).copied().collect();
        let before = self.chosen.len();
        for offer in &suiting {
            self.steps += 1 + item.claim.spec.devices.constraints.len();
            if self.steps > self.most || !self.suits(way, *offer) || !self.may(attempt, *offer) {
                break;
            }
            self.chosen.push(Pick { claim, way, offer: *offer });
        }
        if !suiting.is_empty() && self.chosen.len() - before == suiting.len() && self.request(claim, request + 1) {
            return true;
        }
        self.chosen.truncate(before);
        let why = match suiting.len() {
            0 => format!("{head} wants all devices of class {:?}, and there are none", way.class),
            many => format!("{head} wants all {many} devices of class {:?}, and not all can be had", way.class),
        };
        self.stopped(claim, request, why);
        false
    }

    /// Whether a candidate can be taken beside what was chosen.
    fn may(&self, attempt: &Try<'_>, offer: usize) -> bool {
        let (device, way, claim) = (&self.inventory.offers[offer], attempt.way, attempt.claim);
        let own = || self.chosen.iter().filter(move |pick| pick.claim == claim);
        (way.admin || self.chosen.iter().all(|pick| pick.way.admin || pick.offer != offer))
            && own().count() < DEVICES
            && attempt.item.claim.spec.devices.constraints.iter().all(|constraint| {
                let concerned = |way: &Way| concerns(&constraint.requests, &way.name);
                let Some(name) = constraint.match_attribute.as_deref().filter(|_| concerned(way)) else { return true };
                let Some(value) = device.attribute(name) else { return false };
                own()
                    .filter(|pick| concerned(pick.way))
                    .all(|pick| self.inventory.offers[pick.offer].attribute(name) == Some(value))
            })
    }

    /// Why a request does not get its number of devices.
    fn lacking(&self, item: &Item, way: &Way) -> String {
        let Amount::Count(wanted) = way.amount else { return String::new() };
        let suit = |index: &&usize| way.fits.get(**index) == Some(&Fit::Yes);
        let suiting: Vec<usize> = self.visible.iter().filter(suit).copied().collect();
        let tolerated = suiting.iter().filter(|index| way.tolerates(&self.inventory.offers[**index])).count();
        let free = suiting.iter().filter(|index| way.admin || self.free.contains(*index)).count();
        let (claim, name, class, many) = (item.name(), &way.name, &way.class, suiting.len());
        format!(
            "resourceclaim {claim:?}: request {name:?} wants {wanted} device(s) of class {class:?}: {many} suit, \
             {free} of them free, {tolerated} with no taint that it does not tolerate"
        )
    }

    fn is_further(&self, claim: usize, request: usize) -> bool {
        self.why.as_ref().is_none_or(|(c, r, _)| (*c, *r) < (claim, request))
    }

    fn stopped(&mut self, claim: usize, request: usize, why: String) {
        if self.is_further(claim, request) {
            self.why = Some((claim, request, why));
        }
    }

    fn allocations(&self, node: &Node) -> Vec<Allocation> {
        let one = |(number, item): (usize, &Item)| {
            let picks: Vec<&Pick<'_>> = self.chosen.iter().filter(|pick| pick.claim == number).collect();
            let mut ways: Vec<&Way> = Vec::new();
            for pick in &picks {
                if !ways.iter().any(|way| way.name == pick.way.name) {
                    ways.push(pick.way);
                }
            }
            let results = picks.iter().map(|pick| {
                let (driver, pool, device) = self.inventory.offers[pick.offer].id.clone();
                Allocated {
                    request: pick.way.name.clone(),
                    driver,
                    pool,
                    device,
                    admin_access: pick.way.admin.then_some(true),
                    tolerations: pick.way.tolerations.clone(),
                }
            });
            Allocation {
                devices: AllocatedDevices { results: results.collect(), config: item.told(&ways) },
                node_selector: self.selector(&picks, node),
            }
        };
        self.order.items.iter().enumerate().map(one).collect()
    }

    /// Where the devices can be used together.
    fn selector(&self, picks: &[&Pick<'_>], node: &Node) -> Option<NodeSelector> {
        let places: Vec<_> = picks.iter().map(|pick| &self.inventory.offers[pick.offer].place).collect();
        let mut term = NodeSelectorTerm::default();
        if places.iter().any(|place| place.node_name.is_some()) {
            term.match_fields = Some(vec![NodeSelectorRequirement {
                key: "metadata.name".into(),
                operator: "In".into(),
                values: Some(vec![node.metadata.name.clone().unwrap_or_default()]),
            }]);
            return Some(NodeSelector { node_selector_terms: vec![term] });
        }
        let theirs = places.iter().filter(|place| place.all_nodes != Some(true));
        for given in theirs.filter_map(|place| place.node_selector.as_ref()?.node_selector_terms.first()) {
            for (from, into) in
                [(&given.match_expressions, &mut term.match_expressions), (&given.match_fields, &mut term.match_fields)]
            {
                for requirement in from.iter().flatten() {
                    let known = into.get_or_insert_default();
                    if !known.contains(requirement) {
                        known.push(requirement.clone());
                    }
                }
            }
        }
        (term != NodeSelectorTerm::default()).then(|| NodeSelector { node_selector_terms: vec![term] })
    }
}

#[cfg(test)]
#[path = "allocate/tests.rs"]
mod tests;
