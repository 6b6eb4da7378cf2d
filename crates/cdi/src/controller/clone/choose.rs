//! How a clone is made: by the driver, from a snapshot, or byte by byte; and why not better. Pure.

use api::cdi::constants::clone_strategy;

/// Ways of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The driver clones the volume.
    Csi,
    /// The driver makes a volume of a snapshot.
    Snapshot,
    /// A pod reads, and another writes.
    Copy,
}

impl Strategy {
    /// As profiles and annotations name it.
    pub fn word(self) -> &'static str {
        match self {
            Strategy::Csi => clone_strategy::CSI,
            Strategy::Snapshot => clone_strategy::SNAPSHOT,
            Strategy::Copy => clone_strategy::COPY,
        }
    }
}

/// What decides.
#[derive(Clone, Debug, Default)]
pub struct Facts<'a> {
    /// The strategy that the CDI object or the profile of the target's class asks for.
    pub wanted: Option<&'a str>,
    /// The source is a snapshot.
    pub of_snapshot: bool,
    /// The driver of the target's class.
    pub target_driver: &'a str,
    /// The driver that has the source.
    pub source_driver: &'a str,
    /// The cluster knows the target's driver as a CSI driver.
    pub csi: bool,
    /// There is a snapshot class of the source's driver.
    pub snapshots: bool,
    /// Both are devices, or both file systems.
    pub same_mode: bool,
    /// The target is to be larger.
    pub larger: bool,
    /// And its class lets volumes grow.
    pub expansion: bool,
}

/// Why a clone is made byte by byte though something better was wanted: an event's reason and message.
pub type Fallback = (&'static str, &'static str);

const NO_SNAPSHOT_CLASS: Fallback = ("NoVolumeSnapshotClass", "No compatible volumesnapshotclass found");
const INCOMPATIBLE_MODES: Fallback =
    ("IncompatibleVolumeModes", "The volume modes of source and target are incompatible");
const NO_EXPANSION: Fallback = ("NoVolumeExpansion", "No volume expansion is possible");
const INCOMPATIBLE_PROVISIONERS: Fallback = ("IncompatibleProvisioners", "Provisioners are incompatible");
const NO_PROVISIONER_MATCH: Fallback =
    ("NoProvisionerMatch", "The storageclass provisioner does not match the volumesnapshotcontent driver");

/// The way to go.
pub fn choose(facts: &Facts<'_>) -> (Strategy, Option<Fallback>) {
    let wanted = match facts.wanted {
        Some(clone_strategy::COPY) if !facts.of_snapshot => return (Strategy::Copy, None),
        _ if facts.of_snapshot => Strategy::Snapshot,
        Some(clone_strategy::CSI) => Strategy::Csi,
        _ => Strategy::Snapshot,
    };
    let same_driver = !facts.source_driver.is_empty() && facts.source_driver == facts.target_driver;
    let hindered = if wanted == Strategy::Snapshot && !facts.of_snapshot && !facts.snapshots {
        Some(NO_SNAPSHOT_CLASS)
    } else if !same_driver || !facts.csi {
        Some(if facts.of_snapshot { NO_PROVISIONER_MATCH } else { INCOMPATIBLE_PROVISIONERS })
    } else if !facts.same_mode {
        Some(INCOMPATIBLE_MODES)
    } else if facts.larger && !facts.expansion {
        Some(NO_EXPANSION)
    } else {
        None
    };
    match hindered {
        Some(why) => (Strategy::Copy, Some(why)),
        None => (wanted, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Facts<'static> = Facts {
        wanted: Some("csi-clone"),
        of_snapshot: false,
        target_driver: "d",
        source_driver: "d",
        csi: true,
        snapshots: true,
        same_mode: true,
        larger: false,
        expansion: false,
    };

    #[track_caller]
    fn check(facts: &Facts<'_>, strategy: Strategy, why: Option<&str>) {
        let found = choose(facts);
        assert_eq!((found.0, found.1.map(|(reason, _)| reason)), (strategy, why));
    }

    #[test]
    fn the_best_that_both_ends_can_do() {
        check(&GOOD, Strategy::Csi, None);
        check(&Facts { wanted: None, ..GOOD }, Strategy::Snapshot, None);
        check(&Facts { wanted: Some("copy"), ..GOOD }, Strategy::Copy, None);
        check(
            &Facts { wanted: Some("snapshot"), snapshots: false, ..GOOD },
            Strategy::Copy,
            Some("NoVolumeSnapshotClass"),
        );
        check(&Facts { snapshots: false, ..GOOD }, Strategy::Csi, None);
        check(&Facts { source_driver: "e", ..GOOD }, Strategy::Copy, Some("IncompatibleProvisioners"));
        check(&Facts { same_mode: false, ..GOOD }, Strategy::Copy, Some("IncompatibleVolumeModes"));
        check(&Facts { larger: true, ..GOOD }, Strategy::Copy, Some("NoVolumeExpansion"));
        check(&Facts { larger: true, expansion: true, ..GOOD }, Strategy::Csi, None);
        check(&Facts { of_snapshot: true, wanted: Some("copy"), ..GOOD }, Strategy::Snapshot, None);
        check(&Facts { of_snapshot: true, source_driver: "e", ..GOOD }, Strategy::Copy, Some("NoProvisionerMatch"));
    }
}
