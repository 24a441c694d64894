//! Fixtures for spaces: a few pages at an address, on which the cases for all spaces run.
#![allow(dead_code, unsafe_code, reason = "each test file uses a part; makes the space of this process")]

pub(crate) mod remote_fixture;

use remote_fixture::RemoteFixture;
use telpher_mem::{Fault, Isa, Local, MockSpace, PAGE_BYTES, Pages, Protection, Space, Strict, WriteHint};

pub(crate) const PAGE: u64 = PAGE_BYTES;
/// Pages of a fixture.
pub(crate) const COUNT: usize = 8;

/// Eight pages and their space.
pub(crate) trait Fixture {
    fn space(&self) -> &dyn Space;
    fn base(&self) -> u64;
    fn peek(&self, offset: u64, len: usize) -> Vec<u8>;
    fn poke(&self, offset: u64, bytes: &[u8]);
    fn protect(&self, page: usize, protection: Protection);
    fn name(&self) -> String;
}

/// A fixture in this process' memory.
pub(crate) struct LocalFixture<S> {
    pub(crate) pages: Pages,
    pub(crate) space: S,
}

impl<S: Space> Fixture for LocalFixture<S> {
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

impl Fixture for MockSpace {
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

/// Returns this process' memory, through each kind of kernel that the processor supports.
pub(crate) fn locals() -> Vec<Local> {
    // SAFETY: the tests access pages without references to them, slices they own, and addresses that are not mapped.
    let locals: Vec<Local> = Isa::ALL.into_iter().filter_map(|isa| unsafe { Local::with_isa(isa) }).collect();
    for isa in Isa::ALL {
        if !isa.is_available() {
            eprintln!("SKIPPED: the kernels for {isa:?}, which this processor lacks");
        }
    }
    locals
}

/// Returns a fresh fixture of every kind of space.
pub(crate) fn fixtures() -> Vec<Box<dyn Fixture>> {
    let mut fixtures: Vec<Box<dyn Fixture>> = Vec::new();
    for local in locals() {
        fixtures.push(Box::new(LocalFixture { pages: Pages::new(COUNT).unwrap(), space: local }));
    }
    // The pages of a strict fixture are touched first, so that they are present.
    let local = locals()[0];
    let pages = Pages::new(COUNT).unwrap();
    pages.poke(0, &vec![0; pages.len_bytes() as usize]);
    fixtures.push(Box::new(LocalFixture { pages, space: Strict::new(local) }));
    let mock = MockSpace::new();
    mock.map(MOCK_BASE, COUNT, Protection::ReadWrite);
    fixtures.push(Box::new(mock));
    fixtures.extend([false, true].map(|strict| -> Box<dyn Fixture> { Box::new(RemoteFixture::new(strict, true)) }));
    fixtures
}

/// Returns bytes that look random, the same for the same seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    telpher_os::Random::new(seed).fill(&mut bytes);
    bytes
}

pub(crate) fn fault(address: u64, write: bool, done: u64) -> Fault {
    Fault { address, write, done }
}

pub(crate) const HINTS: [WriteHint; 2] = [WriteHint::Cache, WriteHint::Memory];
