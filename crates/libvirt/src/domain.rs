//! A domain and what can be done to it.

use std::sync::Arc;

use crate::client::Client;
use crate::error::code;
use crate::packet::QEMU;
use crate::wire::{DomainName, checked, parameter, qemu, remote};
use crate::xdr::{Malformed, Reader, Writer};
use crate::{Parameter, Result, State, screenshot};

/// Affect the running domain.
const LIVE: u32 = 1;
/// Leave out of the XML what another node knows better.
const FOR_ANOTHER_NODE: u32 = 8;

pub struct Domain {
    pub(crate) client: Arc<Client>,
    name: DomainName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    pub max_memory_kib: u64,
    pub memory_kib: u64,
    pub vcpus: u32,
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
    /// Empty where the guest tells none.
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
    pub(crate) fn new(client: Arc<Client>, name: DomainName) -> Self {
        Self { client, name }
    }

    pub fn start(&self) -> Result<()> {
        self.flagged("starting the domain", remote::DOMAIN_CREATE_WITH_FLAGS, 0)
    }

    /// Starts the domain with its CPUs stopped.
    pub fn start_paused(&self) -> Result<()> {
        const PAUSED: u32 = 1;
        self.flagged("starting the domain", remote::DOMAIN_CREATE_WITH_FLAGS, PAUSED)
    }

    /// Forgets the definition with its saved state and snapshots; NVRAM and the TPM's state are kept.
    pub fn undefine(&self) -> Result<()> {
        const WITH_ALL: u32 = 1 | 2 | 8 | 64;
        let undefine = |flags| self.flagged("undefining the domain", remote::DOMAIN_UNDEFINE_FLAGS, flags);
        match undefine(WITH_ALL) {
            // The test driver keeps nothing of the kind and knows no such flags.
            Err(error) if error.code() == code::INVALID_ARGUMENT => undefine(0),
            other => other,
        }
    }

    /// Ends QEMU: by SIGTERM first, so that it writes out its caches, then by SIGKILL.
    pub fn destroy(&self) -> Result<()> {
        const GRACEFUL: u32 = 1;
        let destroy = |flags| self.flagged("destroying the domain", remote::DOMAIN_DESTROY_FLAGS, flags);
        destroy(GRACEFUL).or_else(|_| destroy(0))
    }

    /// Presses the ACPI power button.
    pub fn shutdown_acpi(&self) -> Result<()> {
        self.flagged("asking the guest to shut down", remote::DOMAIN_SHUTDOWN_FLAGS, 1)
    }

    /// Asks the guest's agent to shut down.
    pub fn shutdown_agent(&self) -> Result<()> {
        self.flagged("asking the agent to shut down", remote::DOMAIN_SHUTDOWN_FLAGS, 2)
    }

    /// Asks the guest to reboot: through its agent, else by ACPI.
    pub fn reboot(&self) -> Result<()> {
        let reboot = |flags| self.flagged("asking the guest to reboot", remote::DOMAIN_REBOOT, flags);
        reboot(2).or_else(|_| reboot(1))
    }

    pub fn reset(&self) -> Result<()> {
        self.flagged("resetting the domain", remote::DOMAIN_RESET, 0)
    }

    pub fn suspend(&self) -> Result<()> {
        self.client.call_remote("pausing the domain", remote::DOMAIN_SUSPEND, self.arguments(), nothing)
    }

    pub fn resume(&self) -> Result<()> {
        self.client.call_remote("resuming the domain", remote::DOMAIN_RESUME, self.arguments(), nothing)
    }

    pub fn state(&self) -> Result<State> {
        self.client.call_remote(
            "reading the domain's state",
            remote::DOMAIN_GET_STATE,
            self.arguments().u32(0),
            |answer| Ok(State::from_raw(answer.i32()?, answer.i32()?)),
        )
    }

    /// The live XML while the domain runs, else its definition.
    pub fn xml(&self) -> Result<String> {
        self.client.call_remote(
            "reading the domain XML",
            remote::DOMAIN_GET_XML_DESC,
            self.arguments().u32(0),
            Reader::text,
        )
    }

    /// The live XML as another node's libvirt takes it for a domain that is sent there.
    pub fn migratable_xml(&self) -> Result<String> {
        self.client.call_remote(
            "reading the domain XML",
            remote::DOMAIN_GET_XML_DESC,
            self.arguments().u32(FOR_ANOTHER_NODE),
            Reader::text,
        )
    }

    pub fn info(&self) -> Result<Info> {
        self.client.call_remote("reading the domain's figures", remote::DOMAIN_GET_INFO, self.arguments(), |answer| {
            let _state = answer.u32()?;
            Ok(Info {
                max_memory_kib: answer.u64()?,
                memory_kib: answer.u64()?,
                vcpus: answer.u32()?,
                cpu_nanoseconds: answer.u64()?,
            })
        })
    }

    /// Sizes of a disk, by its target name.
    pub fn block_info(&self, target: &str) -> Result<BlockInfo> {
        let arguments = self.arguments().text(checked("the disk's name", target)?).u32(0);
        self.client.call_remote("reading a disk's size", remote::DOMAIN_GET_BLOCK_INFO, arguments, |answer| {
            let (allocation, capacity, physical) = (answer.u64()?, answer.u64()?, answer.u64()?);
            Ok(BlockInfo { capacity, allocation, physical })
        })
    }

    pub fn interface_addresses(&self, source: AddressSource) -> Result<Vec<InterfaceAddresses>> {
        let arguments = self.arguments().u32(source as u32).u32(0);
        self.client.call_remote(
            "reading the guest's addresses",
            remote::DOMAIN_INTERFACE_ADDRESSES,
            arguments,
            |answer| {
                answer.list(|interface| {
                    Ok(InterfaceAddresses {
                        name: interface.text()?,
                        mac: interface.optional(Reader::text)?.unwrap_or_default(),
                        addresses: interface.list(|address| {
                            let _family = address.i32()?;
                            Ok((address.text()?, address.u32()?))
                        })?,
                    })
                })
            },
        )
    }

    /// Figures of the groups given (`virDomainStatsTypes`; 0 is all of them).
    pub fn stats(&self, groups: u32) -> Result<Vec<Parameter>> {
        let only_this = self.name.write(Writer::default().u32(1)).u32(groups).u32(0);
        self.client.call_remote(
            "reading the domain's statistics",
            remote::CONNECT_GET_ALL_DOMAIN_STATS,
            only_this,
            |answer| {
                let records = answer.list(|record| {
                    DomainName::read(record)?;
                    record.list(parameter)
                })?;
                Ok(records.into_iter().flatten().collect())
            },
        )
    }

    /// A JSON command to the guest's agent and its answer.
    pub fn agent_command(&self, command: &str, timeout_seconds: i32) -> Result<String> {
        let command = checked("the agent's command", command)?;
        let arguments = self.arguments().text(command).i32(timeout_seconds).u32(0);
        let answer =
            self.client.call("asking the guest agent", (QEMU, qemu::DOMAIN_AGENT_COMMAND), arguments, |answer| {
                answer.optional(Reader::text)
            })?;
        Ok(answer.unwrap_or_default())
    }

    /// A QMP command and its answer, both JSON.
    pub fn monitor_command(&self, command: &str) -> Result<String> {
        let arguments = self.arguments().text(checked("the monitor's command", command)?).u32(0);
        self.client.call("asking QEMU", (QEMU, qemu::DOMAIN_MONITOR_COMMAND), arguments, Reader::text)
    }

    /// Sets the guest's clock to `seconds` since 1970, through the agent.
    pub fn set_time(&self, seconds: i64) -> Result<()> {
        let arguments = self.arguments().i64(seconds).u32(0).u32(0);
        self.client.call_remote("setting the guest's clock", remote::DOMAIN_SET_TIME, arguments, nothing)
    }

    /// Freezes all file systems of the guest; how many.
    pub fn freeze(&self) -> Result<u32> {
        self.all_file_systems("freezing the guest's file systems", remote::DOMAIN_FSFREEZE)
    }

    pub fn thaw(&self) -> Result<u32> {
        self.all_file_systems("thawing the guest's file systems", remote::DOMAIN_FSTHAW)
    }

    fn all_file_systems(&self, call: &'static str, procedure: u32) -> Result<u32> {
        let no_mount_points = 0;
        self.client.call_remote(call, procedure, self.arguments().u32(no_mount_points).u32(0), Reader::u32)
    }

    /// How long libvirt itself waits for the agent's answers.
    pub fn set_agent_timeout(&self, seconds: i32) -> Result<()> {
        let arguments = self.arguments().i32(seconds).u32(0);
        self.client.call_remote(
            "setting the agent's timeout",
            remote::DOMAIN_AGENT_SET_RESPONSE_TIMEOUT,
            arguments,
            nothing,
        )
    }

    pub fn attach_device(&self, xml: &str) -> Result<()> {
        let arguments = self.arguments().text(checked("the device XML", xml)?).u32(LIVE);
        self.client.call_remote("attaching a device", remote::DOMAIN_ATTACH_DEVICE_FLAGS, arguments, nothing)
    }

    pub fn detach_device(&self, xml: &str) -> Result<()> {
        let arguments = self.arguments().text(checked("the device XML", xml)?).u32(LIVE);
        self.client.call_remote("detaching a device", remote::DOMAIN_DETACH_DEVICE_FLAGS, arguments, nothing)
    }

    /// Changes a device that is there already: the medium of a drive.
    pub fn update_device(&self, xml: &str) -> Result<()> {
        let arguments = self.arguments().text(checked("the device XML", xml)?).u32(LIVE);
        self.client.call_remote("changing a device", remote::DOMAIN_UPDATE_DEVICE_FLAGS, arguments, nothing)
    }

    /// Writes the guest's memory as an ELF core into the file at `path`. The guest stands still meanwhile, and goes on when this
    /// returns.
    pub fn dump_memory(&self, path: &str) -> Result<()> {
        const RAW: u32 = 0;
        const MEMORY_ONLY: u32 = 1 << 4;
        let arguments = self.arguments().text(checked("the path of the dump", path)?).u32(RAW).u32(MEMORY_ONLY);
        self.client.call_remote("dumping the guest's memory", remote::DOMAIN_CORE_DUMP_WITH_FORMAT, arguments, nothing)
    }

    /// Tells the guest that a disk, by its target name, has grown to `bytes`.
    pub fn resize_disk(&self, target: &str, bytes: u64) -> Result<()> {
        const IN_BYTES: u32 = 1;
        let arguments = self.arguments().text(checked("the disk's name", target)?).u64(bytes).u32(IN_BYTES);
        self.client.call_remote("resizing a disk", remote::DOMAIN_BLOCK_RESIZE, arguments, nothing)
    }

    pub fn set_vcpus(&self, count: u32) -> Result<()> {
        let arguments = self.arguments().u32(count).u32(LIVE);
        self.client.call_remote("changing the number of vCPUs", remote::DOMAIN_SET_VCPUS_FLAGS, arguments, nothing)
    }

    /// A picture of the first screen and its media type.
    pub fn screenshot(&self) -> Result<(Vec<u8>, String)> {
        screenshot::take(&self.client, self.arguments())
    }

    /// What every call about a domain begins with.
    pub(crate) fn arguments(&self) -> Writer {
        self.name(Writer::default())
    }

    pub(crate) fn name(&self, to: Writer) -> Writer {
        self.name.write(to)
    }

    pub(crate) fn flagged(&self, call: &'static str, procedure: u32, flags: u32) -> Result<()> {
        self.client.call_remote(call, procedure, self.arguments().u32(flags), nothing)
    }
}

/// Of an answer only the fact is of interest.
#[expect(clippy::unnecessary_wraps, reason = "the shape of a decoder")]
pub(crate) fn nothing(_: &mut Reader) -> std::result::Result<(), Malformed> {
    Ok(())
}
