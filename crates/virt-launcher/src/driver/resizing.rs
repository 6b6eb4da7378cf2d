//! The driver's part in giving a running guest other CPUs and other memory, once its pod has the size for it.

use api::kubevirt::constants::{condition, resize};
use api::kubevirt::v1::VirtualMachineInstance;
use domain::LiveDomain;
use domain::resize::{Resize, cpus, memory};

use super::{Driver, DriverError, start};

/// Whether the pod has the size for this change.
fn has_room(vmi: &VirtualMachineInstance, kind: &str) -> bool {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|told| told.type_ == kind && told.reason.as_deref() == Some(resize::MADE))
}

impl Driver {
    /// Brings CPUs and memory of the running domain to what `vmi` asks for, as far as there is room. The error is of the first that could
    /// not be brought there: a guest may keep what it is asked to give back.
    pub(super) async fn resize(&self, vmi: &VirtualMachineInstance, live: &LiveDomain) -> Result<(), DriverError> {
        let mut outcome = Ok(());
        if has_room(vmi, condition::VCPU_CHANGE) {
            let failed = |error| DriverError::Start(start::Failure::Domain(error).to_string());
            match cpus(vmi, live) {
                Ok(change) => outcome = outcome.and(self.carry_out(change).await),
                Err(error) => outcome = outcome.and(Err(failed(error))),
            }
        }
        if has_room(vmi, condition::MEMORY_CHANGE) {
            outcome = outcome.and(self.carry_out(memory(vmi, live)).await);
        }
        outcome
    }

    async fn carry_out(&self, change: Option<Resize>) -> Result<(), DriverError> {
        let Some(change) = change else { return Ok(()) };
        match change {
            Resize::Cpus(count) => {
                let done = self.with_domain(move |domain| domain.set_vcpus(count)).await;
                done.map_err(|error| DriverError::Cpus(count, Box::new(error)))?;
                tracing::info!(count, "the guest's CPUs were changed");
            }
            Resize::PlugMemory(xml) => {
                let done = self.with_domain(move |domain| domain.attach_device(&xml)).await;
                done.map_err(|error| DriverError::Memory(Box::new(error)))?;
                tracing::info!("the guest was given more memory");
            }
            Resize::RequestMemory(xml) => {
                let done = self.with_domain(move |domain| domain.update_device(&xml)).await;
                done.map_err(|error| DriverError::Memory(Box::new(error)))?;
                tracing::info!("the guest was asked to use another part of its memory");
            }
        }
        Ok(())
    }
}
