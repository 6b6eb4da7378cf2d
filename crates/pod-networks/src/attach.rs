//! Interfaces are made, one after the other, and taken back in the opposite order.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use net::cni::{self, Attachment};
use serde_json::{Map, Value, json};

use crate::pool::Taker;
use crate::records::{Entry, Record};
use crate::selection::Selected;
use crate::{Error, Interface, Networks, Result, Sandbox, Wanted, about, pool, status};

impl Networks {
    /// Makes all interfaces in the sandbox and writes down what they are, on disk and, with `own`, what the pod has already, in
    /// the pod's annotation.
    ///
    /// # Errors
    /// The first plugin that fails. The caller stops the sandbox, which takes back what was made.
    pub async fn attach(&self, pod: &Pod, sandbox: &Sandbox, own: Interface, all: Vec<Wanted>) -> Result<()> {
        let mut record = self.records.load(&sandbox.id)?.unwrap_or_default();
        self.anew(pod, &all);
        for wanted in all {
            self.add(pod, sandbox, &mut record, wanted).await?;
        }
        self.publish(pod, &own, &record).await?;
        self.records.end(pod.metadata.uid.as_deref().unwrap_or_default())
    }

    /// Makes one interface. What a plugin has made that is interrupted or fails is in the record.
    pub(crate) async fn add(&self, pod: &Pod, sandbox: &Sandbox, record: &mut Record, wanted: Wanted) -> Result<()> {
        let Wanted { selected, network, claim, resource } = wanted;
        let (namespace, name, uid) = names(pod);
        let title = format!("{}/{}", selected.namespace, selected.name);
        let attachment = Attachment {
            container: sandbox.id.clone(),
            netns: sandbox.netns.display().to_string(),
            interface: selected.interface.clone(),
            args: arguments(pod, &sandbox.id, &selected),
            capabilities: capabilities(&selected),
        };
        let mut entry = Entry { title: title.clone(), network, attachment, ..Entry::default() };
        let failed = |error: kit::Chain<'_>| {
            Error::Invalid(format!("[{namespace}/{name}/{uid}:{title}]: error adding container to network: {error}"))
        };
        let device = self.device(pod, record, resource.as_deref(), &mut entry.network).await;
        entry.device = device.map_err(|error| failed(kit::Chain(&error)))?;
        let interface = selected.interface.as_str();
        let taker = Taker { namespace, pod: name, sandbox: &sandbox.id, interface, claim: claim.as_ref() };
        // A program of that name knows its pools itself.
        let taken = match self.plugins.have(pool::KIND) {
            true if claim.is_some() => {
                let why = format!("the node has a plugin {} of its own, which knows no IPAMClaim", pool::KIND);
                Err(Error::Invalid(why))
            }
            true => Ok(()),
            false => pool::take(&self.client, &mut entry.network, &taker, &mut entry.leases).await,
        };
        record.entries.push(entry);
        // Before the plugin is run: what it has made when it is interrupted is found again.
        self.records.save(&sandbox.id, record)?;
        taken.map_err(|error| failed(kit::Chain(&error)))?;
        let Some(entry) = record.entries.last_mut() else { return Ok(()) };
        let result = cni::add(&self.plugins, &entry.network, &entry.attachment).await;
        entry.result = result.map_err(|error| failed(kit::Chain(&error)))?;
        if let Some(segment) = &self.segment {
            segment.connect(&entry.network).await.map_err(|error| failed(kit::Chain(&error)))?;
        }
        let addresses = cni::made(&entry.result, interface).addresses.join(" ");
        self.events.normal(&about(pod), "AddedInterface", format!("Add {interface} [{addresses}] from {title}"));
        self.records.save(&sandbox.id, record)
    }

    /// Takes back every interface that was made in the sandbox beside the pod's own. What a plugin cannot undo goes with the
    /// namespace, so a plugin's failure holds up nothing.
    ///
    /// # Errors
    /// When the records cannot be read, or addresses not be given back. What is recorded stays, and can be tried again.
    pub async fn detach(&self, sandbox: &str) -> Result<()> {
        let Some(record) = self.records.load(sandbox)? else { return Ok(()) };
        for entry in record.entries.iter().rev() {
            self.undo(sandbox, entry).await?;
        }
        if let Some(own) = &record.own {
            self.leave_own(own).await?;
        }
        self.records.remove(sandbox)
    }

    pub(crate) async fn undo(&self, sandbox: &str, entry: &Entry) -> Result<()> {
        if let Err(error) = cni::del(&self.plugins, &entry.network, &entry.attachment, &entry.result).await {
            let interface = &entry.attachment.interface;
            tracing::warn!(sandbox, interface, error = %kit::Chain(&error), "a network was not left properly");
        }
        pool::give_back(&self.client, &entry.leases).await
    }

    /// Asks the plugins whether all interfaces of the sandbox are as they were made.
    ///
    /// # Errors
    /// The first that is not.
    pub async fn check(&self, sandbox: &str) -> Result<()> {
        let record = self.records.load(sandbox)?.unwrap_or_default();
        for entry in record.own.into_iter().chain(record.entries) {
            let found = cni::check(&self.plugins, &entry.network, &entry.attachment, &entry.result).await;
            found.map_err(|error| Error::Invalid(format!("{}: {}", entry.title, kit::Chain(&error))))?;
        }
        Ok(())
    }

    pub(crate) async fn publish(&self, pod: &Pod, own: &Interface, record: &Record) -> Result<()> {
        let (namespace, name, uid) = names(pod);
        let made = record.entries.iter().map(|entry| Interface {
            network: if entry.title.is_empty() { entry.network.name.clone() } else { entry.title.clone() },
            name: entry.attachment.interface.clone(),
            made: cni::made(&entry.result, &entry.attachment.interface),
            default: false,
        });
        let all: Vec<Interface> = std::iter::once(own.clone()).chain(made).collect();
        let text = status::text(&all);
        let body = json!({ "metadata": { "uid": uid, "annotations": { status::ANNOTATION: text } } });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let written = api.patch_status(name, &PatchParams::default(), &Patch::Merge(body)).await;
        written.map(drop).map_err(Error::api("write the pod's network status"))
    }
}

/// Namespace, name and UID.
fn names(pod: &Pod) -> (&str, &str, &str) {
    let metadata = &pod.metadata;
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
        metadata.uid.as_deref().unwrap_or_default(),
    )
}

/// Facts about the pod, as plugins know them.
fn arguments(pod: &Pod, id: &str, selected: &Selected) -> Vec<(String, String)> {
    let (namespace, name, uid) = names(pod);
    let own = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", namespace),
        ("K8S_POD_NAME", name),
        ("K8S_POD_INFRA_CONTAINER_ID", id),
        ("K8S_POD_UID", uid),
    ];
    let mac = selected.mac.as_deref().map(|mac| ("MAC", mac));
    own.into_iter().chain(mac).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The same interface as `attachment`, with what `selected` asks for.
#[must_use]
pub fn asked_for(selected: &Selected, mut attachment: Attachment) -> Attachment {
    attachment.args.extend(selected.mac.iter().map(|mac| ("MAC".to_owned(), mac.clone())));
    attachment.capabilities.append(&mut capabilities(selected));
    attachment
}

fn capabilities(selected: &Selected) -> Map<String, Value> {
    let mut out = Map::new();
    if let Some(mac) = &selected.mac {
        out.insert("mac".into(), json!(mac));
    }
    if !selected.ips.is_empty() {
        out.insert("ips".into(), json!(selected.ips));
    }
    out
}
