//! A fixture in a child process: its pages, and a child that changes their mappings on command.
//!
//! The child is this test binary again, run for one test. A mere `fork()` would share pages with the tests that run in
//! parallel, and shared pages are not present for writing.

use super::{COUNT, Fixture, PAGE};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use telpher_mem::{Pages, Protection, Remote, Space};

/// Set in the child's environment.
const CHILD: &str = "TELPHER_MEM_TEST_CHILD";

/// Eight pages of a child process, accessed through [`Remote`].
pub(crate) struct RemoteFixture {
    child: Child,
    control: UnixStream,
    /// The child's memory, accessible regardless of its protection; not under test.
    memory: File,
    base: u64,
    space: Remote,
}

/// A command to the child for one of its pages.
#[repr(u8)]
#[derive(Clone, Copy)]
pub(crate) enum ChildCommand {
    None = 0,
    Read = 1,
    ReadWrite = 2,
    Discard = 3,
    /// Write one byte.
    Touch = 4,
    /// Read one byte.
    Look = 5,
}

impl RemoteFixture {
    /// `touched`: the child has written to every page.
    pub(crate) fn new(strict: bool, touched: bool) -> RemoteFixture {
        let (mut control, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "common::remote_fixture::the_child_serves", "--nocapture"])
            .env(CHILD, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut base = [0; 8];
        control.read_exact(&mut base).unwrap();
        let id = child.id();
        let fixture = RemoteFixture {
            child,
            control,
            memory: File::options().read(true).write(true).open(format!("/proc/{id}/mem")).unwrap(),
            base: u64::from_le_bytes(base),
            space: if strict { Remote::strict(id) } else { Remote::new(id) }.unwrap(),
        };
        for page in 0..if touched { COUNT } else { 0 } {
            fixture.command(page, ChildCommand::Touch);
        }
        fixture
    }

    pub(crate) fn command(&self, page: usize, command: ChildCommand) {
        let mut control = &self.control;
        control.write_all(&[u8::try_from(page).unwrap(), command as u8]).unwrap();
        control.read_exact(&mut [0]).unwrap();
    }

    /// Ends the child and waits until it is gone.
    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: the code of the child. A command has two bytes, its reply one.
#[test]
fn the_child_serves() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let pages = Pages::new(COUNT).unwrap();
    control.write_all(&pages.address().to_le_bytes()).unwrap();
    let mut command = [0; 2];
    while control.read_exact(&mut command).is_ok() {
        let page = usize::from(command[0]);
        let offset = page as u64 * PAGE;
        match command[1] {
            0 => pages.protect(page..page + 1, Protection::None).unwrap(),
            1 => pages.protect(page..page + 1, Protection::Read).unwrap(),
            2 => pages.protect(page..page + 1, Protection::ReadWrite).unwrap(),
            3 => pages.discard(page..page + 1).unwrap(),
            4 => pages.poke(offset, &[0]),
            _ => drop(pages.peek(offset, 1)),
        }
        control.write_all(&[0]).unwrap();
    }
    // Exit here, so that the test harness runs no other tests in the child.
    std::process::exit(0);
}

impl Drop for RemoteFixture {
    fn drop(&mut self) {
        self.end();
    }
}

impl Fixture for RemoteFixture {
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
        self.command(
            page,
            match protection {
                Protection::None => ChildCommand::None,
                Protection::Read => ChildCommand::Read,
                Protection::ReadWrite => ChildCommand::ReadWrite,
            },
        );
    }
    fn name(&self) -> String {
        format!("{:?}", self.space)
    }
}
