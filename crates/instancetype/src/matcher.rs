//! `spec.instancetype` and `spec.preference`: which object a machine names.

use api::kubevirt::v1::{InstancetypeMatcher, PreferenceMatcher, VirtualMachineSpec};

/// The two families of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// What a machine has.
    Instancetype,
    /// What a machine has where its user said nothing.
    Preference,
}

impl Family {
    /// Both.
    pub const ALL: [Family; 2] = [Family::Instancetype, Family::Preference];

    /// The field of a VirtualMachine's spec.
    pub fn field(self) -> &'static str {
        match self {
            Family::Instancetype => "instancetype",
            Family::Preference => "preference",
        }
    }

    /// The kind of one namespace, or of the `cluster`.
    pub fn kind(self, cluster: bool) -> &'static str {
        match (self, cluster) {
            (Family::Instancetype, true) => "VirtualMachineClusterInstancetype",
            (Family::Instancetype, false) => "VirtualMachineInstancetype",
            (Family::Preference, true) => "VirtualMachineClusterPreference",
            (Family::Preference, false) => "VirtualMachinePreference",
        }
    }

    /// The resource of that kind.
    pub fn plural(self, cluster: bool) -> String {
        format!("{}s", self.kind(cluster).to_lowercase())
    }

    /// What the types of the API call the reference.
    pub fn matcher(self) -> &'static str {
        match self {
            Family::Instancetype => "InstancetypeMatcher",
            Family::Preference => "PreferenceMatcher",
        }
    }

    /// The reference of a machine, if it has one.
    pub fn named_by(self, spec: &VirtualMachineSpec) -> Option<Matcher> {
        match self {
            Family::Instancetype => spec.instancetype.clone().map(Matcher::from),
            Family::Preference => spec.preference.clone().map(Matcher::from),
        }
    }
}

/// A reference of either family. An empty field is one that nobody set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Name of the object.
    pub name: String,
    /// Its kind or resource in any case; empty means that of the cluster.
    pub kind: String,
    /// The ControllerRevision to read it from.
    pub revision: String,
    /// The volume whose labels name the object.
    pub infer_from_volume: String,
    /// Reject or Ignore.
    pub infer_from_volume_failure_policy: String,
}

impl From<InstancetypeMatcher> for Matcher {
    fn from(of: InstancetypeMatcher) -> Self {
        Matcher {
            name: of.name.unwrap_or_default(),
            kind: of.kind.unwrap_or_default(),
            revision: of.revision_name.unwrap_or_default(),
            infer_from_volume: of.infer_from_volume.unwrap_or_default(),
            infer_from_volume_failure_policy: of.infer_from_volume_failure_policy.unwrap_or_default(),
        }
    }
}

impl From<PreferenceMatcher> for Matcher {
    fn from(of: PreferenceMatcher) -> Self {
        Matcher {
            name: of.name.unwrap_or_default(),
            kind: of.kind.unwrap_or_default(),
            revision: of.revision_name.unwrap_or_default(),
            infer_from_volume: of.infer_from_volume.unwrap_or_default(),
            infer_from_volume_failure_policy: of.infer_from_volume_failure_policy.unwrap_or_default(),
        }
    }
}

/// The reference is to a kind of something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("got unexpected kind in {}: {kind}", family.matcher())]
pub struct WrongKind {
    family: Family,
    kind: String,
}

impl Matcher {
    /// True when the object is of the whole cluster, false when it is of the machine's namespace.
    ///
    /// # Errors
    /// When the kind is not one of `family`.
    pub fn of_cluster(&self, family: Family) -> Result<bool, WrongKind> {
        if self.kind.is_empty() {
            return Ok(true);
        }
        let kind = self.kind.to_lowercase();
        let is = |cluster| {
            let plural = family.plural(cluster);
            kind == plural || Some(kind.as_str()) == plural.strip_suffix('s')
        };
        match (is(true), is(false)) {
            (true, _) => Ok(true),
            (_, true) => Ok(false),
            _ => Err(WrongKind { family, kind: self.kind.clone() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_named_in_any_case_by_its_kind_or_its_resource() {
        let check = |family: Family, kind: &str, expect: Result<bool, &str>| {
            let found = Matcher { kind: kind.to_owned(), ..Matcher::default() }.of_cluster(family);
            assert_eq!(found.map_err(|wrong| wrong.to_string()), expect.map_err(str::to_owned), "{kind}");
        };
        check(Family::Instancetype, "", Ok(true));
        check(Family::Instancetype, "VirtualMachineInstancetype", Ok(false));
        check(Family::Instancetype, "virtualmachineinstancetypes", Ok(false));
        check(Family::Instancetype, "VirtualMachineClusterInstancetypes", Ok(true));
        check(Family::Preference, "virtualmachinepreference", Ok(false));
        check(Family::Preference, "virtualmachineclusterpreferences", Ok(true));
        let wrong = "got unexpected kind in PreferenceMatcher: VirtualMachineInstancetype";
        check(Family::Preference, "VirtualMachineInstancetype", Err(wrong));
    }
}
