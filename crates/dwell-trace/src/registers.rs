// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each static instruction reads and writes in the register file, decoded once.

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess, Register};

use crate::dictionary::Dictionary;

/// A set of registers: general ones at 0–15 (in hardware's order, `rax` first, `rsp` at 4), vector
/// registers at 16–47, the flags at 48, x87 and MMX at 49–56, masks `k1`–`k7` at 57–63. A part of
/// a register stands for the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registers(pub u64);

impl Registers {
    /// The flags.
    pub const FLAGS: Registers = Registers(1 << 48);
    /// The stack pointer.
    pub const STACK_POINTER: Registers = Registers(1 << 4);

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether both share one.
    pub fn meets(self, other: Registers) -> bool {
        self.0 & other.0 != 0
    }

    /// Their numbers, in order.
    pub fn numbers(self) -> impl Iterator<Item = u32> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let number = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(number)
        })
    }

    fn add(&mut self, register: Register) {
        self.0 |= number_of(register).map_or(0, |number| 1 << number);
    }
}

fn number_of(register: Register) -> Option<u32> {
    let full = register.full_register();
    let number = full.number() as u32;
    if full.is_gpr() {
        Some(number)
    } else if full.is_vector_register() {
        Some(16 + number % 32)
    } else if full.is_mm() || full.is_st() {
        Some(49 + number % 8)
    } else if full.is_k() {
        Some(57 + number.max(1) - 1)
    } else {
        None
    }
}

/// How an instruction goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// At the next one.
    #[default]
    Next,
    /// Elsewhere, always.
    Jump,
    /// Elsewhere, at an address that it computes.
    IndirectJump,
    /// Elsewhere, if a condition holds.
    Branch,
    /// In a function.
    Call,
    /// In a function whose address it computes.
    IndirectCall,
    /// Back where it was called.
    Return,
    /// In the kernel, or it traps.
    System,
}

/// What one instruction does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operands {
    /// Registers whose values it uses, those of addresses among them.
    pub reads: Registers,
    /// Registers that it writes, also if only under a condition.
    pub writes: Registers,
    /// Registers that an address of its memory operands depends on.
    pub addresses: Registers,
    /// How it goes on.
    pub flow: Flow,
    /// Whether its bytes are known and mean an instruction.
    pub known: bool,
}

/// The operands of every instruction of a dictionary, in its order.
pub fn operands(dictionary: &Dictionary) -> Vec<Operands> {
    let mut factory = InstructionInfoFactory::new();
    let decode = |instruction| {
        let bytes = dictionary.bytes_of(instruction);
        let mut decoder = Decoder::with_ip(64, bytes, instruction.address, DecoderOptions::NONE);
        if bytes.is_empty() {
            return Operands::default();
        }
        let decoded = decoder.decode();
        if decoded.is_invalid() { Operands::default() } else { of(&mut factory, &decoded) }
    };
    dictionary.instructions().iter().map(decode).collect()
}

fn of(factory: &mut InstructionInfoFactory, instruction: &iced_x86::Instruction) -> Operands {
    let mut operands = Operands { known: true, ..Operands::default() };
    let info = factory.info(instruction);
    for used in info.used_registers() {
        let access = used.access();
        let reads = matches!(
            access,
            OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        let writes = matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        if reads {
            operands.reads.add(used.register());
        }
        if writes {
            operands.writes.add(used.register());
        }
    }
    for memory in info.used_memory() {
        operands.addresses.add(memory.base());
        operands.addresses.add(memory.index());
    }
    if instruction.rflags_read() != 0 {
        operands.reads.0 |= Registers::FLAGS.0;
    }
    if instruction.rflags_modified() != 0 {
        operands.writes.0 |= Registers::FLAGS.0;
    }
    operands.flow = match instruction.flow_control() {
        FlowControl::Next | FlowControl::XbeginXabortXend => Flow::Next,
        FlowControl::UnconditionalBranch => Flow::Jump,
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::ConditionalBranch => Flow::Branch,
        FlowControl::Return => Flow::Return,
        // Calls of the kernel are calls to the decoder.
        FlowControl::Call if instruction.is_call_near() || instruction.is_call_far() => Flow::Call,
        FlowControl::IndirectCall => Flow::IndirectCall,
        FlowControl::Call | FlowControl::Interrupt | FlowControl::Exception => Flow::System,
    };
    operands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dictionary::{NewBlock, NewInstruction};

    fn of_bytes(bytes: &[u8]) -> Operands {
        let mut dictionary = Dictionary::default();
        let length = bytes.len() as u8;
        let instruction = NewInstruction { address: 0x1000, length, bytes: bytes.to_vec() };
        let block = NewBlock { instructions: vec![instruction], sites: vec![], ways: vec![(1, 0)] };
        dictionary.add(&block).unwrap();
        operands(&dictionary)[0]
    }

    fn set(numbers: &[u32]) -> Registers {
        Registers(numbers.iter().map(|n| 1u64 << n).sum())
    }

    #[test]
    fn a_load_reads_its_address_and_writes_its_target() {
        let load = of_bytes(&[0x8b, 0x04, 0x8b]); // mov eax, [rbx+rcx*4]
        assert_eq!((load.reads, load.writes), (set(&[1, 3]), set(&[0])));
        assert_eq!((load.addresses, load.flow), (set(&[1, 3]), Flow::Next));
    }

    #[test]
    fn arithmetic_writes_flags_and_a_branch_reads_them() {
        let add = of_bytes(&[0x48, 0x01, 0xd8]); // add rax, rbx
        assert_eq!((add.reads, add.writes), (set(&[0, 3]), set(&[0, 48])));
        let branch = of_bytes(&[0x74, 0x02]); // je
        assert_eq!((branch.reads, branch.flow), (Registers::FLAGS, Flow::Branch));
    }

    #[test]
    fn a_push_goes_through_the_stack_pointer() {
        let push = of_bytes(&[0x53]); // push rbx
        assert_eq!((push.reads, push.writes), (set(&[3, 4]), Registers::STACK_POINTER));
        assert_eq!(push.addresses, Registers::STACK_POINTER);
    }

    #[test]
    fn vectors_count_whole_and_zeroing_reads_nothing() {
        let add = of_bytes(&[0x66, 0x0f, 0xfe, 0xc1]); // paddd xmm0, xmm1
        assert_eq!((add.reads, add.writes), (set(&[16, 17]), set(&[16])));
        let zero = of_bytes(&[0x31, 0xc0]); // xor eax, eax
        assert_eq!(zero.reads, Registers::default());
    }

    #[test]
    fn calls_returns_and_system_calls_are_told_apart() {
        assert_eq!(of_bytes(&[0xe8, 0, 0, 0, 0]).flow, Flow::Call);
        assert_eq!(of_bytes(&[0xff, 0xd0]).flow, Flow::IndirectCall);
        assert_eq!(of_bytes(&[0xc3]).flow, Flow::Return);
        assert_eq!(of_bytes(&[0x0f, 0x05]).flow, Flow::System);
        assert!(!of_bytes(&[0x06]).known, "no such instruction in 64-bit code");
    }
}
