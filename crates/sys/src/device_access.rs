//! Which devices the processes of a container may open, changed while it runs.
//!
//! ```text
//!   version 1   a list:      devices.allow, devices.deny
//!   version 2   programs:    each that is attached to the group, or to one around it, has to allow
//! ```
//! A container runtime makes both when it makes the container, and nobody else knows what it allowed. A list takes one
//! device more. A program takes none, and one more program would only forbid more: so what is lent comes before the
//! runtime's program, and both together into its place. What is lent is read out of the program that is there: it is known
//! to whoever asks next, and gone when the runtime puts a program of its own there.

mod blinding;
mod instruction;
mod kernel;
mod program;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::cgroup::{self, Hierarchy, Membership};
use crate::device::Kind;
use crate::peer::Process;
use crate::{Result, at};

/// A device, by what the kernel knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Character or block.
    pub kind: Kind,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// Lets the container of `process` open the device for reading and writing, until [`take`]. What it may open besides
/// stays as it was. Idempotent, and to be repeated: a runtime that changes the limits of a container may put a program of
/// its own in the place of this one.
///
/// The container is the group of the process and those around it, as far as `is_theirs` says so of their paths, which are
/// those of /proc/PID/cgroup: some runtimes put the processes in a group within the container's. No other group is changed.
pub fn lend(process: &Process, device: Device, is_theirs: impl Fn(&str) -> bool) -> Result<()> {
    change(process, device, true, &is_theirs)
}

/// The opposite of [`lend`]: the container may open the device if its runtime lets it. What is open stays open.
pub fn take(process: &Process, device: Device, is_theirs: impl Fn(&str) -> bool) -> Result<()> {
    change(process, device, false, &is_theirs)
}

fn change(process: &Process, device: Device, lent: bool, is_theirs: &dyn Fn(&str) -> bool) -> Result<()> {
    let places = places(&cgroup::hierarchies_of_first()?, &process.cgroups()?, is_theirs);
    if places.is_empty() {
        let missing = io::Error::new(
            ErrorKind::NotFound,
            "its control group is not seen from here: this has to run in the PID and cgroup namespaces of the host",
        );
        return Err(at("find what decides the devices of process", Path::new(&process.pid().to_string()))(missing));
    }
    places.iter().try_for_each(|place| match place {
        Place::List(group) => change_list(group, device, lent),
        Place::Programs(group) => change_programs(group, device, lent),
    })
}

/// Where it is decided what a container may open.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    List(PathBuf),
    Programs(PathBuf),
}

/// The places for a process that is in the groups `member`. Where both versions are mounted, both decide.
fn places(hierarchies: &[Hierarchy], member: &[Membership], is_theirs: &dyn Fn(&str) -> bool) -> Vec<Place> {
    let devices = |name: &str| name == "devices";
    let mut found = Vec::new();
    for Hierarchy { mount, options } in hierarchies {
        let lists = options.as_deref().is_some_and(|options| options.split(',').any(devices));
        let decides = |group: &&Membership| match options {
            None => group.controllers.is_empty(),
            Some(_) => lists && group.controllers.iter().any(|name| devices(name)),
        };
        // What lies outside of the cgroup namespace of this process begins with `/..`: a path from there on leads astray.
        let Some(own) = member.iter().find(decides).filter(|own| !own.path.starts_with("/..")) else { continue };
        let theirs = Path::new(&own.path).ancestors().take_while(|group| group.to_str().is_some_and(is_theirs));
        let mut dirs = theirs.map(|group| mount.join(group.strip_prefix("/").unwrap_or(group)));
        match lists {
            true => found.extend(dirs.next().map(Place::List)),
            false => found.extend(dirs.map(Place::Programs)),
        }
    }
    found
}

fn change_list(group: &Path, device: Device, lent: bool) -> Result<()> {
    let file = group.join(if lent { "devices.allow" } else { "devices.deny" });
    let letter = match device.kind {
        Kind::Char => 'c',
        Kind::Block => 'b',
    };
    let entry = format!("{letter} {}:{} rw", device.major, device.minor);
    fs::write(&file, entry).map_err(at("change the devices of", &file))
}

fn change_programs(group: &Path, device: Device, lent: bool) -> Result<()> {
    let failed = || at("change who decides the devices of", group);
    let dir = File::open(group).map_err(at("open cgroup", group))?;
    let deciding = kernel::deciding(&dir).map_err(failed())?;
    // One that was not read as it is would be put back as something else: that is asked first, of all.
    let read = deciding.programs.iter().map(|id| {
        let (hold, program) = kernel::read(*id)?;
        if program::is_whole(&program) { Ok((hold, program)) } else { Err(foreign()) }
    });
    for (old, program) in read.collect::<io::Result<Vec<_>>>().map_err(failed())? {
        let (mut devices, runtime) = program::split(&program);
        if devices.contains(&device) == lent {
            continue;
        }
        if lent {
            devices.push(device);
        } else {
            devices.retain(|known| *known != device);
        }
        let new = kernel::load(&program::join(&devices, runtime)).map_err(failed())?;
        kernel::replace(&dir, &deciding, &old, &new).map_err(failed())?;
    }
    Ok(())
}

fn foreign() -> io::Error {
    io::Error::new(
        ErrorKind::Unsupported,
        "a program decides that no container runtime made, and that cannot be taken up: remove it (`bpftool cgroup list` \
         names it), or use a claim with volumeMode Filesystem",
    )
}
