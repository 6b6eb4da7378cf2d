//! The driver's part in a migration: waiting for a domain on the target, sending one away on the source.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{LiveDomain, MigrationOptions, MigrationOutcome, MigrationProgress};
use libvirt::{PausedReason, State};

use super::{Driver, DriverError};
use crate::migration::{self, Leaving};
use crate::prepare;
use crate::request_queue::Phase;

impl Driver {
    /// Makes ready what a domain needs that another launcher will send.
    pub(super) async fn expect(&mut self, vmi: &str) -> Result<(), DriverError> {
        let failed = |failure: super::start::Failure| DriverError::Start(failure.to_string());
        let vmi = self.read(vmi).map_err(failed)?;
        let prepared = prepare::prepare(&vmi, &self.dirs, prepare::Moment::Arrival).await;
        let refused = |error: prepare::Error| DriverError::Start(kit::Chain(&error).to_string());
        let mut prepared = prepared.map_err(refused)?;
        self.hotplugged.join(&vmi, &self.dirs, &mut prepared).map_err(refused)?;
        self.prepared = prepared;
        self.credentials.ask(&vmi);
        self.phase = Phase::Expecting;
        tracing::info!(domain = self.name, "a domain is expected from another node");
        Ok(())
    }

    /// Takes the domain over once it runs here, or stands still as it did on its source.
    pub(super) async fn arrive(&mut self) {
        let (connection, name) = (self.connection.clone(), self.name.clone());
        let found = tokio::task::spawn_blocking(move || {
            let domain = connection.lookup(&name)?;
            domain.state().map(|state| (domain, state))
        });
        let (domain, state) = match found.await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) if error.is_no_domain() => return,
            Ok(Err(error)) => {
                tracing::warn!(error = %kit::Chain(&error), "whether the domain has arrived is not known");
                return;
            }
            Err(_) => return,
        };
        // Before libvirt has finished the domain stands still for other reasons, and one whose migration failed passes through
        // states that tell nothing: libvirt has yet to say why to the other side.
        let arrived = matches!(
            state,
            State::Running
                | State::Blocked
                | State::PmSuspended
                | State::Paused(PausedReason::User | PausedReason::IoError | PausedReason::Watchdog)
                | State::Paused(PausedReason::PostCopy | PausedReason::PostCopyFailed)
        );
        if !arrived {
            return;
        }
        tracing::info!(domain = self.name, ?state, "the virtual machine has arrived");
        self.phase = Phase::Running;
        self.domain.send_replace(Some(Arc::new(domain)));
        if self.publisher.get().agent_connected {
            // It was heard of before there was a domain to ask.
            self.agent(true);
        }
        self.give_credentials();
    }

    /// Begins to send the domain away. The same migration twice is one.
    pub(super) async fn migrate(&mut self, options: &str) -> Result<(), DriverError> {
        let options: MigrationOptions = serde_json::from_str(options).map_err(DriverError::Options)?;
        self.dump.none_runs()?;
        match &self.leaving {
            Some(leaving) if leaving.uid == options.uid => return Ok(()),
            Some(leaving) => return Err(DriverError::Migrating(leaving.uid.clone())),
            None => {}
        }
        let domain = self.current().ok_or(DriverError::Refused("the virtual machine has not started yet"))?;
        let xml = self.with_domain(libvirt::Domain::xml).await?;
        let live = LiveDomain::read(&xml).unwrap_or_default();
        let open = self.channels.open(&self.dirs).map_err(DriverError::Channels)?;
        let elsewhere = self.for_the_target(&options, &live).await?;
        let request = migration::request(&options, &self.dirs, &self.prepared, &live, elsewhere);
        tracing::info!(uid = options.uid, copied = ?request.copied_disks, "sending the virtual machine to another node");
        self.leaving = Some(Leaving::start(domain, options, request, open, self.progress.0.clone()));
        Ok(())
    }

    /// The domain as it is to be on the target, where some of its disks lie elsewhere there.
    async fn for_the_target(
        &mut self,
        options: &MigrationOptions,
        live: &LiveDomain,
    ) -> Result<Option<String>, DriverError> {
        let mut sizes = BTreeMap::new();
        for device in live.devices.iter().filter(|device| options.destinations.contains_key(&device.name)) {
            let target = device.target.clone();
            let info = self.with_domain(move |domain| domain.block_info(&target)).await?;
            sizes.insert(device.name.as_str(), info.capacity);
        }
        let places = migration::relocated(options, &self.dirs, &self.prepared, |volume| sizes.get(volume).copied());
        if places.is_empty() {
            return Ok(None);
        }
        let xml = self.with_domain(libvirt::Domain::migratable_xml).await?;
        let xml =
            domain::relocated(&xml, &places).map_err(|error| DriverError::Start(kit::Chain(&error).to_string()))?;
        tracing::info!(?places, "disks lie elsewhere on the target");
        Ok(Some(xml))
    }

    /// Ends a guest that lacks memory it will never get: neither side has it whole, and neither may run it.
    pub(super) async fn end_torn_guest(&mut self) {
        tracing::error!("the way broke during post-copy: the guest's memory is on two nodes, and the guest is lost");
        self.torn = true;
        if let Err(error) = self.with_domain(libvirt::Domain::destroy).await {
            tracing::warn!(error = %kit::Chain(&error), "what is left of the guest stays");
        }
    }

    pub(super) fn abort_migration(&self) {
        if let Some(leaving) = &self.leaving {
            tracing::info!(uid = leaving.uid, "the migration is to end");
            leaving.abort();
        }
    }

    /// Publishes how far the migration is.
    pub(super) async fn moving(&mut self, progress: MigrationProgress) {
        let outcome = progress.outcome.clone();
        let text = serde_json::to_string(&progress).unwrap_or_default();
        if outcome == Some(MigrationOutcome::Moved) {
            self.phase = Phase::Gone;
        }
        self.publisher.update(|state| {
            state.migration = text;
            if outcome == Some(MigrationOutcome::Moved) {
                state.status = "Shutoff".to_owned();
                state.reason = "Migrated".to_owned();
                state.agent_connected = false;
            }
        });
        if outcome.is_some() {
            self.leaving = None;
        }
        // Of a guest that has left, nothing is to be read here any more.
        if outcome.is_some_and(|outcome| outcome != MigrationOutcome::Moved) {
            self.refresh().await;
        }
    }
}
