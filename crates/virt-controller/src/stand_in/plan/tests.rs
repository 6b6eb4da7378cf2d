//! Single decisions, and a model: claims, volumes, a guest, the cluster's binder and collector, a user who applies the
//! claim again, and this planner, each a step at a time in any order. What the guest wrote last must never be without an
//! owner, no guest may start on anything else, and in the end the claim has it under its name.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

const CLAIM: &str = "data";

fn claim(value: Value) -> PersistentVolumeClaim {
    serde_json::from_value(value).unwrap()
}

fn made(name: &str, uid: &str, volume: Option<&str>) -> PersistentVolumeClaim {
    claim(json!({
        "metadata": { "name": name, "namespace": "ns", "uid": uid },
        "spec": { "volumeName": volume },
        "status": { "phase": if volume.is_some() { "Bound" } else { "Pending" } },
    }))
}

#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn guest(claims: &str, state: Value) -> VirtualMachineInstance {
    let stand_in = stand_ins::name(CLAIM, state["migrationUid"].as_str().unwrap_or_default());
    serde_json::from_value(json!({
        "metadata": { "name": "vm", "namespace": "ns", "uid": "guest" },
        "spec": {
            "domain": { "devices": { "disks": [{ "name": "root" }] } },
            "volumes": [{ "name": "root", "persistentVolumeClaim": { "claimName": claims } }],
        },
        "status": {
            "phase": "Running", "migrationState": state,
            "migratedVolumes": [{ "volumeName": "root", "destinationPVCInfo": { "claimName": stand_in } }],
        },
    }))
    .unwrap()
}

/// The planner's world, and what the planner does not see.
struct World {
    claims: BTreeMap<String, PersistentVolumeClaim>,
    volumes: BTreeMap<String, PersistentVolume>,
    guest: Option<VirtualMachineInstance>,
    unfinished: Vec<String>,
    /// The volume the guest wrote last.
    truth: String,
    made: u32,
    random: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            claims: BTreeMap::new(),
            volumes: BTreeMap::new(),
            guest: None,
            unfinished: Vec::new(),
            truth: "pv-1".to_owned(),
            made: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        };
        world.apply();
        world.bind();
        world.start();
        world
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % sides
    }

    fn uid(&mut self) -> String {
        self.made += 1;
        format!("uid-{}", self.made)
    }

    fn stand_ins(&self) -> Vec<PersistentVolumeClaim> {
        let for_it = |one: &&PersistentVolumeClaim| stand_ins::stands_in_for(one) == Some(CLAIM);
        self.claims.values().filter(for_it).cloned().collect()
    }

    fn planned(&self) -> Step {
        let (stand_ins, guests) = (self.stand_ins(), Vec::from_iter(self.guest.clone()));
        let kept = self.volumes.values().find(|volume| Record::of(volume).is_some());
        let view = View {
            claim: self.claims.get(CLAIM),
            stand_ins: &stand_ins,
            guests: &guests,
            unfinished: &self.unfinished,
            volume: kept,
        };
        plan(&view)
    }

    fn merge<K: serde::Serialize + serde::de::DeserializeOwned>(object: &mut K, patch: &Value) {
        fn merge(target: &mut Value, patch: &Value) {
            let Some(patch) = patch.as_object() else { return target.clone_from(patch) };
            if !target.is_object() {
                *target = json!({});
            }
            for (key, value) in patch {
                if value.is_null() {
                    target.as_object_mut().unwrap().remove(key);
                } else {
                    merge(&mut target[key], value);
                }
            }
        }
        let mut value = json!(object);
        merge(&mut value, patch);
        *object = serde_json::from_value(value).unwrap();
    }

    /// Does what `steps` does, with the API server's answers.
    fn control(&mut self) {
        let step = self.planned();
        let kept = self.volumes.values().find(|volume| Record::of(volume).is_some()).cloned();
        let record = kept.as_ref().and_then(Record::of);
        let mut change = |patch: fn(&Record, &PersistentVolume) -> Value| {
            let (volume, record) = (kept.as_ref().unwrap(), record.as_ref().unwrap());
            Self::merge(self.volumes.get_mut(&volume.name_any()).unwrap(), &patch(record, volume));
        };
        match step {
            Step::Wait => {}
            Step::Complain(why) => panic!("{why}"),
            Step::Point { stand_in } => {
                let patch = json!({ "metadata": { "annotations": { (stand_ins::MOVED_TO): stand_in } } });
                Self::merge(self.claims.get_mut(CLAIM).unwrap(), &patch);
            }
            Step::Rename { .. } => {
                let vmi = self.guest.clone().unwrap();
                let stand_in = stand_ins::arrived(&vmi).next().unwrap().1.to_owned();
                self.guest = Some(stand_ins::on(&vmi, |_| Some(stand_in.clone())));
            }
            Step::DropStandIn { name, uid } => self.delete(&name, &uid),
            Step::DropClaim { uid } => self.delete(CLAIM, &uid),
            Step::Keep { stand_in } => {
                let (old, holder) = (&self.claims[CLAIM], &self.claims[&stand_in]);
                if self.guest.is_none()
                    && let Some(name) = holder.spec.as_ref().unwrap().volume_name.clone()
                {
                    let volume = &self.volumes[&name];
                    let record = Record::new(old, holder, volume);
                    let patch = record.begin(volume);
                    Self::merge(self.volumes.get_mut(&name).unwrap(), &patch);
                }
            }
            Step::Reserve => change(Record::reserve),
            Step::Finish => change(Record::end),
            Step::Create => {
                let mut claim = record.unwrap().claim;
                claim.metadata.uid = Some(self.uid());
                self.claims.entry(CLAIM.to_owned()).or_insert(claim);
            }
        }
    }

    fn delete(&mut self, name: &str, uid: &str) {
        let Some(claim) = self.claims.get_mut(name).filter(|claim| claim.uid().as_deref() == Some(uid)) else { return };
        let at = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        Self::merge(claim, &at);
    }

    /// The user's manifest.
    fn apply(&mut self) {
        let uid = self.uid();
        self.claims.entry(CLAIM.to_owned()).or_insert_with(|| made(CLAIM, &uid, None));
    }

    /// One thing that binder, provisioner, collector and protection have to do.
    fn bind(&mut self) {
        let used: Vec<String> =
            self.guest.iter().flat_map(|guest| claims::of(guest).map(|used| used.claim.to_owned())).collect();
        let uids: Vec<String> = self.claims.values().filter_map(ResourceExt::uid).collect();
        let claims: Vec<PersistentVolumeClaim> = self.claims.values().cloned().collect();
        for one in claims {
            let (name, uid) = (one.name_any(), one.uid().unwrap());
            let orphan = one.owner_references().iter().any(|owner| !uids.contains(&owner.uid));
            if one.metadata.deletion_timestamp.is_some() {
                if !used.contains(&name) {
                    self.claims.remove(&name);
                    return;
                }
            } else if orphan {
                return self.delete(&name, &uid);
            } else if one.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
                return self.bind_claim(&one, &uid);
            }
        }
        let uids: Vec<String> = self.claims.values().filter_map(ResourceExt::uid).collect();
        self.volumes.retain(|_, volume| {
            let spec = volume.spec.as_ref().unwrap();
            let holder = spec.claim_ref.as_ref().and_then(|reference| reference.uid.clone());
            let released = holder.is_some_and(|uid| !uids.contains(&uid));
            !(released && spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete"))
        });
    }

    fn bind_claim(&mut self, one: &PersistentVolumeClaim, uid: &str) {
        let name = one.name_any();
        let kept = self.volumes.values().find(|volume| {
            let reference = volume.spec.as_ref().unwrap().claim_ref.clone().unwrap_or_default();
            reference.name.as_deref() == Some(&*name) && reference.uid.is_none_or(|held| held == uid)
        });
        let volume = match kept {
            Some(volume) => volume.name_any(),
            // It was asked for, and is not free.
            None if one.spec.as_ref().unwrap().volume_name.is_some() => return,
            None => {
                self.made += 1;
                let volume = format!("pv-{}", self.volumes.len() + self.made as usize - 1);
                let made =
                    json!({ "metadata": { "name": volume }, "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
                self.volumes.insert(volume.clone(), serde_json::from_value(made).unwrap());
                if self.volumes.len() == 1 {
                    self.truth.clone_from(&volume);
                }
                volume
            }
        };
        let bound = json!({ "spec": { "claimRef": { "name": name, "uid": uid } } });
        Self::merge(self.volumes.get_mut(&volume).unwrap(), &bound);
        let bound = json!({ "spec": { "volumeName": volume }, "status": { "phase": "Bound" } });
        Self::merge(self.claims.get_mut(&name).unwrap(), &bound);
    }

    /// A guest starts where the claim says nothing against it.
    fn start(&mut self) {
        let Some(claim) = self.claims.get(CLAIM).filter(|claim| stand_ins::moved_to(claim).is_none()) else { return };
        let volume = claim.spec.as_ref().unwrap().volume_name.clone();
        if self.guest.is_none()
            && let Some(volume) = volume
            && claim.metadata.deletion_timestamp.is_none()
        {
            assert_eq!(volume, self.truth, "a guest started on an outdated disk");
            let uid = self.uid();
            let mut vmi = guest(CLAIM, Value::Null);
            vmi.metadata.uid = Some(uid);
            self.guest = Some(vmi);
        }
    }

    fn migrate(&mut self) {
        let Some(vmi) = self.guest.clone() else { return };
        if !self.unfinished.is_empty() || stand_ins::is_switching(&vmi) || self.planned() != Step::Wait {
            return;
        }
        let job = self.uid();
        let source = &self.claims[claims::of(&vmi).next().unwrap().claim];
        let Some(root) = self.claims.get(CLAIM) else { return };
        let mut made = stand_ins::stand_in(root, source, &vmi.uid().unwrap(), &job);
        made.metadata.uid = Some(self.uid());
        self.claims.insert(made.name_any(), made);
        self.unfinished.push(job);
    }

    /// The migration that runs goes on, and ends one way or the other.
    fn go_on(&mut self) {
        let (Some(job), Some(vmi)) = (self.unfinished.first().cloned(), self.guest.clone()) else { return };
        let stand_in = stand_ins::name(CLAIM, &job);
        let on = claims::of(&vmi).next().unwrap().claim.to_owned();
        let volume = self.claims.get(&stand_in).and_then(|claim| claim.spec.as_ref()?.volume_name.clone());
        let handed_over = migration_state::ours(&vmi, &job).is_some();
        let moved = match (handed_over, self.roll(3)) {
            (_, 0) => false,
            (false, _) | (true, 1) => {
                if volume.is_some() {
                    let uid = vmi.uid();
                    self.guest = Some(guest(&on, json!({ "migrationUid": job })));
                    self.guest.as_mut().unwrap().metadata.uid = uid;
                }
                return;
            }
            _ => true,
        };
        if handed_over {
            let end = json!({ "migrationUid": job, "completed": true, "failed": !moved });
            Self::merge(self.guest.as_mut().unwrap(), &json!({ "status": { "migrationState": end } }));
        }
        if moved {
            self.truth = volume.unwrap();
        }
        self.unfinished.clear();
    }

    /// A guest goes once its claims know where its disk is.
    fn stop(&mut self) {
        if !matches!(self.planned(), Step::Point { .. }) {
            self.guest = None;
            self.unfinished.clear();
        }
    }

    fn check(&self) {
        assert!(self.volumes.contains_key(&self.truth), "the data is gone: {:?}", self.volumes.keys());
    }
}

#[test]
fn the_disk_survives_any_interleaving_and_ends_with_the_newest_name() {
    let mut put_back = 0;
    for seed in 1..400 {
        let mut world = World::new(seed);
        for _ in 0..120 {
            match world.roll(12) {
                0..=3 => world.control(),
                4..=6 => world.bind(),
                7 => world.migrate(),
                8 | 9 => world.go_on(),
                10 if world.roll(4) == 0 => world.stop(),
                10 => world.start(),
                // Somebody keeps manifests in a repository, and applies them.
                _ => world.apply(),
            }
            world.check();
        }
        for _ in 0..10 {
            world.stop();
            world.control();
            world.bind();
        }
        for _ in 0..60 {
            world.control();
            world.bind();
            world.check();
        }
        let claim = &world.claims[CLAIM];
        let (volume, spec) = (&world.volumes[&world.truth], claim.spec.as_ref().unwrap());
        assert_eq!(spec.volume_name.as_ref(), Some(&world.truth), "seed {seed}");
        assert_eq!((stand_ins::moved_to(claim), world.claims.len(), world.volumes.len()), (None, 1, 1), "seed {seed}");
        assert_eq!(volume.spec.as_ref().unwrap().persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
        assert!(Record::of(volume).is_none());
        put_back += u32::from(world.truth != "pv-1");
        world.start();
        assert!(world.guest.is_some(), "seed {seed}: nothing can be started");
    }
    assert!(put_back > 100, "only {put_back} disks ever moved");
}

#[track_caller]
fn check(
    claim: Option<&PersistentVolumeClaim>,
    stand_ins: &[PersistentVolumeClaim],
    guests: &[VirtualMachineInstance],
    expect: &Step,
) {
    let view = View { claim, stand_ins, guests, unfinished: &[], volume: None };
    assert_eq!(plan(&view), *expect);
}

#[test]
fn a_disk_that_is_gone_is_a_matter_for_people() {
    let mut known = made(CLAIM, "c", Some("pv"));
    known.annotations_mut().insert(stand_ins::MOVED_TO.to_owned(), "data-1".to_owned());
    let said = Step::Complain(gone("data-1"));
    check(Some(&known), &[], &[], &said);
}

#[test]
fn deleting_the_claim_deletes_the_disk() {
    let mut stand_in = made(&stand_ins::name(CLAIM, "job"), "s", Some("pv"));
    stand_in.annotations_mut().insert(stand_ins::STANDS_IN_FOR.to_owned(), CLAIM.to_owned());
    stand_in.labels_mut().insert("kubevirt.io/migrationJobUID".to_owned(), "job".to_owned());
    stand_in.labels_mut().insert("kubevirt.io/created-by".to_owned(), "guest".to_owned());
    let moved = guest(&stand_in.name_any(), json!({ "migrationUid": "job", "completed": true }));
    // The collector takes it, once the guest has ended.
    check(None, std::slice::from_ref(&stand_in), &[moved], &Step::Wait);
    let mut leaving = made(CLAIM, "c", Some("old"));
    leaving.annotations_mut().insert(stand_ins::MOVED_TO.to_owned(), stand_in.name_any());
    leaving.metadata.deletion_timestamp = made_at();
    check(Some(&leaving), std::slice::from_ref(&stand_in), &[], &Step::Wait);
    // Another claim under that name is not the one it stood in for.
    let moved = guest(CLAIM, json!({ "migrationUid": "job", "completed": true }));
    check(Some(&made(CLAIM, "another", None)), &[stand_in], &[moved], &Step::Wait);
}

fn made_at() -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH))
}
