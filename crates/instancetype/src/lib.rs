//! Instance types and preferences: what a VirtualMachine is made of that names them.
//!
//! ```text
//! spec.instancetype, spec.preference -> Matcher -> find: the revision, or the object -> Chosen
//! Chosen + VM -> problems: what does not fit    (virt-api, before the VM is stored)
//!             -> expand: the VM written out     (virt-controller, when the VM starts; the subresources expand-spec)
//! ```
//!
//! An instance type says what a machine has: the user writes nothing of it themselves, and what they write is a conflict. A preference says
//! what is wanted where the user said nothing. The objects are read as JSON, as they are stored: most of their fields go to the
//! machine as they are, and the tables in [`size`] and [`preference`] say where.

mod cpu;
mod devices;
mod expand;
mod fields;
pub mod find;
mod matcher;
mod preference;
mod requirements;
pub mod revision;
mod size;

pub use expand::expand;
pub use matcher::{Family, Matcher, WrongKind};
pub use preference::{PreferredHardware, hardware};
use serde_json::Value;

/// The API group of the four kinds.
pub const GROUP: &str = "instancetype.kubevirt.io";
/// The version that is stored.
pub const VERSION: &str = "v1beta1";

/// What a machine chose: the specs of its instance type and of its preference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chosen {
    /// `spec` of the instance type.
    pub instancetype: Option<Value>,
    /// `spec` of the preference.
    pub preference: Option<Value>,
}

/// Why a machine cannot be what it chose to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The cause's type, as `metav1.StatusCause` has it.
    pub reason: &'static str,
    /// The field of the VirtualMachine, or of what it chose.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

/// Fields below `spec.template.spec` of `vm` that are the instance type's to say, and annotations that it gives another value.
pub fn conflicts(vm: &Value, chosen: &Chosen) -> Vec<String> {
    chosen.instancetype.as_ref().map(|instancetype| size::conflicts(instancetype, vm)).unwrap_or_default()
}

/// Everything that keeps `vm` from being what it chose.
pub fn problems(vm: &Value, chosen: &Chosen) -> Vec<Problem> {
    let conflict = |path: String| Problem {
        reason: "FieldValueInvalid",
        message: format!("VM field(s) {path} conflicts with selected instance type"),
        field: path,
    };
    let mut problems: Vec<Problem> = conflicts(vm, chosen).into_iter().map(conflict).collect();
    let preference = chosen.preference.as_ref().unwrap_or(&Value::Null);
    let vcpus = chosen.instancetype.as_ref().map(size::vcpus);
    if let Some(Err(indivisible)) = vcpus.map(|vcpus| cpu::topology(vcpus, preference)) {
        let field = "instancetype.spec.cpu.guest".to_owned();
        problems.push(Problem { reason: "FieldValueInvalid", field, message: indivisible.to_string() });
    }
    problems.extend(requirements::unmet(vm, chosen));
    problems
}

#[cfg(test)]
mod tests;
