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
#![allow(unsafe_code, reason = "memory that the kernel zeroes in a child, and values in it")]

use super::file::Template;
use crate::modules;
use crate::opening::Opening;
use crate::own_stack;
use crate::thread::thread_word;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use telpher_os::ticks;
use telpher_recording::{ThreadWriter, Writer};

/// Threads with a slot; later ones share the last. Source: chosen; the recording has tables for 128 threads, and the
/// last table for all others.
const SLOTS: usize = 4096;
/// Short calls of a forked child before its recording is created. Source: chosen; a child that executes a program makes
/// some ten.
const EARLY_CALLS: u64 = 256;
/// Modules that are known to be in the recording.
const MODULES: usize = 256;
/// One of this many long calls of a thread has its page faults counted, and the time of the process noted. Source:
/// chosen; three system calls, about 3 µs, are 0.1 % of 1024 calls of 2 µs and more.
const SAMPLED: u32 = 1024;

/// What belongs to one process. The kernel zeroes it in a forked child, so zero must be valid.
#[repr(C)]
struct Process {
    /// Calls before the recording was created that are not yet counted in it.
    early_calls: AtomicU64,
    /// The recording; null until it is created.
    recorder: AtomicPtr<Recorder>,
    slots_claimed: AtomicUsize,
    slots: [Slot; SLOTS],
}

/// What belongs to one thread.
#[repr(C)]
pub(super) struct Slot {
    /// 1 if the writer is there. 0 in a forked child.
    ready: AtomicU32,
    /// Long calls of the thread.
    long_calls: Cell<u32>,
    writer: UnsafeCell<MaybeUninit<ThreadWriter<'static>>>,
}

// SAFETY: a slot belongs to one thread, except the last one. That one's writer has no table of its own, so it is only
// read after `ready` was set, and its counters are atomic. `long_calls` only chooses samples.
unsafe impl Sync for Slot {}

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
/// Which thread creates the recording.
static CREATION: Opening = Opening::new();
/// How recordings of this process and its children are created.
static TEMPLATE: AtomicPtr<Template> = AtomicPtr::new(ptr::null_mut());

thread_word!(
    /// Returns the word of this thread: the address of its slot, or 0.
    telpher_record_slot: usize
);

/// Begins to record this process.
///
/// # Errors
/// Why it cannot be recorded, as a sentence.
pub(super) fn begin(template: Template) -> Result<(), String> {
    let bytes = size_of::<Process>();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses; its bytes are zero, and become zero in a child.
    let memory = unsafe {
        mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE)
            .and_then(|memory| madvise(memory, bytes, Advice::LinuxWipeOnFork).map(|()| memory))
    };
    let memory =
        memory.map_err(|error| format!("cannot reserve memory that is not inherited by forked children: {error}"))?;
    let template: &'static Template = Box::leak(Box::new(template));
    TEMPLATE.store(ptr::from_ref(template).cast_mut(), Ordering::Release);
    PROCESS.store(memory.cast(), Ordering::Release);
    let process = process().ok_or("no process")?;
    CREATION.begin(std::process::id());
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
    let word = telpher_record_slot().get();
    // SAFETY: 0, or the address of a slot.
    unsafe { ptr::with_exposed_provenance::<Slot>(word).as_ref() }.filter(|slot| slot.is_ready())
}

/// Returns the writer of this thread, if it has one in this process.
#[inline]
pub(super) fn ready_writer() -> Option<&'static ThreadWriter<'static>> {
    // SAFETY: the slot is ready, so the writer was written.
    ready_slot().map(|slot| unsafe { (*slot.writer.get()).assume_init_ref() })
}

/// Returns the slot of this thread; `None` if the call cannot be recorded. `is_long` is true for calls with a site.
#[inline]
pub(super) fn slot(is_long: bool) -> Option<&'static Slot> {
    ready_slot().or_else(|| attach(is_long))
}

/// Gives this thread a slot.
#[cold]
#[inline(never)]
fn attach(is_long: bool) -> Option<&'static Slot> {
    let process = process()?;
    let recorder = recorder().or_else(|| process.create_late(is_long));
    let Some(recorder) = recorder else {
        process.early_calls.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    let early = process.early_calls.swap(0, Ordering::Relaxed);
    if early > 0 {
        recorder.writer.lose_calls(early);
    }
    let claimed = process.slots_claimed.fetch_add(1, Ordering::Relaxed);
    let slot = &process.slots[claimed.min(SLOTS - 1)];
    if claimed >= SLOTS && !slot.is_ready() {
        // The thread that claimed the last slot still prepares it.
        process.early_calls.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    if claimed < SLOTS {
        let thread = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or_default();
        let writer = recorder.writer.thread(thread);
        // SAFETY: only the thread that claimed a slot writes it, before it is ready.
        unsafe { (*slot.writer.get()).write(writer) };
        // Release: a thread that shares the slot sees the writer.
        slot.ready.store(1, Ordering::Release);
    }
    telpher_record_slot().set(ptr::from_ref(slot).expose_provenance());
    Some(slot)
}

impl Slot {
    #[inline]
    fn is_ready(&self) -> bool {
        // Acquire: pairs with the Release in `attach`.
        self.ready.load(Ordering::Acquire) == 1
    }

    /// Returns the thread's part of the recording; `None` in a forked child.
    #[inline]
    pub(super) fn writer(&self) -> Option<&ThreadWriter<'static>> {
        // SAFETY: it was written before it became ready.
        self.is_ready().then(|| unsafe { (*self.writer.get()).assume_init_ref() })
    }

    /// Returns true for one of [`SAMPLED`] long calls.
    pub(super) fn samples(&self) -> bool {
        let number = self.long_calls.get();
        self.long_calls.set(number.wrapping_add(1));
        number.is_multiple_of(SAMPLED)
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
        if !is_long && self.early_calls.load(Ordering::Relaxed) < EARLY_CALLS {
            return None;
        }
        // One thread creates it. A signal handler that interrupts this thread meanwhile, or another thread, records
        // nothing.
        if CREATION.begin(std::process::id()) {
            own_stack::run(create, &mut { self }).ok()?;
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
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses, large enough and aligned to a page.
        unsafe {
            let memory = mmap_anonymous(ptr::null_mut(), size_of::<Recorder>(), access, MapFlags::PRIVATE)?;
            let recorder: *mut Recorder = memory.cast();
            // The rest is atomics, for which zero is valid.
            (&raw mut (*recorder).writer).write(writer);
            (&raw mut (*recorder).cpu_before_ns).write(cpu_ns());
            Ok(&*recorder)
        }
    }

    /// Adds the modules that are not in the recording yet.
    fn add_modules(&self) {
        modules::each(|module| {
            if !self.knows(module.addresses.start) {
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

    /// Makes sure that the module of a new site is in the recording: a library that was loaded later is added now.
    pub(super) fn note_site(&self, address: usize) {
        if !self.knows(address) {
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
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    cpu.tv_sec.cast_unsigned() * 1_000_000_000 + cpu.tv_nsec.cast_unsigned()
}
