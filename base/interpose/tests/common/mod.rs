//! A portal that keeps what arrives, and a function that executes any instruction with any registers.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod thunk;

use std::arch::{asm, is_x86_feature_detected};
use std::cell::UnsafeCell;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use telpher_interpose::{Handler, Monitor, Offer, Options, SubmitInstruction, install};

const PAGE: usize = 4096;

/// The handler of all tests.
#[derive(Debug)]
pub(crate) struct Portal {
    page: OnceLock<u64>,
    /// The number of descriptors taken.
    pub(crate) taken: AtomicU64,
    /// Makes later ENQCMDs return Retry.
    pub(crate) full: AtomicBool,
    /// The result of `wait`.
    pub(crate) limited: AtomicBool,
    /// The number of waits for each value of the control bits.
    pub(crate) waits: [AtomicU64; 2],
    /// Called in the middle of every submission.
    pub(crate) hook: OnceLock<fn()>,
    last: Spin<Arrived>,
}

/// The last arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) how: Option<SubmitInstruction>,
    pub(crate) offset: u64,
    pub(crate) descriptor: [u64; 8],
    pub(crate) monitor: Option<Monitor>,
    pub(crate) deadline: u64,
}

/// A spin lock that makes no system calls.
#[derive(Debug)]
pub(crate) struct Spin<T> {
    held: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `with` gives the value to one thread at a time.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) const fn new(value: T) -> Self {
        Spin { held: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub(crate) fn with<R>(&self, what: impl FnOnce(&mut T) -> R) -> R {
        while self.held.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::hint::spin_loop();
        }
        // SAFETY: the lock is held.
        let result = what(unsafe { &mut *self.value.get() });
        self.held.store(0, Ordering::Release);
        result
    }
}

pub(crate) static PORTAL: Portal = Portal {
    page: OnceLock::new(),
    taken: AtomicU64::new(0),
    full: AtomicBool::new(false),
    limited: AtomicBool::new(false),
    waits: [const { AtomicU64::new(0) }; 2],
    hook: OnceLock::new(),
    last: Spin::new(Arrived { how: None, offset: 0, descriptor: [0; 8], monitor: None, deadline: 0 }),
};

impl Portal {
    /// Returns the address of the portal page.
    pub(crate) fn page(&self) -> u64 {
        *self.page.get_or_init(|| map_low(PAGE, libc::PROT_READ))
    }

    pub(crate) fn last(&self) -> Arrived {
        self.last.with(|last| *last)
    }
}

impl Handler for Portal {
    fn is_portal(&self, address: u64) -> bool {
        self.page.get().is_some_and(|page| address & !(PAGE as u64 - 1) == *page)
    }

    fn enqueue(&self, how: SubmitInstruction, destination: u64, descriptor: &[u64; 8]) -> Offer {
        trample();
        if let Some(hook) = self.hook.get() {
            hook();
        }
        if how == SubmitInstruction::Enqcmd && self.full.load(Ordering::Relaxed) {
            return Offer::Retry;
        }
        let arrived = Arrived {
            how: Some(how),
            offset: destination - self.page(),
            descriptor: *descriptor,
            monitor: None,
            deadline: 0,
        };
        self.last.with(|last| *last = arrived);
        self.taken.fetch_add(1, Ordering::Relaxed);
        Offer::Taken
    }

    fn wait(&self, monitor: Option<&Monitor>, control: u32, deadline: u64) -> bool {
        self.last.with(|last| (last.monitor, last.deadline) = (monitor.copied(), deadline));
        self.waits[control as usize].fetch_add(1, Ordering::Relaxed);
        self.limited.load(Ordering::Relaxed)
    }

    fn fixup(&self, _context: &mut libc::ucontext_t) -> bool {
        false
    }
}

/// Overwrites everything that compiled code may use: all bits of vector and mask registers. The direction flag must be
/// as the ABI requires.
fn trample() {
    let flags: u64;
    // SAFETY: the processor has these registers; all are declared changed.
    unsafe {
        asm!("pushfq", "pop {flags}", flags = out(reg) flags);
        if is_x86_feature_detected!("avx512bw") {
            asm!(
                "vpternlogd zmm0, zmm0, zmm0, 0xff", "vmovdqa64 zmm1, zmm0", "vmovdqa64 zmm2, zmm0", "vmovdqa64 zmm3, zmm0",
                "vmovdqa64 zmm4, zmm0", "vmovdqa64 zmm5, zmm0", "vmovdqa64 zmm6, zmm0", "vmovdqa64 zmm7, zmm0",
                "vmovdqa64 zmm8, zmm0", "vmovdqa64 zmm9, zmm0", "vmovdqa64 zmm10, zmm0", "vmovdqa64 zmm11, zmm0",
                "vmovdqa64 zmm12, zmm0", "vmovdqa64 zmm13, zmm0", "vmovdqa64 zmm14, zmm0", "vmovdqa64 zmm15, zmm0",
                "vmovdqa64 zmm16, zmm0", "vmovdqa64 zmm17, zmm0", "vmovdqa64 zmm18, zmm0", "vmovdqa64 zmm19, zmm0",
                "vmovdqa64 zmm20, zmm0", "vmovdqa64 zmm21, zmm0", "vmovdqa64 zmm22, zmm0", "vmovdqa64 zmm23, zmm0",
                "vmovdqa64 zmm24, zmm0", "vmovdqa64 zmm25, zmm0", "vmovdqa64 zmm26, zmm0", "vmovdqa64 zmm27, zmm0",
                "vmovdqa64 zmm28, zmm0", "vmovdqa64 zmm29, zmm0", "vmovdqa64 zmm30, zmm0", "vmovdqa64 zmm31, zmm0",
                "kxnorq k1, k1, k1", "kmovq k2, k1", "kmovq k3, k1", "kmovq k4, k1", "kmovq k5, k1", "kmovq k6, k1",
                "kmovq k7, k1",
                out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _, out("k6") _, out("k7") _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _,
                out("zmm22") _, out("zmm23") _, out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _, clobber_abi("sysv64"),
            );
        } else {
            asm!("pcmpeqd xmm0, xmm0", "movdqa xmm7, xmm0", "movdqa xmm15, xmm0", clobber_abi("sysv64"));
        }
    }
    assert_eq!(flags & 0x400, 0, "strings go down");
}

/// Installs the portal once.
pub(crate) fn start(rewrite: bool) -> &'static Portal {
    PORTAL.page();
    install(&PORTAL, Options { rewrite }).unwrap();
    &PORTAL
}

/// Maps pages of private memory.
pub(crate) fn map(bytes: usize, protection: i32) -> u64 {
    map_with(bytes, protection, 0)
}

/// Maps pages of private memory below 2 GiB.
pub(crate) fn map_low(bytes: usize, protection: i32) -> u64 {
    map_with(bytes, protection, libc::MAP_32BIT)
}

fn map_with(bytes: usize, protection: i32, flags: i32) -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: new memory.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    assert_ne!(got, libc::MAP_FAILED);
    got.expose_provenance() as u64
}

/// Changes the protection of pages.
pub(crate) fn protect(address: u64, bytes: usize, protection: i32) {
    let pages = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: memory of the test.
    assert_eq!(unsafe { libc::mprotect(pages, bytes, protection) }, 0);
}

/// Writes 64 bytes of the test's memory.
pub(crate) fn write(address: u64, data: [u64; 8]) {
    // SAFETY: memory of the test.
    unsafe { std::ptr::with_exposed_provenance_mut::<[u64; 8]>(address as usize).write_unaligned(data) };
}

/// Reads 64 bytes of the test's memory.
pub(crate) fn read(address: u64) -> [u64; 8] {
    // SAFETY: memory of the test.
    unsafe { std::ptr::with_exposed_provenance::<[u64; 8]>(address as usize).read_unaligned() }
}

/// Returns different bytes for every seed; dword 0 is zero, as ENQCMD requires.
pub(crate) fn descriptor(seed: u64) -> [u64; 8] {
    std::array::from_fn(|i| if i == 0 { seed << 32 } else { seed.wrapping_mul(i as u64 + 0x0101_0101_0101_0101) })
}

const CASE: &str = "TELPHER_INTERPOSE_TEST_CASE";

/// In the child made by [`run_child`], runs `what` and exits with its result. In the parent, runs the child and returns
/// its output. Tests that change the process' signals do so in a child.
pub(crate) fn in_child(case: &str, what: impl FnOnce() -> i32) -> Output {
    if std::env::var(CASE).is_ok_and(|name| name == case) {
        std::process::exit(what());
    }
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--exact", case, "--nocapture", "--test-threads=1"]).env(CASE, case).output().unwrap()
}

/// Checks that the child of `case` exits with `code`.
#[track_caller]
pub(crate) fn exits(case: &str, code: i32, what: impl FnOnce() -> i32) {
    let output = in_child(case, what);
    assert_eq!(output.status.code(), Some(code), "{output:?}");
}

/// Checks that the child of `case` is killed by `signal`.
#[track_caller]
pub(crate) fn dies(case: &str, signal: i32, what: impl FnOnce() -> i32) {
    let output = in_child(case, what);
    assert_eq!(output.status.signal(), Some(signal), "{output:?}");
}
