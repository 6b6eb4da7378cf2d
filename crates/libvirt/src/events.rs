//! Events of domains, from libvirt's messages to a channel.

use tokio::sync::mpsc;

use crate::Parameter;
use crate::packet::REMOTE;
use crate::wire::{DomainName, parameter};
use crate::xdr::{Malformed, Reader};

pub(crate) type Sender = mpsc::Sender<Event>;

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

/// The kinds we ask for, by `virDomainEventID`, and the procedure that tells of each.
pub(crate) mod kind {
    pub(crate) const LIFECYCLE: (i32, u32) = (0, 318);
    pub(super) const REBOOT: (i32, u32) = (1, 319);
    pub(super) const WATCHDOG: (i32, u32) = (3, 321);
    pub(super) const IO_ERROR_REASON: (i32, u32) = (6, 324);
    pub(super) const BALLOON: (i32, u32) = (13, 331);
    pub(super) const DEVICE_REMOVED: (i32, u32) = (15, 333);
    pub(super) const AGENT: (i32, u32) = (18, 348);
    pub(super) const JOB_COMPLETED: (i32, u32) = (21, 363);

    pub(crate) const ALL: [(i32, u32); 8] =
        [LIFECYCLE, REBOOT, WATCHDOG, IO_ERROR_REASON, BALLOON, DEVICE_REMOVED, AGENT, JOB_COMPLETED];
}

/// What a message says; `None` for one that nobody asked for.
pub(crate) fn decode(program: u32, procedure: u32, from: &mut Reader) -> Result<Option<Event>, Malformed> {
    let Some(kind) = kind::ALL.into_iter().find(|kind| program == REMOTE && kind.1 == procedure) else {
        return Ok(None);
    };
    let _callback = from.i32()?;
    let domain = DomainName::read(from)?.name;
    Ok(Some(match kind {
        kind::LIFECYCLE => Event::Lifecycle { domain, change: lifecycle(from.i32()?), detail: from.i32()? },
        kind::REBOOT => Event::Reboot { domain },
        kind::WATCHDOG => Event::Watchdog { domain, action: from.i32()? },
        kind::IO_ERROR_REASON => Event::IoError {
            domain,
            path: from.text()?,
            alias: from.text()?,
            action: from.i32()?,
            reason: from.text()?,
        },
        kind::BALLOON => Event::Balloon { domain, kib: from.u64()? },
        kind::DEVICE_REMOVED => Event::DeviceRemoved { domain, alias: from.text()? },
        kind::AGENT => Event::Agent { domain, connected: from.i32()? == 1 },
        _ => Event::JobCompleted { domain, parameters: from.list(parameter)? },
    }))
}

fn lifecycle(event: i32) -> Lifecycle {
    match event {
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
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::xdr::Writer;

    /// A message about the domain `probe`, as callback 1.
    fn message(rest: Writer) -> Vec<u8> {
        let head = Writer::default().i32(1).text("probe").fixed(&[0; 16]).i32(3).into_bytes();
        [head, rest.into_bytes()].concat()
    }

    #[test]
    fn messages_become_events() {
        let check = |kind: (i32, u32), rest: Writer, expected: Event| {
            assert_eq!(decode(REMOTE, kind.1, &mut Reader::new(message(rest))), Ok(Some(expected)));
        };
        let domain = || "probe".to_owned();
        let changed = Event::Lifecycle { domain: domain(), change: Lifecycle::Stopped, detail: 1 };
        check(kind::LIFECYCLE, Writer::default().i32(5).i32(1), changed);
        check(kind::REBOOT, Writer::default(), Event::Reboot { domain: domain() });
        check(kind::WATCHDOG, Writer::default().i32(2), Event::Watchdog { domain: domain(), action: 2 });
        check(
            kind::IO_ERROR_REASON,
            Writer::default().text("/disk").text("ua-root").i32(1).text("enospc"),
            Event::IoError {
                domain: domain(),
                path: "/disk".to_owned(),
                alias: "ua-root".to_owned(),
                action: 1,
                reason: "enospc".to_owned(),
            },
        );
        check(kind::BALLOON, Writer::default().i64(1 << 20), Event::Balloon { domain: domain(), kib: 1 << 20 });
        let removed = Event::DeviceRemoved { domain: domain(), alias: "ua-nic".to_owned() };
        check(kind::DEVICE_REMOVED, Writer::default().text("ua-nic"), removed);
        check(kind::AGENT, Writer::default().i32(1).i32(2), Event::Agent { domain: domain(), connected: true });
        check(kind::AGENT, Writer::default().i32(2).i32(2), Event::Agent { domain: domain(), connected: false });
        let completed = Event::JobCompleted { domain: domain(), parameters: Vec::new() };
        check(kind::JOB_COMPLETED, Writer::default().u32(0), completed);
    }

    #[test]
    fn a_message_that_nobody_asked_for_is_left_alone() {
        assert_eq!(decode(REMOTE, 107, &mut Reader::new([])), Ok(None));
        assert_eq!(decode(REMOTE + 1, kind::REBOOT.1, &mut Reader::new([])), Ok(None));
        assert!(decode(REMOTE, kind::REBOOT.1, &mut Reader::new([])).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(kind in 0..8_usize, rest: Vec<u8>) {
            let bytes = [message(Writer::default()), rest].concat();
            let _ = decode(REMOTE, kind::ALL[kind].1, &mut Reader::new(bytes));
        }
    }
}
