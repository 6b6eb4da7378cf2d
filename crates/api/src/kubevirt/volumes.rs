//! Which claim a volume of a machine is on.

use super::v1::Volume;

impl Volume {
    /// The name of the claim that the guest's disk lies on: one that is named, or that of a DataVolume, which has its name. What
    /// lies below an ephemeral volume is not the guest's own.
    pub fn own_claim(&self) -> Option<&str> {
        let named = self.persistent_volume_claim.as_ref().map(|source| source.claim_name.as_str());
        named.or_else(|| self.data_volume.as_ref().map(|source| source.name.as_str()))
    }

    /// The same, or the claim that memory dumps are written to: what a snapshot, a clone or an export of the machine takes.
    pub fn kept_claim(&self) -> Option<&str> {
        self.own_claim().or_else(|| self.memory_dump.as_ref().map(|source| source.claim_name.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(source: Value, own: Option<&str>, kept: Option<&str>) {
        let volume: Volume = serde_json::from_value(source).unwrap();
        assert_eq!((volume.own_claim(), volume.kept_claim()), (own, kept));
    }

    #[test]
    fn a_volume_is_on_at_most_one_claim() {
        let claim = Some("data");
        check(json!({ "name": "a", "persistentVolumeClaim": { "claimName": "data" } }), claim, claim);
        check(json!({ "name": "a", "dataVolume": { "name": "data" } }), claim, claim);
        check(json!({ "name": "a", "memoryDump": { "claimName": "data" } }), None, claim);
        check(json!({ "name": "a", "ephemeral": { "persistentVolumeClaim": { "claimName": "data" } } }), None, None);
        check(json!({ "name": "a", "containerDisk": { "image": "i" } }), None, None);
    }
}
