//! Compares the decoder with `iced-x86`: every ModRM, SIB and prefix, and random bytes.

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpAccess, OpKind, Register};
use proptest::prelude::*;
use telpher_interpose::decode::{Instruction, LONGEST, Operation, Segment, decode};
use telpher_interpose::registers::Registers;

/// The assumed address of the instruction.
const AT: u64 = 0x0000_5555_1234_5670;
const FS: u64 = 0x0000_7f00_0000_1000;
const GS: u64 = 0x0000_7e00_0000_2000;

/// Different values in all registers, some of them with high bits.
fn values() -> [u64; 16] {
    std::array::from_fn(|i| 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(i as u64 + 3))
}

fn base(segment: Segment) -> u64 {
    if segment == Segment::Fs { FS } else { GS }
}

fn number(register: Register) -> u8 {
    u8::try_from(register.full_register().number()).unwrap()
}

/// The decoding of `bytes` by iced.
struct Oracle {
    instruction: iced_x86::Instruction,
}

impl Oracle {
    fn new(bytes: &[u8]) -> Option<Self> {
        // MPX is gone from processors and APX is not available yet; AMD's forms are included.
        let mut decoder = Decoder::with_ip(64, &bytes[..bytes.len().min(LONGEST)], AT, DecoderOptions::NONE);
        let instruction = decoder.decode();
        (!instruction.is_invalid()).then_some(Self { instruction })
    }

    fn value(register: Register) -> Option<u64> {
        Some(match register {
            Register::FS => FS,
            Register::GS => GS,
            register if register.is_segment_register() => 0,
            register => values()[register.full_register().number()],
        })
    }

    /// The address of memory operand `operand`.
    fn address(&self, operand: u32) -> u64 {
        self.instruction.virtual_address(operand, 0, |register, _, _| Self::value(register)).unwrap()
    }

    fn memory_operand(&self) -> Option<u32> {
        (0..self.instruction.op_count()).find(|&i| self.instruction.op_kind(i) == OpKind::Memory)
    }

    /// True if the decoder must know this instruction.
    fn is_wanted(&self) -> bool {
        let instruction = &self.instruction;
        if instruction.has_lock_prefix() {
            return false;
        }
        match instruction.mnemonic() {
            Mnemonic::Movdir64b | Mnemonic::Enqcmd | Mnemonic::Enqcmds | Mnemonic::Movdiri => true,
            Mnemonic::Umonitor | Mnemonic::Umwait | Mnemonic::Tpause => true,
            Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => true,
            Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsq => true,
            Mnemonic::Movsd if instruction.op_kind(0) == OpKind::MemoryESRDI => true,
            Mnemonic::Movsd if instruction.op_kind(0) == OpKind::MemoryESEDI => true,
            mnemonic => {
                let name = format!("{mnemonic:?}").to_lowercase();
                let plain = name.strip_prefix('v').unwrap_or(&name);
                // Stores of segment registers are left out.
                let stores =
                    instruction.op_kind(0) == OpKind::Memory && !instruction.op1_register().is_segment_register();
                let moves = plain.starts_with("mov") && !plain.starts_with("movrs");
                let extracts = matches!(mnemonic, Mnemonic::Vextractf128 | Mnemonic::Vextracti128);
                stores && (moves || extracts)
            }
        }
    }
}

/// Compares the two decodings of `bytes`, which are padded with zeros.
fn compare(bytes: &[u8]) -> Result<(), String> {
    let mut padded = bytes.to_vec();
    padded.resize(LONGEST, 0);
    let got = decode(&padded);
    let oracle = Oracle::new(&padded);
    let wanted = oracle.as_ref().filter(|oracle| oracle.is_wanted());
    let (Some(got), Some(oracle)) = (got, wanted) else {
        return match (got, oracle) {
            (None, None) => Ok(()),
            (None, Some(oracle)) if !oracle.is_wanted() => Ok(()),
            (got, oracle) => Err(format!("{padded:02x?}: {got:?}, iced {:?}", oracle.map(|o| o.instruction))),
        };
    };
    let same = agree(got, oracle);
    if same { Ok(()) } else { Err(format!("{padded:02x?}: {got:?}, iced {:?}", oracle.instruction)) }
}

fn agree(got: Instruction, oracle: &Oracle) -> bool {
    let iced = &oracle.instruction;
    let registers = Registers { general: values(), next: AT + u64::from(got.length) };
    if usize::from(got.length) != iced.len() {
        return false;
    }
    let same_address = |memory, operand| registers.address(memory, base) == oracle.address(operand);
    let stored = |memory: telpher_interpose::decode::Memory, bytes: usize| {
        oracle.memory_operand() == Some(0) && same_address(memory, 0) && iced.memory_size().size() == bytes
    };
    let mnemonic = iced.mnemonic();
    match got.operation {
        Operation::Movdir64b { destination, source } => {
            let flat = |_| unreachable!("the destination is in ES");
            mnemonic == Mnemonic::Movdir64b
                && registers.pointer(destination, flat) == whole(iced.op0_register())
                && same_address(source, 1)
        }
        Operation::Enqcmd { supervisor, destination, source } => {
            let flat = |_| unreachable!("the destination is in ES");
            mnemonic == (if supervisor { Mnemonic::Enqcmds } else { Mnemonic::Enqcmd })
                && registers.pointer(destination, flat) == whole(iced.op0_register())
                && same_address(source, 1)
        }
        Operation::Movdiri { destination, source, bytes } => {
            mnemonic == Mnemonic::Movdiri && stored(destination, bytes.into()) && source == number(iced.op1_register())
        }
        Operation::Umonitor { address } => {
            let segment = match iced.segment_prefix() {
                Register::FS => FS,
                Register::GS => GS,
                _ => 0,
            };
            mnemonic == Mnemonic::Umonitor
                && registers.pointer(address, base) == whole(iced.op0_register()).wrapping_add(segment)
        }
        Operation::Umwait { control } => mnemonic == Mnemonic::Umwait && control == number(iced.op0_register()),
        Operation::Tpause { control } => mnemonic == Mnemonic::Tpause && control == number(iced.op0_register()),
        Operation::Store64 { destination, source, mask, elements } => {
            let wanted_mask = match iced.op_mask() {
                Register::None => 0,
                mask => number(mask),
            };
            let element = match mnemonic {
                Mnemonic::Vmovdqu8 => 1,
                Mnemonic::Vmovdqu16 => 2,
                Mnemonic::Vmovdqa32 | Mnemonic::Vmovdqu32 | Mnemonic::Vmovaps | Mnemonic::Vmovups => 4,
                _ => 8,
            };
            stored(destination, 64)
                && iced.op1_register().is_zmm()
                && source == number(iced.op1_register())
                && mask == wanted_mask
                && elements == 64 / element
        }
        Operation::Store { destination, bytes } => stored(destination, bytes.into()),
        Operation::StringStore { moves, bytes, repeat, narrow } => {
            iced.memory_size().size() == usize::from(bytes)
                && moves == format!("{mnemonic:?}").starts_with("Movs")
                && repeat == (iced.has_rep_prefix() || iced.has_repne_prefix())
                && narrow == (iced.op0_kind() == OpKind::MemoryESEDI)
        }
    }
}

/// Returns a register's value, in the width of its name.
fn whole(register: Register) -> u64 {
    let value = values()[register.full_register().number()];
    if register.size() == 4 { value & 0xffff_ffff } else { value }
}

/// Returns prefixes and opcodes of everything the decoder knows; ModRM follows.
fn heads() -> Vec<Vec<u8>> {
    let mut heads = Vec::new();
    for rex in (0x40u8..=0x4f).map(Some).chain([None]) {
        for prefix in [&[][..], &[0x66], &[0xf2], &[0xf3], &[0x66, 0xf2], &[0xf3, 0x66]] {
            for opcode in [
                &[0x0f, 0x38, 0xf8][..],
                &[0x0f, 0x38, 0xf9],
                &[0x0f, 0x38, 0xf1],
                &[0x0f, 0xae],
                &[0x88],
                &[0x89],
                &[0xc6],
                &[0xc7],
                &[0xa2],
                &[0xa3],
                &[0xa4],
                &[0xa5],
                &[0xaa],
                &[0xab],
                &[0x0f, 0x11],
                &[0x0f, 0x13],
                &[0x0f, 0x17],
                &[0x0f, 0x29],
                &[0x0f, 0x2b],
                &[0x0f, 0x7e],
                &[0x0f, 0x7f],
                &[0x0f, 0xc3],
                &[0x0f, 0xd6],
                &[0x0f, 0xe7],
            ] {
                heads.push(prefix.iter().chain(&rex).chain(opcode).copied().collect());
            }
        }
    }
    heads
}

fn compare_all(cases: impl Iterator<Item = Vec<u8>>) {
    let (mut count, mut known) = (0u64, 0u64);
    for case in cases {
        compare(&case).unwrap();
        count += 1;
        known += u64::from(decode(&[&case[..], &[0; LONGEST]].concat()).is_some());
    }
    // Otherwise nothing was compared.
    assert!(known * 20 > count, "{known} of {count} cases are known instructions");
}

#[test]
fn every_modrm_and_sib_decodes_as_in_iced() {
    let tail = [0x80, 0x7f, 0x34, 0x92, 0x11, 0x22, 0x33, 0x44];
    compare_all(heads().into_iter().flat_map(|head| {
        (0..=255u8).flat_map(move |modrm| {
            // The SIB byte matters only if the form has one; 24h has no index.
            let has_sib = modrm >> 6 != 3 && modrm & 7 == 4;
            let sibs: Vec<u8> = if has_sib { (0..=255).collect() } else { vec![0x24] };
            let head = head.clone();
            sibs.into_iter().map(move |sib| {
                let mut bytes = head.clone();
                bytes.push(modrm);
                bytes.push(sib);
                bytes.extend(tail);
                bytes
            })
        })
    }));
}

#[test]
fn every_vex_and_evex_store_decodes_as_in_iced() {
    let opcodes = [0x11, 0x13, 0x17, 0x19, 0x29, 0x2b, 0x39, 0x7e, 0x7f, 0xd6, 0xe7, 0x10, 0x28, 0x6f];
    let modrms = [0x00, 0x05, 0x0c, 0x44, 0x47, 0x7d, 0x84, 0xb9, 0xc1, 0xff];
    let tail = [0x64, 0x81, 0x7f, 0x01, 0x80, 0, 0];
    let finish = move |head: Vec<u8>| {
        opcodes.into_iter().flat_map(move |opcode| {
            let head = head.clone();
            modrms.map(|modrm| [&head[..], &[opcode, modrm], &tail].concat())
        })
    };
    let vex2 = (0..=255).map(|p| vec![0xc5, p]);
    let vex3 = (0..=255).flat_map(|a| (0..=255).map(move |b| vec![0xc4, a, b]));
    let few = |case: &Vec<u8>| [0xc5, 0xc4].contains(&case[0]);
    assert!(vex2.clone().all(|case| few(&case)));
    let mut errors = Vec::new();
    for case in vex2.chain(vex3.filter(|case| matches!(case[1] & 0x1f, 1 | 3))).flat_map(finish) {
        errors.extend(compare(&case).err());
    }
    let p0s = (0..=255u8).filter(|p0| matches!(p0 & 0xf, 1..=3));
    for p0 in p0s {
        for p1 in 0..=255u8 {
            if p1 & 0x78 != 0x78 && p1 & 0x78 != 0 {
                continue;
            }
            for p2 in [0x08, 0x48, 0x28, 0x68, 0x49, 0x4f, 0x0b, 0x40, 0xc9, 0xc8, 0x58] {
                for case in finish(vec![0x62, p0, p1, p2]) {
                    errors.extend(compare(&case).err());
                }
            }
        }
    }
    assert!(errors.is_empty(), "{} errors, such as {:#?}", errors.len(), &errors[..errors.len().min(5)]);
}

#[test]
fn prefixes_may_come_in_any_order_and_repeatedly() {
    let prefixes = [0x66, 0x67, 0xf2, 0xf3, 0x64, 0x65, 0x2e, 0x3e, 0x48, 0x41];
    let opcodes: [&[u8]; 4] =
        [&[0x0f, 0x38, 0xf8, 0x02], &[0x0f, 0x38, 0xf9, 0x42, 0x10], &[0x0f, 0xae, 0xf1], &[0x89, 0x07]];
    compare_all((0..10_000usize).flat_map(|four| {
        let digits = [four / 1000, four / 100 % 10, four / 10 % 10, four % 10];
        opcodes.map(|opcode| digits.iter().map(|&digit| prefixes[digit]).chain(opcode.iter().copied()).collect())
    }));
}

#[test]
fn a_truncated_instruction_is_none() {
    let whole = [0x64, 0x67, 0x66, 0x45, 0x0f, 0x38, 0xf8, 0x94, 0x93, 1, 2, 3, 4];
    assert_eq!(decode(&whole).map(|i| i.length), Some(13));
    for length in 0..whole.len() {
        assert_eq!(decode(&whole[..length]), None, "{length} bytes");
    }
}

#[test]
fn more_than_fifteen_bytes_are_no_instruction() {
    let mut bytes = vec![0x66; 11];
    bytes.extend([0x0f, 0x38, 0xf8, 0x02, 0x90, 0x90]);
    assert_eq!(decode(&bytes).map(|i| i.length), Some(15));
    bytes.insert(0, 0x66);
    assert_eq!(decode(&bytes), None);
}

#[test]
fn lock_makes_it_undefined() {
    assert_eq!(decode(&[0xf0, 0x66, 0x0f, 0x38, 0xf8, 0x02]), None);
}

/// The forms that clients of the device contain as constant bytes.
#[test]
fn the_encodings_in_known_programs_are_decoded() {
    let lengths: [(&[u8], u8); 9] = [
        (&[0x66, 0x0f, 0x38, 0xf8, 0x02], 5),
        (&[0xf2, 0x0f, 0x38, 0xf8, 0x02], 5),
        (&[0xf3, 0x0f, 0x38, 0xf8, 0x3e], 5),
        (&[0xf3, 0x48, 0x0f, 0xae, 0xf0], 5),
        (&[0xf2, 0x48, 0x0f, 0xae, 0xf1], 5),
        (&[0xf3, 0x0f, 0xae, 0xf0], 4),
        (&[0xf2, 0x0f, 0xae, 0xf1], 4),
        (&[0x66, 0x0f, 0xae, 0xf1], 4),
        (&[0x48, 0x0f, 0x38, 0xf9, 0x37], 5),
    ];
    for (bytes, length) in lengths {
        assert_eq!(decode(bytes).map(|i| i.length), Some(length), "{bytes:02x?}");
        compare(bytes).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_bytes_decode_as_in_iced(
        prefixes in proptest::collection::vec(proptest::sample::select(vec![0x66u8, 0x67, 0xf2, 0xf3, 0x64, 0x65, 0x36, 0x4d]), 0..4),
        opcode in proptest::sample::select(vec![&[0x0f, 0x38][..], &[0x0f, 0xae], &[0x0f], &[0xc5], &[0xc4], &[0x62], &[]]),
        rest in proptest::collection::vec(any::<u8>(), 12),
    ) {
        let bytes = [&prefixes[..], opcode, &rest].concat();
        compare(&bytes).map_err(TestCaseError::fail)?;
    }
}

/// `OpAccess` of iced agrees with the decoder's stores.
#[test]
fn a_store_writes_its_memory_operand() {
    let mut factory = iced_x86::InstructionInfoFactory::new();
    for head in heads() {
        let bytes = [&head[..], &[0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
        let Some(Instruction { operation: Operation::Store { .. } | Operation::Movdiri { .. }, .. }) = decode(&bytes)
        else {
            continue;
        };
        let oracle = Oracle::new(&bytes).unwrap();
        assert_eq!(factory.info(&oracle.instruction).op0_access(), OpAccess::Write, "{bytes:02x?}");
    }
}
