//! The store when the power goes, the disk is full, or the file is damaged, compared with a model. Everything is
//! decided by one seed: `STORE_SEED=n` repeats a round, `STORE_ROUNDS=n` makes more of them.

mod model;
mod power;

use std::collections::BTreeMap;
use std::io::Write as _;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::oneshot;

use super::writer::{Op, turn};
use super::{Key, OpenError, Shared, Watch, WriteError, disk, medium};
use model::{Model, RESOURCES, Step};
use power::{Disk, Fault};

fn seeds(usual: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    match number("STORE_SEED") {
        Some(seed) => vec![seed],
        None => {
            let first: u64 = rand::random();
            (0..number("STORE_ROUNDS").unwrap_or(usual)).map(|n| first.wrapping_add(n)).collect()
        }
    }
}

/// Says which seed failed.
struct Said(u64);

impl Drop for Said {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "to repeat this round: STORE_SEED={}", self.0);
        }
    }
}

fn new_disk() -> Disk {
    let disk = Disk::default();
    disk::begin(&medium::database(disk.clone(), true).unwrap(), disk::FIRST).unwrap();
    disk
}

fn open(disk: &Disk) -> Result<(disk::Disk, Shared), OpenError> {
    let (disk, objects) = disk::Disk::attach(Box::new(disk.clone()))?;
    let shared = Shared::new(disk.revision(), objects, 64);
    Ok((disk, shared))
}

fn objects(shared: &Shared) -> BTreeMap<Key, (u64, Vec<u8>)> {
    let all = RESOURCES.iter().flat_map(|resource| shared.bucket(resource).list(None).objects);
    all.map(|object| (object.key.clone(), (object.revision, object.json.to_vec()))).collect()
}

/// The store is what the model says, to the byte.
#[track_caller]
fn same(disk: &disk::Disk, shared: &Shared, model: &Model) {
    assert_eq!(disk.revision(), model.revision);
    let found = objects(shared);
    assert_eq!(found.keys().collect::<Vec<_>>(), model.objects.keys().collect::<Vec<_>>());
    for (key, (revision, json)) in found {
        assert!(model.objects[&key] == (revision, json), "{key:?} of revision {revision} is another one");
    }
}

/// A client that follows one resource and remembers what it was told.
struct Follower {
    resource: &'static str,
    position: u64,
    watch: Option<Watch>,
}

impl Follower {
    /// Takes up the watch where it ended, or begins anew as a client does that is told 410.
    fn resume(&mut self, shared: &Shared) {
        let bucket = shared.bucket(self.resource);
        let newest = bucket.list(None).revision;
        assert!(self.position <= newest, "the store forgot revision {}, which was shown to a watch", self.position);
        self.watch = Some(Watch::new(bucket.clone(), None, self.position).unwrap_or_else(|gone| {
            assert!(self.position < gone.oldest, "{gone:?} though nothing was missed");
            self.position = newest;
            Watch::new(bucket, None, newest).unwrap()
        }));
    }

    /// What is told is the next part of the log: no gap, no repetition, nothing that did not happen.
    fn follow(&mut self, log: &[Step]) {
        let Some(watch) = &mut self.watch else { return };
        let Ok(events) = watch.ready() else {
            self.watch = None;
            return;
        };
        let expect = log.iter().filter(|step| *step.key.resource == *self.resource && step.revision > self.position);
        let expect: Vec<_> = expect.take(events.len()).cloned().collect();
        let told = events.iter().map(|event| Step {
            revision: event.revision,
            kind: event.kind,
            key: event.object.key.clone(),
            json: event.object.json.to_vec(),
        });
        let told: Vec<_> = told.collect();
        let brief = |steps: &[Step]| steps.iter().map(|step| (step.revision, step.key.clone())).collect::<Vec<_>>();
        assert!(told == expect, "told {:?}, and what happened is {:?}", brief(&told), brief(&expect));
        self.position = watch.position();
    }
}

/// One transaction of several clients; true when it was acknowledged. `model` follows what was.
fn transact(
    rng: &mut StdRng,
    shared: &Shared,
    disk: &mut disk::Disk,
    model: &mut Model,
    failed: &mut Option<Model>,
) -> bool {
    let mut staged = model.clone();
    let (mut ops, mut expect, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rng.random_range(1..12) {
        let (key, wish) = staged.wish(rng);
        let (reply, answer) = oneshot::channel();
        ops.push(Op { key: key.clone(), change: wish.change(), reply });
        expect.push(staged.apply(&key, &wish));
        answers.push(answer);
    }
    turn(shared, disk, ops.into_iter());
    let answers = answers.into_iter().map(|mut answer| answer.try_recv().unwrap().map(|object| object.revision));
    let answers: Vec<_> = answers.collect();
    if answers.contains(&Err(WriteError::Disk)) {
        assert!(answers.iter().all(|answer| *answer == Err(WriteError::Disk)), "{answers:?}");
        assert!(objects(shared) == model.objects, "something is shown that is not durable");
        failed.get_or_insert(staged);
        return false;
    }
    assert_eq!(answers, expect);
    *model = staged;
    true
}

#[test]
fn acknowledged_writes_survive_power_loss_and_others_are_atomic() {
    for seed in seeds(150) {
        let said = Said(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let power = new_disk();
        let mut model = Model::new(disk::FIRST);
        let mut failed = None;
        let mut followers = RESOURCES.map(|resource| Follower { resource, position: disk::FIRST, watch: None });
        for _ in 0..rng.random_range(2..6) {
            // It may go while the last damage is still being repaired.
            power.fails(Fault::Power(rng.random_range(0..120)));
            let opened = open(&power);
            let Ok((mut disk, shared)) = opened else {
                assert!(power.dead(), "{:?}", opened.err());
                power.restart(&mut rng);
                continue;
            };
            if let Some(failed) = failed.take().filter(|_| disk.revision() != model.revision) {
                model = failed;
            }
            same(&disk, &shared, &model);
            followers.iter_mut().for_each(|follower| follower.resume(&shared));
            let orderly = rng.random_bool(0.2).then(|| rng.random_range(0..20));
            for turn in 0.. {
                let ends = orderly == Some(turn);
                if ends || !transact(&mut rng, &shared, &mut disk, &mut model, &mut failed) {
                    break;
                }
                for follower in &mut followers {
                    if rng.random_bool(0.7) {
                        follower.follow(&model.log);
                    }
                }
            }
            drop(disk);
            power.restart(&mut rng);
        }
        drop(said);
    }
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    for seed in seeds(20) {
        let _said = Said(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let power = new_disk();
        let (mut disk, shared) = open(&power).unwrap();
        let mut model = Model::new(disk::FIRST);
        let mut refused = 0;
        for turn in 0..120 {
            let full = turn % 40 > 20;
            power.fails(if full { Fault::Full(0) } else { Fault::None });
            let done = transact(&mut rng, &shared, &mut disk, &mut model, &mut None);
            assert!(done || full, "turn {turn}: there is room");
            refused += usize::from(!done);
        }
        power.fails(Fault::None);
        assert!(transact(&mut rng, &shared, &mut disk, &mut model, &mut None), "{refused} were refused before");
        drop(disk);
        let (disk, shared) = open(&power).unwrap();
        same(&disk, &shared, &model);
    }
}

#[test]
fn after_a_failed_synchronisation_nothing_is_promised_until_the_file_was_read_anew() {
    let mut rng = StdRng::seed_from_u64(7);
    let power = new_disk();
    let (mut disk, shared) = open(&power).unwrap();
    let mut model = Model::new(disk::FIRST);
    assert!(transact(&mut rng, &shared, &mut disk, &mut model, &mut None));
    power.fails(Fault::Synchronise);
    let mut failed = None;
    assert!(!transact(&mut rng, &shared, &mut disk, &mut model, &mut failed));
    power.fails(Fault::None);
    assert!(!transact(&mut rng, &shared, &mut disk, &mut model, &mut failed), "the kernel may have forgotten pages");
    drop(disk);
    power.restart(&mut rng);
    let (mut disk, shared) = open(&power).unwrap();
    same(&disk, &shared, &model);
    assert!(transact(&mut rng, &shared, &mut disk, &mut model, &mut None));
}

/// A file with some objects, closed in good order or not, and what it holds.
fn written(rng: &mut StdRng, closed: bool) -> (Vec<u8>, Model) {
    let power = new_disk();
    let (mut disk, shared) = open(&power).unwrap();
    let mut model = Model::new(disk::FIRST);
    for _ in 0..rng.random_range(1..30) {
        assert!(transact(rng, &shared, &mut disk, &mut model, &mut None));
    }
    let open = power.bytes();
    drop(disk);
    (if closed { power.bytes() } else { open }, model)
}

#[test]
fn a_file_that_was_cut_or_altered_is_refused_or_whole() {
    let mut refused = 0;
    for seed in seeds(40) {
        let _said = Said(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let closed = rng.random_bool(0.5);
        let (bytes, model) = written(&mut rng, closed);
        for _ in 0..20 {
            let mut damaged = bytes.clone();
            let at = rng.random_range(0..damaged.len());
            let end = (at + rng.random_range(1..5000)).min(damaged.len());
            match rng.random_range(0..4) {
                0 => damaged.truncate(at),
                1 => damaged[at] ^= 1 << rng.random_range(0..8),
                2 => damaged[at..end].fill(0),
                _ => damaged[at..end].fill_with(|| rng.random()),
            }
            match open(&Disk::holding(damaged, model.revision)) {
                Ok((disk, shared)) => same(&disk, &shared, &model),
                Err(error @ OpenError::Damaged { .. }) => {
                    refused += 1;
                    assert!(error.to_string().ends_with("; restore a backup"), "{error}");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    assert!(refused > 0, "some damage is noticed");
    let empty = open(&Disk::holding(Vec::new(), 0)).err().unwrap().to_string();
    assert_eq!(empty, "the store a disk in memory is damaged: the file is empty; restore a backup");
}
