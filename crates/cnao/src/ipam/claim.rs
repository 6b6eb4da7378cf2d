//! A claim: the addresses of a machine on one network. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use kube::core::TypeMeta;
use serde::{Deserialize, Serialize};

use super::names::{FINALIZER, MACHINE};

/// Addresses on a network that outlive the pods which have them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IPAMClaim {
    /// Its kind, without which it cannot be made.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub types: Option<TypeMeta>,
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// Of which network.
    #[serde(default)]
    pub spec: ClaimSpec,
    /// Which they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ClaimStatus>,
}

/// Of which network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimSpec {
    /// What the pods call their interface.
    pub interface: String,
    /// The network's name, as its configuration has it.
    pub network: String,
}

/// Which addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClaimStatus {
    /// With prefix lengths.
    pub ips: Vec<String>,
}

meta::kind!(IPAMClaim, "k8s.cni.cncf.io", "v1alpha1", "ipamclaims", NamespaceResourceScope);

/// Longest name of an object.
const LONGEST: usize = 253;

/// Whose a claim is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// VirtualMachine, or VirtualMachineInstance where there is no machine.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// Of which kind an owner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A virtual machine.
    VirtualMachine,
    /// An instance that no machine has made.
    VirtualMachineInstance,
}

impl Kind {
    /// As references name it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::VirtualMachine => "VirtualMachine",
            Kind::VirtualMachineInstance => "VirtualMachineInstance",
        }
    }
}

impl Owner {
    /// The owner in references of a claim, if it is one of a machine's.
    pub fn read(references: &[OwnerReference]) -> Option<Owner> {
        let reference = references.iter().find(|one| one.controller == Some(true))?;
        if !reference.api_version.starts_with("kubevirt.io/") {
            return None;
        }
        let kind = [Kind::VirtualMachine, Kind::VirtualMachineInstance];
        let kind = kind.into_iter().find(|kind| kind.word() == reference.kind)?;
        Some(Owner { kind, name: reference.name.clone(), uid: reference.uid.clone() })
    }
}

/// What a machine wants of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The claim's name.
    pub name: String,
    /// The network's name in the machine.
    pub network: String,
    /// What the claim has to say.
    pub spec: ClaimSpec,
}

/// The name of the claim of `machine` on the network that it calls `network`.
///
/// # Errors
/// A sentence for the machine's owner, when that is no name of an object.
pub fn name(machine: &str, network: &str) -> Result<String, String> {
    let name = format!("{machine}.{network}").to_lowercase();
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(plain) && !part.starts_with('-') && !part.ends_with('-')
    };
    if name.len() <= LONGEST && name.split('.').all(part) {
        return Ok(name);
    }
    Err(format!(
        "spec.networks: name {network:?}: {name:?}, which the addresses of this network would be kept under, is no name of an object: \
         give the network and its interface a name of lower case letters, digits and '-'"
    ))
}

/// The claim of `owner`'s machine `machine`.
pub fn render(namespace: &str, machine: &str, owner: &Owner, wanted: &Wanted) -> IPAMClaim {
    let reference = OwnerReference {
        api_version: "kubevirt.io/v1".to_owned(),
        kind: owner.kind.word().to_owned(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let metadata = ObjectMeta {
        name: Some(wanted.name.clone()),
        namespace: Some(namespace.to_owned()),
        // A value has 63 characters at most, and a machine's name may have more.
        labels: (machine.len() <= 63).then(|| [(MACHINE.to_owned(), machine.to_owned())].into()),
        finalizers: Some(vec![FINALIZER.to_owned()]),
        owner_references: Some(vec![reference]),
        ..ObjectMeta::default()
    };
    IPAMClaim { types: Some(TypeMeta::resource::<IPAMClaim>()), metadata, spec: wanted.spec.clone(), status: None }
}

/// Why a claim that is there is not to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is on its way out, with what it was for.
    Leaving(String),
    /// It is somebody else's, or of another network.
    Foreign(String),
}

impl Unfit {
    /// The sentence.
    pub fn message(&self) -> &str {
        let (Unfit::Leaving(message) | Unfit::Foreign(message)) = self;
        message
    }
}

/// Whether `claim`, which has the name that is `wanted`, is what `owner` wants.
///
/// # Errors
/// Why it is not.
pub fn judge(claim: &IPAMClaim, owner: &Owner, wanted: &Wanted) -> Result<(), Unfit> {
    let place = format!("IPAMClaim {}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
    let remedy = "delete it if nothing needs its addresses";
    let held = Owner::read(claim.owner_references());
    if held.as_ref() != Some(owner) {
        // One that is going makes room by itself.
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(Unfit::Leaving(format!("{place} of another owner is being deleted: it is waited for")));
        }
        let whose = held.map_or_else(
            || "is not of a machine".to_owned(),
            |held| format!("is of {} {} with the UID {}", held.kind.word(), held.name, held.uid),
        );
        let (kind, name, uid) = (owner.kind.word(), &owner.name, &owner.uid);
        return Err(Unfit::Foreign(format!("{place} {whose}, not of {kind} {name} with the UID {uid}: {remedy}")));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(Unfit::Leaving(format!("{place} is being deleted: it is waited for, and made anew")));
    }
    if claim.spec.network != wanted.spec.network {
        let (held, now) = (&claim.spec.network, &wanted.spec.network);
        return Err(Unfit::Foreign(format!(
            "{place} has addresses of the network {held:?}, and {:?} of the machine is {now:?} now: {remedy}",
            wanted.network
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_objects() {
        assert_eq!(name("vm", "Blue").as_deref(), Ok("vm.blue"));
        assert_eq!(name("a.b", "net-1").as_deref(), Ok("a.b.net-1"));
        for bad in ["my_net", "", "-", "x-", &"a".repeat(252)] {
            assert!(name("vm", bad).unwrap_err().contains("spec.networks: name"), "{bad}");
        }
    }

    #[test]
    fn a_claim_is_of_one_owner_and_one_network() {
        let owner = Owner { kind: Kind::VirtualMachine, name: "vm".into(), uid: "1".into() };
        let spec = ClaimSpec { interface: "pod1".into(), network: "net".into() };
        let wanted = Wanted { name: "vm.blue".into(), network: "blue".into(), spec };
        let claim = render("ns", "vm", &owner, &wanted);
        assert_eq!(judge(&claim, &owner, &wanted), Ok(()));
        let foreign = |claim: &IPAMClaim, owner: &Owner, words: &str| match judge(claim, owner, &wanted).unwrap_err() {
            Unfit::Foreign(message) => assert!(message.contains(words), "{message}"),
            Unfit::Leaving(message) => panic!("{message}"),
        };
        let again = Owner { uid: "2".into(), ..owner.clone() };
        foreign(
            &claim,
            &again,
            "IPAMClaim ns/vm.blue is of VirtualMachine vm with the UID 1, not of VirtualMachine vm with the UID 2",
        );
        let instance = Owner { kind: Kind::VirtualMachineInstance, ..owner.clone() };
        foreign(&claim, &instance, "not of VirtualMachineInstance vm");
        let mut bare = claim.clone();
        bare.metadata.owner_references = None;
        foreign(&bare, &owner, "is not of a machine");
        let mut other = claim.clone();
        other.spec.network = "red".into();
        foreign(&other, &owner, "has addresses of the network \"red\"");
        let mut leaving = claim;
        leaving.metadata.deletion_timestamp = Some(serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap());
        assert!(matches!(judge(&leaving, &owner, &wanted), Err(Unfit::Leaving(_))));
        assert!(matches!(judge(&leaving, &again, &wanted), Err(Unfit::Leaving(_))));
    }
}
