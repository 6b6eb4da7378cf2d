//! `crates/ferrovirt/waiting.ld`: the functions that components run while they wait, so that the linker puts them in one place.
//!
//! Every component of a running cluster is traced instruction by instruction, which shows exactly what it executes. The map of
//! the linker says which function lies at an address.
//!
//! ```text
//! FERROVIRT_LINK_MAP=/tmp/link.map make up    # and some minutes of rest
//! cargo xtask codegen waiting /tmp/link.map
//! ```

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Where images have the program: what runs from elsewhere is no component.
const PROGRAM: &str = "/usr/bin/ferrovirt";
/// How long each component is watched: long enough for probes, leases and periodic work.
const WATCHED: Duration = Duration::from_secs(60);
/// How many are watched at a time. A component runs a hundred times slower meanwhile, and the processors are shared: it must still
/// renew its lease in time.
const AT_ONCE: usize = 2;
/// Bytes that the functions of one name may take together, executed or not.
const SMALL: u64 = 16 << 10;
/// And how many times what is executed of them.
const GENEROUS: u64 = 4;

/// A function's section.
struct Section {
    address: u64,
    size: u64,
    name: String,
}

pub(crate) fn run(root: &Path, map: &Path) -> Result<()> {
    let map = fs::read_to_string(map).with_context(|| format!("read the linker's map {}", map.display()))?;
    let sections = sections(&map);
    let components = components()?;
    if components.is_empty() {
        bail!("no component runs {PROGRAM} here: `make up` starts them");
    }
    println!("watching {} components, {AT_ONCE} at a time for {} s", components.len(), WATCHED.as_secs());
    let mut executed = HashSet::new();
    for some in components.chunks(AT_ONCE) {
        let end = Instant::now() + WATCHED;
        // The kernel knows a tracer by its thread.
        let tracers: Vec<_> =
            some.iter().copied().map(|pid| (pid, std::thread::spawn(move || trace(pid, end)))).collect();
        for (pid, tracer) in tracers {
            match tracer.join() {
                Ok(Ok(addresses)) => {
                    println!("  process {pid}: {} instructions", addresses.len());
                    executed.extend(addresses);
                }
                Ok(Err(error)) => println!("  process {pid} is left out: {error:#}"),
                Err(_) => println!("  process {pid} is left out: its tracer panicked"),
            }
        }
    }
    let names = names(&sections, &executed);
    println!("{} functions", names.len());
    fs::write(root.join("crates/ferrovirt/waiting.ld"), script(&names)).context("write waiting.ld")
}

fn components() -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("list processes")? {
        let path = entry.context("list processes")?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(number) = number
            && fs::read_link(path.join("exe")).is_ok_and(|program| program == Path::new(PROGRAM))
        {
            found.push(Pid::from_raw(number));
        }
    }
    Ok(found)
}

/// The addresses of all instructions that the process executes until `end`.
fn trace(process: Pid, end: Instant) -> Result<HashSet<u64>> {
    for thread in threads(process)? {
        ptrace::seize(thread, ptrace::Options::PTRACE_O_TRACECLONE)
            .with_context(|| format!("trace thread {thread}"))?;
        ptrace::interrupt(thread).with_context(|| format!("stop thread {thread}"))?;
    }
    let mut executed = HashSet::new();
    // Every component does something each few seconds: it renews a lease, or is probed.
    while Instant::now() < end {
        // A thread may end at any moment.
        if let Some((thread, signal)) = stopped(process)?
            && let Ok(registers) = ptrace::getregs(thread)
        {
            executed.insert(registers.rip);
            let _ = ptrace::step(thread, signal);
        }
    }
    // Let go of while it stands: the trap of a last step would end the process.
    let mut left: HashSet<Pid> = threads(process)?.into_iter().collect();
    left.retain(|thread| ptrace::interrupt(*thread).is_ok());
    while !left.is_empty() {
        if let Some((thread, signal)) = stopped(process)? {
            left.remove(&thread);
            let _ = ptrace::detach(thread, signal);
        }
    }
    Ok(executed)
}

fn threads(process: Pid) -> Result<Vec<Pid>> {
    let tasks = format!("/proc/{process}/task");
    let number = |task: std::io::Result<fs::DirEntry>| {
        let name = task.with_context(|| format!("list {tasks}"))?.file_name();
        Ok(Pid::from_raw(name.to_string_lossy().parse().context("the number of a thread")?))
    };
    fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))?.map(number).collect()
}

/// The next thread that stops, and the signal that it is to be given.
fn stopped(process: Pid) -> Result<Option<(Pid, Option<Signal>)>> {
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    Ok(match waitpid(None, Some(flags)).with_context(|| format!("wait for process {process}"))? {
        WaitStatus::Stopped(thread, signal) => Some((thread, Some(signal).filter(|signal| *signal != Signal::SIGTRAP))),
        WaitStatus::PtraceEvent(thread, ..) => Some((thread, None)),
        _ => None,
    })
}

/// Lines are `VMA LMA SIZE ALIGN FILE:(SECTION)`, all numbers but the last hexadecimal.
fn sections(map: &str) -> Vec<Section> {
    let parse = |line: &str| {
        let (place, name) = line.strip_suffix(')')?.rsplit_once(":(")?;
        let mut numbers = place.split_whitespace();
        let address = u64::from_str_radix(numbers.next()?, 16).ok()?;
        let size = u64::from_str_radix(numbers.nth(1)?, 16).ok()?;
        let function = name.starts_with(".text.") && size > 0;
        function.then(|| Section { address, size, name: name.to_owned() })
    };
    let mut all: Vec<_> = map.lines().filter_map(parse).collect();
    all.sort_by_key(|section| section.address);
    all
}

/// The patterns for the functions at these addresses. The compiler ends a name with a hash, which differs for each set of type
/// parameters, and with every change of a dependency: it is left out, unless a generic function would bring along what is not
/// executed in numbers.
fn names(sections: &[Section], executed: &HashSet<u64>) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for address in executed {
        let after = sections.partition_point(|section| section.address <= *address);
        let found = after.checked_sub(1).filter(|at| sections[*at].address + sections[*at].size > *address);
        used.extend(found);
    }
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    for section in sections {
        *sizes.entry(pattern(&section.name)).or_default() += section.size;
    }
    let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
    for at in &used {
        *wanted.entry(pattern(&sections[*at].name)).or_default() += sections[*at].size;
    }
    let names = used.iter().map(|at| {
        let pattern = pattern(&sections[*at].name);
        let all_of_them = sizes[&pattern] <= SMALL.max(wanted[&pattern] * GENEROUS);
        if all_of_them { pattern } else { sections[*at].name.clone() }
    });
    names.collect()
}

/// `.text._ZN3mio4poll17h0123456789abcdefE` is one of `.text._ZN3mio4poll17h*`.
fn pattern(name: &str) -> String {
    let hash = name.rfind("17h").filter(|at| name.len() == at + 20 && name.ends_with('E'));
    hash.map_or_else(|| name.to_owned(), |at| format!("{}17h*", &name[..at]))
}

fn script(names: &BTreeSet<String>) -> String {
    let mut text = "/* Generated by `cargo xtask codegen waiting`: what components execute while they wait, as the compiler calls it.
   What is not there any more does no harm. */
SECTIONS
{
  .text.waiting :
  {
    *(
"
    .to_owned();
    for name in names {
        // Brackets are patterns in a linker script, and names of types have none.
        let _ = writeln!(text, "      \"{name}\"");
    }
    text.push_str("    )\n  }\n}\nINSERT BEFORE .text;\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "             VMA              LMA     Size Align Out     In      Symbol
          2002e0           2002e0       1c     1 .interp
          2002e0           2002e0       1c     1         <internal>:(.interp)
         1ea0db0          1ea0db0       5b    16         /t/deps/a.o:(.text._ZN3mio4poll17h0123456789abcdefE)
         1ea0db0          1ea0db0       5b     1                 _ZN3mio4poll17h0123456789abcdefE
         1ea0e10          1ea0e10       10    16         /t/deps/libb.rlib(b.o):(.text._ZN4core4drop17h0000000000000001E)
         1ea0e20          1ea0e20     4000    16         /t/deps/libb.rlib(b.o):(.text._ZN4core4drop17h0000000000000002E)
         1ea4e20          1ea4e20       10    16         c.o:(.text.memcpy)
";

    #[track_caller]
    fn check(executed: &[u64], expect: &[&str]) {
        let names = names(&sections(MAP), &executed.iter().copied().collect());
        assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn executed_addresses_become_patterns_of_functions() {
        check(&[0x1ea_0db0, 0x1ea_0db7], &[".text._ZN3mio4poll17h*"]);
        check(&[0x1ea_0e0b, 0x20_02e0, 0x1ea_4e30], &[]);
        check(&[0x1ea_4e2f], &[".text.memcpy"]);
    }

    #[test]
    fn a_small_function_is_named_alone_when_the_others_of_its_name_are_large() {
        check(&[0x1ea_0e10], &[".text._ZN4core4drop17h0000000000000001E"]);
        check(&[0x1ea_0e20], &[".text._ZN4core4drop17h*"]);
    }

    #[test]
    fn the_script_puts_functions_before_all_others() {
        let text = script(&BTreeSet::from([".text.memcpy".to_owned()]));
        assert!(
            text.contains("    *(\n      \".text.memcpy\"\n    )\n") && text.ends_with("INSERT BEFORE .text;\n"),
            "{text}"
        );
    }
}
