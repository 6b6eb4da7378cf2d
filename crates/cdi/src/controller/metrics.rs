//! What the controllers count, as of when they are asked.

use api::cdi::constants::{annotation, condition, phase};
use kube::ResourceExt;
use meta::conditions;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::controller::context::{Context, annotation_of};
use crate::controller::profile::provisioners::UNSUPPORTED;

/// A worker that was begun this often is in trouble.
const MANY_RESTARTS: i32 = 3;

/// Writes the metrics of `context`.
pub fn encode(context: &Context, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
    Figures(context).encode(encoder)
}

struct Figures<'a>(&'a Context);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Profile {
    storageclass: String,
    provisioner: String,
    complete: String,
    default: String,
    virtdefault: String,
    rwx: String,
    smartclone: String,
    degraded: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Cron {
    ns: String,
    cron_name: String,
    pending: String,
}

impl Figures<'_> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let context = self.0;
        let volumes = context.volumes.list();
        let pending = volumes
            .iter()
            .filter(|volume| volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase::PENDING));
        single(
            &mut encoder,
            "kubevirt_cdi_datavolume_pending",
            "Number of DataVolumes pending for default storage class to be configured",
            pending.count(),
        )?;

        let claims = context.claims.list();
        let restarted = |of: &str| {
            let often = |claim: &&k8s_openapi::api::core::v1::PersistentVolumeClaim| {
                let restarts =
                    annotation_of(*claim, annotation::POD_RESTARTS).and_then(|text| text.parse::<i32>().ok());
                claim.annotations().contains_key(of) && restarts.is_some_and(|count| count > MANY_RESTARTS)
            };
            claims.iter().filter(often).count()
        };
        for (name, help, of) in [
            (
                "kubevirt_cdi_import_pods_high_restart",
                "The number of CDI import pods with high restart count",
                annotation::IMPORT_POD,
            ),
            (
                "kubevirt_cdi_upload_pods_high_restart",
                "The number of CDI upload server pods with high restart count",
                annotation::UPLOAD_POD,
            ),
            (
                "kubevirt_cdi_clone_pods_high_restart",
                "The number of CDI clone pods with high restart count",
                annotation::CLONE_SOURCE_POD,
            ),
        ] {
            single(&mut encoder, name, help, restarted(of))?;
        }
        self.profiles(&mut encoder)?;
        self.crons(&mut encoder)
    }

    fn profiles(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "`StorageProfiles` info labels: `storageclass`, `provisioner`, `complete` indicates if all storage profiles recommended PVC settings are complete, `default` indicates if it's the Kubernetes default storage class, `virtdefault` indicates if it's the default virtualization storage class, `rwx` indicates if the storage class supports `ReadWriteMany`, `smartclone` indicates if it supports snapshot or CSI based clone, `degraded` indicates it is not optimal for virtualization";
        let mut family =
            encoder.encode_descriptor("kubevirt_cdi_storageprofile_info", help, None, MetricType::Gauge)?;
        let classes = self.0.classes.list();
        for profile in self.0.profiles.list() {
            let Some(status) = &profile.status else { continue };
            let class = classes.iter().find(|class| class.name_any() == profile.name_any());
            let marked = |key: &str| class.is_some_and(|class| annotation_of(class, key) == Some("true"));
            let provisioner = status.provisioner.clone().unwrap_or_default();
            let mut modes = status.claim_property_sets.iter().flat_map(|set| &set.access_modes);
            let rwx = modes.any(|mode| mode == "ReadWriteMany");
            let smartclone = status.clone_strategy.as_deref() != Some("copy");
            let labels = Profile {
                storageclass: profile.name_any(),
                complete: (!status.claim_property_sets.is_empty() || UNSUPPORTED.contains(&provisioner.as_str()))
                    .to_string(),
                provisioner,
                default: marked(annotation::DEFAULT_CLASS).to_string(),
                virtdefault: marked(annotation::DEFAULT_VIRT_CLASS).to_string(),
                rwx: rwx.to_string(),
                smartclone: smartclone.to_string(),
                // Guests of it do not move, or do not come quickly.
                degraded: (!rwx || !smartclone).to_string(),
            };
            ConstGauge::new(1).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn crons(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "kubevirt_cdi_dataimportcron_outdated",
            "DataImportCron has an outdated import",
            None,
            MetricType::Gauge,
        )?;
        for cron in self.0.crons.list() {
            let all = cron.status.as_ref().map_or(&[][..], |status| &status.conditions);
            let up_to_date = conditions::is_true(all, condition::UP_TO_DATE);
            let progressing = conditions::is_true(all, condition::PROGRESSING);
            let labels = Cron {
                ns: cron.namespace().unwrap_or_default(),
                cron_name: cron.name_any(),
                pending: progressing.to_string(),
            };
            ConstGauge::new(i64::from(!up_to_date && !progressing)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

fn single(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: usize) -> Result<(), std::fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    gauge.encode(metric)
}
