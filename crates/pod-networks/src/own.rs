//! The pod's own network, where the container runtime calls us for it.

use net::cni::{self, Attachment, Network};
use serde_json::Value;

use crate::records::{Entry, Record};
use crate::{Error, Interface, Networks, Result, Sandbox};

impl Networks {
    /// Makes the interface of the pod's own network and returns what the plugins said.
    ///
    /// # Errors
    /// The first plugin that fails. The caller has the sandbox left.
    pub async fn attach_own(&self, title: &str, network: Network, attachment: Attachment) -> Result<Value> {
        let id = attachment.container.clone();
        let mut entry = Entry { title: title.to_owned(), network, attachment, ..Entry::default() };
        self.records.save(&id, &Record { own: Some(entry.clone()), entries: Vec::new() })?;
        let added = cni::add(&self.plugins, &entry.network, &entry.attachment).await;
        let result = added.map_err(|error| Error::Invalid(format!("{title}: {}", kit::Chain(&error))))?;
        entry.result = result.clone();
        self.records.save(&id, &Record { own: Some(entry), entries: Vec::new() })?;
        Ok(result)
    }

    /// The pod's own interface, as it was made; none where the runtime made it.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn own(&self, sandbox: &str) -> Result<Option<Interface>> {
        let own = self.records.load(sandbox)?.and_then(|record| record.own);
        Ok(own.map(|entry| Interface {
            made: cni::made(&entry.result, &entry.attachment.interface),
            network: entry.title,
            name: entry.attachment.interface,
            default: true,
        }))
    }

    /// The sandbox of the pod `uid` that was given its own network last.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn sandbox_of(&self, uid: &str) -> Result<Option<Sandbox>> {
        let is_of =
            |entry: &Entry| entry.attachment.args.iter().any(|(name, value)| name == "K8S_POD_UID" && value == uid);
        for id in self.records.sandboxes()? {
            let own = self.records.load(&id)?.and_then(|record| record.own);
            if let Some(entry) = own.filter(|entry| is_of(entry) && !entry.result.is_null()) {
                return Ok(Some(Sandbox { id, netns: entry.attachment.netns.into() }));
            }
        }
        Ok(None)
    }

    /// Takes the pod's own interface back. Addresses that its plugins hold for it would be lost: a failure is one.
    pub(crate) async fn leave_own(&self, entry: &Entry) -> Result<()> {
        let left = cni::del(&self.plugins, &entry.network, &entry.attachment, &entry.result).await;
        left.map_err(|error| Error::Invalid(format!("{}: {}", entry.title, kit::Chain(&error))))
    }
}
