//! Instructions of the kernel's filter machine, as far as programs about devices need them. Pure.

/// One instruction, as the kernel has it in memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) code: u8,
    /// The target in the low half, the source in the high one.
    registers: u8,
    pub(super) offset: i16,
    pub(super) constant: i32,
}

/// A register is loaded with a word of memory.
pub(super) const LOAD_WORD: u8 = 0x61;
/// A register is loaded with a constant of 64 bits, which takes the next instruction too.
pub(super) const LOAD_WIDE: u8 = 0x18;
/// A register becomes a constant.
pub(super) const MOVE: u8 = 0xb7;
/// A register keeps the bits of a constant.
pub(super) const AND: u8 = 0x57;
/// Jumps if a register is not a constant.
pub(super) const UNLESS_EQUAL: u8 = 0x55;
/// Calls a function of the kernel.
pub(super) const CALL: u8 = 0x85;
/// Jumps as far as the constant says.
pub(super) const FAR_JUMP: u8 = 0x06;
/// Ends with r0.
pub(super) const EXIT: u8 = 0x95;

/// The source is a register and not the constant.
pub(super) const FROM_REGISTER: u8 = 0x08;

/// What kind of instruction it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Arithmetic,
    Jump,
    Other,
}

impl Instruction {
    pub(super) const fn new(code: u8, target: u8, source: u8, offset: i16, constant: i32) -> Self {
        Self { code, registers: source << 4 | target, offset, constant }
    }

    /// A jump over `skip` instructions unless the register is the constant.
    pub(super) const fn unless(register: u8, constant: u32, skip: i16) -> Self {
        Self::new(UNLESS_EQUAL, register, 0, skip, constant.cast_signed())
    }

    pub(super) const fn target(self) -> u8 {
        self.registers & 0x0f
    }

    pub(super) const fn source(self) -> u8 {
        self.registers >> 4
    }

    pub(super) const fn class(self) -> Class {
        match self.code & 0x07 {
            4 | 7 => Class::Arithmetic,
            5 | 6 => Class::Jump,
            _ => Class::Other,
        }
    }

    /// What an arithmetic instruction or a jump does.
    pub(super) const fn operation(self) -> u8 {
        self.code & 0xf0
    }
}
