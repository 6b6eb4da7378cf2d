//! A connection to a libvirt daemon.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::domain::Domain;
use crate::events::{self, Event};
use crate::library::{Library, c_string, take_string};
use crate::raw::Conn;
use crate::{Error, Result};

/// Events that wait for a slow reader.
const EVENT_QUEUE: usize = 256;

/// Shared by its clones and its domains; closed with the last of them.
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<Handle>);

pub(crate) struct Handle {
    pub(crate) library: &'static Library,
    pub(crate) raw: *mut Conn,
    callbacks: Mutex<Vec<c_int>>,
}

// SAFETY: libvirt connections are thread-safe by its documentation.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let callbacks = std::mem::take(&mut *self.callbacks.lock().unwrap_or_else(PoisonError::into_inner));
        events::deregister(self.library, self.raw, &callbacks);
        // SAFETY: our reference, given up once.
        unsafe { (self.library.core.virConnectClose)(self.raw) };
    }
}

/// What a connection can be asked about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    Host,
    /// Of QEMU's default machine for KVM or, without it, for translation.
    Domain {
        kvm: bool,
    },
}

impl Connection {
    /// Connects, for example to `qemu:///session` or `test:///default`.
    pub fn open(uri: &str) -> Result<Self> {
        let library = Library::get()?;
        let uri = c_string("the URI", uri)?;
        // SAFETY: a zero-terminated string.
        let raw = unsafe { (library.core.virConnectOpen)(uri.as_ptr()) };
        if raw.is_null() {
            return Err(Error::last(library, "connecting to libvirt"));
        }
        Ok(Self(Arc::new(Handle { library, raw, callbacks: Mutex::default() })))
    }

    /// Events of all domains from now on. Each call opens one more channel.
    pub fn events(&self) -> Result<mpsc::Receiver<Event>> {
        let (sender, receiver) = mpsc::channel(EVENT_QUEUE);
        let ids = events::register(self.0.library, self.0.raw, &sender)?;
        self.0.callbacks.lock().unwrap_or_else(PoisonError::into_inner).extend(ids);
        Ok(receiver)
    }

    pub fn is_alive(&self) -> bool {
        // SAFETY: a live connection.
        unsafe { (self.0.library.core.virConnectIsAlive)(self.0.raw) == 1 }
    }

    /// Version of the hypervisor (QEMU), as in `10.0.2`.
    pub fn hypervisor_version(&self) -> Result<String> {
        let mut version: c_ulong = 0;
        // SAFETY: a live connection and a place for the answer.
        if unsafe { (self.0.library.core.virConnectGetVersion)(self.0.raw, &raw mut version) } < 0 {
            return Err(self.error("reading the hypervisor's version"));
        }
        Ok(dotted(version))
    }

    /// Version of the daemon, as in `11.3.0`.
    pub fn daemon_version(&self) -> Result<String> {
        let mut version: c_ulong = 0;
        // SAFETY: a live connection and a place for the answer.
        if unsafe { (self.0.library.core.virConnectGetLibVersion)(self.0.raw, &raw mut version) } < 0 {
            return Err(self.error("reading libvirt's version"));
        }
        Ok(dotted(version))
    }

    /// Capabilities as XML.
    pub fn capabilities(&self, of: Capability) -> Result<String> {
        let core = &self.0.library.core;
        let answer = match of {
            // SAFETY: a live connection; the answer is ours to free.
            Capability::Host => unsafe { take_string((core.virConnectGetCapabilities)(self.0.raw)) },
            Capability::Domain { kvm } => {
                let virt = c_string("the virtualization type", if kvm { "kvm" } else { "qemu" })?;
                let none = std::ptr::null();
                // SAFETY: a live connection, strings or null; the answer is ours to free.
                unsafe {
                    take_string((core.virConnectGetDomainCapabilities)(self.0.raw, none, none, none, virt.as_ptr(), 0))
                }
            }
        };
        answer.ok_or_else(|| self.error("reading the capabilities"))
    }

    /// Makes a domain known without starting it.
    pub fn define(&self, xml: &str) -> Result<Domain> {
        let xml = c_string("the domain XML", xml)?;
        // SAFETY: a live connection and a zero-terminated string.
        let raw = unsafe { (self.0.library.core.virDomainDefineXMLFlags)(self.0.raw, xml.as_ptr(), 0) };
        Domain::from_raw(self, raw).ok_or_else(|| self.error("defining the domain"))
    }

    /// Defines and starts a domain that is forgotten when it stops.
    pub fn create_transient(&self, xml: &str) -> Result<Domain> {
        let xml = c_string("the domain XML", xml)?;
        // SAFETY: a live connection and a zero-terminated string.
        let raw = unsafe { (self.0.library.core.virDomainCreateXML)(self.0.raw, xml.as_ptr(), 0) };
        Domain::from_raw(self, raw).ok_or_else(|| self.error("starting the domain"))
    }

    pub fn lookup(&self, name: &str) -> Result<Domain> {
        let name = c_string("the domain's name", name)?;
        // SAFETY: a live connection and a zero-terminated string.
        let raw = unsafe { (self.0.library.core.virDomainLookupByName)(self.0.raw, name.as_ptr()) };
        Domain::from_raw(self, raw).ok_or_else(|| self.error("looking up the domain"))
    }

    pub(crate) fn error(&self, call: &'static str) -> Error {
        Error::last(self.0.library, call)
    }
}

fn dotted(version: c_ulong) -> String {
    format!("{}.{}.{}", version / 1_000_000, version / 1000 % 1000, version % 1000)
}
