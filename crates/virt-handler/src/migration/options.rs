//! What the launcher is asked for, of the configuration that holds for a migration. Pure.

use api::kubevirt::hotplug;
use api::kubevirt::v1::{
    DowntimeTuningOptions, StallDetectorOptions, StorageMigratedVolumeInfo, VirtualMachineInstance,
    VirtualMachineInstanceMigrationState as State,
};
use domain::{Destination, DowntimeRamp, MigrationOptions, StallDetector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meta::quantity::Amount;

use super::uid;

/// KubeVirt's limits, for a state that carries no configuration.
const COMPLETION_SECONDS_PER_GIB: u64 = 150;
const PROGRESS_SECONDS: u64 = 150;
/// The longest pause where one has to be known and none is chosen, in milliseconds.
const LONGEST_PAUSE: u64 = 900;

/// The options of the migration of `vmi` in `state`.
pub(crate) fn options(vmi: &VirtualMachineInstance, state: &State) -> MigrationOptions {
    let name = |volume: &StorageMigratedVolumeInfo| volume.volume_name.clone();
    let copied = || vmi.status.iter().flat_map(|status| &status.migrated_volumes);
    let wanted = state.migration_configuration.as_deref().cloned().unwrap_or_default();
    let bandwidth = wanted.bandwidth_per_migration.as_ref().and_then(|quantity| Amount::try_from(quantity).ok());
    let experimental = wanted.experimental.clone().unwrap_or_default();
    let ramp = experimental.downtime_tuning.as_ref().map(ramp);
    let stall = experimental.stall_detector.as_deref().map(stall);
    let some_pause = if ramp.is_some() || stall.is_some() { LONGEST_PAUSE } else { 0 };
    MigrationOptions {
        uid: uid(state).to_owned(),
        copied_volumes: copied().map(name).collect(),
        destinations: copied().filter_map(|volume| Some((name(volume), destination(vmi, volume)?))).collect(),
        bandwidth: bandwidth.map(Amount::bytes).unwrap_or_default(),
        auto_converge: wanted.allow_auto_converge == Some(true),
        post_copy: wanted.allow_post_copy == Some(true),
        workload_disruption: wanted.allow_workload_disruption.or(wanted.allow_post_copy) == Some(true),
        completion_timeout_per_gib: positive(wanted.completion_timeout_per_gi_b, COMPLETION_SECONDS_PER_GIB),
        progress_timeout: positive(wanted.progress_timeout, PROGRESS_SECONDS),
        max_downtime: positive(wanted.max_downtime_ms, some_pause),
        trust_disks: wanted.unsafe_migration_override == Some(true),
        compression: experimental.compression.as_deref() == Some("zstd"),
        ramp,
        stall,
    }
}

/// What the disk of `volume` is copied into.
fn destination(vmi: &VirtualMachineInstance, volume: &StorageMigratedVolumeInfo) -> Option<Destination> {
    let info = volume.destination_pvc_info.as_ref()?;
    let capacity = info.capacity.get("storage").and_then(|size| Amount::try_from(size).ok());
    Some(Destination {
        block: info.volume_mode.as_deref() == Some("Block"),
        capacity: capacity.map_or(0, Amount::bytes),
        hotplugged: hotplug::volumes(&vmi.spec).any(|known| known.name == volume.volume_name),
    })
}

fn positive(value: Option<i64>, default: u64) -> u64 {
    value.map_or(default, |value| u64::try_from(value).unwrap_or_default())
}

fn ramp(said: &DowntimeTuningOptions) -> DowntimeRamp {
    let usual = DowntimeRamp::default();
    DowntimeRamp {
        initial: positive(said.initial_ms, usual.initial),
        steps: positive(said.steps.map(i64::from), usual.steps).max(1),
        start_after: positive(said.start_after_iteration, usual.start_after),
        cooldown: positive(said.cooldown_seconds.map(i64::from), usual.cooldown).max(1),
    }
}

fn stall(said: &StallDetectorOptions) -> StallDetector {
    let usual = StallDetector::default();
    let factor = |said: &Option<Quantity>, usual: f64| {
        let milli = said.as_ref().and_then(|said| Amount::try_from(said).ok()).map(Amount::milli_value);
        milli.map_or(usual, |milli| milli as f64 / 1000.0)
    };
    StallDetector {
        margin: positive(said.stall_margin, usual.margin),
        window: positive(said.stall_progress_timeout, usual.window),
        switchover_timeout: positive(said.switchover_timeout, usual.switchover_timeout),
        ewma_alpha: factor(&said.ewma_alpha, usual.ewma_alpha),
        possible_factor: factor(&said.precopy_possible_factor, usual.possible_factor),
        patience_decay: factor(&said.patience_window_decay_factor, usual.patience_decay),
        search_minimum: said.search_local_minima.unwrap_or(usual.search_minimum),
        completion_factor: factor(&said.completion_timeout_factor, usual.completion_factor),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(configuration: Value, expect: &MigrationOptions) {
        let state = json!({ "migrationUid": "m", "migrationConfiguration": configuration });
        let device = json!({ "volumeMode": "Block", "capacity": { "storage": "1Mi" } });
        let moved = json!([{ "volumeName": "data", "destinationPVCInfo": device }]);
        let vmi = json!({ "status": { "migratedVolumes": moved } });
        let found = options(&serde_json::from_value(vmi).unwrap(), &serde_json::from_value(state).unwrap());
        assert_eq!(&found, expect);
    }

    fn limits() -> MigrationOptions {
        MigrationOptions {
            uid: "m".into(),
            copied_volumes: vec!["data".into()],
            destinations: [("data".into(), Destination { block: true, capacity: 1 << 20, hotplugged: false })].into(),
            completion_timeout_per_gib: 150,
            progress_timeout: 150,
            ..MigrationOptions::default()
        }
    }

    #[test]
    fn the_configuration_becomes_options() {
        check(Value::Null, &limits());
        let chosen = json!({
            "bandwidthPerMigration": "64Mi", "completionTimeoutPerGiB": 10, "progressTimeout": 0, "allowPostCopy": true,
            "allowAutoConverge": true, "maxDowntimeMs": 100, "unsafeMigrationOverride": true,
        });
        let expect = MigrationOptions {
            bandwidth: 64 << 20,
            auto_converge: true,
            post_copy: true,
            workload_disruption: true,
            completion_timeout_per_gib: 10,
            progress_timeout: 0,
            max_downtime: 100,
            trust_disks: true,
            ..limits()
        };
        check(chosen, &expect);
    }

    #[test]
    fn experiments_have_defaults() {
        check(json!({ "experimental": { "compression": "none" } }), &limits());
        let small = MigrationOptions { compression: true, ..limits() };
        check(json!({ "experimental": { "compression": "zstd" } }), &small);
        let ramp = DowntimeRamp { initial: 150, steps: 7, start_after: 3, cooldown: 10 };
        let tuned = MigrationOptions { max_downtime: 900, ramp: Some(ramp.clone()), ..limits() };
        check(json!({ "experimental": { "downtimeTuning": {} } }), &tuned);
        let ramp = DowntimeRamp { steps: 2, cooldown: 1, ..ramp };
        let tuned = MigrationOptions { max_downtime: 400, ramp: Some(ramp), ..limits() };
        let said = json!({ "steps": 2, "cooldownSeconds": 1 });
        check(json!({ "maxDowntimeMs": 400, "experimental": { "downtimeTuning": said } }), &tuned);
        let stall = StallDetector::default();
        let watched = MigrationOptions { max_downtime: 900, stall: Some(stall.clone()), ..limits() };
        check(json!({ "experimental": { "stallDetector": {} } }), &watched);
        let stall =
            StallDetector { margin: 7, ewma_alpha: 0.25, completion_factor: 3.0, search_minimum: false, ..stall };
        let watched = MigrationOptions { stall: Some(stall), ..watched };
        let said = json!({
            "stallMargin": 7, "ewmaAlpha": "0.25", "completionTimeoutFactor": 3, "searchLocalMinima": false,
        });
        check(json!({ "experimental": { "stallDetector": said } }), &watched);
    }
}
