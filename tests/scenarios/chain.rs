//! Disks whose guest is their first sector, booted by a machine one after the other, and heard out.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::wait::{BOOT, until};
use e2e::{Namespace, boot_sector, disks, machine, node};
use serde_json::{Value, json};

/// What a firmware counts of one machine's disks.
const MOST_DISKS: usize = 16;

/// Disks by the names of their claims, and what their guests say.
#[derive(Debug, Default)]
pub(crate) struct Chain(BTreeMap<String, String>);

impl Chain {
    /// One more disk, as a file of this format.
    pub(crate) fn image(&mut self, name: &str, format: &str) -> Result<Vec<u8>> {
        let (disk, file) = disks::image(name, format)?;
        self.0.insert(name.to_owned(), boot_sector::line(name, &disk));
        Ok(file)
    }

    /// A disk that is to be the same as another.
    pub(crate) fn copied(&mut self, name: &str, of: &str) {
        let line = self.0.get(of).cloned().unwrap_or_default();
        self.0.insert(name.to_owned(), line);
    }

    /// The claims.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Boots all of them, on as few machines as a firmware allows, and compares what their guests say.
    pub(crate) fn boot(&self, space: &Namespace) -> Result<()> {
        let disks: Vec<_> = self.0.iter().collect();
        let machines: Vec<_> = disks.chunks(disks.len().div_ceil(disks.len().div_ceil(MOST_DISKS))).collect();
        let name = |number: usize| format!("chain{number}");
        for (number, disks) in machines.iter().enumerate() {
            let mut vm = machine::on_disks(&name(number), disks.iter().map(|(claim, _)| claim.as_str()));
            machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(0);
            space.apply(&vm)?;
        }
        for (number, disks) in machines.iter().enumerate() {
            let vmi = space.wait("vmi", &name(number), "ran", |vmi| machine::phase(vmi) == "Running")?;
            let said = said(&vmi, BOOT)?;
            for (claim, _) in *disks {
                self.is_said_by(claim, &said)?;
            }
            space.kubectl(&["delete", "vm", &name(number), "--wait=false"])?;
        }
        Ok(())
    }

    /// Whether what guests said has the line of this disk.
    pub(crate) fn is_said_by(&self, claim: &str, said: &str) -> Result<()> {
        let line = self.0.get(claim).map(String::as_str).unwrap_or_default();
        ensure!(said.lines().any(|said| said.trim() == line), "{claim}: no {line:?} in {said}");
        Ok(())
    }
}

/// Waits until the last guest of a machine was booted; what all of them said.
pub(crate) fn said(vmi: &Value, limit: Duration) -> Result<String> {
    until("the last disk to be booted", limit, || {
        let said = node::serial(machine::pod_uid(vmi));
        let over = [boot_sector::LAST, boot_sector::UNREAD].iter().any(|end| said.contains(end));
        ensure!(over, "so far it said {said:?}");
        Ok(Some(said))
    })
}
