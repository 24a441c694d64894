//! Switches single legality checks off, to show that the conformance suite detects each missing check. Without the
//! `mutation` feature everything here is the identity and costs nothing.

#[cfg(not(feature = "mutation"))]
mod switch {
    use crate::legality::Check;
    use telpher_abi::Opcode;

    #[inline(always)]
    pub(crate) fn is_off(_: Check) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn flags(_: Opcode, mask: u32) -> u32 {
        mask
    }

    #[inline(always)]
    pub(crate) fn required(_: Opcode, mask: u32) -> u32 {
        mask
    }

    #[inline(always)]
    pub(crate) fn reserved(_: Opcode, mask: &[u64; 8]) -> [u64; 8] {
        *mask
    }
}

#[cfg(feature = "mutation")]
mod switch {
    use crate::legality::{Check, ROWS, uses_handles};
    use std::cell::{Cell, RefCell};
    use std::collections::HashSet;
    use telpher_abi::{Flags, Opcode};

    /// A check to switch off.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    pub enum Mutant {
        /// A [`Check`](crate::Check).
        Check(Check),
        /// An operation accepts a flag bit that its row does not list.
        Flag(u8, u8),
        /// An operation refuses a flag bit that its row lists.
        RefusedFlag(u8, u8),
        /// An operation does not require a flag bit that its row requires.
        Required(u8, u8),
        /// An operation ignores a reserved byte.
        Reserved(u8, u8),
    }

    thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
        static FAILED: RefCell<HashSet<Check>> = RefCell::default();
    }

    /// Returns the checks that have failed on devices of this thread since the last call. Only a case in which a check
    /// fails can show that it is missing.
    #[must_use]
    pub fn take_failed_checks() -> HashSet<Check> {
        FAILED.take()
    }

    /// Runs `act` with one check of every device on this thread switched off.
    pub fn with_mutant<R>(mutant: Mutant, act: impl FnOnce() -> R) -> R {
        ACTIVE.set(Some(mutant));
        let result = act();
        ACTIVE.set(None);
        result
    }

    /// Returns all mutants.
    #[must_use]
    pub fn all_mutants() -> Vec<Mutant> {
        let mut mutants: Vec<Mutant> = Check::ALL.iter().copied().map(Mutant::Check).collect();
        for row in ROWS {
            let code = row.opcode.code();
            for bit in 0..24 {
                let listed = row.flag_mask() >> bit & 1 == 1;
                // `Check::InsideBatch` refuses these in a batch, and `Check::FenceOutside` a fence outside.
                let alone = matches!(row.opcode, Opcode::Batch | Opcode::Drain | Opcode::UpdateWindow);
                if alone && Flags::FENCE.bits() == 1 << bit {
                    continue;
                }
                mutants.push(if listed { Mutant::RefusedFlag(code, bit) } else { Mutant::Flag(code, bit) });
                // The request for a record, which is required, too, is illegal without its address. Only the mask of
                // bad flags differs, which the specification does not settle for missing flags.
                let is_mask_only = Flags::COMPLETION_RECORD_ADDRESS_VALID.bits() == 1 << bit
                    && matches!(
                        row.opcode,
                        Opcode::DixGenerate | Opcode::InterDomainCompare | Opcode::InterDomainComparePattern
                    );
                if row.required_mask() >> bit & 1 == 1 && !is_mask_only {
                    mutants.push(Mutant::Required(code, bit));
                }
            }
            for byte in 0..64_u8 {
                // `Check::UnusedHandle1` and `Check::UnusedHandle2` refuse them, too.
                if uses_handles(row.opcode) && matches!(byte, 60..=63) {
                    continue;
                }
                if row.reserved_mask()[usize::from(byte / 8)] >> (8 * (byte % 8)) & 0xff != 0 {
                    mutants.push(Mutant::Reserved(code, byte));
                }
            }
        }
        mutants
    }

    /// Called for a check that failed.
    pub(crate) fn is_off(check: Check) -> bool {
        FAILED.with_borrow_mut(|failed| failed.insert(check));
        ACTIVE.get() == Some(Mutant::Check(check))
    }

    pub(crate) fn flags(opcode: Opcode, mask: u32) -> u32 {
        match ACTIVE.get() {
            Some(Mutant::Flag(code, bit)) if code == opcode.code() => mask | 1 << bit,
            Some(Mutant::RefusedFlag(code, bit)) if code == opcode.code() => mask & !(1 << bit),
            _ => mask,
        }
    }

    pub(crate) fn required(opcode: Opcode, mask: u32) -> u32 {
        match ACTIVE.get() {
            Some(Mutant::Required(code, bit)) if code == opcode.code() => mask & !(1 << bit),
            _ => mask,
        }
    }

    pub(crate) fn reserved(opcode: Opcode, mask: &[u64; 8]) -> [u64; 8] {
        let mut mask = *mask;
        if let Some(Mutant::Reserved(code, byte)) = ACTIVE.get()
            && code == opcode.code()
        {
            mask[usize::from(byte / 8)] &= !(0xff << (8 * (byte % 8)));
        }
        mask
    }
}

#[cfg(feature = "mutation")]
pub use switch::{Mutant, all_mutants, take_failed_checks, with_mutant};
pub(crate) use switch::{flags, is_off, required, reserved};
