//! What the administrator chose in the KubeVirt object: watched once for the whole process, and parsed when it changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::kubevirt::tls::asked;
use api::kubevirt::v1::{KubeVirt, KubeVirtConfiguration};
use domain::Smbios;
use futures::FutureExt as _;
use kit::Task;
use kit::store::{self, Store, Watch};
use kit::tls::{self, Changing};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::Error;
use crate::storage::Tolerance;

/// What this process reads of the KubeVirt object's configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// How much smaller than promised a volume may be.
    pub tolerance: Tolerance,
    /// Guests give back the memory that they do not use.
    pub free_page_reporting: bool,
    /// What guests write to their first serial console is logged.
    pub serial_console_log: bool,
    /// How guests see the maker of their machine.
    pub smbios: Smbios,
    /// Models of processors that guests are not to be given.
    pub obsolete_cpu_models: BTreeMap<String, bool>,
}

impl Settings {
    pub(crate) fn of(configuration: &KubeVirtConfiguration) -> Self {
        let options = configuration.virtual_machine_options.as_ref();
        let smbios = configuration.smbios.clone().unwrap_or_default();
        Self {
            tolerance: Tolerance::of(configuration),
            free_page_reporting: options.is_none_or(|options| options.disable_free_page_reporting.is_none()),
            serial_console_log: options.is_none_or(|options| options.disable_serial_console_log.is_none()),
            smbios: Smbios {
                manufacturer: smbios.manufacturer.unwrap_or_default(),
                product: smbios.product.unwrap_or_default(),
                version: smbios.version.unwrap_or_default(),
                sku: smbios.sku.unwrap_or_default(),
                family: smbios.family.unwrap_or_default(),
            },
            obsolete_cpu_models: configuration.obsolete_cpu_models.clone(),
        }
    }
}

/// The KubeVirt object and the settings in it; cheap to clone, filled by [`Watched::start`].
#[derive(Clone)]
pub(crate) struct Watched {
    objects: Store<KubeVirt>,
    parsed: Arc<watch::Sender<Arc<Settings>>>,
}

impl Default for Watched {
    fn default() -> Self {
        let settings = Settings::of(&KubeVirtConfiguration::default());
        Self { objects: Store::default(), parsed: Arc::new(watch::channel(Arc::new(settings)).0) }
    }
}

impl Watched {
    /// Follows the KubeVirt object, and has `servers` offer the TLS that it asks for, for as long as the task is held.
    pub(crate) fn start(&self, client: &Client, servers: Vec<Arc<Changing>>) -> Task<()> {
        let how = Watch { trim: |kubevirt: &mut KubeVirt| kubevirt.status = None, ..Watch::default() };
        let (this, mut serve) = (self.clone(), tls::obey(servers, asked));
        store::watch(Api::all(client.clone()), how, self.objects.clone(), move |change| {
            this.parse();
            serve(change);
        })
    }

    fn parse(&self) {
        let configuration = self.objects.list().into_iter().next().and_then(|kubevirt| kubevirt.spec.configuration);
        let settings = Settings::of(&configuration.map(|configuration| *configuration).unwrap_or_default());
        self.parsed.send_if_modified(|known| {
            let changed = **known != settings;
            if changed {
                *known = Arc::new(settings);
            }
            changed
        });
    }

    /// The settings; KubeVirt's defaults where there is no object.
    ///
    /// # Errors
    /// Before the API server has said whether there is one.
    pub(crate) fn current(&self) -> Result<Arc<Settings>, Error> {
        match self.objects.synced().now_or_never() {
            Some(()) => Ok(self.parsed.borrow().clone()),
            None => Err(Error::NotThereYet("the KubeVirt object has not been read yet".to_owned())),
        }
    }

    /// The settings, and each that follows.
    pub(crate) async fn subscribe(&self) -> watch::Receiver<Arc<Settings>> {
        self.objects.synced().await;
        self.parsed.subscribe()
    }

    /// The object itself.
    pub(crate) fn objects(&self) -> &Store<KubeVirt> {
        &self.objects
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_hold_where_nothing_is_chosen() {
        let settings = Settings::of(&KubeVirtConfiguration::default());
        assert!(settings.free_page_reporting && settings.serial_console_log);
        assert_eq!((settings.smbios, settings.obsolete_cpu_models.len()), (Smbios::default(), 0));
    }

    #[test]
    fn each_choice_of_the_configuration_is_a_setting() {
        let chosen = serde_json::from_value(json!({
            "virtualMachineOptions": { "disableFreePageReporting": {}, "disableSerialConsoleLog": {} },
            "smbios": { "manufacturer": "a", "product": "b", "version": "c", "sku": "d", "family": "e" },
            "obsoleteCPUModels": { "486": true },
            "developerConfiguration": { "pvcTolerateLessSpaceUpToPercent": 3, "minimumReservePVCBytes": 4 },
        }))
        .unwrap();
        let settings = Settings::of(&chosen);
        assert!(!settings.free_page_reporting && !settings.serial_console_log);
        let Smbios { manufacturer, product, version, sku, family } = settings.smbios;
        assert_eq!([manufacturer, product, version, sku, family], ["a", "b", "c", "d", "e"]);
        assert_eq!(settings.obsolete_cpu_models, [("486".to_owned(), true)].into());
        assert_eq!(settings.tolerance, Tolerance::of(&chosen));
        assert_ne!(settings.tolerance, Tolerance::of(&KubeVirtConfiguration::default()));
    }
}
