//! Templates of machines that come with the cluster: for each guest system, each workload it is for and each size. Pure.
//!
//! ```text
//! System x Workload x Flavor x Architecture -> machine -> VirtualMachineTemplate, or OpenShift's Template
//! ```

pub mod machine;
pub mod object;
pub mod system;

use self::system::{Architecture, SYSTEMS, System};

/// The version of the set, which templates and their machines carry. What an older set has and this one lacks is deprecated.
pub const VERSION: &str = "v0.35.0";

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Somebody sits before it.
    Desktop,
    /// Nobody does.
    Server,
    /// The same, with processors of its own.
    HighPerformance,
}

impl Workload {
    /// As labels and names have it.
    pub fn word(self) -> &'static str {
        match self {
            Workload::Desktop => "desktop",
            Workload::Server => "server",
            Workload::HighPerformance => "highperformance",
        }
    }
}

/// How large a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// As little memory as the system runs with.
    Tiny,
    /// A little more.
    Small,
    /// 4Gi.
    Medium,
    /// 8Gi, and two processors.
    Large,
}

impl Flavor {
    /// As labels and names have it.
    pub fn word(self) -> &'static str {
        match self {
            Flavor::Tiny => "tiny",
            Flavor::Small => "small",
            Flavor::Medium => "medium",
            Flavor::Large => "large",
        }
    }

    /// Processors.
    pub fn sockets(self) -> u32 {
        if self == Flavor::Large { 2 } else { 1 }
    }

    /// Memory of a machine of `system`.
    pub fn memory(self, system: &System) -> &'static str {
        match self {
            Flavor::Tiny => system.tiny,
            Flavor::Small => system.small,
            Flavor::Medium => "4Gi",
            Flavor::Large => "8Gi",
        }
    }
}

/// One template.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// What runs in its machines.
    pub system: &'static System,
    /// What they are for.
    pub workload: Workload,
    /// How large they are.
    pub flavor: Flavor,
    /// What they run on.
    pub architecture: Architecture,
    /// What the boot source's name ends with, on clusters of several architectures.
    pub several: bool,
}

impl Template {
    /// Its name: that of the architecture that was the first is not in it.
    pub fn name(&self) -> String {
        let suffix = match self.architecture {
            Architecture::Amd64 => String::new(),
            other => format!("-{}", other.word()),
        };
        format!("{}-{}-{}{suffix}", self.system.name, self.workload.word(), self.flavor.word())
    }

    /// The DataSource that its machines boot from.
    pub fn source(&self) -> String {
        source(self.system.source, self.architecture, self.several)
    }
}

/// The boot source `name`, which on clusters of several architectures has one of each.
pub fn source(name: &str, architecture: Architecture, several: bool) -> String {
    if several { format!("{name}-{}", architecture.word()) } else { name.to_owned() }
}

/// All templates for machines of `architecture`.
pub fn all(architecture: Architecture, several: bool) -> impl Iterator<Item = Template> {
    SYSTEMS.iter().filter(move |system| system.architectures.contains(&architecture)).flat_map(move |system| {
        let one = move |workload, flavor| Template { system, workload, flavor, architecture, several };
        system
            .workloads
            .iter()
            .flat_map(move |workload| system.flavors.iter().map(move |flavor| one(*workload, *flavor)))
    })
}

#[cfg(test)]
mod tests;
