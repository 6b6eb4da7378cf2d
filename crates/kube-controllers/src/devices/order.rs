//! What the claims of a pod ask for, made ready for the search: which devices each request could have, on whatever node.
//! Pure.
//!
//! Every selector is evaluated here, once for each device, and all of them are paid from one budget.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::cel::device::Selector;
use apimachinery::cel::{Budget, Fault};

use super::inventory::{Inventory, Offer};
use super::kinds::{ClassSpec, Configuration, DeviceRequest, ResourceClaim, Taint, Told, Toleration, Wish};

/// What the selectors of one pod's claims may cost together: a fraction of a second.
const BUDGET: u64 = 2_000_000;
/// Bytes of different expressions in one pod's claims together at most: each is parsed for each attempt to place the pod.
const EXPRESSIONS: usize = 128 * 1024;
/// Claims of one pod at most, the ways to satisfy their requests together, and devices that they ask for by number.
pub(crate) const REQUESTS: usize = 256;
/// Devices of one claim at most.
pub(crate) const DEVICES: usize = 32;

/// Whether a device suits a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Yes,
    No,
    /// A selector failed on it.
    Fails(String),
}

/// How many devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Count(usize),
    All,
}

/// One way to satisfy a request.
#[derive(Debug)]
pub(crate) struct Way {
    /// `request`, or `request/subrequest`.
    pub(crate) name: String,
    pub(crate) class: String,
    pub(crate) amount: Amount,
    pub(crate) admin: bool,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) config: Vec<Configuration>,
    /// By the number of the offer.
    pub(crate) fits: Vec<Fit>,
}

impl Way {
    fn count(&self) -> usize {
        match self.amount {
            Amount::Count(count) => count,
            Amount::All => 1,
        }
    }

    /// Whether the request tolerates all that keeps others off the device.
    pub(crate) fn tolerates(&self, offer: &Offer) -> bool {
        let harmful = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        offer.taints.iter().filter(harmful).all(|taint| self.tolerations.iter().any(|t| tolerates(t, taint)))
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    (effect.is_empty() || effect == taint.effect)
        && ((key.is_empty() && exists) || key == taint.key)
        && (exists || text(&toleration.value) == text(&taint.value))
}

/// A claim that needs devices.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) claim: Arc<ResourceClaim>,
    /// For each request the ways to satisfy it, the best first.
    pub(crate) requests: Vec<Vec<Way>>,
}

impl Item {
    pub(crate) fn name(&self) -> &str {
        self.claim.metadata.name.as_deref().unwrap_or_default()
    }

    /// What the drivers are told of the ways that were chosen.
    pub(crate) fn told(&self, ways: &[&Way]) -> Vec<Told> {
        let mut told = Vec::new();
        for way in ways {
            told.extend(way.config.iter().map(|config| Told {
                source: "FromClass".into(),
                requests: vec![way.name.clone()],
                opaque: config.opaque.clone(),
            }));
        }
        for config in &self.claim.spec.devices.config {
            if ways.iter().any(|way| concerns(&config.requests, &way.name)) {
                told.push(Told {
                    source: "FromClaim".into(),
                    requests: config.requests.clone(),
                    opaque: config.opaque.clone(),
                });
            }
        }
        told
    }
}

/// Whether a list of requests names the way; an empty one names all.
pub(crate) fn concerns(requests: &[String], way: &str) -> bool {
    let main = way.split('/').next().unwrap_or(way);
    requests.is_empty() || requests.iter().any(|request| request == way || request == main)
}

/// All claims of a pod that need devices.
#[derive(Debug, Default)]
pub(crate) struct Order {
    pub(crate) items: Vec<Item>,
}

impl Order {
    /// Makes claims ready. `class` finds a class by name.
    ///
    /// # Errors
    /// Why they can be satisfied nowhere: which claim, and what of it.
    pub(crate) fn of(
        claims: Vec<Arc<ResourceClaim>>,
        class: &dyn Fn(&str) -> Option<ClassSpec>,
        inventory: &Inventory,
    ) -> Result<Self, String> {
        let ways = |request: &DeviceRequest| request.first_available.len().max(1);
        let total: usize = claims.iter().flat_map(|claim| &claim.spec.devices.requests).map(ways).sum();
        if claims.len().max(total) > REQUESTS {
            return Err(format!(
                "the pod has {} resourceclaims with {total} requests, and may have {REQUESTS} of each",
                claims.len()
            ));
        }
        let mut reader =
            Reader { class, inventory, budget: Budget::new(BUDGET), selectors: HashMap::new(), left: EXPRESSIONS };
        let mut items: Vec<Item> = Vec::new();
        for claim in claims {
            let mut requests = Vec::new();
            for request in &claim.spec.devices.requests {
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                requests.push(reader.request(request).map_err(|why| format!("resourceclaim {name:?}: {why}"))?);
            }
            items.push(Item { claim, requests });
        }
        let most = |ways: &Vec<Way>| ways.iter().map(Way::count).max().unwrap_or(0);
        let wanted: usize = items.iter().flat_map(|item| &item.requests).map(most).sum();
        if wanted > REQUESTS {
            return Err(format!("the pod's resourceclaims want {wanted} devices, which are more than {REQUESTS}"));
        }
        Ok(Self { items })
    }
}

/// Reads requests, and pays for what it takes.
struct Reader<'a> {
    class: &'a dyn Fn(&str) -> Option<ClassSpec>,
    inventory: &'a Inventory,
    budget: Budget,
    /// Those that were parsed, by what is written.
    selectors: HashMap<String, Arc<Selector>>,
    /// Bytes of expressions that may still be parsed.
    left: usize,
}

impl Reader<'_> {
    fn request(&mut self, request: &DeviceRequest) -> Result<Vec<Way>, String> {
        let exact = request.exactly.iter().map(|wish| (request.name.clone(), wish));
        let listed = request.first_available.iter().map(|wish| (format!("{}/{}", request.name, wish.name), wish));
        let mut ways = Vec::new();
        for (name, wish) in exact.chain(listed) {
            ways.push(self.way(&name, wish).map_err(|why| format!("request {name:?}: {why}"))?);
        }
        if ways.is_empty() {
            return Err(format!("request {:?} is of a type that is not known here", request.name));
        }
        Ok(ways)
    }

    fn way(&mut self, name: &str, wish: &Wish) -> Result<Way, String> {
        let class = wish.device_class_name.as_str();
        let found = (self.class)(class).ok_or_else(|| format!("deviceclass {class:?} does not exist"))?;
        let amount = match wish.allocation_mode.as_deref().unwrap_or("ExactCount") {
            "All" => Amount::All,
            "ExactCount" => {
                let count = usize::try_from(wish.count.unwrap_or(1)).unwrap_or(usize::MAX);
                if count > DEVICES {
                    return Err(format!("a claim has at most {DEVICES} devices, not {count}"));
                }
                Amount::Count(count)
            }
            other => return Err(format!("allocationMode {other:?} is not known here")),
        };
        // The class comes first: what is of another driver is not asked about the attributes of this one.
        let mut selectors = Vec::new();
        for cel in found.selectors.iter().chain(&wish.selectors).filter_map(|selector| selector.cel.as_ref()) {
            selectors.push(self.selector(&cel.expression)?);
        }
        let inventory = self.inventory;
        let mut fits = Vec::with_capacity(inventory.offers.len());
        for offer in &inventory.offers {
            let Some(fit) = fit(&selectors, offer, &mut self.budget) else {
                let many = inventory.offers.len();
                return Err(format!("the selectors of the pod's claims cost more than {BUDGET} for {many} devices"));
            };
            fits.push(fit);
        }
        Ok(Way {
            name: name.to_owned(),
            class: class.to_owned(),
            amount,
            admin: wish.admin_access == Some(true),
            tolerations: wish.tolerations.clone(),
            config: found.config,
            fits,
        })
    }

    fn selector(&mut self, expression: &str) -> Result<Arc<Selector>, String> {
        if let Some(known) = self.selectors.get(expression) {
            return Ok(known.clone());
        }
        self.left = self
            .left
            .checked_sub(expression.len())
            .ok_or_else(|| format!("the selectors of the pod's claims are longer than {EXPRESSIONS} bytes together"))?;
        let parsed = Selector::compile(expression).map_err(|why| format!("selector {:?}: {why}", short(expression)))?;
        let parsed = Arc::new(parsed);
        self.selectors.insert(expression.to_owned(), parsed.clone());
        Ok(parsed)
    }
}

/// None when the budget is spent.
fn fit(selectors: &[Arc<Selector>], offer: &Offer, budget: &mut Budget) -> Option<Fit> {
    for selector in selectors {
        match selector.fits(offer.facts(), budget) {
            Ok(true) => {}
            Ok(false) => return Some(Fit::No),
            Err(Fault::Spent) => return None,
            Err(Fault::Error(why)) => return Some(Fit::Fails(why)),
        }
    }
    Some(Fit::Yes)
}

/// A text for messages.
fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
