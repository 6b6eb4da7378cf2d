//! Programs by which the kernel decides who may open a device. Pure.
//!
//! What a container runtime wrote is kept whole: what is lent stands before it, and gets there only what is not lent.
//!
//! ```text
//!   r0 = MARK, r0 = how many are lent      by this it is found again
//!   r2 = block or char, r3 = major, r4 = minor
//!   for each that is lent: all three the same? then r0 = 1, exit
//!   the runtime's own program
//! ```
//! The runtime's program finds r1 as the kernel set it. It reads no register that it did not write itself: the kernel had
//! refused it otherwise.

use super::Device;
use super::blinding::HIDDEN;
use super::instruction::{AND, CALL, EXIT, FAR_JUMP, Instruction, LOAD_WIDE, LOAD_WORD, MOVE};
use crate::device::Kind;

/// Says in r0, where nobody reads it, whose program this is.
const MARK: i32 = 0x6665_7276;
/// Of the word that says what is tried: the kind of device, and whether a node is to be made. That is not lent.
const KIND_OR_MAKING: i32 = 0x1_ffff;
const BLOCK: u32 = 1;
const CHAR: u32 = 2;
const HEAD: usize = 6;
const EACH: usize = 5;

/// The program that allows what is `lent`, and else what `runtime` allows.
pub(super) fn join(lent: &[Device], runtime: &[Instruction]) -> Vec<Instruction> {
    if lent.is_empty() {
        return runtime.to_vec();
    }
    let head: [Instruction; HEAD] = [
        Instruction::new(MOVE, 0, 0, 0, MARK),
        Instruction::new(MOVE, 0, 0, 0, i32::try_from(lent.len()).unwrap_or(i32::MAX)),
        Instruction::new(LOAD_WORD, 2, 1, 0, 0),
        Instruction::new(AND, 2, 0, 0, KIND_OR_MAKING),
        Instruction::new(LOAD_WORD, 3, 1, 4, 0),
        Instruction::new(LOAD_WORD, 4, 1, 8, 0),
    ];
    head.into_iter().chain(lent.iter().flat_map(each)).chain(runtime.iter().copied()).collect()
}

fn each(device: &Device) -> [Instruction; EACH] {
    let kind = match device.kind {
        Kind::Block => BLOCK,
        Kind::Char => CHAR,
    };
    [
        Instruction::unless(2, kind, 4),
        Instruction::unless(3, device.major, 3),
        Instruction::unless(4, device.minor, 2),
        Instruction::new(MOVE, 0, 0, 0, 1),
        Instruction::new(EXIT, 0, 0, 0, 0),
    ]
}

/// What [`join`] put together; of a program that it did not make, nothing is lent.
pub(super) fn split(program: &[Instruction]) -> (Vec<Device>, &[Instruction]) {
    let marked = program.first().is_some_and(|first| first.code == MOVE && first.constant == MARK);
    let count = program.get(1).and_then(|second| usize::try_from(second.constant).ok()).filter(|_| marked);
    let end = count.and_then(|count| count.checked_mul(EACH)?.checked_add(HEAD)).filter(|end| *end <= program.len());
    let Some(end) = end else { return (Vec::new(), program) };
    let lent: Vec<Device> = program[HEAD..end].chunks_exact(EACH).map(lent_by).collect();
    let runtime = &program[end..];
    // Read back, it has to be the same: anything else is somebody's who knows the mark.
    if join(&lent, runtime) == program { (lent, runtime) } else { (Vec::new(), program) }
}

fn lent_by(each: &[Instruction]) -> Device {
    let constant = |at: usize| each[at].constant.cast_unsigned();
    let kind = if constant(0) == BLOCK { Kind::Block } else { Kind::Char };
    Device { kind, major: constant(1), minor: constant(2) }
}

/// Whether the program can be loaded again out of what the kernel shows: functions and maps that it uses are not shown.
/// Container runtimes need neither.
pub(super) fn is_whole(program: &[Instruction]) -> bool {
    let mut rest = program.iter();
    while let Some(instruction) = rest.next() {
        let wide = instruction.code == LOAD_WIDE;
        let hidden = instruction.target() == HIDDEN || instruction.source() == HIDDEN;
        if hidden || [CALL, FAR_JUMP].contains(&instruction.code) || (wide && instruction.source() != 0) {
            return false;
        }
        if wide {
            rest.next();
        }
    }
    !program.is_empty()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::instruction::{Class, FROM_REGISTER, UNLESS_EQUAL};
    use super::*;

    const MAKE: u32 = 1;
    pub(crate) const READ: u32 = 2;
    pub(crate) const WRITE: u32 = 4;

    /// What a program says to who tries `access` on a device; None when it does what programs may not do.
    pub(crate) fn run(program: &[Instruction], device: Device, access: u32) -> Option<bool> {
        let kind = if device.kind == Kind::Block { BLOCK } else { CHAR };
        let context = [access << 16 | kind, device.major, device.minor];
        let mut registers = [None; 11];
        let mut at = 0usize;
        loop {
            let now = *program.get(at)?;
            at += 1;
            let target = usize::from(now.target());
            let from_register = now.code & FROM_REGISTER != 0;
            let operand = match (now.class(), from_register) {
                (Class::Other, _) => None,
                (_, true) => registers[usize::from(now.source())],
                (_, false) => Some(i64::from(now.constant).cast_unsigned()),
            };
            match now.code & !FROM_REGISTER {
                LOAD_WORD if now.source() == 1 && now.offset % 4 == 0 => {
                    registers[target] = Some(u64::from(*context.get(usize::try_from(now.offset / 4).ok()?)?));
                }
                _ if now.code == EXIT => return Some(registers[0]? != 0),
                MOVE | 0xb4 => registers[target] = Some(operand?),
                AND | 0x54 => registers[target] = Some(registers[target]? & operand?),
                0x77 | 0x74 => registers[target] = Some(registers[target]? >> operand?),
                0xa7 | 0xa4 => registers[target] = Some(registers[target]? ^ operand?),
                UNLESS_EQUAL if registers[target]? == operand? => {}
                0x05 | UNLESS_EQUAL => at = at.checked_add_signed(isize::from(now.offset))?,
                _ => return None,
            }
        }
    }

    pub(crate) const NULL: Device = Device { kind: Kind::Char, major: 1, minor: 3 };
    pub(crate) const ZERO: Device = Device { kind: Kind::Char, major: 1, minor: 5 };
    const DISK: Device = Device { kind: Kind::Block, major: 253, minor: 16 };
    const OTHER: Device = Device { kind: Kind::Block, major: 253, minor: 17 };

    /// Like a container runtime's: every node may be made, /dev/null read and written, and nothing else.
    pub(crate) fn runtime() -> Vec<Instruction> {
        let op = Instruction::new;
        vec![
            op(LOAD_WORD, 2, 1, 0, 0),
            op(0x54, 2, 0, 0, 0xffff),
            op(LOAD_WORD, 3, 1, 0, 0),
            op(0x74, 3, 0, 0, 16),
            op(LOAD_WORD, 4, 1, 4, 0),
            op(LOAD_WORD, 5, 1, 8, 0),
            // Making a node, and nothing besides.
            op(0xbc, 1, 3, 0, 0),
            op(0x54, 1, 0, 0, 1),
            op(0x5d, 1, 3, 2, 0),
            op(MOVE, 0, 0, 0, 1),
            op(EXIT, 0, 0, 0, 0),
            op(UNLESS_EQUAL, 2, 0, 4, 2),
            op(UNLESS_EQUAL, 4, 0, 3, 1),
            op(UNLESS_EQUAL, 5, 0, 2, 3),
            op(MOVE, 0, 0, 0, 1),
            op(EXIT, 0, 0, 0, 0),
            op(MOVE, 0, 0, 0, 0),
            op(EXIT, 0, 0, 0, 0),
        ]
    }

    #[track_caller]
    fn check(lent: &[Device], expect: &[(Device, u32, bool)]) {
        let runtime = runtime();
        let program = join(lent, &runtime);
        for (device, access, allowed) in expect {
            assert_eq!(run(&program, *device, *access), Some(*allowed), "{device:?} {access}");
        }
        assert_eq!(split(&program), (lent.to_vec(), runtime.as_slice()));
        assert!(is_whole(&program));
    }

    #[test]
    fn only_granted_devices_become_allowed() {
        check(&[], &[(NULL, READ | WRITE, true), (ZERO, READ, false), (DISK, MAKE, true), (DISK, READ, false)]);
        let kept = [(NULL, READ | WRITE, true), (NULL, WRITE, true), (ZERO, READ, false), (ZERO, MAKE, true)];
        let disk = [(DISK, READ, true), (DISK, READ | WRITE, true), (OTHER, READ, false), (OTHER, MAKE, true)];
        check(&[DISK], &[kept, disk].concat());
        // A character device has the numbers of a block device, and is another one.
        check(&[DISK], &[(Device { kind: Kind::Char, ..DISK }, READ, false)]);
        check(
            &[DISK, OTHER, ZERO],
            &[(DISK, WRITE, true), (OTHER, READ, true), (ZERO, READ, true), (NULL, READ, true)],
        );
    }

    #[test]
    fn making_a_node_is_left_to_the_runtime() {
        let nothing = [Instruction::new(MOVE, 0, 0, 0, 0), Instruction::new(EXIT, 0, 0, 0, 0)];
        let program = join(&[DISK], &nothing);
        assert_eq!(
            [MAKE, MAKE | READ, READ].map(|access| run(&program, DISK, access)),
            [Some(false), Some(false), Some(true)]
        );
    }

    #[test]
    fn programs_of_others_are_taken_as_they_are() {
        let ours = join(&[DISK], &runtime());
        let mut changed = ours.clone();
        changed[HEAD].offset = 3;
        let mut many = ours.clone();
        many[1].constant = i32::MAX;
        let mut none = ours.clone();
        none[1].constant = -1;
        for program in [runtime(), changed, many, none, ours[..1].to_vec(), Vec::new()] {
            assert_eq!(split(&program), (Vec::new(), program.as_slice()));
        }
    }

    #[test]
    fn programs_that_the_kernel_does_not_show_whole() {
        let wide = |source| Instruction::new(LOAD_WIDE, 6, source, 0, 7);
        for (first, expect) in [
            (vec![], true),
            (vec![wide(0), Instruction::default()], true),
            (vec![wide(1), Instruction::default()], false),
            (vec![Instruction::new(CALL, 0, 0, 0, 5)], false),
            (vec![Instruction::new(MOVE, HIDDEN, 0, 0, 5)], false),
        ] {
            assert_eq!(is_whole(&[first.clone(), runtime()].concat()), expect, "{first:?}");
        }
        assert!(!is_whole(&[]));
    }
}
