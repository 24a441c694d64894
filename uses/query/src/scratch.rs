//! The working memory of a thread that aggregates: selected rows, their groups, and the values of each step.

use super::prepare::{Op, Step};
use super::selection::{BLOCK, Indices};

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
    Narrow(Box<[i64; BLOCK]>),
    /// For steps whose values may not fit in 64 bits.
    Wide(Box<[i128; BLOCK]>),
}

impl Buffer {
    fn new(step: &Step) -> Self {
        match step.op {
            Op::Literal(number) => Buffer::Narrow(Box::new([number; BLOCK])),
            _ if step.wide => Buffer::Wide(Box::new([0; BLOCK])),
            _ => Buffer::Narrow(Box::new([0; BLOCK])),
        }
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> i128 {
        match self {
            Buffer::Narrow(values) => values[at].into(),
            Buffer::Wide(values) => values[at],
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
