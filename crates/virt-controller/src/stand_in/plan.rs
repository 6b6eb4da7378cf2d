//! What to do next about a claim whose disk was copied, or is being copied, into another. Pure.
//!
//! ```text
//!   claim           its disk is here
//!     | migration: stand-ins are made, the disk is copied --failed--> DropStandIn
//!     v moved
//!   Point           claim says: my disk is on the stand-in    (moved again: another stand-in, the first is dropped)
//!   Rename          the running guest's spec names the stand-in
//!     | nobody uses it any more
//!     v
//!   Keep            the volume outlives its claims, and remembers the claim
//!   DropStandIn  -> Reserve (the volume is kept for the claim's name) -> DropClaim (the outdated disk goes)
//!     -> Create     the claim, on this volume
//!   Finish          the volume is as any other
//! ```
//! Nothing is remembered but in the objects, so that whoever leads goes on from where another stopped. The data has an
//! owner at every moment: a claim that is bound to its volume, or the volume's own policy to outlive claims. A claim that
//! somebody else creates under the name in between gets the volume, too.

use api::kubevirt::constants::label;
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;

use crate::facts::put_back::Record;
use crate::facts::{claims, instance, migration_state, stand_ins};

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Somebody else's turn.
    Wait,
    /// Say on the claim that its disk is on this stand-in.
    Point {
        /// Its name.
        stand_in: String,
    },
    /// Have a guest's spec name the stand-ins that its disks are on.
    Rename {
        /// The guest's name.
        guest: String,
    },
    /// Delete a stand-in.
    DropStandIn {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// Have the volume of this stand-in outlive its claims, if no pod uses it any more.
    Keep {
        /// The stand-in's name.
        stand_in: String,
    },
    /// Keep the volume for the claim's name.
    Reserve,
    /// Delete the claim with the outdated disk.
    DropClaim {
        /// Its UID.
        uid: String,
    },
    /// Create the claim again.
    Create,
    /// Give the volume its own policy back.
    Finish,
    /// Only a person can tell what is right.
    Complain(String),
}

/// Everything a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The claim.
    pub claim: Option<&'a PersistentVolumeClaim>,
    /// All that stand in for it.
    pub stand_ins: &'a [PersistentVolumeClaim],
    /// Guests that use it or a stand-in, or for which a stand-in was made.
    pub guests: &'a [VirtualMachineInstance],
    /// UIDs of migrations that are not over.
    pub unfinished: &'a [String],
    /// The volume that is being put back under the claim's name.
    pub volume: Option<&'a PersistentVolume>,
}

/// What is known of a stand-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The claim says that it has the disk.
    Holds,
    /// The guest runs on it, and the claim does not say so yet.
    Arrived,
    /// The disk is being copied into it, or soon will be.
    Filling,
    /// It has nothing, or nothing that is still wanted.
    Useless,
    /// The claim it was made for is gone, and with it goes the disk.
    Bereft,
}

/// What to do next.
pub fn plan(view: &View<'_>) -> Step {
    if let Some(volume) = view.volume {
        return put_back(view, volume);
    }
    let by_fate = |wanted: Fate| view.stand_ins.iter().filter(move |one| fate(view, one) == wanted);
    if let Some(stand_in) = by_fate(Fate::Arrived).next() {
        return Step::Point { stand_in: stand_in.name_any() };
    }
    if let Some(guest) = view.guests.iter().find(|guest| !instance::is_final(guest) && has_to_switch(view, guest)) {
        return Step::Rename { guest: guest.name_any() };
    }
    let useless = by_fate(Fate::Useless).find(|one| one.metadata.deletion_timestamp.is_none());
    if let Some(stand_in) = useless {
        return drop_stand_in(stand_in);
    }
    let Some(moved_to) = view.claim.and_then(stand_ins::moved_to) else { return Step::Wait };
    if view.claim.is_some_and(|claim| claim.metadata.deletion_timestamp.is_some()) {
        return Step::Wait;
    }
    let own = |one: &&PersistentVolumeClaim| view.claim.is_some_and(|claim| stand_ins::belongs_to(one, claim));
    match view.stand_ins.iter().filter(own).find(|one| one.name_any() == moved_to) {
        None => Step::Complain(gone(moved_to)),
        Some(one) if one.metadata.deletion_timestamp.is_some() => Step::Wait,
        Some(_) if view.guests.iter().any(|guest| lives_on(guest, moved_to)) => Step::Wait,
        Some(_) => Step::Keep { stand_in: moved_to.to_owned() },
    }
}

/// What is said where a stand-in has gone with the disk.
pub fn gone(stand_in: &str) -> String {
    format!(
        "its disk was on the claim {stand_in}, which is gone; to use the disk as it was before the guest was moved, remove \
         the annotation {}",
        stand_ins::MOVED_TO
    )
}

fn fate(view: &View<'_>, stand_in: &PersistentVolumeClaim) -> Fate {
    let name = stand_in.name_any();
    let Some(claim) = view.claim.filter(|claim| stand_ins::belongs_to(stand_in, claim)) else { return Fate::Bereft };
    if stand_ins::moved_to(claim) == Some(&name) {
        return Fate::Holds;
    }
    let label = |key: &str| stand_in.labels().get(key).map(String::as_str).unwrap_or_default();
    let job = label(label::MIGRATION_JOB);
    let guest = view.guests.iter().find(|guest| guest.uid().as_deref() == Some(label(label::CREATED_BY)));
    match guest.and_then(|guest| migration_state::ours(guest, job)) {
        // A claim points to the newest, and only the newest is in a guest's state.
        Some(own) if migration_state::moved(own) => Fate::Arrived,
        Some(own) if !migration_state::over(own) => Fate::Filling,
        Some(_) => Fate::Useless,
        None if guest.is_some() && view.unfinished.iter().any(|uid| uid == job) => Fate::Filling,
        None => Fate::Useless,
    }
}

fn has_to_switch(view: &View<'_>, guest: &VirtualMachineInstance) -> bool {
    let held = view.claim.and_then(stand_ins::moved_to);
    stand_ins::arrived(guest).any(|(volume, stand_in)| {
        let used = claims::of(guest).find(|used| used.volume == volume);
        Some(stand_in) == held && used.is_some_and(|used| used.claim != stand_in)
    })
}

fn lives_on(guest: &VirtualMachineInstance, claim: &str) -> bool {
    !instance::is_final(guest) && claims::of(guest).any(|used| used.claim == claim)
}

fn drop_stand_in(stand_in: &PersistentVolumeClaim) -> Step {
    Step::DropStandIn { name: stand_in.name_any(), uid: stand_in.uid().unwrap_or_default() }
}

fn put_back(view: &View<'_>, volume: &PersistentVolume) -> Step {
    let Some(record) = Record::of(volume) else {
        return Step::Complain(format!("volume {} does not say what it was kept for", volume.name_any()));
    };
    let stand_in = view.stand_ins.iter().find(|one| one.uid().as_deref() == Some(&record.stand_in_uid));
    if let Some(stand_in) = stand_in {
        let leaving = stand_in.metadata.deletion_timestamp.is_some();
        return if leaving { Step::Wait } else { drop_stand_in(stand_in) };
    }
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
    let holder = reference.uid.unwrap_or_default();
    let claim = view.claim;
    if holder == record.stand_in_uid || reference.name != claim_name(&record) {
        return Step::Reserve;
    }
    let Some(claim) = claim else {
        // Whose claim is gone again was put back, and what became of the volume then is for its policy to say.
        return if holder.is_empty() { Step::Create } else { Step::Finish };
    };
    let uid = claim.uid().unwrap_or_default();
    let on = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    if uid == record.outdated {
        let leaving = claim.metadata.deletion_timestamp.is_some();
        return if leaving { Step::Wait } else { Step::DropClaim { uid } };
    }
    if !holder.is_empty() && holder == uid && on == volume.name_any() {
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        return if bound { Step::Finish } else { Step::Wait };
    }
    if on.is_empty() || on == volume.name_any() {
        // The binder's turn.
        return Step::Wait;
    }
    Step::Complain(format!(
        "claim {} was created on volume {on} while its disk on volume {} was put back: delete the claim to get the disk of \
         the guest, or the volume to keep the claim",
        claim.name_any(),
        volume.name_any()
    ))
}

fn claim_name(record: &Record) -> Option<String> {
    record.claim.metadata.name.clone()
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
