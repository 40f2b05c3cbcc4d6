// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an instruction does to registers: all that the propagation of INV bits needs to know of it.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind,
    Register,
};

/// A set of registers, one bit each. The register file's INV bits are such a set.
pub type Regs = u64;

/// Sets of registers by name.
pub mod reg {
    use super::Regs;

    /// No register.
    pub const NONE: Regs = 0;
    /// A general-purpose register by its number in the encoding: rax, rcx, rdx, rbx, rsp, rbp, rsi,
    /// rdi, r8 to r15.
    pub const fn gpr(number: u32) -> Regs {
        1 << (number % 16)
    }
    /// A vector register, whatever its width.
    pub const fn vector(number: u32) -> Regs {
        1 << (16 + number % 32)
    }
    /// A mask register.
    pub const fn mask(number: u32) -> Regs {
        1 << (48 + number % 8)
    }
    /// `rax`.
    pub const RAX: Regs = gpr(0);
    /// `rcx`.
    pub const RCX: Regs = gpr(1);
    /// `rdx`.
    pub const RDX: Regs = gpr(2);
    /// `rbx`.
    pub const RBX: Regs = gpr(3);
    /// `rsp`.
    pub const RSP: Regs = gpr(4);
    /// `rsi`.
    pub const RSI: Regs = gpr(6);
    /// `rdi`.
    pub const RDI: Regs = gpr(7);
    /// The x87 and MMX registers, which move as a stack, as one.
    pub const X87: Regs = 1 << 56;
    /// The status flags as one.
    pub const FLAGS: Regs = 1 << 57;
}

/// One static instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instr {
    /// Registers whose values it computes with.
    pub reads: Regs,
    /// Registers that it writes.
    pub writes: Regs,
    /// Registers that say where its loads go.
    pub load_address: Regs,
    /// Registers that say where its stores go.
    pub store_address: Regs,
    /// Registers that it only steps on (`rsp` of a push): their new value depends on their old one.
    pub steps: Regs,
    /// Whether it decides where to go on from a register or from memory.
    pub branches: bool,
}

impl Instr {
    /// `to` from memory at `[at]`.
    pub const fn load(to: Regs, at: Regs) -> Instr {
        Instr { writes: to, load_address: at, ..Instr::NOTHING }
    }

    /// `from` to memory at `[at]`.
    pub const fn store(from: Regs, at: Regs) -> Instr {
        Instr { reads: from, store_address: at, ..Instr::NOTHING }
    }

    /// `to` computed from `from`.
    pub const fn compute(to: Regs, from: Regs) -> Instr {
        Instr { writes: to, reads: from, ..Instr::NOTHING }
    }

    /// A branch that depends on `on`.
    pub const fn branch(on: Regs) -> Instr {
        Instr { reads: on, branches: true, ..Instr::NOTHING }
    }

    /// An instruction that touches no register.
    pub const NOTHING: Instr =
        Instr { reads: 0, writes: 0, load_address: 0, store_address: 0, steps: 0, branches: false };
}

/// Bytes that are no instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no x86-64 instruction at {address:#x}: {bytes:02x?}; record the trace again")]
pub struct NotCode {
    /// Where they stood.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Decodes instructions; keep one for many.
pub struct Decode {
    factory: InstructionInfoFactory,
}

impl Default for Decode {
    fn default() -> Self {
        Decode::new()
    }
}

impl Decode {
    /// A decoder of x86-64 code.
    pub fn new() -> Self {
        Decode { factory: InstructionInfoFactory::new() }
    }

    /// Decodes the first instruction of `bytes`, which stood at `address`; with its length.
    pub fn one(&mut self, address: u64, bytes: &[u8]) -> Result<(Instr, usize), NotCode> {
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        let code = decoder.decode();
        if code.is_invalid() {
            let bytes = bytes[..bytes.len().min(15)].to_vec();
            return Err(NotCode { address, bytes });
        }
        Ok((self.meaning(&code), code.len()))
    }

    fn meaning(&mut self, code: &Instruction) -> Instr {
        let mut instr = Instr::default();
        let info = self.factory.info(code);
        let mut addresses = 0;
        for memory in info.used_memory() {
            let at = set_of(memory.base()) | set_of(memory.index());
            addresses |= at;
            if reads(memory.access()) {
                instr.load_address |= at;
            }
            if writes(memory.access()) {
                instr.store_address |= at;
            }
        }
        // A register that is an operand too is data as well as an address.
        let mut operands = 0;
        for at in 0..code.op_count() {
            if code.op_kind(at) == OpKind::Register && reads(info.op_access(at)) {
                operands |= set_of(code.op_register(at));
            }
        }
        let stepped = if code.is_stack_instruction() { reg::RSP } else { reg::NONE };
        for used in info.used_registers() {
            let set = set_of(used.register());
            if set & stepped & !operands != 0 {
                if writes(used.access()) {
                    instr.steps |= set;
                }
                continue;
            }
            if reads(used.access()) && set & addresses & !operands == 0 {
                instr.reads |= set;
            }
            if writes(used.access()) {
                instr.writes |= set;
                // What it keeps of the old value, it depends on.
                if used.access() == OpAccess::CondWrite
                    || used.access() == OpAccess::ReadCondWrite
                    || (used.register().is_gpr() && used.register().size() < 4)
                {
                    instr.reads |= set;
                }
            }
        }
        if code.rflags_read() != 0 {
            instr.reads |= reg::FLAGS;
        }
        if code.rflags_modified() != 0 {
            instr.writes |= reg::FLAGS;
        }
        instr.branches = matches!(
            code.flow_control(),
            FlowControl::ConditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::IndirectCall
                | FlowControl::Return
        );
        instr
    }
}

fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

fn set_of(register: Register) -> Regs {
    let full = register.full_register();
    let number = full.number() as u32;
    if full.is_gpr() {
        reg::gpr(number)
    } else if full.is_vector_register() {
        reg::vector(number)
    } else if full.is_k() {
        reg::mask(number)
    } else if full.is_st() || full.is_mm() {
        reg::X87
    } else {
        reg::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Instr {
        let (instr, length) = Decode::new().one(0x1000, bytes).unwrap();
        assert_eq!(length, bytes.len());
        instr
    }

    #[test]
    fn a_load_reads_its_address_and_writes_its_register() {
        // mov rax, [rbx+rcx*8]
        let at = reg::RBX | reg::RCX;
        assert_eq!(decode(&[0x48, 0x8b, 0x04, 0xcb]), Instr::load(reg::RAX, at));
    }

    #[test]
    fn a_store_keeps_data_and_address_apart_unless_they_are_one() {
        // mov [rbx], rax; mov [rax], rax
        assert_eq!(decode(&[0x48, 0x89, 0x03]), Instr::store(reg::RAX, reg::RBX));
        assert_eq!(decode(&[0x48, 0x89, 0x00]), Instr::store(reg::RAX, reg::RAX));
    }

    #[test]
    fn arithmetic_on_memory_loads_and_stores_and_sets_flags() {
        // add [rdi], rdx
        let add = decode(&[0x48, 0x01, 0x17]);
        let expected = Instr {
            load_address: reg::RDI,
            store_address: reg::RDI,
            reads: reg::RDX,
            writes: reg::FLAGS,
            ..Instr::NOTHING
        };
        assert_eq!(add, expected);
    }

    #[test]
    fn an_address_computed_but_not_followed_is_data() {
        // lea rax, [rbx+rcx]
        let sum = Instr::compute(reg::RAX, reg::RBX | reg::RCX);
        assert_eq!(decode(&[0x48, 0x8d, 0x04, 0x0b]), sum);
    }

    #[test]
    fn a_cleared_register_depends_on_nothing_and_a_part_written_depends_on_the_rest() {
        // xor eax, eax; mov al, bl; mov eax, ebx
        assert_eq!(decode(&[0x31, 0xc0]), Instr::compute(reg::RAX | reg::FLAGS, reg::NONE));
        assert_eq!(decode(&[0x88, 0xd8]), Instr::compute(reg::RAX, reg::RAX | reg::RBX));
        assert_eq!(decode(&[0x89, 0xd8]), Instr::compute(reg::RAX, reg::RBX));
    }

    #[test]
    fn a_conditional_move_depends_on_flags_and_on_what_it_may_keep() {
        // cmove rax, rbx
        let reads = reg::RAX | reg::RBX | reg::FLAGS;
        assert_eq!(decode(&[0x48, 0x0f, 0x44, 0xc3]), Instr::compute(reg::RAX, reads));
    }

    #[test]
    fn a_push_of_an_unknown_value_leaves_the_stack_pointer_known() {
        // push rax; pop rax; ret
        let push = decode(&[0x50]);
        assert_eq!((push.reads, push.writes, push.steps), (reg::RAX, 0, reg::RSP));
        assert_eq!(push.store_address, reg::RSP);
        let pop = decode(&[0x58]);
        assert_eq!((pop.reads, pop.writes, pop.load_address), (0, reg::RAX, reg::RSP));
        let ret = decode(&[0xc3]);
        assert!(ret.branches && ret.load_address == reg::RSP && ret.writes == 0);
    }

    #[test]
    fn vectors_are_one_register_at_every_width() {
        // movups xmm1, [rsi]; vaddpd ymm0, ymm1, ymm2; jne
        assert_eq!(decode(&[0x0f, 0x10, 0x0e]), Instr::load(reg::vector(1), reg::RSI));
        let add = Instr::compute(reg::vector(0), reg::vector(1) | reg::vector(2));
        assert_eq!(decode(&[0xc5, 0xf5, 0x58, 0xc2]), add);
        assert_eq!(decode(&[0x75, 0x00]), Instr::branch(reg::FLAGS));
    }

    #[test]
    fn bytes_that_are_no_instruction_are_refused_with_their_address() {
        let error = Decode::new().one(0x4000, &[0x06]).unwrap_err();
        assert!(error.to_string().starts_with("no x86-64 instruction at 0x4000: [06]"));
        assert!(Decode::new().one(0, &[]).is_err());
    }
}
