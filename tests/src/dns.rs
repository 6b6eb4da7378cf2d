//! A question to a name server, and its answer.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};

const WAIT: Duration = Duration::from_secs(2);
const QUESTION: u16 = 0x4242;

/// The IPv4 address that `server` has for `name`; none when it answers that there is none.
pub fn address(server: SocketAddr, name: &str) -> Result<Option<Ipv4Addr>> {
    let socket = UdpSocket::bind("0.0.0.0:0").context("cannot bind a socket")?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.send_to(&question(name), server).with_context(|| format!("cannot ask {server}"))?;
    let mut answer = [0_u8; 512];
    let (length, _) = socket.recv_from(&mut answer).with_context(|| format!("{server} did not answer"))?;
    let answers = u16::from_be_bytes([answer[6], answer[7]]);
    // The data of an address record ends the only answer.
    let last: Option<[u8; 4]> = answer[..length].last_chunk().copied();
    Ok(last.filter(|_| answers == 1).map(Ipv4Addr::from))
}

fn question(name: &str) -> Vec<u8> {
    let mut out = QUESTION.to_be_bytes().to_vec();
    // Flags, one question, and nothing else.
    out.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        out.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        out.extend(label.as_bytes());
    }
    // The root, an address, of the internet.
    out.extend([0, 0, 1, 0, 1]);
    out
}
