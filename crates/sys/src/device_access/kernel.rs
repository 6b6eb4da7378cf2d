//! The kernel's side: which programs decide for a group, reading them, loading others and putting these in their place.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::blinding;
use super::instruction::Instruction;

/// Commands of bpf(2).
const LOAD: libc::c_long = 5;
const ATTACH: libc::c_long = 8;
const DETACH: libc::c_long = 9;
const OPEN_BY_ID: libc::c_long = 13;
const INFORMATION: libc::c_long = 15;
const QUERY: libc::c_long = 16;

/// Programs about devices, and where they are attached.
const PROGRAM_OF_DEVICES: u32 = 15;
const DECIDES_DEVICES: u32 = 6;
/// How programs are attached: beside others, and in the place of one of them.
const BESIDE_OTHERS: u32 = 2;
const REPLACE: u32 = 4;
/// As many as a group may have.
const MOST_PROGRAMS: usize = 64;

/// What is loaded calls no function of the kernel, so its licence matters to nobody.
const LICENCE: &std::ffi::CStr = c"Apache-2.0";
const NAME: [u8; 16] = *b"lent_devices\0\0\0\0";

#[repr(C)]
#[derive(Default)]
struct Query {
    group: u32,
    decides: u32,
    flags: u32,
    attached_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct About {
    program: u32,
    length: u32,
    information: u64,
}

/// The beginning of what the kernel says about a program: what follows is not asked for.
#[repr(C)]
#[derive(Default)]
struct Information {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    compiled_length: u32,
    length: u32,
    compiled: u64,
    instructions: u64,
}

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct Attach {
    group: u32,
    program: u32,
    decides: u32,
    flags: u32,
    replaced: u32,
    pad: u32,
}

/// The programs that decide for a group, beside those of the groups around it.
#[derive(Debug)]
pub(super) struct Deciding {
    /// By number.
    pub(super) programs: Vec<u32>,
    flags: u32,
}

/// One call of bpf(2).
///
/// # Safety
/// `attributes` are those of the command, and every address in them is that of live memory, of the length that they say,
/// which nobody else has hold of if the command writes to it.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> Result<RawFd> {
    // SAFETY: the kernel reads and writes `size_of::<T>()` bytes of what is exclusively borrowed; the caller answers for
    // what it leads to.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>() as libc::c_ulong)
    };
    RawFd::try_from(answer).ok().filter(|answer| *answer >= 0).ok_or_else(Error::last_os_error)
}

/// A descriptor as attributes have it.
fn number(of: RawFd) -> u32 {
    of.cast_unsigned()
}

fn address<T: ?Sized>(of: *const T) -> u64 {
    of.cast::<u8>().expose_provenance() as u64
}

/// The programs that were attached to the group itself; none where the kernel knows no such programs.
pub(super) fn deciding(group: &File) -> Result<Deciding> {
    let mut programs = vec![0u32; MOST_PROGRAMS];
    let mut query = Query {
        group: number(group.as_raw_fd()),
        decides: DECIDES_DEVICES,
        programs: address(programs.as_mut_ptr()),
        count: MOST_PROGRAMS as u32,
        ..Query::default()
    };
    // SAFETY: these are the attributes of a query, which writes at most `count` numbers to `programs`.
    match unsafe { bpf(QUERY, &mut query) } {
        Ok(_) => programs.truncate(query.count as usize),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => programs.clear(),
        Err(error) => return Err(error),
    }
    Ok(Deciding { programs, flags: query.attached_flags })
}

/// A hold on the program, and its instructions.
pub(super) fn read(id: u32) -> Result<(OwnedFd, Vec<Instruction>)> {
    let mut by_id = ById { id, ..ById::default() };
    // SAFETY: these are the attributes of the command, without an address.
    let program = unsafe { owned(bpf(OPEN_BY_ID, &mut by_id)?) };
    let length = information(&program, &mut [])?.length as usize;
    let mut instructions = vec![Instruction::default(); length / size_of::<Instruction>()];
    let shown = information(&program, &mut instructions)?;
    if shown.instructions == 0 || shown.length as usize != length {
        return Err(Error::new(ErrorKind::PermissionDenied, "the kernel does not show a program that decides it"));
    }
    Ok((program, blinding::undo(&instructions)))
}

fn information(program: &OwnedFd, instructions: &mut [Instruction]) -> Result<Information> {
    let mut information = Information { length: size_of_val(instructions) as u32, ..Information::default() };
    if !instructions.is_empty() {
        information.instructions = address(instructions.as_mut_ptr());
    }
    let mut about = About {
        program: number(program.as_raw_fd()),
        length: size_of::<Information>() as u32,
        information: address(&raw mut information),
    };
    // SAFETY: these are the attributes of the command, which fills the live `information` and, as far as that says, the
    // exclusively borrowed `instructions`.
    unsafe { bpf(INFORMATION, &mut about) }?;
    Ok(information)
}

/// Has the kernel check and compile a program.
pub(super) fn load(instructions: &[Instruction]) -> Result<OwnedFd> {
    let attempt = || {
        let mut load = Load {
            kind: PROGRAM_OF_DEVICES,
            count: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
            instructions: address(instructions.as_ptr()),
            licence: address(LICENCE.as_ptr()),
            name: NAME,
            ..Load::default()
        };
        // SAFETY: these are the attributes of the command, which only reads: `count` instructions, and a licence that ends
        // with a zero.
        unsafe { bpf(LOAD, &mut load).map(|program| owned(program)) }
    };
    attempt().or_else(|error| {
        if error.kind() != ErrorKind::PermissionDenied {
            return Err(error);
        }
        // Before Linux 5.11 programs counted as locked memory, of which there is little by default.
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
        attempt()
    })
}

/// Puts `new` in the place of `old`, if that still decides. No moment passes in which less is forbidden than one of the
/// two forbids.
pub(super) fn replace(group: &File, deciding: &Deciding, old: &OwnedFd, new: &OwnedFd) -> Result<()> {
    let attach = |program: &OwnedFd, flags, replaced: u32| Attach {
        group: number(group.as_raw_fd()),
        program: number(program.as_raw_fd()),
        decides: DECIDES_DEVICES,
        flags,
        replaced,
        pad: 0,
    };
    if deciding.flags & BESIDE_OTHERS == 0 {
        // Where a group has one program at most, the next one takes its place.
        // SAFETY: these are the attributes of the command, without an address.
        return unsafe { bpf(ATTACH, &mut attach(new, deciding.flags, 0)) }.map(drop);
    }
    let mut at_once = attach(new, deciding.flags | REPLACE, number(old.as_raw_fd()));
    // SAFETY: as above.
    match unsafe { bpf(ATTACH, &mut at_once) } {
        // Before Linux 5.6 there was no replacing.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        answer => return answer.map(drop),
    }
    // SAFETY: as above.
    unsafe { bpf(ATTACH, &mut attach(new, deciding.flags, 0)) }?;
    // SAFETY: as above.
    unsafe { bpf(DETACH, &mut attach(old, 0, 0)) }.map(drop)
}

/// Attaches a program beside those that decide already, as container runtimes do.
#[cfg(test)]
pub(super) fn attach(group: &File, program: &OwnedFd) -> Result<()> {
    let (group, program) = (number(group.as_raw_fd()), number(program.as_raw_fd()));
    let mut attach = Attach { group, program, decides: DECIDES_DEVICES, flags: BESIDE_OTHERS, ..Attach::default() };
    // SAFETY: these are the attributes of the command, without an address.
    unsafe { bpf(ATTACH, &mut attach) }.map(drop)
}

/// # Safety
/// `descriptor` was just opened, and nobody else has it.
unsafe fn owned(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the caller answers for it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
