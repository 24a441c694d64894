//! Ground on which spaces are tried: a few pages at an address, and the cases every space must obey.
#![allow(dead_code, unsafe_code, reason = "each test file uses a part; makes the space of this process")]

pub(crate) mod elsewhere;

use elsewhere::Elsewhere;
use telpher_mem::{Fault, Isa, Local, MockSpace, PAGE_BYTES, Pages, Protection, Space, Strict, WriteHint};

pub(crate) const PAGE: u64 = PAGE_BYTES;
/// Pages of a ground.
pub(crate) const COUNT: usize = 8;

/// Eight pages and the space they lie in.
pub(crate) trait Ground {
    fn space(&self) -> &dyn Space;
    fn base(&self) -> u64;
    fn peek(&self, offset: u64, len: usize) -> Vec<u8>;
    fn poke(&self, offset: u64, bytes: &[u8]);
    fn protect(&self, page: usize, protection: Protection);
    fn name(&self) -> String;
}

/// Ground in this process' memory.
pub(crate) struct Real<S> {
    pub(crate) pages: Pages,
    pub(crate) space: S,
}

impl<S: Space> Ground for Real<S> {
    fn space(&self) -> &dyn Space {
        &self.space
    }
    fn base(&self) -> u64 {
        self.pages.address()
    }
    fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        self.pages.peek(offset, len)
    }
    fn poke(&self, offset: u64, bytes: &[u8]) {
        self.pages.poke(offset, bytes);
    }
    fn protect(&self, page: usize, protection: Protection) {
        self.pages.protect(page..page + 1, protection).unwrap();
    }
    fn name(&self) -> String {
        format!("{:?}", self.space)
    }
}

impl Ground for MockSpace {
    fn space(&self) -> &dyn Space {
        self
    }
    fn base(&self) -> u64 {
        MOCK_BASE
    }
    fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        MockSpace::peek(self, MOCK_BASE + offset, len)
    }
    fn poke(&self, offset: u64, bytes: &[u8]) {
        MockSpace::poke(self, MOCK_BASE + offset, bytes);
    }
    fn protect(&self, page: usize, protection: Protection) {
        MockSpace::protect(self, MOCK_BASE + page as u64 * PAGE, protection);
    }
    fn name(&self) -> String {
        "MockSpace".into()
    }
}

const MOCK_BASE: u64 = 0x7000_0000;

/// This process' memory by each kind of kernel the processor has.
pub(crate) fn locals() -> Vec<Local> {
    // SAFETY: the tests name pages to which there are no references, slices they own, and addresses that are not mapped.
    let locals: Vec<Local> = Isa::ALL.into_iter().filter_map(|isa| unsafe { Local::with_isa(isa) }).collect();
    for isa in Isa::ALL {
        if !isa.is_available() {
            eprintln!("SKIPPED: the kernels for {isa:?}, which this processor lacks");
        }
    }
    locals
}

/// Every kind of space, on fresh ground.
pub(crate) fn grounds() -> Vec<Box<dyn Ground>> {
    let mut grounds: Vec<Box<dyn Ground>> = Vec::new();
    for local in locals() {
        grounds.push(Box::new(Real { pages: Pages::new(COUNT).unwrap(), space: local }));
    }
    // Strict ground is touched first: its pages are present.
    let local = locals()[0];
    let pages = Pages::new(COUNT).unwrap();
    pages.poke(0, &vec![0; pages.len_bytes() as usize]);
    grounds.push(Box::new(Real { pages, space: Strict::new(local) }));
    let mock = MockSpace::new();
    mock.map(MOCK_BASE, COUNT, Protection::ReadWrite);
    grounds.push(Box::new(mock));
    grounds.extend([false, true].map(|strict| -> Box<dyn Ground> { Box::new(Elsewhere::new(strict, true)) }));
    grounds
}

/// Bytes that differ from their neighbours, from a seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect()
}

pub(crate) fn fault(address: u64, write: bool, done: u64) -> Fault {
    Fault { address, write, done }
}

pub(crate) const HINTS: [WriteHint; 2] = [WriteHint::Cache, WriteHint::Memory];
