//! A function made at run time: loads every register, executes one instruction, stores every register.

use iced_x86::code_asm::*;
use iced_x86::{BlockEncoderOptions, IcedError};
use std::arch::is_x86_feature_detected;

/// Space for the code; the states follow it.
const CODE: usize = 2 * 4096;

/// All state that an instruction may change or must keep.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct State {
    /// xmm0 to xmm15 by their low 128 bits if there are no wider registers.
    pub(crate) vectors: [[u64; 8]; 32],
    /// k0 to k7.
    pub(crate) masks: [u64; 8],
    /// In the processor's order; rsp is not set.
    pub(crate) general: [u64; 16],
    /// The 128 bytes below the stack pointer.
    pub(crate) red_zone: [u64; 16],
    /// rflags.
    pub(crate) flags: u64,
    /// MXCSR.
    pub(crate) mxcsr: u64,
}

impl State {
    /// Different values everywhere.
    pub(crate) fn new(seed: u64) -> Self {
        let mut next = seed;
        let mut random = || {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            next ^ next >> 29
        };
        State {
            vectors: std::array::from_fn(|_| std::array::from_fn(|_| random())),
            masks: std::array::from_fn(|_| random()),
            general: std::array::from_fn(|_| random()),
            red_zone: std::array::from_fn(|_| random()),
            // Bit 1 is always set, bit 9 allows interrupts.
            flags: 0x202,
            // Rounds towards zero, all exceptions masked.
            mxcsr: 0x7f80,
        }
    }

    /// Returns the state with registers set.
    pub(crate) fn with(mut self, registers: &[(usize, u64)]) -> Self {
        for &(register, value) in registers {
            self.general[register] = value;
        }
        self
    }
}

/// The function. Its code is not writable after it was made.
#[derive(Debug)]
pub(crate) struct Thunk {
    start: u64,
    /// Address of the instruction.
    pub(crate) site: u64,
    length: usize,
}

/// The data after the code.
#[repr(C)]
struct Data {
    before: State,
    after: State,
    /// 64 bytes that an instruction may address relative to itself.
    near: [u64; 8],
}

impl Thunk {
    /// Makes the function for the instruction in `bytes`.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self::build(0, |_, _| bytes.to_vec())
    }

    /// Makes the function for the instruction in `bytes`, which starts `offset` bytes into a page.
    pub(crate) fn place(bytes: &[u8], offset: usize) -> Self {
        Self::build(offset, |_, _| bytes.to_vec())
    }

    /// Makes the function for the instruction that `bytes` returns for its own address and that of
    /// [`set_near`](Self::set_near)'s bytes.
    pub(crate) fn relative(bytes: impl Fn(u64, u64) -> Vec<u8>) -> Self {
        Self::build(0, bytes)
    }

    fn build(offset: usize, instruction: impl Fn(u64, u64) -> Vec<u8>) -> Self {
        let length = CODE + size_of::<Data>().next_multiple_of(4096);
        // Within 2 GiB, so that absolute addresses fit into instructions.
        let start = super::map_low(length, libc::PROT_READ | libc::PROT_WRITE);
        let near = start + (CODE + std::mem::offset_of!(Data, near)) as u64;
        let emit = |head: usize, site: u64| {
            let mut a = CodeAssembler::new(64).unwrap();
            for _ in 0..head {
                a.nop().unwrap();
            }
            Self::prologue(&mut a, start).unwrap();
            let mut label = a.create_label();
            a.set_label(&mut label).unwrap();
            let bytes = instruction(site, near);
            a.db(&bytes).unwrap();
            Self::epilogue(&mut a, start).unwrap();
            let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
            let result = a.assemble_options(start, options).unwrap();
            let site = result.label_ip(&label).unwrap();
            (result.inner.code_buffer, site, bytes.len())
        };
        // The length of the prologue determines how many bytes must precede it.
        let (_, plain, _) = emit(0, start);
        let head = if offset == 0 { 0 } else { (offset + 4096 - (plain - start) as usize % 4096) % 4096 };
        let (_, site, _) = emit(head, start);
        let (code, site, length) = emit(head, site);
        assert!(code.len() <= CODE, "{} bytes of code", code.len());
        assert!(offset == 0 || site % 4096 == offset as u64);
        // SAFETY: the pages were mapped for it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                code.as_ptr(),
                std::ptr::with_exposed_provenance_mut(start as usize),
                code.len(),
            );
        }
        super::protect(start, CODE, libc::PROT_READ | libc::PROT_EXEC);
        Thunk { start, site, length }
    }

    /// Returns the current bytes at the site.
    pub(crate) fn code(&self) -> Vec<u8> {
        // SAFETY: the code is readable as long as the thunk lives.
        unsafe {
            std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.site as usize), self.length).to_vec()
        }
    }

    /// Returns the address of the next instruction.
    pub(crate) fn next(&self) -> u64 {
        self.site + self.length as u64
    }

    fn data(&self) -> *mut Data {
        std::ptr::with_exposed_provenance_mut(self.start as usize + CODE)
    }

    /// Sets the 64 bytes that an instruction may address relative to itself.
    pub(crate) fn set_near(&self, bytes: [u64; 8]) {
        // SAFETY: writable memory of this thunk, which no reference points to.
        unsafe { (&raw mut (*self.data()).near).write(bytes) };
    }

    /// Returns the address of those bytes.
    pub(crate) fn near(&self) -> u64 {
        self.start + (CODE + std::mem::offset_of!(Data, near)) as u64
    }

    /// Executes it; only one thread at a time.
    pub(crate) fn run(&self, before: &State) -> State {
        // SAFETY: the code saves the registers that the ABI requires, and the instruction is the one under test.
        unsafe {
            (&raw mut (*self.data()).before).write(*before);
            let function: extern "C" fn() =
                std::mem::transmute(std::ptr::with_exposed_provenance::<()>(self.start as usize));
            function();
            (&raw const (*self.data()).after).read()
        }
    }

    fn prologue(a: &mut CodeAssembler, start: u64) -> Result<(), IcedError> {
        let before = |offset: usize| start + (CODE + offset) as u64;
        for register in [rbx, rbp, r12, r13, r14, r15] {
            a.push(register)?;
        }
        a.sub(rsp, 8)?;
        a.ldmxcsr(dword_ptr(before(std::mem::offset_of!(State, mxcsr))))?;
        let vector = |i: usize| before(i * 64);
        if is_x86_feature_detected!("avx512f") {
            for (i, register) in ZMM.into_iter().enumerate() {
                a.vmovdqu64(register, ptr(vector(i)))?;
            }
            for (i, register) in [k1, k2, k3, k4, k5, k6, k7].into_iter().enumerate() {
                a.kmovw(register, ptr(before(std::mem::offset_of!(State, masks) + 8 * (i + 1))))?;
            }
        } else {
            for (i, register) in XMM.into_iter().enumerate() {
                a.movups(register, ptr(vector(i)))?;
            }
        }
        // Through rax, which is loaded last.
        for i in 0..16 {
            a.mov(rax, qword_ptr(before(std::mem::offset_of!(State, red_zone) + 8 * i)))?;
            a.mov(qword_ptr(rsp - 8 * (i as i32 + 1) - 8), rax)?;
        }
        a.push(qword_ptr(before(std::mem::offset_of!(State, flags))))?;
        a.popfq()?;
        // The push has used the first word below; so the red zone is that of a stack pointer one word lower.
        a.lea(rsp, ptr(rsp - 8))?;
        for (i, register) in GENERAL.into_iter().enumerate().filter(|&(i, _)| i != 4) {
            a.mov(register, qword_ptr(before(std::mem::offset_of!(State, general) + 8 * i)))?;
        }
        Ok(())
    }

    fn epilogue(a: &mut CodeAssembler, start: u64) -> Result<(), IcedError> {
        let after = |offset: usize| start + (CODE + std::mem::offset_of!(Data, after) + offset) as u64;
        for (i, register) in GENERAL.into_iter().enumerate() {
            a.mov(qword_ptr(after(std::mem::offset_of!(State, general) + 8 * i)), register)?;
        }
        for i in 0..16 {
            a.mov(rax, qword_ptr(rsp - 8 * (i as i32 + 1)))?;
            a.mov(qword_ptr(after(std::mem::offset_of!(State, red_zone) + 8 * i)), rax)?;
        }
        a.pushfq()?;
        a.pop(qword_ptr(after(std::mem::offset_of!(State, flags))))?;
        a.stmxcsr(dword_ptr(after(std::mem::offset_of!(State, mxcsr))))?;
        let vector = |i: usize| after(i * 64);
        if is_x86_feature_detected!("avx512f") {
            for (i, register) in ZMM.into_iter().enumerate() {
                a.vmovdqu64(ptr(vector(i)), register)?;
            }
            for (i, register) in [k1, k2, k3, k4, k5, k6, k7].into_iter().enumerate() {
                a.kmovw(ptr(after(std::mem::offset_of!(State, masks) + 8 * (i + 1))), register)?;
            }
            a.vzeroupper()?;
        } else {
            for (i, register) in XMM.into_iter().enumerate() {
                a.movups(ptr(vector(i)), register)?;
            }
        }
        a.cld()?;
        a.push(0x1f80)?;
        a.ldmxcsr(dword_ptr(rsp))?;
        a.add(rsp, 8 + 8 + 8)?;
        for register in [r15, r14, r13, r12, rbp, rbx] {
            a.pop(register)?;
        }
        a.ret()
    }
}

const GENERAL: [AsmRegister64; 16] = [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
const XMM: [AsmRegisterXmm; 16] =
    [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13, xmm14, xmm15];
const ZMM: [AsmRegisterZmm; 32] = [
    zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11, zmm12, zmm13, zmm14, zmm15, zmm16, zmm17,
    zmm18, zmm19, zmm20, zmm21, zmm22, zmm23, zmm24, zmm25, zmm26, zmm27, zmm28, zmm29, zmm30, zmm31,
];

/// Checks that `after` equals `before`, except for the listed `general` registers, flags, and state that the thunk does
/// not save.
#[track_caller]
pub(crate) fn assert_same(before: &State, after: &State, flags: u64) {
    let mut expected = *before;
    // Not set.
    expected.general[4] = after.general[4];
    expected.flags = flags;
    // Only 16 bits of each mask are saved.
    for (mask, seen) in expected.masks.iter_mut().zip(&after.masks) {
        *mask = *seen & !0xffff | *mask & 0xffff;
    }
    expected.masks[0] = after.masks[0];
    expected.mxcsr = expected.mxcsr & 0xffff | after.mxcsr & !0xffff;
    if !is_x86_feature_detected!("avx512f") {
        for (vector, seen) in expected.vectors.iter_mut().zip(&after.vectors) {
            vector[2..].copy_from_slice(&seen[2..]);
        }
        expected.vectors[16..].copy_from_slice(&after.vectors[16..]);
        expected.masks = after.masks;
    }
    assert_eq!(*after, expected);
}
