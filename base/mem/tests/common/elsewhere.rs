//! Ground in a child process: its pages, and a child that changes their mappings when told.
//!
//! The child is this test binary again, run for one test: a mere `fork()` would share the pages of the tests beside it, which
//! then are not present for writing.

use super::{COUNT, Ground, PAGE};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use telpher_mem::{Pages, Protection, Remote, Space};

/// Tells the child that it is one.
const CHILD: &str = "TELPHER_MEM_TEST_CHILD";

/// Eight pages of a child process, seen by [`Remote`].
pub(crate) struct Elsewhere {
    child: Child,
    control: UnixStream,
    /// The child's memory, whatever its protection; not what is tested.
    memory: File,
    base: u64,
    space: Remote,
}

/// What the child does to one of its pages.
#[repr(u8)]
#[derive(Clone, Copy)]
pub(crate) enum Order {
    None = 0,
    Read = 1,
    ReadWrite = 2,
    Discard = 3,
    /// Write one byte.
    Touch = 4,
    /// Read one byte.
    Look = 5,
}

impl Elsewhere {
    /// `touched`: the child has written every page.
    pub(crate) fn new(strict: bool, touched: bool) -> Elsewhere {
        let (mut control, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "common::elsewhere::the_child_serves", "--nocapture"])
            .env(CHILD, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut base = [0; 8];
        control.read_exact(&mut base).unwrap();
        let id = child.id();
        let ground = Elsewhere {
            child,
            control,
            memory: File::options().read(true).write(true).open(format!("/proc/{id}/mem")).unwrap(),
            base: u64::from_le_bytes(base),
            space: if strict { Remote::strict(id) } else { Remote::new(id) }.unwrap(),
        };
        for page in 0..if touched { COUNT } else { 0 } {
            ground.order(page, Order::Touch);
        }
        ground
    }

    pub(crate) fn order(&self, page: usize, order: Order) {
        let mut control = &self.control;
        control.write_all(&[u8::try_from(page).unwrap(), order as u8]).unwrap();
        control.read_exact(&mut [0]).unwrap();
    }

    /// Ends the child and waits until it is gone.
    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// No test of its own: what the child runs. Two bytes are an order, one byte is the answer.
#[test]
fn the_child_serves() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let pages = Pages::new(COUNT).unwrap();
    control.write_all(&pages.address().to_le_bytes()).unwrap();
    let mut order = [0; 2];
    while control.read_exact(&mut order).is_ok() {
        let page = usize::from(order[0]);
        let offset = page as u64 * PAGE;
        match order[1] {
            0 => pages.protect(page..page + 1, Protection::None).unwrap(),
            1 => pages.protect(page..page + 1, Protection::Read).unwrap(),
            2 => pages.protect(page..page + 1, Protection::ReadWrite).unwrap(),
            3 => pages.discard(page..page + 1).unwrap(),
            4 => pages.poke(offset, &[0]),
            _ => drop(pages.peek(offset, 1)),
        }
        control.write_all(&[0]).unwrap();
    }
    // Not back into the harness: its other tests are not asked for.
    std::process::exit(0);
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.end();
    }
}

impl Ground for Elsewhere {
    fn space(&self) -> &dyn Space {
        &self.space
    }
    fn base(&self) -> u64 {
        self.base
    }
    fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, self.base + offset).unwrap();
        bytes
    }
    fn poke(&self, offset: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, self.base + offset).unwrap();
    }
    fn protect(&self, page: usize, protection: Protection) {
        self.order(
            page,
            match protection {
                Protection::None => Order::None,
                Protection::Read => Order::Read,
                Protection::ReadWrite => Order::ReadWrite,
            },
        );
    }
    fn name(&self) -> String {
        format!("{:?}", self.space)
    }
}
