//! A guest's ping, seen from outside: when its echo requests (RFC 792) reach this host. A guest that stands still sends none.

use std::mem::MaybeUninit;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_timeout;
use rustix::net::{AddressFamily, RecvFlags, SocketType, ipproto, recv, socket};

/// Between two of the guest's requests.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
const ECHO_REQUEST: u8 = 8;

/// Arrivals of echo requests at this host, of one guest at a time.
pub(crate) struct Pings {
    arrivals: Receiver<Instant>,
    seen: Vec<Instant>,
}

impl Pings {
    /// Listens until it is dropped.
    pub(crate) fn listen() -> Result<Self> {
        let icmp =
            socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).context("cannot listen to pings")?;
        set_socket_timeout(&icmp, rustix::net::sockopt::Timeout::Recv, Some(Duration::from_secs(1)))?;
        let (sender, arrivals) = channel();
        std::thread::spawn(move || {
            let mut buffer = [MaybeUninit::uninit(); 256];
            loop {
                let is_request = match recv(&icmp, &mut buffer, RecvFlags::empty()) {
                    // The IPv4 header comes first; its length is in its first byte, in words.
                    Ok(((packet, _), _)) => {
                        packet.first().and_then(|first| packet.get(usize::from(first & 15) * 4)) == Some(&ECHO_REQUEST)
                    }
                    Err(Errno::AGAIN | Errno::INTR) => false,
                    Err(_) => return,
                };
                if is_request && sender.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
        Ok(Self { arrivals, seen: Vec::new() })
    }

    /// Waits for the first.
    pub(crate) fn begin(&mut self, patience: Duration) -> Result<()> {
        let heard = self.arrivals.recv_timeout(patience);
        let first = heard.with_context(|| format!("no ping of the guest was heard within {} s", patience.as_secs()))?;
        self.seen.push(first);
        Ok(())
    }

    /// The longest time without a request between `begin` and `end`, from the last one before to the first one after.
    pub(crate) fn longest_silence(&mut self, begin: Instant, end: Instant) -> Result<Duration> {
        self.seen.extend(self.arrivals.try_iter());
        let before = self.seen.iter().rposition(|at| *at <= begin).context("the guest's ping was not heard before")?;
        while self.seen.last().is_none_or(|last| *last < end) {
            let next = self.arrivals.recv_timeout(Duration::from_secs(10));
            self.seen.push(next.context("the guest's ping was not heard again within 10 s")?);
        }
        let arrivals = self.seen.split_off(before);
        self.seen = arrivals.last().copied().into_iter().collect();
        ensure!(arrivals.len() > 1);
        Ok(arrivals.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default())
    }
}
