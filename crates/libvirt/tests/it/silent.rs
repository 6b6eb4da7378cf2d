//! A server that is no libvirtd, or a broken one: every call ends with a sentence.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

use libvirt::{Connection, Error};

/// What `open` says of a server that reads the first call, answers with `bytes` and hangs up.
fn opened(bytes: &[u8]) -> Error {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.read_exact(&mut [0; 28]).unwrap();
            client.write_all(bytes).unwrap();
        });
        Connection::open(&socket, "test:///default").err().unwrap()
    })
}

/// The header of a reply to the first call: AUTH_LIST.
fn reply(length: u8, status: u8) -> [u8; 28] {
    let mut header = [0; 28];
    header[3] = length;
    header[4..8].copy_from_slice(&[0x20, 0, 0x80, 0x86]);
    header[11] = 1;
    header[15] = 66;
    header[19] = 1;
    header[23] = 1;
    header[27] = status;
    header
}

#[test]
fn every_broken_answer_is_an_error() {
    let ended = "connecting to libvirt: the connection to libvirt ended before the answer";
    assert_eq!(opened(b"").to_string(), ended);
    assert_eq!(opened(b"HTTP/1.1 400 Bad Request\r\n").to_string(), ended);
    assert_eq!(opened(&reply(28, 7)).to_string(), ended);
    let not_understood = "connecting to libvirt: libvirt's answer is not understood";
    assert_eq!(opened(&reply(28, 0)).to_string(), not_understood);
    assert_eq!(opened(&reply(28, 1)).to_string(), not_understood);
}

#[test]
fn a_daemon_that_wants_to_know_who_asks_is_refused() {
    const POLKIT: u8 = 2;
    let answer = [reply(36, 0).as_slice(), &[0, 0, 0, 1, 0, 0, 0, POLKIT]].concat();
    assert!(matches!(opened(&answer), Error::Authentication { .. }));
}
