//! The calls into the C library and the processor that a fair measurement needs, each behind a safe function.
//!
//! glibc's memory functions are called by their symbols, so that the library is measured and not the compiler's slice
//! copy. ISA-L is opened at run time, because it may not be installed.
#![allow(unsafe_code, reason = "calls libc and ISA-L, stores into a portal, maps files")]

mod called;
mod free_device;
#[cfg(test)]
pub(crate) mod interrupts;
mod remapped;

pub(crate) use called::Called;
pub(crate) use free_device::FreeDevice;
pub(crate) use remapped::Remapped;

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use telpher_abi::Descriptor;
use telpher_portal::{Offer, RecordCell, Submission};

/// Returns the buffer as words that several threads may change.
pub(crate) fn atomics(bytes: &mut [u8]) -> &[AtomicU64] {
    // SAFETY: any eight bytes are an `AtomicU64`, and the returned words borrow the buffer exclusively.
    let (head, words, _) = unsafe { bytes.align_to_mut::<AtomicU64>() };
    assert!(head.is_empty(), "the buffer begins at a word");
    words
}

/// Returns how often this thread gave up its core because it had to wait.
pub(crate) fn voluntary_switches() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is valid for writes; if the call fails, zeros are a valid value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw
}

/// Calls glibc's `memcpy` with the shorter of the two lengths.
#[inline]
pub(crate) fn memcpy(dst: &mut [u8], src: &[u8]) {
    let len = dst.len().min(src.len());
    // SAFETY: both ranges are valid for `len` bytes, and a `&mut` and a `&` never overlap.
    unsafe { libc::memcpy(dst.as_mut_ptr().cast(), src.as_ptr().cast(), len) };
}

/// Calls glibc's `memmove` with the shorter of the two lengths.
#[inline]
pub(crate) fn memmove(dst: &mut [u8], src: &[u8]) {
    let len = dst.len().min(src.len());
    // SAFETY: both ranges are valid for `len` bytes.
    unsafe { libc::memmove(dst.as_mut_ptr().cast(), src.as_ptr().cast(), len) };
}

/// Calls glibc's `memmove` within one buffer: `len` bytes from `from` to `to`.
#[inline]
pub(crate) fn memmove_within(buffer: &mut [u8], from: usize, to: usize, len: usize) {
    assert!(from.checked_add(len).is_some_and(|end| end <= buffer.len()), "source lies in the buffer");
    assert!(to.checked_add(len).is_some_and(|end| end <= buffer.len()), "destination lies in the buffer");
    let base = buffer.as_mut_ptr();
    // SAFETY: both ranges lie in the buffer (asserted above), which is borrowed mutably; memmove allows overlap.
    unsafe { libc::memmove(base.add(to).cast(), base.add(from).cast(), len) };
}

/// Calls glibc's `memset`.
#[inline]
pub(crate) fn memset(dst: &mut [u8], byte: u8) {
    // SAFETY: the range is valid for writes of its length.
    unsafe { libc::memset(dst.as_mut_ptr().cast(), c_int::from(byte), dst.len()) };
}

/// Returns true if glibc's `memcmp` finds the two equal over the shorter length.
#[inline]
pub(crate) fn memcmp_equal(a: &[u8], b: &[u8]) -> bool {
    let len = a.len().min(b.len());
    // SAFETY: both ranges are valid for reads of `len` bytes.
    unsafe { libc::memcmp(a.as_ptr().cast(), b.as_ptr().cast(), len) == 0 }
}

/// Copies with non-temporal stores, past the caches, whatever the length. The lengths must be equal.
pub(crate) fn copy_past_caches(dst: &mut [u8], src: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    assert_eq!(dst.len(), src.len(), "the lengths are equal");
    // SAFETY: any 16 bytes are an `__m128i`, and any `__m128i` is 16 bytes.
    let (head, middle, tail) = unsafe { dst.align_to_mut::<__m128i>() };
    let (first, rest) = src.split_at(head.len());
    let (aligned, last) = rest.split_at(16 * middle.len());
    head.copy_from_slice(first);
    tail.copy_from_slice(last);
    for (to, from) in middle.iter_mut().zip(aligned.chunks_exact(16)) {
        // SAFETY: `from` has 16 bytes to read, `to` is 16 aligned bytes to write; SSE2 is part of x86-64.
        unsafe { _mm_stream_si128(to, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    // SAFETY: SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

/// Returns the CPU time that the calling thread has used. A system call: call it around a run, not inside one.
pub(crate) fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes of one timespec; the clock always exists on Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The CPU time of one thread, for other threads of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadClock(libc::clockid_t);

impl ThreadClock {
    /// The clock of the calling thread.
    pub(crate) fn of_this_thread() -> io::Result<ThreadClock> {
        let mut clock = 0;
        // SAFETY: the calling thread exists, and `clock` is valid for writes of one clock number.
        match unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) } {
            0 => Ok(ThreadClock(clock)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// The CPU time that the thread has used; `None` if it has ended.
    pub(crate) fn read(self) -> Option<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writes of one timespec; the kernel refuses the clock of a thread that has ended.
        let result = unsafe { libc::clock_gettime(self.0, &raw mut time) };
        let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
        (result == 0).then(|| Duration::new(seconds, nanoseconds))
    }
}

/// Restricts pages that this thread touches for the first time to `node`; `None` restores the default.
pub(crate) fn place_new_pages(node: Option<u32>) -> io::Result<()> {
    let (mode, mask) = match node {
        Some(n) if n < 64 => (libc::MPOL_BIND, 1u64 << n),
        Some(_) => return Err(io::Error::from(io::ErrorKind::InvalidInput)),
        None => (libc::MPOL_DEFAULT, 0),
    };
    let (nodes, bits) = if node.is_some() { (&raw const mask, 65u64) } else { (std::ptr::null(), 0) };
    // SAFETY: set_mempolicy reads at most `bits - 1` = 64 bits from `nodes`, which points at a live u64 or is null with
    // 0.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::c_long::from(mode), nodes, bits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the calling thread's sleeps end on time, instead of up to 50 µs later together with others'.
pub(crate) fn wake_exactly() {
    // SAFETY: changes only the calling thread's timer slack; one nanosecond is the smallest value.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Returns the number of bytes that the C library's allocator has handed out and that are not freed.
pub(crate) fn allocated_bytes() -> usize {
    // SAFETY: mallinfo2 has no preconditions.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// Returns a No-op that may be offered: it names no memory but its record.
pub(crate) fn nop(record: &'static RecordCell) -> Submission {
    // SAFETY: a No-op has no ranges; its record lives forever and is accessed only through its atomics.
    unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) }
}

/// A copy whose source and destination are leaked, so that a device may access them at any time.
#[derive(Debug)]
pub(crate) struct OwnedCopy {
    src: &'static [u8],
    dst: NonNull<u8>,
    record: &'static RecordCell,
    submission: Submission,
}

impl OwnedCopy {
    /// Creates a Memory Move of `src` to new memory. Both stay allocated forever.
    pub(crate) fn new(src: Vec<u8>) -> Self {
        let dst = NonNull::from(vec![0x55; src.len()].leak()).cast::<u8>();
        let src: &'static [u8] = src.leak();
        let record: &'static RecordCell = Box::leak(Box::default());
        let len = u32::try_from(src.len()).expect("benches stay below 4 GiB");
        let move_it = Descriptor::memory_move(src.as_ptr() as u64, dst.as_ptr() as u64, len);
        // SAFETY: `src` is read-only from here on. `dst` is read only in `is_exact`, after the record was written. The
        // record lives forever and is accessed only through its atomics.
        let submission = unsafe { Submission::vouch(move_it.with_record(record.address())) };
        OwnedCopy { src, dst, record, submission }
    }

    /// Returns the submission, to be offered one at a time.
    pub(crate) fn submission(&self) -> &Submission {
        &self.submission
    }

    /// Returns the completion record.
    pub(crate) fn record(&self) -> &'static RecordCell {
        self.record
    }

    /// Returns whether the copy has completed and every byte is correct.
    pub(crate) fn is_exact(&mut self) -> bool {
        self.record.status().is_some() && {
            // SAFETY: `dst` is valid for as many bytes as `src`. The device has completed the only submission, and
            // `&mut self` prevents another offer meanwhile.
            let dst = unsafe { std::slice::from_raw_parts(self.dst.as_ptr(), self.src.len()) };
            memcmp_equal(dst, self.src)
        }
    }
}

/// A queue's portal, mapped as DSA programs map it.
#[derive(Debug)]
pub(crate) struct MappedPortal {
    page: NonNull<c_void>,
    shared: bool,
}

/// Bytes of a portal page.
const PORTAL: usize = 4096;

impl MappedPortal {
    /// Opens a queue's node and maps its portal.
    pub(crate) fn open(node: &Path, shared: bool) -> io::Result<Self> {
        Self::of(&File::options().read(true).write(true).open(node)?, shared)
    }

    /// Maps the portal of a queue whose node is open.
    pub(crate) fn of(node: &File, shared: bool) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PORTAL, libc::PROT_WRITE, flags, node.as_raw_fd(), 0) };
        match NonNull::new(page) {
            Some(page) if page.as_ptr() != libc::MAP_FAILED => Ok(MappedPortal { page, shared }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Submits: MOVDIR64B to a dedicated queue, ENQCMD to a shared one.
    #[inline]
    pub(crate) fn offer(&self, submission: &Submission) -> Offer {
        let (to, from) = (self.page.as_ptr(), submission.descriptor());
        if !self.shared {
            // SAFETY: the page is mapped for writing and aligned, and 64 bytes can be read at `from`. The submission
            // vouches for what the device then does. A CPU without the instruction raises SIGILL.
            unsafe {
                std::arch::asm!(".byte 0x66, 0x0f, 0x38, 0xf8, 0x02", in("rax") to, in("rdx") from, options(nostack))
            };
            return Offer::Taken;
        }
        let retry: u8;
        // SAFETY: as above.
        unsafe {
            std::arch::asm!(
                ".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02",
                "setz {retry}",
                in("rax") to,
                in("rdx") from,
                retry = out(reg_byte) retry,
                options(nostack)
            );
        }
        if retry == 0 { Offer::Taken } else { Offer::Retry }
    }
}

impl Drop for MappedPortal {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `open` and is not used again.
        unsafe { libc::munmap(self.page.as_ptr(), PORTAL) };
    }
}

/// ISA-L's checksum functions, if the library is installed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Isal {
    crc32_iscsi: unsafe extern "C" fn(*const u8, c_int, c_uint) -> c_uint,
    crc16_t10dif: unsafe extern "C" fn(u16, *const u8, u64) -> u16,
}

/// Name under which distributions install ISA-L 2.x.
pub(crate) const ISAL_LIBRARY: &CStr = c"libisal.so.2";

impl Isal {
    /// Opens the library; `None` if it is not installed or lacks a function.
    pub(crate) fn open() -> Option<Isal> {
        // SAFETY: the name ends with NUL, and ISA-L's initialisers only read the processor's features.
        let library = unsafe { libc::dlopen(ISAL_LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: `library` is an open handle that is never closed, and the name ends with NUL.
            let address: *mut c_void = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        let (crc32, crc16) = (symbol(c"crc32_iscsi")?, symbol(c"crc16_t10dif")?);
        // SAFETY: `isa-l/crc.h` declares `unsigned int crc32_iscsi(unsigned char *buffer, int len, unsigned int
        // init_crc)`.
        let crc32_iscsi = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(_, _, _) -> _>(crc32) };
        // SAFETY: `isa-l/crc.h` declares `uint16_t crc16_t10dif(uint16_t init_crc, const unsigned char *buf, uint64_t
        // len)`.
        let crc16_t10dif = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(_, _, _) -> _>(crc16) };
        Some(Isal { crc32_iscsi, crc16_t10dif })
    }

    /// Computes CRC32C as iSCSI and DSA define it.
    #[inline]
    pub(crate) fn crc32c(&self, data: &[u8]) -> u32 {
        let len = c_int::try_from(data.len()).expect("benches stay below 2 GiB");
        // SAFETY: the range is valid for reads of `len` bytes; the function does not write to it.
        !unsafe { (self.crc32_iscsi)(data.as_ptr(), len, u32::MAX) }
    }

    /// Computes the T10-DIF guard of one block.
    #[inline]
    pub(crate) fn crc16(&self, data: &[u8]) -> u16 {
        // SAFETY: the range is valid for reads of its length.
        unsafe { (self.crc16_t10dif)(0, data.as_ptr(), data.len() as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_functions_copy_fill_and_compare() {
        let src: Vec<u8> = (0..=255).collect();
        let mut dst = vec![0; 256];
        memcpy(&mut dst, &src);
        assert_eq!(dst, src);
        assert!(memcmp_equal(&dst, &src));
        dst[255] = 0;
        assert!(!memcmp_equal(&dst, &src));
        memmove_within(&mut dst, 0, 1, 100);
        assert_eq!(&dst[1..101], &src[..100]);
        memset(&mut dst, 7);
        assert_eq!(dst, [7; 256]);
        copy_past_caches(&mut dst[3..250], &src[1..248]);
        assert_eq!((&dst[..3], &dst[3..250], &dst[250..]), (&[7; 3][..], &src[1..248], &[7; 6][..]));
    }

    #[test]
    fn thread_time_advances_with_work() {
        let start = thread_cpu();
        while thread_cpu() <= start {}
    }

    #[test]
    fn the_clock_of_another_thread_stands_still_while_it_sleeps() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let begin = thread_cpu();
            while thread_cpu() < begin + Duration::from_millis(5) {}
            sender.send(ThreadClock::of_this_thread().unwrap()).unwrap();
            let _ = ends.recv();
        });
        let clock: ThreadClock = receiver.recv().unwrap();
        assert!(clock.read().unwrap() >= Duration::from_millis(5));
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn isal_computes_the_check_values_when_installed() {
        match Isal::open() {
            Some(isal) => {
                // Check values of the CRC catalogue: CRC-32/ISCSI and CRC-16/T10-DIF of "123456789".
                assert_eq!(isal.crc32c(b"123456789"), 0xe306_9283);
                assert_eq!(isal.crc16(b"123456789"), 0xd0db);
            }
            None => eprintln!("skipped: libisal2 is not installed"),
        }
    }
}
