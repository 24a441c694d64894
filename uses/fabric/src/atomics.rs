//! Atomic operations: what each computes, and how it is done on memory.
//!
//! Each element is loaded, and replaced by an atomic compare-and-exchange instruction until no other thread has changed
//! it in between. So the operations are atomic with each other and with the atomic instructions of other threads.

use crate::number::Number;
use crate::regions::AccessError;
use telpher_mem::Local;

/// What an atomic operation does with an element in memory, an operand and, for the last ones, a word to compare. The
/// names and meanings are those of libfabric's `enum fi_op`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the words say it")]
pub enum AtomicOp {
    Min,
    Max,
    Sum,
    Product,
    LogicalOr,
    LogicalAnd,
    BitOr,
    BitAnd,
    LogicalXor,
    BitXor,
    Read,
    Write,
    /// Writes the operand if the word to compare equals the element; the next ones if it is not equal, and so on.
    SwapIfEqual,
    SwapIfNotEqual,
    SwapIfLessOrEqual,
    SwapIfLess,
    SwapIfGreaterOrEqual,
    SwapIfGreater,
    /// Writes the bits of the operand that are set in the word to compare.
    MaskedSwap,
}

/// How an atomic operation is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AtomicForm {
    /// It returns nothing.
    Plain,
    /// It returns the elements as they were before.
    Fetch,
    /// It has words to compare, and returns the elements as they were before.
    Compare,
}

/// An operation on elements of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Atomic {
    /// The operation.
    pub op: AtomicOp,
    /// The type of the elements.
    pub of: Number,
}

impl AtomicOp {
    /// All operations, by their numbers.
    pub const ALL: [AtomicOp; 19] = [
        AtomicOp::Min,
        AtomicOp::Max,
        AtomicOp::Sum,
        AtomicOp::Product,
        AtomicOp::LogicalOr,
        AtomicOp::LogicalAnd,
        AtomicOp::BitOr,
        AtomicOp::BitAnd,
        AtomicOp::LogicalXor,
        AtomicOp::BitXor,
        AtomicOp::Read,
        AtomicOp::Write,
        AtomicOp::SwapIfEqual,
        AtomicOp::SwapIfNotEqual,
        AtomicOp::SwapIfLessOrEqual,
        AtomicOp::SwapIfLess,
        AtomicOp::SwapIfGreaterOrEqual,
        AtomicOp::SwapIfGreater,
        AtomicOp::MaskedSwap,
    ];

    /// True if it has words to compare.
    #[must_use]
    pub fn compares(self) -> bool {
        self as u8 >= AtomicOp::SwapIfEqual as u8
    }

    /// True if it is on bits, which floating-point numbers do not have.
    fn is_on_bits(self) -> bool {
        matches!(self, AtomicOp::BitOr | AtomicOp::BitAnd | AtomicOp::BitXor | AtomicOp::MaskedSwap)
    }
}

impl Atomic {
    /// True if the operation exists for the type, and can be called so.
    #[must_use]
    pub fn exists(self, form: AtomicForm) -> bool {
        let is_float = !self.of.is_integer();
        let fits = match form {
            AtomicForm::Plain => !self.op.compares() && self.op != AtomicOp::Read,
            AtomicForm::Fetch => !self.op.compares(),
            AtomicForm::Compare => self.op.compares(),
        };
        fits && !(is_float && self.op.is_on_bits())
    }

    /// Returns the bytes of the operands and words to compare for elements of `len` bytes.
    #[must_use]
    pub fn operand_bytes(self, len: u64) -> u64 {
        match self.op {
            AtomicOp::Read => 0,
            op if op.compares() => 2 * len,
            _ => len,
        }
    }

    /// Computes the new element. Words of shorter types have zeros above.
    fn apply(self, old: u64, operand: u64, compare: u64) -> u64 {
        let words = [old, operand, compare];
        match self.of {
            Number::I8 => compute::<i8>(self.op, words),
            Number::U8 => compute::<u8>(self.op, words),
            Number::I16 => compute::<i16>(self.op, words),
            Number::U16 => compute::<u16>(self.op, words),
            Number::I32 => compute::<i32>(self.op, words),
            Number::U32 => compute::<u32>(self.op, words),
            Number::I64 => compute::<i64>(self.op, words),
            Number::U64 => compute::<u64>(self.op, words),
            Number::F32 => compute::<f32>(self.op, words),
            Number::F64 => compute::<f64>(self.op, words),
        }
    }
}

/// A type of elements.
trait Element: Copy + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    fn from_word(word: u64) -> Self;
    fn to_word(self) -> u64;
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! elements {
    ($($type:ty: $zero:literal $one:literal $sum:path, $product:path;)*) => {$(
        impl Element for $type {
            const ZERO: Self = $zero;
            const ONE: Self = $one;

            fn from_word(word: u64) -> Self {
                let bytes = word.to_le_bytes();
                Self::from_le_bytes(*bytes.first_chunk().expect("no type is longer than a word"))
            }

            fn to_word(self) -> u64 {
                let mut bytes = [0; 8];
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
                u64::from_le_bytes(bytes)
            }

            fn sum(self, other: Self) -> Self {
                $sum(self, other)
            }

            fn product(self, other: Self) -> Self {
                $product(self, other)
            }
        }
    )*};
}

elements! {
    i8: 0 1 i8::wrapping_add, i8::wrapping_mul;
    u8: 0 1 u8::wrapping_add, u8::wrapping_mul;
    i16: 0 1 i16::wrapping_add, i16::wrapping_mul;
    u16: 0 1 u16::wrapping_add, u16::wrapping_mul;
    i32: 0 1 i32::wrapping_add, i32::wrapping_mul;
    u32: 0 1 u32::wrapping_add, u32::wrapping_mul;
    i64: 0 1 i64::wrapping_add, i64::wrapping_mul;
    u64: 0 1 u64::wrapping_add, u64::wrapping_mul;
    f32: 0.0 1.0 std::ops::Add::add, std::ops::Mul::mul;
    f64: 0.0 1.0 std::ops::Add::add, std::ops::Mul::mul;
}

fn compute<T: Element>(op: AtomicOp, words: [u64; 3]) -> u64 {
    let [old, operand, compare] = words.map(T::from_word);
    let is_true = |value: T| value != T::ZERO;
    let truth = |value: bool| if value { T::ONE } else { T::ZERO };
    let swap_if = |condition: bool| if condition { operand } else { old };
    let new = match op {
        AtomicOp::Min => swap_if(operand < old),
        AtomicOp::Max => swap_if(operand > old),
        AtomicOp::Sum => old.sum(operand),
        AtomicOp::Product => old.product(operand),
        AtomicOp::LogicalOr => truth(is_true(old) || is_true(operand)),
        AtomicOp::LogicalAnd => truth(is_true(old) && is_true(operand)),
        AtomicOp::LogicalXor => truth(is_true(old) != is_true(operand)),
        AtomicOp::Read => old,
        AtomicOp::Write => operand,
        AtomicOp::SwapIfEqual => swap_if(compare == old),
        AtomicOp::SwapIfNotEqual => swap_if(compare != old),
        AtomicOp::SwapIfLessOrEqual => swap_if(compare <= old),
        AtomicOp::SwapIfLess => swap_if(compare < old),
        AtomicOp::SwapIfGreaterOrEqual => swap_if(compare >= old),
        AtomicOp::SwapIfGreater => swap_if(compare > old),
        // On the words themselves, which are bits.
        AtomicOp::BitOr => return words[0] | words[1],
        AtomicOp::BitAnd => return words[0] & words[1],
        AtomicOp::BitXor => return words[0] ^ words[1],
        AtomicOp::MaskedSwap => return (words[1] & words[2]) | (words[0] & !words[2]),
    };
    new.to_word()
}

/// Executes an operation on the elements from an address on. `operands` has the operands, and then the words to
/// compare. Returns the elements as they were before. Each element is changed atomically, not all together.
pub(crate) fn execute(
    memory: Local,
    atomic: Atomic,
    address: u64,
    len: usize,
    operands: &[u8],
) -> Result<Vec<u8>, AccessError> {
    let width = atomic.of.width();
    if !address.is_multiple_of(width.bytes()) {
        return Err(AccessError::Misaligned);
    }
    let bytes = usize::try_from(width.bytes()).expect("a few");
    let (operands, compares) = operands.split_at(len.min(operands.len()));
    let word = |of: &[u8], at: usize| {
        let mut word = [0; 8];
        if let Some(from) = of.get(at..at + bytes) {
            word[..bytes].copy_from_slice(from);
        }
        u64::from_le_bytes(word)
    };
    let mut before = vec![0; len];
    for (element, at) in before.chunks_exact_mut(bytes).zip((0..len).step_by(bytes)) {
        let (operand, compare) = (word(operands, at), word(compares, at));
        let old = execute_one(memory, atomic, address + at as u64, operand, compare)?;
        element.copy_from_slice(&old.to_le_bytes()[..bytes]);
    }
    Ok(before)
}

/// Executes an operation on one element, and returns it as it was before.
fn execute_one(memory: Local, atomic: Atomic, address: u64, operand: u64, compare: u64) -> Result<u64, AccessError> {
    let width = atomic.of.width();
    let mut seen = memory.load(address, width).map_err(|_| AccessError::NotMapped)?;
    if atomic.op == AtomicOp::Read {
        return Ok(seen);
    }
    // Goes on while another thread changes the element between the two steps.
    loop {
        let new = atomic.apply(seen, operand, compare);
        let before = memory.compare_exchange(address, width, seen, new).map_err(|_| AccessError::NotMapped)?;
        if before == seen {
            return Ok(seen);
        }
        seen = before;
    }
}
