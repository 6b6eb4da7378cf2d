//! A connection to a libvirt daemon.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::client::Client;
use crate::domain::Domain;
use crate::events::Event;
use crate::wire::{self, checked, remote};
use crate::xdr::{Reader, Writer};
use crate::{Error, Result};

/// Events that wait for a slow reader.
const EVENT_QUEUE: usize = 256;

/// Shared by its clones and its domains; closed with the last of them.
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<Client>);

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
    /// Connects to the daemon that listens at `socket` and has it open `uri`, for example `qemu:///session` or
    /// `test:///default`.
    pub fn open(socket: &Path, uri: &str) -> Result<Self> {
        const CALL: &str = "connecting to libvirt";
        checked("the URI", uri)?;
        let connection = Self(Arc::new(Client::connect(socket)?));
        // A daemon takes no other call before it was asked for this.
        let ways =
            connection.0.call_remote(CALL, remote::AUTH_LIST, Writer::default(), |answer| answer.list(Reader::i32))?;
        if ways.iter().any(|way| *way != 0) {
            return Err(Error::Authentication { socket: socket.to_owned() });
        }
        connection
            .0
            .call_remote(CALL, remote::CONNECT_OPEN, Writer::default().optional(Some(uri)).u32(0), |_| Ok(()))?;
        Ok(connection)
    }

    /// Events of all domains from now on. Each call opens one more channel.
    ///
    /// Kinds that the driver does not know (the test driver knows few) are left out, except lifecycle, without which
    /// nothing works.
    pub fn events(&self) -> Result<mpsc::Receiver<Event>> {
        let (sender, receiver) = mpsc::channel(EVENT_QUEUE);
        self.0.subscribe(sender)?;
        Ok(receiver)
    }

    pub fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// Version of the hypervisor (QEMU), as in `10.0.2`.
    pub fn hypervisor_version(&self) -> Result<String> {
        const CALL: &str = "reading the hypervisor's version";
        self.0.call_remote(CALL, remote::CONNECT_GET_VERSION, Writer::default(), Reader::u64).map(dotted)
    }

    /// Version of the daemon, as in `11.3.0`.
    pub fn daemon_version(&self) -> Result<String> {
        const CALL: &str = "reading libvirt's version";
        self.0.call_remote(CALL, remote::CONNECT_GET_LIB_VERSION, Writer::default(), Reader::u64).map(dotted)
    }

    /// Capabilities as XML.
    pub fn capabilities(&self, of: Capability) -> Result<String> {
        const CALL: &str = "reading the capabilities";
        let (procedure, arguments) = match of {
            Capability::Host => (remote::CONNECT_GET_CAPABILITIES, Writer::default()),
            Capability::Domain { kvm } => {
                let defaults = Writer::default().optional(None).optional(None).optional(None);
                let of = defaults.optional(Some(if kvm { "kvm" } else { "qemu" })).u32(0);
                (remote::CONNECT_GET_DOMAIN_CAPABILITIES, of)
            }
        };
        self.0.call_remote(CALL, procedure, arguments, Reader::text)
    }

    /// The `<cpu>` of `xml` with every feature it has spelled out, as far as KVM or translation can provide it.
    pub fn expand_cpu(&self, kvm: bool, xml: &str) -> Result<String> {
        const CALL: &str = "reading the features of a processor";
        const EXPAND_FEATURES: u32 = 1;
        let xml = checked("the processor's XML", xml)?;
        let defaults = Writer::default().optional(None).optional(None).optional(None);
        let of = defaults.optional(Some(if kvm { "kvm" } else { "qemu" }));
        let arguments = of.u32(1).text(xml).u32(EXPAND_FEATURES);
        self.0.call_remote(CALL, remote::CONNECT_BASELINE_HYPERVISOR_CPU, arguments, Reader::text)
    }

    /// Makes a domain known without starting it.
    pub fn define(&self, xml: &str) -> Result<Domain> {
        let xml = checked("the domain XML", xml)?;
        self.domain("defining the domain", remote::DOMAIN_DEFINE_XML_FLAGS, Writer::default().text(xml).u32(0))
    }

    /// Defines and starts a domain that is forgotten when it stops.
    pub fn create_transient(&self, xml: &str) -> Result<Domain> {
        let xml = checked("the domain XML", xml)?;
        self.domain("starting the domain", remote::DOMAIN_CREATE_XML, Writer::default().text(xml).u32(0))
    }

    pub fn lookup(&self, name: &str) -> Result<Domain> {
        let name = checked("the domain's name", name)?;
        self.domain("looking up the domain", remote::DOMAIN_LOOKUP_BY_NAME, Writer::default().text(name))
    }

    fn domain(&self, call: &'static str, procedure: u32, arguments: Writer) -> Result<Domain> {
        let name = self.0.call_remote(call, procedure, arguments, wire::DomainName::read)?;
        Ok(Domain::new(self.0.clone(), name))
    }
}

fn dotted(version: u64) -> String {
    format!("{}.{}.{}", version / 1_000_000, version / 1000 % 1000, version % 1000)
}
