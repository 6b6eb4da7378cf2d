//! A domain moves between two daemons.

use libvirt::{Domain, Migration, PausedReason, State};

use crate::daemon::Daemon;

const XML: &str = "<domain type='qemu'><name>probe</name><memory>16384</memory>
    <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>";

fn to(target: &Daemon, memory: &str) -> Migration {
    Migration {
        to: format!("qemu+unix:///session?socket={}", target.socket().display()),
        memory_uri: format!("unix:{}", target.socket().with_file_name(memory).display()),
        ..Migration::default()
    }
}

fn started(on: &Daemon) -> Domain {
    let domain = on.open("qemu:///session").define(XML).unwrap();
    domain.start().unwrap();
    domain
}

#[test]
fn a_domain_moves_and_runs_on() {
    let (source, target) = (Daemon::start(), Daemon::start());
    let domain = started(&source);
    assert_eq!(domain.job().unwrap(), None);
    domain.migrate(&to(&target, "first")).unwrap();

    let there = target.open("qemu:///session");
    let moved = there.lookup("probe").unwrap();
    assert_eq!(moved.state().unwrap(), State::Running);
    assert!(moved.completed_job().unwrap().unwrap().memory_total >= 16 << 20);
    assert!(source.open("qemu:///session").lookup("probe").err().unwrap().is_no_domain());

    // Back, without running on.
    let back = Migration { paused: true, ..to(&source, "second") };
    moved.migrate(&back).unwrap();
    let domain = source.open("qemu:///session").lookup("probe").unwrap();
    assert!(matches!(domain.state().unwrap(), State::Paused(PausedReason::User | PausedReason::Migration)));
    domain.destroy().unwrap();
}

#[test]
fn a_migration_that_is_ended_leaves_the_domain_where_it_was() {
    let (source, target) = (Daemon::start(), Daemon::start());
    let domain = started(&source);
    // Slow enough to be seen: a MiB a second.
    let slow = Migration { bandwidth: 1, ..to(&target, "memory") };
    let refused = std::thread::scope(|scope| {
        let moving = scope.spawn(|| domain.migrate(&slow));
        while domain.job().unwrap().is_none_or(|job| job.memory_processed == 0) {
            assert!(!moving.is_finished(), "it was to be slow");
            std::thread::yield_now();
        }
        domain.set_max_downtime(50).unwrap();
        assert!(domain.start_post_copy().is_err(), "it was not asked for");
        domain.abort_job().unwrap();
        moving.join().unwrap().unwrap_err()
    });
    assert!(refused.to_string().contains("migrating the domain"), "{refused}");
    assert_eq!(domain.state().unwrap(), State::Running);
    assert!(target.open("qemu:///session").lookup("probe").err().unwrap().is_no_domain());

    let nowhere = Migration { to: "qemu+unix:///session?socket=/nowhere".into(), ..Migration::default() };
    assert!(domain.migrate(&nowhere).unwrap_err().to_string().contains("/nowhere"));
    assert_eq!(domain.state().unwrap(), State::Running);
}
