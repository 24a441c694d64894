//! The working memory of a thread that aggregates: selected rows, their groups, and the values of each step.

use super::program::{Form, Op, Step};
use super::selection::{BLOCK, Indices};
use super::value::Double;

/// Possible groups up to which a block's rows are sorted by group. Source: assumed. TPC-H's query 1 has 180 possible
/// groups (and four real ones), and a pass over that many once per block costs nothing noticeable.
pub(super) const FEW_GROUPS: usize = BLOCK / 4;

/// A thread's working memory. Only the literals are kept from one block to the next.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    pub(super) chosen: Indices,
    pub(super) slots: Box<[u32; BLOCK]>,
    pub(super) starts: [u16; FEW_GROUPS],
    pub(super) ordered: [u16; BLOCK],
    pub(super) runs: Vec<Run>,
    /// One per step.
    pub(super) buffers: Vec<Buffer>,
}

impl Scratch {
    pub(super) fn new(steps: &[Step]) -> Self {
        Scratch {
            chosen: Indices::default(),
            slots: Box::new([0; BLOCK]),
            starts: [0; FEW_GROUPS],
            ordered: [0; BLOCK],
            runs: Vec::new(),
            buffers: steps.iter().map(Buffer::new).collect(),
        }
    }
}

/// The values of a step over a block.
#[derive(Clone, Debug)]
pub(super) enum Buffer {
    Short(Box<[i32; BLOCK]>),
    Narrow(Box<[i64; BLOCK]>),
    Wide(Box<[i128; BLOCK]>),
    Float(Box<[f64; BLOCK]>),
}

impl Buffer {
    fn new(step: &Step) -> Self {
        match (step.op, step.form) {
            (Op::Literal(number), _) => Buffer::Narrow(Box::new([number; BLOCK])),
            (Op::FloatLiteral(number), _) => Buffer::Float(Box::new([number.get(); BLOCK])),
            (_, Form::Short) => Buffer::Short(Box::new([0; BLOCK])),
            (_, Form::Narrow) => Buffer::Narrow(Box::new([0; BLOCK])),
            (_, Form::Wide) => Buffer::Wide(Box::new([0; BLOCK])),
            (_, Form::Float) => Buffer::Float(Box::new([0.0; BLOCK])),
        }
    }

    /// Returns a whole number; the code of a floating-point number.
    #[inline]
    pub(super) fn get(&self, at: usize) -> i128 {
        match self {
            Buffer::Short(values) => values[at].into(),
            Buffer::Narrow(values) => values[at].into(),
            Buffer::Wide(values) => values[at],
            Buffer::Float(values) => Double::new(values[at]).code().into(),
        }
    }
}

/// Adjacent rows of the same group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) group: usize,
    /// Where it ends. It begins where the run before it ends.
    pub(super) end: usize,
}
