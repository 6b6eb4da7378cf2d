//! The safe surface against libvirt's own test driver, which needs no daemon and no QEMU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

use libvirt::{Connection, Event, Lifecycle, ShutoffReason, State};
use tokio::sync::mpsc::Receiver;

const XML: &str = "<domain type='test'><name>probe</name><memory>8192</memory><os><type>hvm</type></os></domain>";

fn connect() -> Connection {
    Connection::open("test:///default").expect("these tests need the package libvirt0 (libvirt.so.0)")
}

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
    let connection = connect();
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
    let connection = connect();
    let error = connection.define("<domain/>").err().unwrap();
    assert!(error.to_string().starts_with("defining the domain: "), "{error}");
    assert!(connection.define("a\0b").is_err());
    let error = Connection::open("nonsense:///").err().unwrap();
    assert!(error.to_string().starts_with("connecting to libvirt: "), "{error}");
}

#[test]
fn pictures_and_figures() {
    let connection = connect();
    let domain = connection.lookup("test").unwrap();
    let (picture, kind) = domain.screenshot().unwrap();
    assert!(kind.starts_with("image/") && !picture.is_empty());
    assert!(!domain.stats(0).unwrap().is_empty());
    assert!(connection.daemon_version().unwrap().split('.').count() == 3);
}
