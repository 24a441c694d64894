//! The whole guest with a small test host. Every case runs in its own process: this test binary, restarted with the
//! case's name in an environment variable.
#![allow(unsafe_code, reason = "calls the interposed functions as a C program does")]

mod host;
mod mappings;
pub(crate) mod processes;
pub(crate) mod submissions;

use crate::sync::{AtomicU32, Ordering};
use host::Host;
use std::os::fd::RawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use telpher_abi::registers::WqCfg;
use telpher_vdev_wire::message::Opened;
use telpher_vdev_wire::settings::{self, Settings, View};

const CASE: &str = "TELPHER_GUEST_TEST_CASE";
const NODE: &[u8] = b"/dev/dsa/wq0.0";
const PAGE: usize = 4096;

/// Runs `act` in a child process, with a host that opens the usual shared queue as changed by `adapt`.
pub(crate) fn case(name: &str, adapt: impl FnOnce(&mut Opened), act: impl FnOnce(&Host)) {
    if std::env::var(CASE).is_ok_and(|case| case == name) {
        let host = Host::listen(adapt);
        crate::start::start();
        act(&host);
        std::process::exit(0);
    }
    static CASES: AtomicU32 = AtomicU32::new(0);
    let number = CASES.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("telpher-guest-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let text = directory.to_str().unwrap().as_bytes();
    let value =
        Settings { view: View::Preload, rewrite: false, follow: false, windows: false, directory: text }.to_value();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CASE, name)
        .env(settings::RUN, String::from_utf8(value).unwrap())
        .output()
        .unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(output.status.success(), "{:?}\n{output:?}", output.status.signal());
}

/// Makes the usual queue dedicated.
fn dedicated(opened: &mut Opened) {
    opened.flags |= telpher_vdev_wire::message::DEDICATED;
    let pasid = opened.pasid;
    opened.wq_cfg = WqCfg(opened.wq_cfg).with_dedicated(true).with_threshold(0).with_pasid(pasid).0;
}

pub(crate) fn open() -> RawFd {
    crate::node::open(NODE, libc::O_RDWR.cast_unsigned()).unwrap()
}

/// Maps a node as clients do.
pub(crate) fn map(fd: RawFd) -> Result<u64, i32> {
    map_as(fd, PAGE, libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE)
}

fn map_as(fd: RawFd, len: usize, protection: i32, flags: i32) -> Result<u64, i32> {
    // SAFETY: without MAP_FIXED the kernel picks a free range.
    let mapped = unsafe { crate::symbols::map::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { Err(crate::sys::errno()) } else { Ok(mapped.addr() as u64) }
}

fn unmap(address: u64) -> i32 {
    // SAFETY: the cases unmap only what they have mapped.
    unsafe { crate::symbols::map::munmap(pointer(address), PAGE) }
}

fn pointer(address: u64) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
}
