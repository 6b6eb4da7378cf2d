//! Calls and their answers over one socket, overlapping as they like.
//!
//! ```text
//!   call -- packet with a serial --> libvirtd
//!     ^                                 |
//!     +-- by serial -- reader thread <--+
//!                           |
//!                           +-- events --> channels
//! ```

use std::collections::HashMap;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use crate::events::{self, Event, Sender, kind};
use crate::packet::{Kind, Packet, REMOTE, Status};
use crate::wire::{self, remote};
use crate::xdr::{Malformed, Reader, Writer};
use crate::{Error, Result};

/// The reader only moves bytes and decodes small structures.
const READER_STACK: usize = 128 << 10;

pub(crate) struct Client {
    /// Written to under its lock, a whole packet at a time.
    socket: Mutex<UnixStream>,
    shared: Arc<Mutex<Shared>>,
    /// The daemon was asked for events.
    registered: Mutex<bool>,
}

#[derive(Default)]
struct Shared {
    serial: u32,
    ended: bool,
    waiting: HashMap<u32, mpsc::Sender<Packet>>,
    events: Vec<Sender>,
}

/// What happens between threads here never panics, so a poisoned lock guards sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let failed = |source| Error::Connect { socket: path.to_owned(), source };
        let socket = UnixStream::connect(path).map_err(failed)?;
        let mut reading = socket.try_clone().map_err(failed)?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let delivering = shared.clone();
        std::thread::Builder::new()
            .name("libvirt".to_owned())
            .stack_size(READER_STACK)
            .spawn(move || {
                loop {
                    match Packet::read(&mut reading) {
                        Ok(Some(packet)) => lock(&delivering).deliver(packet),
                        Ok(None) => break,
                        Err(error) => {
                            tracing::warn!(%error, "the connection to libvirt broke");
                            break;
                        }
                    }
                }
                lock(&delivering).end();
            })
            .map_err(failed)?;
        Ok(Self { socket: Mutex::new(socket), shared, registered: Mutex::new(false) })
    }

    /// Calls and decodes what comes back.
    pub(crate) fn call<T>(
        &self,
        call: &'static str,
        (program, procedure): (u32, u32),
        arguments: Writer,
        decode: impl FnOnce(&mut Reader) -> std::result::Result<T, Malformed>,
    ) -> Result<T> {
        let exchange = self.begin(call, (program, procedure), arguments)?;
        let answer = exchange.next()?;
        decode(&mut Reader::new(answer.payload)).map_err(|source| Error::Answer { call, source })
    }

    /// Calls what drivers have in common.
    pub(crate) fn call_remote<T>(
        &self,
        call: &'static str,
        procedure: u32,
        arguments: Writer,
        decode: impl FnOnce(&mut Reader) -> std::result::Result<T, Malformed>,
    ) -> Result<T> {
        self.call(call, (REMOTE, procedure), arguments, decode)
    }

    /// Calls; the answers are to be read from what is returned.
    pub(crate) fn begin(
        &self,
        call: &'static str,
        (program, procedure): (u32, u32),
        arguments: Writer,
    ) -> Result<Exchange<'_>> {
        let (sender, answers) = mpsc::channel();
        let serial = {
            let mut shared = lock(&self.shared);
            if shared.ended {
                return Err(Error::Ended { call });
            }
            // 0 is that of messages and of answers to nobody.
            shared.serial = shared.serial.checked_add(1).unwrap_or(1);
            let serial = shared.serial;
            shared.waiting.insert(serial, sender);
            serial
        };
        let exchange = Exchange { client: self, call, program, procedure, serial, answers };
        exchange.send(Kind::Call, Status::Ok, arguments.into_bytes())?;
        Ok(exchange)
    }

    /// Sends every event to `sender`, from now until it is closed.
    pub(crate) fn subscribe(&self, sender: Sender) -> Result<()> {
        lock(&self.shared).events.push(sender);
        let mut registered = lock(&self.registered);
        if !*registered {
            self.register()?;
            *registered = true;
        }
        Ok(())
    }

    /// Asks for events of every kind that the driver knows, of all domains.
    fn register(&self) -> Result<()> {
        const CALL: &str = "asking for events";
        for kind in kind::ALL {
            let procedure = (REMOTE, remote::CONNECT_DOMAIN_EVENT_CALLBACK_REGISTER_ANY);
            let all_domains = 0;
            match self.call(CALL, procedure, Writer::default().i32(kind.0).u32(all_domains), Reader::i32) {
                Ok(_callback) => {}
                Err(error @ Error::Call { .. }) if kind != kind::LIFECYCLE => {
                    tracing::debug!(kind = kind.0, %error, "this driver has no such event");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn is_alive(&self) -> bool {
        !lock(&self.shared).ended
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The reader thread sees the end, and the daemon forgets what this connection had registered.
        let _ = lock(&self.socket).shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn deliver(&mut self, packet: Packet) {
        if packet.kind != Kind::Message {
            // Of a stream that was given up something may still arrive.
            if let Some(waiting) = self.waiting.get(&packet.serial) {
                let _ = waiting.send(packet);
            }
            return;
        }
        match events::decode(packet.program, packet.procedure, &mut Reader::new(packet.payload)) {
            Ok(Some(event)) => self.publish(&event),
            Ok(None) => {}
            Err(error) => tracing::warn!(packet.procedure, %error, "an event of libvirt is not understood"),
        }
    }

    fn publish(&mut self, event: &Event) {
        self.events.retain(|sender| !sender.is_closed());
        for sender in &self.events {
            if sender.try_send(event.clone()).is_err() {
                tracing::debug!("a domain event was dropped: the queue is full");
            }
        }
    }

    fn end(&mut self) {
        self.ended = true;
        // Who waits sees that nobody will answer.
        self.waiting.clear();
        self.publish(&Event::Disconnected);
        self.events.clear();
    }
}

/// A call that was made.
pub(crate) struct Exchange<'a> {
    client: &'a Client,
    call: &'static str,
    program: u32,
    procedure: u32,
    serial: u32,
    answers: mpsc::Receiver<Packet>,
}

impl Exchange<'_> {
    /// The next packet of the daemon, or the error that it answers with.
    pub(crate) fn next(&self) -> Result<Packet> {
        let call = self.call;
        let packet = self.answers.recv().map_err(|_| Error::Ended { call })?;
        if packet.status != Status::Error {
            return Ok(packet);
        }
        match wire::error(&mut Reader::new(packet.payload)) {
            Ok((code, message)) => Err(Error::Call { call, code, message }),
            Err(source) => Err(Error::Answer { call, source }),
        }
    }

    pub(crate) fn send(&self, kind: Kind, status: Status, payload: Vec<u8>) -> Result<()> {
        let (program, procedure, serial) = (self.program, self.procedure, self.serial);
        let packet = Packet { program, procedure, kind, serial, status, payload };
        lock(&self.client.socket)
            .write_all(&packet.to_bytes())
            .map_err(|source| Error::Send { call: self.call, source })
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        lock(&self.client.shared).waiting.remove(&self.serial);
    }
}
