//! `crates/ferrovirt/waiting.ld`: the functions that components run while they wait, so that the linker puts them in one place.
//!
//! The map of the linker says where functions lie. In every component of a running cluster each of them gets a breakpoint, which
//! goes when it is hit: that costs a component nothing but the moment in which it executes a function for the first time, so that
//! it answers probes and renews leases as ever.
//!
//! ```text
//! FERROVIRT_LINK_MAP=/tmp/link.map make up    # and some minutes of rest
//! cargo xtask codegen waiting /tmp/link.map
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Where images have the program: what runs from elsewhere is no component.
const PROGRAM: &str = "/usr/bin/ferrovirt";
/// Longer than watches of the API last, so that each component is seen to begin one again.
const WATCHED: Duration = Duration::from_secs(330);
/// The instruction of a breakpoint, on x86-64.
const BREAKPOINT: u8 = 0xcc;
/// Breakpoints are set anew: they go when a component lets go of its code.
const SET_AGAIN: Duration = Duration::from_secs(30);
/// Between two looks for threads that have stopped.
const PAUSE: Duration = Duration::from_micros(100);
/// Bytes that the functions of one name may take together, executed or not.
const SMALL: u64 = 1 << 10;
/// And how many times what is executed of them.
const GENEROUS: u64 = 2;

/// Which components, by number, execute the functions of which sections, by their places in the list.
type Users = BTreeMap<usize, BTreeSet<usize>>;

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
    println!("watching {} components for {} s", components.len(), WATCHED.as_secs());
    let end = Instant::now() + WATCHED;
    let sections = Arc::new(sections);
    // The kernel knows a tracer by its thread.
    let tracers = components.into_iter().map(|process| {
        let sections = sections.clone();
        (process, std::thread::spawn(move || trace(process, &sections, end)))
    });
    let mut users = Users::new();
    for (number, (process, tracer)) in tracers.collect::<Vec<_>>().into_iter().enumerate() {
        match tracer.join() {
            Ok(Ok(functions)) => {
                println!("  process {process}: {} functions", functions.len());
                for at in functions {
                    users.entry(at).or_default().insert(number);
                }
            }
            Ok(Err(error)) => println!("  process {process} is left out: {error:#}"),
            Err(_) => println!("  process {process} is left out: its tracer panicked"),
        }
    }
    let bytes: u64 = users.keys().map(|at| sections[*at].size).sum();
    println!("{} functions, {} KiB", users.len(), bytes >> 10);
    fs::write(root.join("crates/ferrovirt/waiting.ld"), script(&groups(&sections, &users))).context("write waiting.ld")
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

/// The sections, by their places in the list, of all functions that the process executes until `end`.
fn trace(process: Pid, sections: &[Section], end: Instant) -> Result<BTreeSet<usize>> {
    let mut tracees = Tracees::seize(process)?;
    let code = Code::of(process, sections)?;
    let mut executed = BTreeSet::new();
    let mut set = None;
    while Instant::now() < end {
        if set.is_none_or(|set: Instant| set.elapsed() > SET_AGAIN) {
            for thread in tracees.stop_all()? {
                executed.extend(code.hit(thread, sections)?);
            }
            code.set_breakpoints(sections, &executed)?;
            tracees.resume_all()?;
            set = Some(Instant::now());
        }
        let Some((thread, mut signal)) = tracees.next()? else {
            pause();
            continue;
        };
        if signal == Some(Signal::SIGTRAP) {
            executed.extend(code.hit(thread, sections)?);
            signal = None;
        }
        // A thread may end at any moment.
        let _ = ptrace::cont(thread, signal);
    }
    for thread in tracees.stop_all()? {
        executed.extend(code.hit(thread, sections)?);
    }
    code.restore()?;
    tracees.detach_all();
    Ok(executed)
}

/// The threads of a process that this thread traces.
struct Tracees {
    process: Pid,
    /// Those that stand, and the signals that they are to be given.
    stopped: BTreeMap<Pid, Option<Signal>>,
}

impl Tracees {
    fn seize(process: Pid) -> Result<Self> {
        for thread in threads(process)? {
            let options = ptrace::Options::PTRACE_O_TRACECLONE;
            ptrace::seize(thread, options).with_context(|| format!("trace thread {thread}"))?;
        }
        Ok(Self { process, stopped: BTreeMap::new() })
    }

    /// The next thread that has stopped, and its signal, if one has.
    fn next(&mut self) -> Result<Option<(Pid, Option<Signal>)>> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let stop = waitpid(None, Some(flags)).with_context(|| format!("wait for process {}", self.process))?;
        Ok(match stop {
            WaitStatus::Stopped(thread, signal) => Some((thread, Some(signal))),
            WaitStatus::PtraceEvent(thread, ..) => Some((thread, None)),
            _ => None,
        })
    }

    /// Returns the threads that stand at a breakpoint.
    fn stop_all(&mut self) -> Result<Vec<Pid>> {
        let mut left: HashSet<Pid> = threads(self.process)?.into_iter().collect();
        left.retain(|thread| ptrace::interrupt(*thread).is_ok());
        let mut hits = Vec::new();
        while !left.is_empty() {
            let Some((thread, signal)) = self.next()? else {
                pause();
                let there: HashSet<Pid> = threads(self.process)?.into_iter().collect();
                left.retain(|thread| there.contains(thread));
                continue;
            };
            left.remove(&thread);
            hits.extend((signal == Some(Signal::SIGTRAP)).then_some(thread));
            self.stopped.insert(thread, signal.filter(|signal| *signal != Signal::SIGTRAP));
        }
        Ok(hits)
    }

    fn resume_all(&mut self) -> Result<()> {
        for (thread, signal) in std::mem::take(&mut self.stopped) {
            ptrace::cont(thread, signal).with_context(|| format!("resume thread {thread}"))?;
        }
        Ok(())
    }

    fn detach_all(self) {
        for (thread, signal) in self.stopped {
            let _ = ptrace::detach(thread, signal);
        }
    }
}

/// The code of a process.
struct Code {
    memory: File,
    start: u64,
    /// As it was.
    bytes: Vec<u8>,
}

impl Code {
    fn of(process: Pid, sections: &[Section]) -> Result<Self> {
        let path = format!("/proc/{process}/mem");
        let memory = File::options().read(true).write(true).open(&path).with_context(|| format!("open {path}"))?;
        let (Some(first), Some(last)) = (sections.first(), sections.last()) else { bail!("the map has no functions") };
        let length = usize::try_from(last.address + last.size - first.address).context("the length of the code")?;
        let mut bytes = vec![0; length];
        memory
            .read_exact_at(&mut bytes, first.address)
            .with_context(|| format!("read the code of process {process}"))?;
        Ok(Self { memory, start: first.address, bytes })
    }

    /// In all functions but those that are known to be executed.
    fn set_breakpoints(&self, sections: &[Section], executed: &BTreeSet<usize>) -> Result<()> {
        let mut broken = self.bytes.clone();
        for (at, section) in sections.iter().enumerate() {
            if !executed.contains(&at) {
                broken[self.place(section.address)?] = BREAKPOINT;
            }
        }
        self.memory.write_all_at(&broken, self.start).context("set breakpoints")
    }

    fn restore(&self) -> Result<()> {
        self.memory.write_all_at(&self.bytes, self.start).context("take breakpoints away")
    }

    fn place(&self, address: u64) -> Result<usize> {
        usize::try_from(address - self.start).context("the place of a function")
    }

    /// The section of the function at whose breakpoint the thread stands. It begins with its own instruction again.
    fn hit(&self, thread: Pid, sections: &[Section]) -> Result<Option<usize>> {
        let mut registers =
            ptrace::getregs(thread).with_context(|| format!("read the registers of thread {thread}"))?;
        let address = registers.rip - 1;
        let Ok(at) = sections.binary_search_by_key(&address, |section| section.address) else { return Ok(None) };
        let place = self.place(address)?;
        self.memory.write_all_at(&self.bytes[place..=place], address).context("take a breakpoint away")?;
        registers.rip = address;
        ptrace::setregs(thread, registers).with_context(|| format!("write the registers of thread {thread}"))?;
        Ok(Some(at))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "waiting for a thread to stop has no time limit, and the watch has an end"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}

fn threads(process: Pid) -> Result<Vec<Pid>> {
    let tasks = format!("/proc/{process}/task");
    let number = |task: std::io::Result<fs::DirEntry>| {
        let name = task.with_context(|| format!("list {tasks}"))?.file_name();
        Ok(Pid::from_raw(name.to_string_lossy().parse().context("the number of a thread")?))
    };
    fs::read_dir(&tasks).with_context(|| format!("list {tasks}"))?.map(number).collect()
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

/// The patterns for these sections, in groups of what the same components execute; what more of them do comes first.
///
/// The compiler ends a name with a hash, which differs for each set of type parameters, and with every change of a dependency: it
/// is left out, unless a generic function would bring along what is not executed in numbers.
fn groups(sections: &[Section], users: &Users) -> Vec<Vec<String>> {
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    for section in sections {
        *sizes.entry(pattern(&section.name)).or_default() += section.size;
    }
    let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
    for at in users.keys() {
        *wanted.entry(pattern(&sections[*at].name)).or_default() += sections[*at].size;
    }
    let mut by_name: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (at, components) in users {
        let pattern = pattern(&sections[*at].name);
        let all_of_them = sizes[&pattern] <= SMALL.max(wanted[&pattern] * GENEROUS);
        let name = if all_of_them { pattern } else { sections[*at].name.clone() };
        by_name.entry(name).or_default().extend(components);
    }
    let mut groups: BTreeMap<(Reverse<usize>, BTreeSet<usize>), Vec<String>> = BTreeMap::new();
    for (name, components) in by_name {
        groups.entry((Reverse(components.len()), components)).or_default().push(name);
    }
    groups.into_values().collect()
}

/// `.text._ZN3mio4poll17h0123456789abcdefE` is one of `.text._ZN3mio4poll17h*`.
fn pattern(name: &str) -> String {
    let hash = name.rfind("17h").filter(|at| name.len() == at + 20 && name.ends_with('E'));
    hash.map_or_else(|| name.to_owned(), |at| format!("{}17h*", &name[..at]))
}

fn script(groups: &[Vec<String>]) -> String {
    let mut text = "/* Generated by `cargo xtask codegen waiting`: what components execute while they wait, as the compiler calls it, in groups
   that the same components execute. What is not there any more does no harm. */
SECTIONS
{
  .text.waiting :
  {
"
    .to_owned();
    for names in groups {
        text.push_str("    *(\n");
        for name in names {
            // Names of types have no brackets as the compiler writes them, which would be patterns.
            let _ = writeln!(text, "      \"{name}\"");
        }
        text.push_str("    )\n");
    }
    text.push_str("  }\n}\nINSERT BEFORE .text;\n");
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
    fn check(executed: &[(usize, &[usize])], expect: &[&[&str]]) {
        let users = executed.iter().map(|(at, components)| (*at, components.iter().copied().collect())).collect();
        assert_eq!(groups(&sections(MAP), &users), expect);
    }

    #[test]
    fn the_map_names_the_sections_of_functions() {
        let found = sections(MAP);
        let found: Vec<_> = found.iter().map(|section| (section.address, section.size)).collect();
        assert_eq!(found, [(0x1ea_0db0, 0x5b), (0x1ea_0e10, 0x10), (0x1ea_0e20, 0x4000), (0x1ea_4e20, 0x10)]);
    }

    #[test]
    fn executed_functions_become_patterns_without_hashes() {
        check(&[(0, &[0]), (3, &[0])], &[&[".text._ZN3mio4poll17h*", ".text.memcpy"]]);
    }

    #[test]
    fn functions_of_the_same_components_are_together_and_those_of_most_come_first() {
        let executed: [(usize, &[usize]); 3] = [(0, &[1]), (2, &[0]), (3, &[0, 1])];
        check(&executed, &[&[".text.memcpy"], &[".text._ZN4core4drop17h*"], &[".text._ZN3mio4poll17h*"]]);
    }

    #[test]
    fn a_small_function_is_named_alone_when_the_others_of_its_name_are_large() {
        check(&[(1, &[0])], &[&[".text._ZN4core4drop17h0000000000000001E"]]);
        check(&[(2, &[0])], &[&[".text._ZN4core4drop17h*"]]);
    }

    #[test]
    fn the_script_puts_functions_before_all_others() {
        let text = script(&[vec![".text.memcpy".to_owned()]]);
        assert!(
            text.contains("    *(\n      \".text.memcpy\"\n    )\n") && text.ends_with("INSERT BEFORE .text;\n"),
            "{text}"
        );
    }
}
