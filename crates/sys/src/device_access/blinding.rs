//! Constants as the kernel shows them where `net.core.bpf_jit_harden` is 2, and as they were. Pure.
//!
//! Such a kernel keeps no constant of a program as it is: it makes each out of two in a register that programs cannot name.
//! So a program that is read cannot be loaded again before this is undone.
//!
//! ```text
//!   if r4 != 253 goto …        hidden = 0x5eaf00ba
//!                              hidden ^= 0x5eaf0047
//!                              if r4 != hidden goto …
//! ```

use super::instruction::{Class, FROM_REGISTER, Instruction, MOVE};

/// The register that programs cannot name.
pub(super) const HIDDEN: u8 = 11;

const MOVES: u8 = 0xb0;
const XORS: u8 = 0xa0;
/// Jumps that go nowhere.
const CALLS: u8 = 0x80;
const EXITS: u8 = 0x90;

/// The program with its constants as they were; a program that was not blinded stays what it is.
pub(super) fn undo(program: &[Instruction]) -> Vec<Instruction> {
    let mut plain = Vec::with_capacity(program.len());
    // For each instruction where it stood, and for each place of `program` its new one.
    let (mut stood, mut places) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < program.len() {
        let triple = program.get(at..at + 3).and_then(constant);
        let (taken, instruction) = triple.map_or((1, program[at]), |instruction| (3, instruction));
        places.extend(std::iter::repeat_n(plain.len(), taken));
        stood.push(at + taken - 1);
        plain.push(zero(instruction));
        at += taken;
    }
    places.push(plain.len());
    for (new, instruction) in plain.iter_mut().enumerate() {
        let jumps = instruction.class() == Class::Jump && ![CALLS, EXITS].contains(&instruction.operation());
        let goal = (stood[new] + 1).checked_add_signed(isize::from(instruction.offset));
        if let Some(place) = goal.and_then(|goal| places.get(goal)).filter(|_| jumps) {
            instruction.offset = distance(new + 1, *place);
        }
    }
    plain
}

/// Programs shrink here, and no jump gets longer.
fn distance(from: usize, to: usize) -> i16 {
    let far = |place: usize| i64::try_from(place).unwrap_or(i64::MAX);
    i16::try_from(far(to) - far(from)).unwrap_or(i16::MAX)
}

/// The one instruction that these three stand for.
fn constant(three: &[Instruction]) -> Option<Instruction> {
    let [first, second, used] = three else { return None };
    let sets = |part: &Instruction, operation| {
        part.class() == Class::Arithmetic
            && part.operation() == operation
            && part.code & FROM_REGISTER == 0
            && part.target() == HIDDEN
    };
    let uses = used.class() != Class::Other && used.code & FROM_REGISTER != 0 && used.source() == HIDDEN;
    (sets(first, MOVES) && sets(second, XORS) && uses).then(|| {
        let constant = first.constant ^ second.constant;
        Instruction::new(used.code & !FROM_REGISTER, used.target(), 0, used.offset, constant)
    })
}

/// A register that becomes 0 is made so out of itself, which a program that is loaded may not do: it was never set.
fn zero(instruction: Instruction) -> Instruction {
    let itself = instruction.code & FROM_REGISTER != 0 && instruction.source() == instruction.target();
    if instruction.class() == Class::Arithmetic && instruction.operation() == XORS && itself {
        let width = instruction.code & 0x07;
        return Instruction::new(MOVE & !0x07 | width, instruction.target(), 0, 0, 0);
    }
    instruction
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::{NULL, READ, ZERO, run, runtime};
    use super::super::program::{is_whole, join, split};
    use super::*;

    /// What the kernel does.
    fn blind(program: &[Instruction]) -> Vec<Instruction> {
        let (mut blinded, mut places, mut stands) = (Vec::new(), Vec::new(), Vec::new());
        for instruction in program {
            places.push(blinded.len());
            let with_constant = instruction.class() != Class::Other
                && instruction.code & FROM_REGISTER == 0
                && ![CALLS, EXITS].contains(&instruction.operation());
            if instruction.code == MOVE && instruction.constant == 0 {
                blinded.push(Instruction::new(0xaf, instruction.target(), instruction.target(), 0, 0));
            } else if with_constant {
                let key = 0x5eaf_0000 | i32::try_from(blinded.len()).unwrap();
                blinded.push(Instruction::new(0xb4, HIDDEN, 0, 0, key ^ instruction.constant));
                blinded.push(Instruction::new(0xa4, HIDDEN, 0, 0, key));
                let code = instruction.code | FROM_REGISTER;
                blinded.push(Instruction::new(code, instruction.target(), HIDDEN, instruction.offset, 0));
            } else {
                blinded.push(*instruction);
            }
            stands.push(blinded.len() - 1);
        }
        for (at, instruction) in program.iter().enumerate().filter(|(_, i)| i.class() == Class::Jump && i.offset != 0) {
            let goal = places[(at + 1).checked_add_signed(isize::from(instruction.offset)).unwrap()];
            blinded[stands[at]].offset = distance(stands[at] + 1, goal);
        }
        blinded
    }

    #[test]
    fn undoing_blinding_restores_the_program() {
        let program = join(&[ZERO], &runtime());
        let blinded = blind(&program);
        assert!(blinded.len() > program.len() && !is_whole(&blinded));
        assert_eq!(undo(&blinded), program);
        assert_eq!(split(&program).0, [ZERO]);
        assert_eq!([NULL, ZERO].map(|device| run(&program, device, READ)), [Some(true); 2]);
    }

    #[test]
    fn plain_programs_stay_what_they_are() {
        assert_eq!(undo(&runtime()), runtime());
        assert_eq!(undo(&[]), []);
    }
}
