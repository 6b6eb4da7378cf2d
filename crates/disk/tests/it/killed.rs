//! Imports whose process is killed, at every stage, into files and devices: the next one ends with the right disk, and does
//! not fetch again what is there.

use std::io::{self, Read, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use disk::source::FileSource;
use disk::{Options, Progress, Resume, Source, Target};
use serde_json::{Value, json};

use crate::guest::{converted, disk};
use crate::loops::Loop;
use crate::origins::Ends;

/// What a child is told to do.
const TASK: &str = "FERROVIRT_TEST_IMPORT";

/// A source that ends the process once it has given so many bytes, and the journal has changed if that is waited for.
struct Lethal {
    image: FileSource,
    left: Arc<AtomicI64>,
    journal: Option<Arc<Watched>>,
}

/// A journal that is waited for before the process ends.
struct Watched {
    place: Place,
    /// What it said before the import.
    before: Vec<u8>,
    /// Once as many bytes are left, nobody reads on until the journal is at rest. An entry says what was done when it was
    /// begun: one that took a busy disk all the time of the import would say that nothing was.
    pause: i64,
    /// What it said then.
    paused: OnceLock<Vec<u8>>,
}

impl Source for Lethal {
    fn size(&self) -> Option<u64> {
        self.image.size()
    }

    fn ranged(&self) -> bool {
        true
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let (left, journal) = (Arc::clone(&self.left), self.journal.clone());
        Ok(Box::new(Reader { inner: self.image.open(offset)?, left, journal }))
    }

    fn identity(&self) -> Option<String> {
        Some("the same image".into())
    }
}

struct Reader {
    inner: Box<dyn Read + Send>,
    left: Arc<AtomicI64>,
    journal: Option<Arc<Watched>>,
}

/// A journal that is as it was for so long, beside the time that the disk takes, is not written any more.
const REST: Duration = Duration::from_millis(250);

/// Where a test finds the journal.
enum Place {
    File(PathBuf),
    Device(PathBuf),
}

impl Place {
    /// Waits for the disk, as whoever writes the journal does before each entry.
    fn sync(&self) {
        let target = match self {
            Self::File(path) => path.with_extension(""),
            Self::Device(path) => path.clone(),
        };
        std::fs::File::open(target).unwrap().sync_all().unwrap();
    }

    /// What the journal says, in whatever words.
    fn said(&self) -> Vec<u8> {
        match self {
            Self::File(path) => std::fs::read(path).unwrap_or_default(),
            Self::Device(path) => {
                let mut device = std::fs::File::open(path).unwrap();
                device.seek(SeekFrom::End(-(64 << 10))).unwrap();
                let mut bytes = Vec::new();
                device.read_to_end(&mut bytes).unwrap();
                // Whatever else is there is none.
                if bytes.windows(8).any(|part| part == b"cdi-jrnl") { bytes } else { Vec::new() }
            }
        }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(256 << 10);
        let got = self.inner.read(&mut buffer[..most])?;
        let left = self.left.fetch_sub(got as i64, Ordering::Relaxed) - got as i64;
        let watched = self.journal.as_deref().filter(|watched| left <= watched.pause);
        let paused = watched.map(|watched| watched.paused.get_or_init(|| at_rest(&watched.place, &watched.before)));
        if left <= 0 {
            if let (Some(watched), Some(paused)) = (watched, paused) {
                at_rest(&watched.place, paused);
            }
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
        }
        Ok(got)
    }
}

/// Waits until the journal tells of everything that is on its way: it is another than `before`, and stays as it is while the disk
/// is waited for twice. On a busy disk an entry takes longer than any time that could be named here. Returns what it says.
fn at_rest(place: &Place, before: &[u8]) -> Vec<u8> {
    let late = Instant::now() + Duration::from_secs(60);
    let (mut last, mut same) = (place.said(), 0);
    while (last == before || same < 2) && Instant::now() < late {
        let since = Instant::now();
        place.sync();
        while since.elapsed() < REST {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let said = place.said();
        same = if said == last { same + 1 } else { 0 };
        last = said;
    }
    last
}

/// What the tests below start as a process of its own and kill. Whoever starts it without a task gets an import that nobody
/// kills.
#[test]
fn an_import_left_alone_fetches_its_image_once() {
    if let Ok(task) = std::env::var(TASK) {
        return import(&serde_json::from_str(&task).unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(8 << 20);
    let image = converted(dir.path(), &disk, &["-O", "raw"]);
    let (target, fetched) = (dir.path().join("target"), dir.path().join("fetched"));
    import(&task(&image, &target, &fetched, false, WHOLE, false));
    assert!(std::fs::read(&target).unwrap() == disk);
    let fetched: usize = std::fs::read_to_string(fetched).unwrap().parse().unwrap();
    // Its beginning and its end are looked at before.
    assert!((disk.len()..disk.len() + (1 << 20)).contains(&fetched), "{fetched}");
    assert!(!target.with_extension("journal").exists());
}

fn task(image: &Path, target: &Path, fetched: &Path, device: bool, after: u64, waits: bool) -> Value {
    json!({ "image": image, "target": target, "fetched": fetched, "device": device, "after": after, "waits": waits })
}

/// One import, as `task` says. It ends the process where that is the task.
fn import(task: &Value) {
    let path = |key: &str| PathBuf::from(task[key].as_str().unwrap());
    let image = FileSource::new(std::fs::File::open(path("image")).unwrap()).unwrap();
    let left = Arc::new(AtomicI64::new(task["after"].as_i64().unwrap()));
    let beside = path("target").with_extension("journal");
    let (target, place, journal) = match task["device"].as_bool().unwrap() {
        true => {
            let place = disk::Place::Device("claim 1".into());
            (Target::device(&path("target")).unwrap(), place, Place::Device(path("target")))
        }
        false => {
            let place = disk::Place::File(beside.clone());
            (Target::file(&path("target"), crate::ROOM).unwrap(), place, Place::File(beside))
        }
    };
    let before = journal.said();
    let pause = task["after"].as_i64().unwrap() / 3;
    let watched = Watched { place: journal, before, pause, paused: OnceLock::new() };
    let journal = task["waits"].as_bool().unwrap().then(|| Arc::new(watched));
    let source = Lethal { image, left, journal };
    let resume = Some(Resume { place, every: Duration::ZERO });
    let progress = Progress::default();
    disk::import(&source, &target, &Options { resume, ..Options::default() }, &progress).unwrap();
    std::fs::write(path("fetched"), progress.fetched().to_string()).unwrap();
}

/// One import in a process of its own, killed after so many bytes. Says how many it fetched, unless it was killed.
fn run(dir: &Path, image: &Path, target: &Path, device: bool, after: u64, waits: bool) -> Option<u64> {
    let fetched = dir.join("fetched");
    let _ = std::fs::remove_file(&fetched);
    let task = task(image, target, &fetched, device, after, waits);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::an_import_left_alone_fetches_its_image_once"]).env(TASK, task.to_string());
    let output = command.output().unwrap();
    if output.status.signal() == Some(9) {
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Some(std::fs::read_to_string(fetched).unwrap().parse().unwrap())
}

const WHOLE: u64 = i64::MAX as u64;

/// Killed once at each of these parts of the whole, then left alone. `saved`: bytes that are not fetched twice when most of
/// them were.
fn check(arguments: &[&str], device: bool, saved: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut disk = disk(40 << 20);
    // The end of a device is where its journal is.
    let end = disk.len();
    disk[end - 100_000..].fill(0x77);
    let image = converted(dir.path(), &disk, arguments);
    let size = std::fs::metadata(&image).unwrap().len();
    let attached = device.then(|| Loop::of(&vec![0xee; disk.len()], dir.path()));
    let target = attached.as_ref().map_or_else(|| dir.path().join("target"), |attached| attached.path.clone());
    for after in [1, size / 10, size / 3, size / 10 * 8, size / 100 * 95] {
        match device {
            true => std::fs::write(&target, vec![0xee; disk.len()]).unwrap(),
            false => drop(std::fs::remove_file(&target)),
        }
        let waits = after > size / 2;
        assert_eq!(
            run(dir.path(), &image, &target, device, after, waits),
            None,
            "killed after {after} of {size} bytes"
        );
        let fetched = run(dir.path(), &image, &target, device, WHOLE, false).unwrap();
        assert!(std::fs::read(&target).unwrap() == disk, "killed after {after} of {size} bytes: another disk");
        assert!(!waits || fetched + saved < size, "{fetched} of {size} bytes were fetched again");
        assert!(!target.with_extension("journal").exists());
    }
    // Killed again and again: each goes on where the one before was.
    let mut times = 0;
    while run(dir.path(), &image, &target, device, size / 2, true).is_none() {
        times += 1;
        assert!(times < 20, "an import that is killed now and then never ends");
    }
    assert!(std::fs::read(&target).unwrap() == disk);
}

#[test]
fn an_import_into_a_file_goes_on_after_a_kill() {
    check(&["-O", "raw"], false, 3 << 20);
    check(&["-O", "qcow2"], false, 5 << 20);
}

#[test]
fn an_import_into_a_device_goes_on_after_a_kill() {
    check(&["-O", "raw"], true, 3 << 20);
    check(&["-O", "qcow2"], true, 5 << 20);
}

#[test]
fn a_journal_is_believed_for_its_own_device_only() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(8 << 20);
    let image = converted(dir.path(), &disk, &["-O", "raw"]);
    let attached = Loop::of(&vec![0xee; disk.len()], dir.path());
    let image = std::fs::read(image).unwrap();
    let import = |secret: &str, after: i64| {
        let source = Ends::after(&image, Some("the same image"), after);
        let target = Target::device(&attached.path).unwrap();
        let resume = Some(Resume { place: disk::Place::Device(secret.into()), every: Duration::ZERO });
        let progress = Progress::default();
        let outcome = disk::import(&source, &target, &Options { resume, ..Options::default() }, &progress);
        (outcome.is_ok(), progress.fetched())
    };
    let half = disk.len() as i64 / 2;
    assert!(!import("claim 1", half).0);
    // Another claim's import begins anew.
    let (done, fetched) = import("claim 2", i64::MAX);
    assert!(done && fetched >= disk.len() as u64, "{fetched}");
    assert!(std::fs::read(&attached.path).unwrap() == disk);
    // A disk that is complete has no journal.
    let (done, fetched) = import("claim 2", i64::MAX);
    assert!(done && fetched >= disk.len() as u64, "{fetched}");
}

/// The disk of an import that was killed, captured and imported as an image: its end is a guest's, however much it looks like
/// a journal.
#[test]
fn a_disk_may_end_like_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(8 << 20);
    let attached = Loop::of(&vec![0xee; disk.len()], dir.path());
    let import = |image: &[u8], identity, after| {
        let target = Target::device(&attached.path).unwrap();
        let resume = Some(Resume { place: disk::Place::Device("claim 1".into()), every: Duration::ZERO });
        let source = Ends::after(image, identity, after);
        disk::import(&source, &target, &Options { resume, ..Options::default() }, &Progress::default())
    };
    import(&disk, Some("one"), disk.len() as i64 / 2).unwrap_err();
    let captured = std::fs::read(&attached.path).unwrap();
    assert!(captured.windows(8).any(|part| part == b"cdi-jrnl"));
    for identity in [Some("another"), None] {
        import(&captured, identity, i64::MAX).unwrap();
        assert!(std::fs::read(&attached.path).unwrap() == captured, "{identity:?}");
    }
}
