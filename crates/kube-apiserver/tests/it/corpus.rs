//! Requests whose answers by a real Kubernetes 1.36 API server are recorded (`testdata/corpus/requests.jsonl.gz`), replayed here.
//!
//! Every difference stands in `testdata/corpus/exceptions/GROUP.txt` with its class and reason, and every line there is a
//! difference. Settings for those who work on one:
//!
//! * `CORPUS_SHOW=REGEX` replays only the groups of the requests whose id matches, and prints both answers of those that differ;
//! * `CORPUS_WRITE=1` rewrites the exceptions of the groups that are replayed: lines that are alike now go, new ones come.

mod answer;
mod compare;
mod entry;
mod exceptions;
mod protobuf;
mod replay;

use std::collections::BTreeMap;

use compare::Difference;
use entry::Entry;
use exceptions::Exceptions;

/// Groups that continue where another ended, on the same server.
const TOGETHER: [&[&str]; 2] = [&["cr", "crd-update", "cr-ratchet", "crd-delete"], &["sem", "end"]];

#[test]
fn requests_are_answered_as_by_a_real_api_server() {
    let shown = std::env::var("CORPUS_SHOW").ok().map(|text| regex::Regex::new(&text).unwrap());
    let entries = entry::load();
    let (begin, rest): (Vec<Entry>, Vec<Entry>) = entries.into_iter().partition(|entry| entry.group() == "begin");
    let units = units(rest);
    let chosen = |unit: &Vec<Entry>| shown.as_ref().is_none_or(|shown| unit.iter().any(|e| shown.is_match(&e.id)));
    let units: Vec<Vec<Entry>> = units.into_iter().filter(chosen).collect();
    let groups: Vec<String> = units.iter().flatten().map(|e| e.group().to_owned()).chain(["begin".into()]).collect();
    let answered: usize = units.iter().map(Vec::len).sum::<usize>() + begin.len();

    let differences = on_two_servers(&begin, units);
    let differing: std::collections::BTreeSet<&str> = differences.iter().map(|d| d.id.as_str()).collect();
    let mut classes: BTreeMap<&str, usize> = BTreeMap::new();
    for difference in &differences {
        *classes.entry(difference.class).or_default() += 1;
        if shown.as_ref().is_some_and(|shown| shown.is_match(&difference.id)) {
            println!("{}: {}: {}", difference.class, difference.id, difference.text);
        }
    }
    println!("{answered} requests, {} answered alike; {classes:?}", answered - differing.len());

    let mut exceptions = Exceptions::read(&groups);
    let surprises = exceptions.judge(&differences);
    if std::env::var_os("CORPUS_WRITE").is_some() {
        exceptions.write(&differences);
    } else {
        assert!(surprises.is_empty(), "{} surprises:\n{}", surprises.len(), surprises.join("\n"));
    }
}

/// What must be replayed in order on one server: each group, and those that belong together.
fn units(entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    let mut units: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for entry in entries {
        let together = TOGETHER.iter().find(|groups| groups.contains(&entry.group()));
        let unit = together.map_or(entry.group(), |groups| groups[0]).to_owned();
        units.entry(unit).or_default().push(entry);
    }
    units.into_values().collect()
}

/// Two threads, each with a server and a clock of its own, so that waiting takes no time.
fn on_two_servers(begin: &[Entry], mut units: Vec<Vec<Entry>>) -> Vec<Difference> {
    units.sort_by_key(|unit| std::cmp::Reverse(unit.len()));
    let mut halves = [Vec::new(), Vec::new()];
    for unit in units {
        halves.iter_mut().min_by_key(|half| half.len()).unwrap().extend(unit);
    }
    // The end takes away what the others need.
    for half in &mut halves {
        half.sort_by_key(|entry: &Entry| TOGETHER[1].contains(&entry.group()));
    }
    let [first, second] = halves;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| replay::run(begin, &second, false));
        let mut differences = replay::run(begin, &first, true);
        differences.extend(other.join().unwrap());
        differences
    })
}
