//! Whether KVM can run a guest here. A `/dev/kvm` that opens proves little: machines exist whose device makes virtual
//! machines and processors and then fails on the first instructions of a kernel.
//!
//! So two things must agree: the processor advertises the extension KVM is built on, and a guest of three instructions
//! really runs. [`judge`] is the decision, [`look`] collects what it needs.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::{Error, Result, call};

/// What is known of KVM on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The processor's architecture, as the compiler names it.
    pub architecture: String,
    /// Flags the processor advertises (`vmx`, `svm`, …).
    pub cpu_flags: Vec<String>,
    /// Outcome of running the tiny guest.
    pub trial: Trial,
}

/// Outcome of running the tiny guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// There is no device.
    NoDevice,
    /// The device exists and something failed; the text says what.
    Failed(String),
    /// The guest did what it was told.
    Ran,
}

/// The decision, with a sentence that says why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Guests can use KVM.
    Usable,
    /// Guests must be emulated.
    Unusable(String),
}

impl Verdict {
    /// Whether guests can use KVM.
    pub fn is_usable(&self) -> bool {
        *self == Self::Usable
    }
}

/// Decides from the facts.
pub fn judge(facts: &Facts) -> Verdict {
    let no = |why: &str| Verdict::Unusable(why.to_owned());
    match &facts.trial {
        Trial::NoDevice => return no("there is no /dev/kvm"),
        Trial::Failed(why) => return no(&format!("/dev/kvm does not run a guest: {why}")),
        Trial::Ran => {}
    }
    let needs_flag = matches!(facts.architecture.as_str(), "x86_64" | "x86");
    if needs_flag && !facts.cpu_flags.iter().any(|flag| flag == "vmx" || flag == "svm") {
        return no("the processor advertises neither vmx nor svm, and without them KVM fails on real kernels");
    }
    Verdict::Usable
}

/// Collects the facts; takes a few milliseconds.
pub fn look() -> Facts {
    let cpu_flags = std::fs::read_to_string("/proc/cpuinfo").map(|text| parse_flags(&text)).unwrap_or_default();
    let trial = match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Trial::NoDevice,
        Err(error) => Trial::Failed(error.to_string()),
        Ok(device) => match run_tiny_guest(&device) {
            Ok(()) => Trial::Ran,
            Err(error) => Trial::Failed(reason(&error)),
        },
    };
    Facts { architecture: std::env::consts::ARCH.to_owned(), cpu_flags, trial }
}

/// [`look`] and [`judge`].
pub fn verdict() -> Verdict {
    judge(&look())
}

fn reason(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The first `flags` line of `/proc/cpuinfo`.
pub fn parse_flags(cpuinfo: &str) -> Vec<String> {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.trim_start().strip_prefix(':'));
    line.map(|flags| flags.split_ascii_whitespace().map(str::to_owned).collect()).unwrap_or_default()
}

const KVM_GET_API_VERSION: u64 = 0xAE00;
const KVM_CREATE_VM: u64 = 0xAE01;
const KVM_GET_VCPU_MMAP_SIZE: u64 = 0xAE04;
const KVM_CREATE_VCPU: u64 = 0xAE41;
#[cfg(target_arch = "x86_64")]
const KVM_SET_USER_MEMORY_REGION: u64 = 0x4020_AE46;
#[cfg(target_arch = "x86_64")]
const KVM_RUN: u64 = 0xAE80;
#[cfg(target_arch = "x86_64")]
const KVM_SET_REGS: u64 = 0x4090_AE82;
#[cfg(target_arch = "x86_64")]
const KVM_GET_SREGS: u64 = 0x8138_AE83;
#[cfg(target_arch = "x86_64")]
const KVM_SET_SREGS: u64 = 0x4138_AE84;

/// An ioctl whose argument is a number.
fn ioctl(fd: RawFd, op: &'static str, request: u64, argument: u64) -> Result<i32> {
    // SAFETY: used with the KVM requests above that take an integer, or none; the kernel reads no memory of ours.
    let answer = unsafe { libc::ioctl(fd, request as _, argument) };
    if answer < 0 { Err(call(op)(io::Error::last_os_error())) } else { Ok(answer) }
}

fn own(raw: i32) -> OwnedFd {
    // SAFETY: the descriptor was just returned by KVM_CREATE_VM or KVM_CREATE_VCPU and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

fn run_tiny_guest(device: &File) -> Result<()> {
    let version = ioctl(device.as_raw_fd(), "ask for the KVM version", KVM_GET_API_VERSION, 0)?;
    if version != 12 {
        return Err(Error::Protocol(format!("KVM interface {version} instead of 12")));
    }
    let vm = own(ioctl(device.as_raw_fd(), "create a virtual machine", KVM_CREATE_VM, 0)?);
    let vcpu = own(ioctl(vm.as_raw_fd(), "create a virtual processor", KVM_CREATE_VCPU, 0)?);
    let shared = ioctl(device.as_raw_fd(), "size the processor's shared page", KVM_GET_VCPU_MMAP_SIZE, 0)?;
    execute(&vm, &vcpu, usize::try_from(shared).unwrap_or(0))
}

/// Other architectures: a machine and a processor were made, and their KVM has no half-working kind known to us.
#[cfg(not(target_arch = "x86_64"))]
fn execute(_vm: &OwnedFd, _vcpu: &OwnedFd, _shared: usize) -> Result<()> {
    Ok(())
}

/// Memory shared with the kernel, unmapped when dropped.
#[cfg(target_arch = "x86_64")]
struct Map {
    at: *mut libc::c_void,
    len: usize,
}

#[cfg(target_arch = "x86_64")]
impl Map {
    fn new(len: usize, fd: Option<&OwnedFd>) -> Result<Self> {
        let (flags, fd) = match fd {
            Some(fd) => (libc::MAP_SHARED, fd.as_raw_fd()),
            None => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing of ours is replaced.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if at == libc::MAP_FAILED { Err(call("map memory")(io::Error::last_os_error())) } else { Ok(Self { at, len }) }
    }

    fn read_u32(&self, offset: usize) -> u32 {
        assert!(offset + 4 <= self.len);
        // SAFETY: in bounds, as asserted, of a live mapping; volatile because the kernel writes it.
        unsafe { self.at.cast::<u8>().add(offset).cast::<u32>().read_volatile() }
    }

    fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: in bounds, as asserted, of a live mapping that no reference points into.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.cast(), bytes.len()) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, which nothing borrows.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

/// `mov al, 42; out 0x10, al; hlt` in real mode: the kernel must report the output, then the halt.
#[cfg(target_arch = "x86_64")]
fn execute(vm: &OwnedFd, vcpu: &OwnedFd, shared: usize) -> Result<()> {
    const CODE: [u8; 5] = [0xb0, 42, 0xe6, 0x10, 0xf4];
    const ADDRESS: u64 = 0x1000;
    const EXIT_REASON: usize = 8;
    const EXIT_IO: u32 = 2;
    const EXIT_HLT: u32 = 5;

    let memory = Map::new(0x1000, None)?;
    memory.write(&CODE);
    let run = Map::new(shared.max(0x1000), Some(vcpu))?;

    // struct kvm_userspace_memory_region: slot and flags, guest address, size, our address.
    let mut region = [0u64, ADDRESS, 0x1000, memory.at as u64];
    ioctl_on(vm, "give the guest memory", KVM_SET_USER_MEMORY_REGION, &mut region)?;
    // struct kvm_sregs, 312 bytes; it starts with the code segment: base, limit, selector.
    let mut sregs = [0u64; 39];
    ioctl_on(vcpu, "read the segments", KVM_GET_SREGS, &mut sregs)?;
    sregs[0] = 0;
    sregs[1] &= !(0xffff << 32);
    ioctl_on(vcpu, "set the segments", KVM_SET_SREGS, &mut sregs)?;
    // struct kvm_regs: sixteen general registers, rip, rflags.
    let mut regs = [0u64; 18];
    regs[16] = ADDRESS;
    regs[17] = 2;
    ioctl_on(vcpu, "set the registers", KVM_SET_REGS, &mut regs)?;

    for expected in [EXIT_IO, EXIT_HLT] {
        ioctl(vcpu.as_raw_fd(), "run the processor", KVM_RUN, 0)?;
        let reason = run.read_u32(EXIT_REASON);
        if reason != expected {
            return Err(Error::Protocol(format!("the guest stopped with exit reason {reason} instead of {expected}")));
        }
    }
    Ok(())
}

/// An ioctl on a structure given as its 64-bit words.
#[cfg(target_arch = "x86_64")]
fn ioctl_on(fd: &OwnedFd, op: &'static str, request: u64, words: &mut [u64]) -> Result<()> {
    // A request number carries the size of its structure in bits 16 to 29.
    assert_eq!(words.len() as u64 * 8, (request >> 16) & 0x3fff);
    // SAFETY: `words` is live, writable, aligned and, as asserted, exactly as large as the kernel will touch.
    let answer = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, words.as_mut_ptr()) };
    if answer < 0 { Err(call(op)(io::Error::last_os_error())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(architecture: &str, flags: &str, trial: Trial, expect: &str) {
        let cpu_flags = flags.split_ascii_whitespace().map(str::to_owned).collect();
        let text = match judge(&Facts { architecture: architecture.into(), cpu_flags, trial }) {
            Verdict::Usable => "usable".into(),
            Verdict::Unusable(why) => why,
        };
        assert_eq!(text, expect);
    }

    #[test]
    fn verdicts() {
        check("x86_64", "fpu vmx", Trial::Ran, "usable");
        check("x86_64", "fpu svm", Trial::Ran, "usable");
        check("aarch64", "", Trial::Ran, "usable");
        check("x86_64", "fpu vmx", Trial::NoDevice, "there is no /dev/kvm");
        check("x86_64", "vmx", Trial::Failed("x".into()), "/dev/kvm does not run a guest: x");
        check(
            "x86_64",
            "fpu sse2",
            Trial::Ran,
            "the processor advertises neither vmx nor svm, and without them KVM fails on real kernels",
        );
    }

    #[test]
    fn flags_of_the_first_processor() {
        assert_eq!(parse_flags("processor\t: 0\nflags\t\t: fpu vmx\nvmx flags\t: vnmi\n"), ["fpu", "vmx"]);
        assert!(parse_flags("Features\t: fp asimd\n").is_empty());
    }

    #[test]
    fn looking_never_panics() {
        let facts = look();
        assert_eq!(facts.architecture, std::env::consts::ARCH);
    }
}
