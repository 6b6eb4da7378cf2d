//! Who hears whom: real frames through real ports.

use std::io::{ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};
use sys::namespace::in_netns;

use crate::scene::{Container, Scene, network};

/// A protocol that nobody else speaks.
const PROTOCOL: [u8; 2] = [0x88, 0xb5];
/// Longer than any frame takes here.
const LIMIT: Duration = Duration::from_secs(10);

/// Hears every frame of the protocol in a container.
struct Ear(Socket);

impl Ear {
    fn new(container: &Container) -> Self {
        let protocol = i32::from(u16::from_be_bytes(PROTOCOL).to_be());
        let open = || Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(protocol))).unwrap();
        let socket = in_netns(container.netns.as_fd(), open).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Ear(socket)
    }

    /// Marks of the frames that came, until `last` does.
    fn until(&self, last: u8) -> Vec<u8> {
        let (mut heard, begin) = (Vec::new(), Instant::now());
        let mut buffer = [0; 128];
        while begin.elapsed() < LIMIT {
            match (&self.0).read(&mut buffer) {
                Ok(length) if length > 14 => {
                    heard.push(buffer[14]);
                    if heard.last() == Some(&last) {
                        return heard;
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted), "{error}");
                }
            }
        }
        panic!("frame {last} did not come: {heard:?}");
    }
}

/// Sends a frame to everybody, from `sender`, with a mark.
fn send(scene: &Scene, container: &Container, sender: [u8; 6], mark: u8) {
    let index = scene.inside(container, async |inside| inside.get("net1").await.unwrap().index);
    let mut frame = [0xff; 6].to_vec();
    frame.extend(sender);
    frame.extend(PROTOCOL);
    frame.extend([mark; 46]);
    in_netns(container.netns.as_fd(), || sys::packet::send(index, &frame).unwrap()).unwrap();
}

fn mac(scene: &Scene, container: &Container) -> [u8; 6] {
    scene.inside(container, async |inside| inside.get("net1").await.unwrap().mac).try_into().unwrap()
}

/// A machine that takes another's address for its own is not heard.
#[test]
fn a_container_is_heard_under_its_own_address_alone() {
    let scene = Scene::new();
    let (attacker, victim, other) = (scene.container("c1"), scene.container("c2"), scene.container("c3"));
    let guarded = network(json!({ "macspoofchk": true }));
    for container in [&attacker, &victim] {
        scene.about("bridge", "ADD", &guarded, container).unwrap();
    }
    // A port without the check is as free as before.
    scene.about("bridge", "ADD", &network(json!({})), &other).unwrap();
    let ear = Ear::new(&victim);
    let stolen = mac(&scene, &other);
    send(&scene, &attacker, stolen, 1);
    send(&scene, &attacker, [2, 9, 9, 9, 9, 9], 2);
    send(&scene, &attacker, mac(&scene, &attacker), 3);
    assert_eq!(ear.until(3), [3]);
    send(&scene, &other, [2, 9, 9, 9, 9, 9], 4);
    assert_eq!(ear.until(4), [4]);
    scene.about("bridge", "DEL", &guarded, &attacker).unwrap();
    assert_eq!(scene.rules().iter().filter(|line| line.starts_with("chain ")).count(), 1);
    scene.about("bridge", "DEL", &guarded, &victim).unwrap();
    assert!(scene.rules().is_empty(), "{:?}", scene.rules());
}

#[test]
fn isolated_ports_reach_those_that_are_not_and_not_each_other() {
    let scene = Scene::new();
    let (one, two, open) = (scene.container("c1"), scene.container("c2"), scene.container("c3"));
    let isolated = network(json!({ "portIsolation": true }));
    for container in [&one, &two] {
        scene.about("bridge", "ADD", &isolated, container).unwrap();
    }
    scene.about("bridge", "ADD", &network(json!({})), &open).unwrap();
    let (hears, free) = (Ear::new(&two), Ear::new(&open));
    send(&scene, &one, mac(&scene, &one), 1);
    assert_eq!(free.until(1), [1]);
    send(&scene, &open, mac(&scene, &open), 2);
    assert_eq!(hears.until(2), [2]);
}

#[test]
fn a_port_with_hairpin_hears_itself() {
    let scene = Scene::new();
    let container = scene.container("c1");
    scene.about("bridge", "ADD", &network(json!({ "hairpinMode": true })), &container).unwrap();
    let ear = Ear::new(&container);
    send(&scene, &container, mac(&scene, &container), 1);
    // What is sent is shown to sockets of every protocol alone, so what this one hears has come in.
    assert_eq!(ear.until(1), [1]);
}
