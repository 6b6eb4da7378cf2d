//! Events of domains, from libvirt's thread to a channel.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use tokio::sync::mpsc;

use crate::library::{Library, read_string};
use crate::raw::{AnyCallback, Conn, Dom};
use crate::stats::Parameter;
use crate::{Error, Result, raw, stats};

/// Something that happened to a domain of the connection.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Lifecycle {
        domain: String,
        change: Lifecycle,
        detail: i32,
    },
    Reboot {
        domain: String,
    },
    Watchdog {
        domain: String,
        action: i32,
    },
    IoError {
        domain: String,
        path: String,
        alias: String,
        action: i32,
        reason: String,
    },
    Agent {
        domain: String,
        connected: bool,
    },
    Balloon {
        domain: String,
        kib: u64,
    },
    DeviceRemoved {
        domain: String,
        alias: String,
    },
    JobCompleted {
        domain: String,
        parameters: Vec<Parameter>,
    },
    /// The daemon is gone, or closed on us.
    Disconnected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    Defined,
    Undefined,
    Started,
    Suspended,
    Resumed,
    Stopped,
    Shutdown,
    PmSuspended,
    Crashed,
    Other(i32),
}

type Sender = mpsc::Sender<Event>;

const LIFECYCLE: c_int = 0;
const REBOOT: c_int = 1;
const WATCHDOG: c_int = 3;
const IO_ERROR_REASON: c_int = 6;
const BALLOON: c_int = 13;
const DEVICE_REMOVED: c_int = 15;
const AGENT: c_int = 18;
const JOB_COMPLETED: c_int = 21;

/// Registers every callback. Kinds that the driver does not know (the test driver knows few) are left out, except
/// lifecycle, without which nothing works.
pub(crate) fn register(library: &Library, connection: *mut Conn, sender: &Sender) -> Result<Vec<c_int>> {
    type Erase = *const ();
    let callbacks: [(c_int, Erase); 8] = [
        (LIFECYCLE, lifecycle as Erase),
        (REBOOT, reboot as Erase),
        (WATCHDOG, watchdog as Erase),
        (IO_ERROR_REASON, io_error as Erase),
        (BALLOON, balloon as Erase),
        (DEVICE_REMOVED, device_removed as Erase),
        (AGENT, agent as Erase),
        (JOB_COMPLETED, job_completed as Erase),
    ];
    let mut ids = Vec::new();
    for (kind, callback) in callbacks {
        let opaque = Box::into_raw(Box::new(sender.clone())).cast::<c_void>();
        // SAFETY: libvirt calls it back with the signature that belongs to `kind`, which is this function's.
        let callback = unsafe { std::mem::transmute::<Erase, AnyCallback>(callback) };
        // SAFETY: a live connection, no domain (all of them), and an opaque value freed exactly once by `release`.
        let id = unsafe {
            (library.core.virConnectDomainEventRegisterAny)(
                connection,
                std::ptr::null_mut(),
                kind,
                callback,
                opaque,
                Some(release),
            )
        };
        if id >= 0 {
            ids.push(id);
            continue;
        }
        let error = Error::last(library, "virConnectDomainEventRegisterAny");
        // SAFETY: registration failed, so libvirt will not free it.
        unsafe { release(opaque) };
        if kind == LIFECYCLE {
            return Err(error);
        }
        tracing::debug!(kind, %error, "this driver has no such event");
    }
    let opaque = Box::into_raw(Box::new(sender.clone())).cast::<c_void>();
    // SAFETY: as above; libvirt frees the opaque value when the connection goes.
    if unsafe { (library.core.virConnectRegisterCloseCallback)(connection, closed, opaque, Some(release)) } < 0 {
        // SAFETY: registration failed, so libvirt will not free it.
        unsafe { release(opaque) };
    }
    Ok(ids)
}

/// Takes back what `register` hung on the connection.
pub(crate) fn deregister(library: &Library, connection: *mut Conn, ids: &[c_int]) {
    for id in ids {
        // SAFETY: a live connection and an id it gave us.
        unsafe { (library.core.virConnectDomainEventDeregisterAny)(connection, *id) };
    }
    if !ids.is_empty() {
        // SAFETY: a live connection and the callback registered with it.
        unsafe { (library.core.virConnectUnregisterCloseCallback)(connection, closed) };
    }
}

/// # Safety
/// `opaque` came from `register` and is released once.
unsafe extern "C" fn release(opaque: *mut c_void) {
    // SAFETY: by contract a boxed sender.
    drop(unsafe { Box::from_raw(opaque.cast::<Sender>()) });
}

/// # Safety
/// `opaque` is a boxed sender that outlives the call.
unsafe fn send(opaque: *mut c_void, event: Event) {
    // SAFETY: by contract.
    let sender = unsafe { &*opaque.cast::<Sender>() };
    if sender.try_send(event).is_err() {
        tracing::debug!("a domain event was dropped: the queue is full");
    }
}

/// # Safety
/// `domain` is a live domain during the call.
unsafe fn name(domain: *mut Dom) -> String {
    let Ok(library) = Library::get() else { return String::new() };
    // SAFETY: a live domain; the name stays libvirt's.
    unsafe { read_string((library.core.virDomainGetName)(domain)) }
}

unsafe extern "C" fn closed(_: *mut Conn, _: c_int, opaque: *mut c_void) {
    // SAFETY: libvirt passes back what was registered.
    unsafe { send(opaque, Event::Disconnected) };
}

unsafe extern "C" fn lifecycle(
    _: *mut Conn,
    domain: *mut Dom,
    event: c_int,
    detail: c_int,
    opaque: *mut c_void,
) -> c_int {
    let change = match event {
        0 => Lifecycle::Defined,
        1 => Lifecycle::Undefined,
        2 => Lifecycle::Started,
        3 => Lifecycle::Suspended,
        4 => Lifecycle::Resumed,
        5 => Lifecycle::Stopped,
        6 => Lifecycle::Shutdown,
        7 => Lifecycle::PmSuspended,
        8 => Lifecycle::Crashed,
        other => Lifecycle::Other(other),
    };
    // SAFETY: libvirt passes a live domain and what was registered.
    unsafe { send(opaque, Event::Lifecycle { domain: name(domain), change, detail }) };
    0
}

unsafe extern "C" fn reboot(_: *mut Conn, domain: *mut Dom, opaque: *mut c_void) {
    // SAFETY: libvirt passes a live domain and what was registered.
    unsafe { send(opaque, Event::Reboot { domain: name(domain) }) };
}

unsafe extern "C" fn watchdog(_: *mut Conn, domain: *mut Dom, action: c_int, opaque: *mut c_void) {
    // SAFETY: libvirt passes a live domain and what was registered.
    unsafe { send(opaque, Event::Watchdog { domain: name(domain), action }) };
}

unsafe extern "C" fn io_error(
    _: *mut Conn,
    domain: *mut Dom,
    path: *const c_char,
    alias: *const c_char,
    action: c_int,
    reason: *const c_char,
    opaque: *mut c_void,
) {
    // SAFETY: libvirt passes a live domain, strings or null, and what was registered.
    unsafe {
        send(
            opaque,
            Event::IoError {
                domain: name(domain),
                path: read_string(path),
                alias: read_string(alias),
                action,
                reason: read_string(reason),
            },
        );
    }
}

unsafe extern "C" fn balloon(_: *mut Conn, domain: *mut Dom, kib: u64, opaque: *mut c_void) {
    // SAFETY: libvirt passes a live domain and what was registered.
    unsafe { send(opaque, Event::Balloon { domain: name(domain), kib }) };
}

unsafe extern "C" fn device_removed(_: *mut Conn, domain: *mut Dom, alias: *const c_char, opaque: *mut c_void) {
    // SAFETY: libvirt passes a live domain, a string and what was registered.
    unsafe { send(opaque, Event::DeviceRemoved { domain: name(domain), alias: read_string(alias) }) };
}

unsafe extern "C" fn agent(_: *mut Conn, domain: *mut Dom, state: c_int, _reason: c_int, opaque: *mut c_void) {
    // SAFETY: libvirt passes a live domain and what was registered.
    unsafe { send(opaque, Event::Agent { domain: name(domain), connected: state == 1 }) };
}

unsafe extern "C" fn job_completed(
    _: *mut Conn,
    domain: *mut Dom,
    parameters: *const raw::TypedParameter,
    count: c_int,
    opaque: *mut c_void,
) {
    // SAFETY: libvirt passes a live domain, `count` parameters and what was registered.
    unsafe { send(opaque, Event::JobCompleted { domain: name(domain), parameters: stats::read(parameters, count) }) };
}
