//! A domain and what can be done to it.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};

use crate::connection::Connection;
use crate::error::code;
use crate::library::{c_string, read_string, take_string};
use crate::raw::{self, Dom};
use crate::stats::{self, Parameter};
use crate::{Error, Result, State};

/// A larger picture than any emulated screen gives.
const SCREENSHOT_LIMIT: usize = 64 << 20;

/// Affect the running domain.
const LIVE: c_uint = 1;

pub struct Domain {
    connection: Connection,
    raw: *mut Dom,
}

// SAFETY: libvirt domains are thread-safe by its documentation.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: our reference, given up once, while the connection still lives.
        unsafe { (self.connection.0.library.core.virDomainFree)(self.raw) };
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    pub max_memory_kib: u64,
    pub memory_kib: u64,
    pub vcpus: u16,
    pub cpu_nanoseconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Bytes the guest sees.
    pub capacity: u64,
    pub allocation: u64,
    pub physical: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddresses {
    pub name: String,
    pub mac: String,
    /// Address and prefix length.
    pub addresses: Vec<(String, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSource {
    Agent = 1,
    Arp = 2,
}

impl Domain {
    pub(crate) fn from_raw(connection: &Connection, raw: *mut Dom) -> Option<Self> {
        (!raw.is_null()).then(|| Self { connection: connection.clone(), raw })
    }

    fn core(&self) -> &raw::Core {
        &self.connection.0.library.core
    }

    fn done(&self, answer: c_int, call: &'static str) -> Result<()> {
        if answer < 0 { Err(self.connection.error(call)) } else { Ok(()) }
    }

    pub fn start(&self) -> Result<()> {
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainCreateWithFlags)(self.raw, 0) }, "starting the domain")
    }

    /// Starts the domain with its CPUs stopped.
    pub fn start_paused(&self) -> Result<()> {
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainCreateWithFlags)(self.raw, 1) }, "starting the domain")
    }

    /// Forgets the definition, with its NVRAM, saved state and snapshots.
    pub fn undefine(&self) -> Result<()> {
        const FLAGS: c_uint = 1 | 2 | 4 | 32;
        const CALL: &str = "undefining the domain";
        // SAFETY: a live domain.
        match self.done(unsafe { (self.core().virDomainUndefineFlags)(self.raw, FLAGS) }, CALL) {
            // The test driver keeps nothing of the kind and knows no such flags.
            Err(error) if error.code() == code::INVALID_ARGUMENT => {
                // SAFETY: a live domain.
                self.done(unsafe { (self.core().virDomainUndefineFlags)(self.raw, 0) }, CALL)
            }
            other => other,
        }
    }

    /// Ends QEMU: by SIGTERM first, so that it writes out its caches, then by SIGKILL.
    pub fn destroy(&self) -> Result<()> {
        const GRACEFUL: c_uint = 1;
        // SAFETY: a live domain.
        if unsafe { (self.core().virDomainDestroyFlags)(self.raw, GRACEFUL) } == 0 {
            return Ok(());
        }
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainDestroyFlags)(self.raw, 0) }, "destroying the domain")
    }

    /// Presses the ACPI power button.
    pub fn shutdown_acpi(&self) -> Result<()> {
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainShutdownFlags)(self.raw, 1) }, "asking the guest to shut down")
    }

    /// Asks the guest's agent to shut down.
    pub fn shutdown_agent(&self) -> Result<()> {
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainShutdownFlags)(self.raw, 2) }, "asking the agent to shut down")
    }

    /// Asks the guest to reboot: through its agent, else by ACPI.
    pub fn reboot(&self) -> Result<()> {
        // SAFETY: a live domain.
        if unsafe { (self.core().virDomainReboot)(self.raw, 2) } == 0 {
            return Ok(());
        }
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainReboot)(self.raw, 1) }, "asking the guest to reboot")
    }

    pub fn reset(&self) -> Result<()> {
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainReset)(self.raw, 0) }, "resetting the domain")
    }

    pub fn suspend(&self) -> Result<()> {
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainSuspend)(self.raw) }, "pausing the domain")
    }

    pub fn resume(&self) -> Result<()> {
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainResume)(self.raw) }, "resuming the domain")
    }

    pub fn state(&self) -> Result<State> {
        let (mut state, mut reason) = (0, 0);
        // SAFETY: a live domain and places for the answer.
        let answer = unsafe { (self.core().virDomainGetState)(self.raw, &raw mut state, &raw mut reason, 0) };
        self.done(answer, "reading the domain's state")?;
        Ok(State::from_raw(state, reason))
    }

    /// The live XML while the domain runs, else its definition.
    pub fn xml(&self) -> Result<String> {
        // SAFETY: a live domain; the answer is ours to free.
        let xml = unsafe { take_string((self.core().virDomainGetXMLDesc)(self.raw, 0)) };
        xml.ok_or_else(|| self.connection.error("reading the domain XML"))
    }

    pub fn info(&self) -> Result<Info> {
        let mut info = raw::DomainInfo::default();
        // SAFETY: a live domain and a place for the answer.
        let answer = unsafe { (self.core().virDomainGetInfo)(self.raw, &raw mut info) };
        self.done(answer, "reading the domain's figures")?;
        Ok(Info {
            max_memory_kib: info.max_mem,
            memory_kib: info.memory,
            vcpus: info.vcpus,
            cpu_nanoseconds: info.cpu_time,
        })
    }

    /// Sizes of a disk, by its target name.
    pub fn block_info(&self, target: &str) -> Result<BlockInfo> {
        let target = c_string("the disk's name", target)?;
        let mut info = raw::BlockInfo::default();
        // SAFETY: a live domain, a zero-terminated string and a place for the answer.
        let answer = unsafe { (self.core().virDomainGetBlockInfo)(self.raw, target.as_ptr(), &raw mut info, 0) };
        self.done(answer, "reading a disk's size")?;
        Ok(BlockInfo { capacity: info.capacity, allocation: info.allocation, physical: info.physical })
    }

    pub fn interface_addresses(&self, source: AddressSource) -> Result<Vec<InterfaceAddresses>> {
        let mut list: *mut *mut raw::Interface = std::ptr::null_mut();
        // SAFETY: a live domain and a place for the list.
        let count = unsafe { (self.core().virDomainInterfaceAddresses)(self.raw, &raw mut list, source as c_uint, 0) };
        self.done(count, "reading the guest's addresses")?;
        let mut out = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: libvirt filled `count` pointers, each to a live structure with `naddrs` addresses.
            unsafe {
                let interface = *list.add(index);
                let addresses = (0..(*interface).naddrs as usize)
                    .map(|i| {
                        let address = &*(*interface).addrs.add(i);
                        (read_string(address.address), address.prefix)
                    })
                    .collect();
                out.push(InterfaceAddresses {
                    name: read_string((*interface).name),
                    mac: read_string((*interface).hwaddr),
                    addresses,
                });
                (self.core().virDomainInterfaceFree)(interface);
            }
        }
        // SAFETY: from malloc, freed once; null is allowed.
        unsafe { libc::free(list.cast()) };
        Ok(out)
    }

    /// Figures of the groups given (`virDomainStatsTypes`; 0 is all of them).
    pub fn stats(&self, groups: u32) -> Result<Vec<Parameter>> {
        let mut domains = [self.raw, std::ptr::null_mut()];
        let mut records: *mut *mut raw::StatsRecord = std::ptr::null_mut();
        // SAFETY: a null-terminated list of live domains and a place for the records.
        let count = unsafe { (self.core().virDomainListGetStats)(domains.as_mut_ptr(), groups, &raw mut records, 0) };
        self.done(count, "reading the domain's statistics")?;
        let mut out = Vec::new();
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: libvirt filled `count` pointers, each to a live record.
            unsafe {
                let record = *records.add(index);
                out.extend(stats::read((*record).params, (*record).nparams));
            }
        }
        // SAFETY: the list libvirt gave, freed once; null is allowed.
        unsafe { (self.core().virDomainStatsRecordListFree)(records) };
        Ok(out)
    }

    /// A JSON command to the guest's agent and its answer.
    pub fn agent_command(&self, command: &str, timeout_seconds: i32) -> Result<String> {
        let command = c_string("the agent's command", command)?;
        // SAFETY: a live domain and a zero-terminated string; the answer is ours to free.
        let answer = unsafe {
            take_string((self.connection.0.library.qemu.virDomainQemuAgentCommand)(
                self.raw,
                command.as_ptr(),
                timeout_seconds,
                0,
            ))
        };
        answer.ok_or_else(|| self.connection.error("asking the guest agent"))
    }

    /// A QMP command and its answer, both JSON.
    pub fn monitor_command(&self, command: &str) -> Result<String> {
        let command = c_string("the monitor's command", command)?;
        let mut answer: *mut c_char = std::ptr::null_mut();
        // SAFETY: a live domain, a zero-terminated string and a place for the answer.
        let status = unsafe {
            (self.connection.0.library.qemu.virDomainQemuMonitorCommand)(self.raw, command.as_ptr(), &raw mut answer, 0)
        };
        self.done(status, "asking QEMU")?;
        // SAFETY: filled on success; ours to free.
        Ok(unsafe { take_string(answer) }.unwrap_or_default())
    }

    /// Sets the guest's clock to `seconds` since 1970, through the agent.
    pub fn set_time(&self, seconds: i64) -> Result<()> {
        // SAFETY: a live domain.
        self.done(unsafe { (self.core().virDomainSetTime)(self.raw, seconds, 0, 0) }, "setting the guest's clock")
    }

    /// Freezes all file systems of the guest; how many.
    pub fn freeze(&self) -> Result<u32> {
        // SAFETY: a live domain and no list of mount points.
        let count = unsafe { (self.core().virDomainFSFreeze)(self.raw, std::ptr::null(), 0, 0) };
        self.done(count, "freezing the guest's file systems")?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    pub fn thaw(&self) -> Result<u32> {
        // SAFETY: a live domain and no list of mount points.
        let count = unsafe { (self.core().virDomainFSThaw)(self.raw, std::ptr::null(), 0, 0) };
        self.done(count, "thawing the guest's file systems")?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// How long libvirt itself waits for the agent's answers.
    pub fn set_agent_timeout(&self, seconds: i32) -> Result<()> {
        // SAFETY: a live domain.
        let answer = unsafe { (self.core().virDomainAgentSetResponseTimeout)(self.raw, seconds, 0) };
        self.done(answer, "setting the agent's timeout")
    }

    pub fn attach_device(&self, xml: &str) -> Result<()> {
        let xml = c_string("the device XML", xml)?;
        // SAFETY: a live domain and a zero-terminated string.
        let answer = unsafe { (self.core().virDomainAttachDeviceFlags)(self.raw, xml.as_ptr(), LIVE) };
        self.done(answer, "attaching a device")
    }

    pub fn detach_device(&self, xml: &str) -> Result<()> {
        let xml = c_string("the device XML", xml)?;
        // SAFETY: a live domain and a zero-terminated string.
        let answer = unsafe { (self.core().virDomainDetachDeviceFlags)(self.raw, xml.as_ptr(), LIVE) };
        self.done(answer, "detaching a device")
    }

    pub fn set_vcpus(&self, count: u32) -> Result<()> {
        // SAFETY: a live domain.
        let answer = unsafe { (self.core().virDomainSetVcpusFlags)(self.raw, count, LIVE) };
        self.done(answer, "changing the number of vCPUs")
    }

    /// A picture of the first screen and its media type.
    pub fn screenshot(&self) -> Result<(Vec<u8>, String)> {
        let core = self.core();
        // SAFETY: a live connection.
        let stream = unsafe { (core.virStreamNew)(self.connection.0.raw, 0) };
        if stream.is_null() {
            return Err(self.connection.error("opening a stream"));
        }
        // SAFETY: a live domain and stream; the media type is ours to free.
        let kind = unsafe { take_string((core.virDomainScreenshot)(self.raw, stream, 0, 0)) };
        let result = match kind {
            None => Err(self.connection.error("taking a screenshot")),
            Some(kind) => self.drain(stream).map(|picture| (picture, kind)),
        };
        // SAFETY: our reference, given up once.
        unsafe { (core.virStreamFree)(stream) };
        result
    }

    fn drain(&self, stream: *mut raw::Stream) -> Result<Vec<u8>> {
        let core = self.core();
        let mut out = Vec::new();
        let mut buffer = vec![0_u8; 64 << 10];
        loop {
            // SAFETY: a live stream and a buffer of the length given.
            let got = unsafe { (core.virStreamRecv)(stream, buffer.as_mut_ptr().cast(), buffer.len()) };
            match usize::try_from(got) {
                Ok(0) => break,
                Ok(got) if out.len() + got <= SCREENSHOT_LIMIT => out.extend_from_slice(&buffer[..got]),
                refused => {
                    let error = match refused {
                        Ok(_) => Error::TooLarge { what: "the screenshot", limit: SCREENSHOT_LIMIT },
                        Err(_) => self.connection.error("reading a stream"),
                    };
                    // SAFETY: a live stream.
                    unsafe { (core.virStreamAbort)(stream) };
                    return Err(error);
                }
            }
        }
        // SAFETY: a live stream at its end.
        self.done(unsafe { (core.virStreamFinish)(stream) }, "closing a stream")?;
        Ok(out)
    }
}
