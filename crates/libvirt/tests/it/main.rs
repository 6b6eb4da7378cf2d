//! The client against a real libvirtd: its test driver, which needs no QEMU, and its QEMU driver.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod daemon;
mod migration;
mod qemu;
mod silent;

use daemon::Daemon;
use libvirt::{Capability, Connection, Error, Event, Lifecycle, ShutoffReason, State};
use tokio::sync::mpsc::Receiver;

const TEST: &str = "test:///default";
const XML: &str = "<domain type='test'><name>probe</name><memory>8192</memory><os><type>hvm</type></os></domain>";

async fn until(events: &mut Receiver<Event>, wanted: Lifecycle) {
    loop {
        match events.recv().await.expect("the connection lives") {
            Event::Lifecycle { domain, change, .. } if domain == "probe" && change == wanted => return,
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_domain_lives_and_its_events_arrive() {
    let daemon = Daemon::start();
    let connection = daemon.open(TEST);
    let mut events = connection.events().unwrap();
    let domain = connection.define(XML).unwrap();
    assert!(matches!(domain.state().unwrap(), State::Shutoff(_)));
    domain.start().unwrap();
    until(&mut events, Lifecycle::Started).await;
    assert_eq!(domain.state().unwrap(), State::Running);
    assert_eq!(domain.info().unwrap().memory_kib, 8192);
    assert!(domain.xml().unwrap().contains("<name>probe</name>"));

    domain.suspend().unwrap();
    until(&mut events, Lifecycle::Suspended).await;
    assert!(matches!(domain.state().unwrap(), State::Paused(_)));
    domain.resume().unwrap();
    until(&mut events, Lifecycle::Resumed).await;

    domain.destroy().unwrap();
    until(&mut events, Lifecycle::Stopped).await;
    assert_eq!(domain.state().unwrap(), State::Shutoff(ShutoffReason::Destroyed));
    domain.undefine().unwrap();
    assert!(connection.lookup("probe").err().unwrap().is_no_domain());
}

#[test]
fn refusals_carry_libvirts_words() {
    let daemon = Daemon::start();
    let connection = daemon.open(TEST);
    let error = connection.define("<domain/>").err().unwrap();
    assert!(error.to_string().starts_with("defining the domain: "), "{error}");
    assert!(matches!(connection.define("a\0b").err().unwrap(), Error::Text("the domain XML")));
    let error = Connection::open(&daemon.socket(), "nonsense:///").err().unwrap();
    assert!(error.to_string().starts_with("connecting to libvirt: "), "{error}");
    let nowhere = daemon.socket().with_file_name("nowhere");
    let error = Connection::open(&nowhere, TEST).err().unwrap();
    assert_eq!(error.to_string(), format!("connecting to libvirt at {}", nowhere.display()));
}

#[test]
fn pictures_and_figures() {
    let daemon = Daemon::start();
    let connection = daemon.open(TEST);
    let domain = connection.lookup("test").unwrap();
    for _ in 0..20 {
        let (picture, kind) = domain.screenshot().unwrap();
        assert!(kind.starts_with("image/") && picture.starts_with(b"\x89PNG") && picture.len() > 1000);
    }
    assert!(!domain.stats(0).unwrap().is_empty());
    assert_eq!(connection.daemon_version().unwrap().split('.').count(), 3);
    assert!(connection.capabilities(Capability::Host).unwrap().starts_with("<capabilities>"));
}

/// Answers are told apart by their serials, whoever asks first.
#[test]
fn calls_overlap() {
    let daemon = Daemon::start();
    let connection = daemon.open(TEST);
    std::thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let connection = &connection;
            scope.spawn(move || {
                let domain = connection.define(&XML.replace("probe", name)).unwrap();
                for _ in 0..50 {
                    assert!(domain.xml().unwrap().contains(&format!("<name>{name}</name>")));
                }
            });
        }
    });
}

/// The daemon forgets a connection with its last clone; while a domain of it lives, so does the connection.
#[test]
fn a_connection_ends_with_its_last_user() {
    let daemon = Daemon::start();
    let connection = daemon.open(TEST);
    let domain = connection.lookup("test").unwrap();
    drop(connection);
    assert_eq!(domain.state().unwrap(), State::Running);
}

#[tokio::test]
async fn the_end_of_the_daemon_is_noticed() {
    let mut daemon = Daemon::start();
    let connection = daemon.open(TEST);
    let mut events = connection.events().unwrap();
    let mut more_events = connection.events().unwrap();
    assert!(connection.is_alive());
    daemon.kill();
    assert_eq!(events.recv().await, Some(Event::Disconnected));
    assert_eq!(events.recv().await, None);
    assert_eq!(more_events.recv().await, Some(Event::Disconnected));
    assert!(!connection.is_alive());
    let error = connection.lookup("test").err().unwrap();
    assert_eq!(error.to_string(), "looking up the domain: the connection to libvirt ended before the answer");
}
