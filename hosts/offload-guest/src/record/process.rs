//! The recording of this process, and what each of its threads needs to write into it.
//!
//! All of it is in memory that the kernel zeroes in a forked child (`MADV_WIPEONFORK`), however it was forked. So a
//! child never writes to its parent's recording: it finds nothing, and creates a recording of its own with its first
//! call that has a site, or after 256 short calls. A child that executes another program at once creates no file.
//!
//! ```text
//! a thread's word ──► its slot ──► ThreadWriter ──► the thread's table in the file
//!                     zero in a new process: attach, which creates the file if need be
//! ```
//!
//! The word of a thread that forked survives in the child, where it names a slot of zeroes. Threads of the child get
//! slots after all of those that the parent gave, so none of them gets this one before the word is renewed. So the
//! exported functions need not ask whose slot it is: where it has counters, they are this thread's.
#![allow(unsafe_code, reason = "memory that the kernel zeroes in a child, and values in it")]

use super::file::Template;
use crate::modules;
use crate::opening::Opening;
use crate::own_stack;
use crate::thread::thread_word;
use crate::vfork;
use rustix::mm::{Advice, madvise};
use rustix::time::ClockId;
use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, offset_of};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use telpher_os::{clock_ns, ticks};
use telpher_recording::{SMALL_LENGTHS, ThreadWriter, Writer};

/// Slots. A process gives each but the last to one thread; later threads share the last. Source: chosen; the recording
/// has tables for 128 threads, and the last table for all others.
const SLOTS: usize = 4096;
/// Short calls of a forked child before its recording is created. Source: chosen; a child that executes a program makes
/// some ten.
const EARLY_CALLS: u64 = 256;
/// Most modules that are known to be in the recording.
const MODULES: usize = 256;
/// One of this many calls with a site has its page faults counted, and the time of the process noted. Source: chosen;
/// three system calls, about 3 µs, are 3 ns for each of 1024 calls.
const SAMPLED: u32 = 1024;
/// Further calls have their page faults counted while that takes less than one part in this many of the time of timed
/// calls. Source: chosen; recording should cost at most 2 %.
const CHECK_SHARE: u64 = 64;
/// Ticks of a check at most, as far as it counts: one that was interrupted does not stop all further ones. Source:
/// chosen, some ten microseconds.
const LONGEST_CHECK: u64 = 1 << 15;

/// What belongs to one process. The kernel zeroes it in a forked child, so zero must be valid.
#[repr(C)]
struct Process {
    /// Which thread creates the recording.
    creation: Opening,
    /// 1 if the recording cannot be created.
    failed: AtomicU32,
    /// Calls before the recording was created that are not yet counted in it.
    early_calls: AtomicU64,
    /// The recording; null until it is created.
    recorder: AtomicPtr<Recorder>,
    slots_claimed: AtomicUsize,
    slots: [Slot; SLOTS],
}

/// What belongs to one thread. What short calls need of it is in the first cache line, which no other thread writes.
#[repr(C, align(64))]
pub(super) struct Slot {
    /// The address of its thread's word, or [`SHARED`]; 0 until the writer is there, and in a forked child.
    owner: AtomicUsize,
    /// Where the exported functions count short calls, by operation and length. It is there if the owner is a thread.
    counters: AtomicPtr<AtomicU64>,
    /// Calls of the thread that have a site.
    calls_with_site: AtomicU32,
    /// Ticks of timed calls since the last check of page faults, and from how many on there is another check.
    copying: AtomicU64,
    check_from: AtomicU64,
    writer: UnsafeCell<MaybeUninit<ThreadWriter<'static>>>,
}

/// Where the exported functions find [`Slot::counters`].
pub(crate) const COUNTERS_OFFSET: usize = offset_of!(Slot, counters);
/// Bytes of the counters of one operation.
pub(crate) const SMALL_CALLS_BYTES: usize = SMALL_LENGTHS * size_of::<AtomicU64>();

/// The owner of a slot whose writer has no table of its own, so that any thread may use it. The last slot is one: it
/// belongs to all threads that came too late for one of their own.
const SHARED: usize = 1;

// SAFETY: a slot belongs to the thread whose word it names. With the owner `SHARED`, the writer has no table of its
// own, so it is only read after `owner` was set, and its counters are atomic.
unsafe impl Sync for Slot {}

/// The slot of a thread that has none. It has no owner for ever.
static NO_SLOT: Slot = Slot {
    owner: AtomicUsize::new(0),
    counters: AtomicPtr::new(ptr::null_mut()),
    calls_with_site: AtomicU32::new(0),
    copying: AtomicU64::new(0),
    check_from: AtomicU64::new(0),
    writer: UnsafeCell::new(MaybeUninit::uninit()),
};

/// The number of the next slot that is given to a thread. A forked child goes on with its parent's number.
static NEXT_SLOT: AtomicUsize = AtomicUsize::new(0);

/// The recording of this process.
pub(super) struct Recorder {
    writer: Writer<'static>,
    /// Processor time of the process when the recording began. A process that executes another program keeps its time.
    cpu_before_ns: u64,
    /// First and last address of modules that were added.
    modules: [[AtomicUsize; 2]; MODULES],
    modules_added: AtomicUsize,
}

/// The memory of [`Process`]; null without a recording.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// How recordings of this process and its children are created.
static TEMPLATE: AtomicPtr<Template> = AtomicPtr::new(ptr::null_mut());

thread_word!(
    /// Returns the word of this thread: the address of its slot, or of [`NO_SLOT`].
    telpher_record_slot: usize = NO_SLOT
);

/// Begins to record this process.
///
/// # Errors
/// Why it cannot be recorded, as a sentence.
pub(super) fn begin(template: Template) -> Result<(), String> {
    let bytes = size_of::<Process>();
    let memory = telpher_os::map_private(bytes).and_then(|memory| {
        let memory = memory.as_ptr().cast();
        // SAFETY: a new mapping; its bytes are zero, and become zero in a child.
        unsafe { madvise(memory, bytes, Advice::LinuxWipeOnFork) }.map(|()| memory)
    });
    let memory =
        memory.map_err(|error| format!("cannot reserve memory that is not inherited by forked children: {error}"))?;
    let template: &'static Template = Box::leak(Box::new(template));
    TEMPLATE.store(ptr::from_ref(template).cast_mut(), Ordering::Release);
    PROCESS.store(memory.cast(), Ordering::Release);
    let process = process().ok_or("no process")?;
    process.creation.begin(1);
    process.create(template).map_err(|error| format!("cannot create its file in {}: {error}", template.folder()))
}

fn process() -> Option<&'static Process> {
    // Acquire: pairs with the Release in `begin`.
    // SAFETY: null, or a mapping of this size that is never unmapped and for which all bits are valid.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

/// Returns the recording of this process, if it has one.
pub(super) fn recorder() -> Option<&'static Recorder> {
    // Acquire: pairs with the Release in `create`.
    // SAFETY: null, or a value that is never freed.
    unsafe { process()?.recorder.load(Ordering::Acquire).as_ref() }
}

/// Returns the slot of this thread, if it has one in this process.
#[inline]
pub(super) fn ready_slot() -> Option<&'static Slot> {
    let word = telpher_record_slot();
    // SAFETY: the address of a slot.
    let slot = unsafe { &*ptr::with_exposed_provenance::<Slot>(word.get()) };
    slot.is_of(ptr::from_ref(word).addr()).then_some(slot)
}

/// Returns the writer of this thread, if it has one in this process.
#[inline]
pub(super) fn ready_writer() -> Option<&'static ThreadWriter<'static>> {
    // SAFETY: the slot is ready, so the writer was written.
    ready_slot().map(|slot| unsafe { (*slot.writer.get()).assume_init_ref() })
}

/// Returns the writer of this thread, if it has a slot of its own in this process. This is all that a short call needs.
#[inline]
pub(super) fn own_writer() -> Option<&'static ThreadWriter<'static>> {
    let word = telpher_record_slot();
    // SAFETY: the address of a slot.
    let slot = unsafe { &*ptr::with_exposed_provenance::<Slot>(word.get()) };
    // Relaxed: if the owner is this thread, this thread wrote it.
    let is_own = slot.owner.load(Ordering::Relaxed) == ptr::from_ref(word).addr();
    // SAFETY: the slot has an owner, so the writer was written.
    is_own.then(|| unsafe { (*slot.writer.get()).assume_init_ref() })
}

/// Returns the slot of this thread; `None` if the call cannot be recorded. `is_long` is true for calls with a site.
#[inline]
pub(super) fn slot(is_long: bool) -> Option<&'static Slot> {
    ready_slot().or_else(|| attach(is_long))
}

/// Returns the writer of this thread; `None` if the call cannot be recorded.
pub(super) fn writer(is_long: bool) -> Option<&'static ThreadWriter<'static>> {
    slot(is_long).and_then(|_| ready_writer())
}

/// Gives this thread a slot.
#[cold]
#[inline(never)]
fn attach(is_long: bool) -> Option<&'static Slot> {
    let process = process()?;
    if process.failed.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let recorder = recorder().or_else(|| process.create_late(is_long));
    let Some(recorder) = recorder else {
        process.early_calls.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    let early = process.early_calls.swap(0, Ordering::Relaxed);
    if early > 0 {
        recorder.writer.lose_calls(early);
    }
    let word = telpher_record_slot();
    let here = ptr::from_ref(word).addr();
    let claimed = process.slots_claimed.fetch_add(1, Ordering::Relaxed);
    let own = || NEXT_SLOT.fetch_add(1, Ordering::Relaxed) % (SLOTS - 1);
    let slot = &process.slots[if claimed < SLOTS - 1 { own() } else { SLOTS - 1 }];
    if claimed < SLOTS {
        let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or_default();
        let writer = recorder.writer.thread(thread);
        let counters = writer.small_calls();
        // SAFETY: only the thread that claimed a slot writes it, before it names an owner.
        unsafe { (*slot.writer.get()).write(writer) };
        if let Some(counters) = counters {
            slot.counters.store(ptr::from_ref(counters).cast_mut().cast(), Ordering::Relaxed);
        }
        // Release: a thread that shares the slot sees the writer.
        slot.owner.store(if counters.is_some() { here } else { SHARED }, Ordering::Release);
    } else if !slot.is_of(here) {
        // The thread that claimed the last slot still prepares it.
        process.early_calls.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    word.set(ptr::from_ref(slot).expose_provenance());
    Some(slot)
}

impl Slot {
    /// Returns whether the slot is that of the thread whose word is here.
    #[inline]
    fn is_of(&self, here: usize) -> bool {
        // Acquire: pairs with the Release in `attach`.
        let owner = self.owner.load(Ordering::Acquire);
        owner == here || owner == SHARED
    }

    /// Returns true for one of [`SAMPLED`] calls.
    pub(super) fn samples(&self) -> bool {
        // Relaxed: two threads that share the slot may choose a sample too many or too few.
        let number = self.calls_with_site.load(Ordering::Relaxed);
        self.calls_with_site.store(number.wrapping_add(1), Ordering::Relaxed);
        number.is_multiple_of(SAMPLED)
    }

    /// Returns whether there is time to count the page faults of another call. A call that took long without any was
    /// disturbed by other programs, and not by missing pages.
    pub(super) fn affords_check(&self) -> bool {
        // Relaxed, here and below: two threads that share the slot may make a check too many or too few.
        self.copying.load(Ordering::Relaxed) >= self.check_from.load(Ordering::Relaxed)
    }

    /// Notes the ticks of a timed call.
    pub(super) fn note_copying(&self, ticks: u64) {
        let sum = self.copying.load(Ordering::Relaxed).saturating_add(ticks);
        self.copying.store(sum, Ordering::Relaxed);
    }

    /// Notes the ticks of a check.
    pub(super) fn note_check(&self, ticks: u64) {
        self.check_from.store(ticks.min(LONGEST_CHECK) * CHECK_SHARE, Ordering::Relaxed);
        self.copying.store(0, Ordering::Relaxed);
    }
}

impl Process {
    /// Creates the recording of a forked child, if it is time for it.
    fn create_late(&self, is_long: bool) -> Option<&'static Recorder> {
        extern "C" fn create(process: &mut &Process) {
            // SAFETY: null, or a value that is never freed.
            let template = unsafe { TEMPLATE.load(Ordering::Acquire).as_ref() };
            // A child that cannot be recorded has no message: it may use standard error for something else.
            let _ = template.map(|template| process.create(template));
        }
        // A child of vfork has its parent's memory: a recording would be its parent's.
        if !is_long && self.early_calls.load(Ordering::Relaxed) < EARLY_CALLS || vfork::is_child() {
            return None;
        }
        // One thread creates it. A signal handler that interrupts this thread meanwhile, or another thread, records
        // nothing.
        if self.creation.begin(1) {
            let called = own_stack::run(create, &mut { self });
            if called.is_err() || recorder().is_none() {
                self.failed.store(1, Ordering::Relaxed);
            }
        }
        recorder()
    }

    /// Creates the recording.
    fn create(&self, template: &'static Template) -> Result<(), rustix::io::Errno> {
        let recorder = Recorder::keep(template.create()?)?;
        recorder.add_modules();
        recorder.note_time();
        // Release: a thread that sees the address sees the recorder.
        self.recorder.store(ptr::from_ref(recorder).cast_mut(), Ordering::Release);
        Ok(())
    }
}

impl Recorder {
    /// Keeps a writer for ever, in memory straight from the kernel.
    fn keep(writer: Writer<'static>) -> Result<&'static Recorder, rustix::io::Errno> {
        let recorder: *mut Recorder = telpher_os::map_private(size_of::<Recorder>())?.as_ptr().cast();
        // SAFETY: a new mapping, large enough and aligned to a page.
        unsafe {
            // The rest is atomics, for which zero is valid.
            (&raw mut (*recorder).writer).write(writer);
            (&raw mut (*recorder).cpu_before_ns).write(cpu_ns());
            Ok(&*recorder)
        }
    }

    /// Adds the modules that are not in the recording yet.
    fn add_modules(&self) {
        modules::each(|module| {
            if !self.knows_all_of(&module.addresses) {
                self.writer.add_module(module);
                let at = self.modules_added.fetch_add(1, Ordering::Relaxed);
                if let Some([start, end]) = self.modules.get(at) {
                    // In this order, so that a reader in between finds no module.
                    start.store(module.addresses.start, Ordering::Relaxed);
                    end.store(module.addresses.end, Ordering::Release);
                }
            }
        });
    }

    /// Returns whether the module of an address is in the recording.
    fn knows(&self, address: usize) -> bool {
        let inside = |[start, end]: &[AtomicUsize; 2]| {
            let end = end.load(Ordering::Acquire);
            (start.load(Ordering::Relaxed)..end).contains(&address)
        };
        self.modules.iter().any(inside)
    }

    /// Returns whether a module with these addresses is in the recording.
    fn knows_all_of(&self, addresses: &Range<usize>) -> bool {
        let same = |[start, end]: &[AtomicUsize; 2]| {
            end.load(Ordering::Acquire) == addresses.end && start.load(Ordering::Relaxed) == addresses.start
        };
        self.modules.iter().any(same)
    }

    /// Makes sure that the module of a new site is in the recording: a library that was loaded later is added now.
    pub(super) fn note_site(&self, address: usize) {
        // Modules beyond the table are counted once.
        if !self.knows(address) && self.modules_added.load(Ordering::Relaxed) <= MODULES {
            self.add_modules();
        }
    }

    /// Notes how long the recording has lasted, and the processor time of the process meanwhile.
    pub(super) fn note_time(&self) {
        self.writer.note_time(ticks(), cpu_ns().saturating_sub(self.cpu_before_ns));
    }
}

/// Returns the processor time of this process, in nanoseconds.
fn cpu_ns() -> u64 {
    clock_ns(ClockId::ProcessCPUTime)
}
