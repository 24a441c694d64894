//! One function: the modelled device, the memory it may access, and its interrupts.
//!
//! Two threads use it. The session's thread reads and writes registers and submits; the engine thread executes. After
//! the reply to a short descriptor, the session's thread executes it itself, which is quicker than to wake the other
//! one. What changes the memory or replaces the device needs the whole state: it waits until the engine thread has
//! ended its current step. When it has returned, nothing accesses the memory that was taken away.

use crate::dma::DmaMap;
use crate::guest_memory::{GuestSpaces, Kernels, vouch};
use crate::interrupts::Vectors;
use crate::messages::{MessageAccess, MessageDma};
use crate::portals::Store;
use crate::turns::EnginePool;
use crate::work_signal::WorkSignal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use telpher_abi::{CompletionRecord, Descriptor, Opcode};
use telpher_mem::Space;
use telpher_model::{
    Capabilities, CapabilityError, Clocks, Counting, Device, DeviceCounts, Engine, Job, Observer, Outcome, PciControl,
    Progress, ReportedTo, Scratch, Totals, Write, layout, run,
};
use telpher_os::{monotonic_ns, ns_between, prepare_stamps, stamp};
use telpher_portal::Offer;

/// The clocks of recorded times.
static CLOCKS: Clocks = Clocks { now_ns: monotonic_ns, stamp, ns_between };

/// The settings of a function after a reset: it has no PASIDs, and bus mastering is off. Privileged mode is on,
/// although only a PASID gives it a meaning: the driver of Linux 6.1 sets WQCFG.Priv of each kernel queue, also without
/// PASIDs.
const AFTER_RESET: PciControl =
    PciControl { bus_master: false, pasid: false, ats: false, prs: false, page_requests: 0, privileged: true };

/// Work of a turn after which others may go first, in bytes. Source: chosen; about 100 µs of copying.
const TURN_WORK: u64 = 1 << 20;
/// Work of a descriptor besides its bytes. Source: chosen; about what a core copies in the time of a No-op.
pub(crate) const DESCRIPTOR_WORK: u64 = 512;
/// Steps of a turn, so that steps without work end it, too.
const TURN_STEPS: u32 = 4096;
/// The most work that the session's thread executes instead of waking the engine thread. Source: chosen; a copy of this
/// length takes about as long as the message that submitted it.
const SHORT_WORK: u64 = 64 << 10;
/// Bytes of an MSI-X table entry.
const MSIX_ENTRY_BYTES: u64 = 16;

/// The state that both threads use.
#[derive(Debug)]
struct State {
    device: Box<Device>,
    /// Counts the resets: engines of an earlier device are replaced.
    generation: u64,
    map: DmaMap,
    /// How memory without a file is accessed, if it can be.
    messages: Option<Arc<MessageDma>>,
}

/// A function of one virtual machine.
#[derive(Debug)]
pub(crate) struct Function {
    capabilities: Capabilities,
    kernels: Kernels,
    state: RwLock<State>,
    pub(crate) vectors: Vectors,
    pub(crate) work_signal: WorkSignal,
    /// Locked by the thread that executes; the function's place at the pool belongs to the same thread.
    engines: Mutex<Engines>,
    counts: Box<DeviceCounts>,
    lost: AtomicU64,
}

/// The engines of a function's device, with the thread that steps them.
#[derive(Debug, Default)]
pub(crate) struct Engines {
    generation: Option<u64>,
    engines: Vec<Engine>,
    scratch: Scratch,
}

/// How a turn ended.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TurnEnd {
    /// Nothing is left to execute.
    Idle,
    /// There may be more.
    More,
    /// What is left waits for software, or for a descriptor that is being submitted.
    Blocked,
}

impl Function {
    /// Creates a function after power-on.
    ///
    /// # Errors
    /// If the capabilities exceed the model.
    pub(crate) fn new(capabilities: Capabilities) -> Result<Function, CapabilityError> {
        prepare_stamps();
        let state = State { device: power_on(capabilities)?, generation: 0, map: DmaMap::default(), messages: None };
        Ok(Function {
            capabilities,
            kernels: Kernels::new(),
            state: RwLock::new(state),
            vectors: Vectors::new(capabilities.msix_entries),
            work_signal: WorkSignal::new(),
            engines: Mutex::default(),
            counts: Box::default(),
            lost: AtomicU64::new(0),
        })
    }

    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state while the engine thread is between two steps.
    fn between_steps<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let messages = self.read().messages.clone();
        // The engine thread may wait for an answer that this thread has to receive.
        if let Some(messages) = &messages {
            messages.cancel();
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut state);
        // Before the engine thread can go on: it may need an answer at once.
        if let Some(messages) = &messages {
            messages.resume();
        }
        drop(state);
        self.work_signal.notify();
        result
    }

    /// Reads bytes of BAR0, in accesses of at most 8 bytes.
    pub(crate) fn read_registers(&self, offset: u64, into: &mut [u8]) {
        let state = self.read();
        for (at, width, range) in accesses(offset, into.len()) {
            let value = match at {
                // Interrupts wait with the vectors: the model's own table is never masked.
                layout::MSIX_PBA..0x3008 => {
                    let shifted = self.vectors.pending() >> (8 * (at - layout::MSIX_PBA));
                    shifted & (u64::MAX >> (64 - 8 * u32::from(width)))
                }
                _ => state.device.read_register(at, width),
            };
            into[range].copy_from_slice(&value.to_le_bytes()[..width.into()]);
        }
    }

    /// Writes bytes of BAR0, in accesses of at most 8 bytes.
    pub(crate) fn write_registers(&self, offset: u64, data: &[u8]) {
        let state = self.read();
        let table = MSIX_ENTRY_BYTES * u64::from(self.capabilities.msix_entries);
        for (at, width, range) in accesses(offset, data.len()) {
            // The client masks vectors by messages.
            if (layout::MSIX_TABLE..layout::MSIX_TABLE + table).contains(&at) {
                continue;
            }
            let mut value = [0; 8];
            value[..width.into()].copy_from_slice(&data[range]);
            state.device.write_register(at, width, u64::from_le_bytes(value));
        }
        state.device.advance_command();
        self.vectors.collect(&state.device);
        drop(state);
        self.work_signal.notify();
    }

    /// Submits a descriptor; returns false if the device did not take it. Call [`start`](Function::start) afterwards.
    pub(crate) fn submit(&self, store: &Store) -> bool {
        let state = self.read();
        let submission = vouch(Descriptor::from_bytes(&store.bytes));
        let offer = state.device.submit(store.wq, store.kind, Write::Posted, &submission);
        self.counts.offered(store.wq, offer);
        let taken = offer == Offer::Taken;
        if !taken {
            self.lost.fetch_add(1, Ordering::Relaxed);
            // A full queue raises an error interrupt.
            self.vectors.collect(&state.device);
        }
        taken
    }

    /// Executes what was submitted, or has the engine thread do it. `work` is that of the descriptors.
    pub(crate) fn start(&self, work: u64, pool: &EnginePool, member: usize) {
        if work > SHORT_WORK || self.work_signal.is_pending() || !self.execute_here(pool, member) {
            self.work_signal.notify();
        }
    }

    /// Executes everything in the calling thread, the session's; false if something is left.
    fn execute_here(&self, pool: &EnginePool, member: usize) -> bool {
        let Ok(mut engines) = self.engines.try_lock() else { return false };
        // Answers of the client come to this thread, so it must not wait for one.
        if self.read().messages.is_some() || !pool.try_take(member) {
            return false;
        }
        let (end, work) = self.execute(&mut engines, pool, member);
        pool.leave(member, work);
        end == TurnEnd::Idle
    }

    /// The engines, for the thread that executes.
    pub(crate) fn engines(&self) -> MutexGuard<'_, Engines> {
        self.engines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches bus mastering. Afterwards the function accesses memory, or does not.
    pub(crate) fn set_bus_master(&self, on: bool) {
        self.between_steps(|state| {
            // Before the change, which may raise an interrupt that must wait.
            self.vectors.set_bus_master(on);
            state.device.set_pci(PciControl { bus_master: on, ..AFTER_RESET });
            self.vectors.collect(&state.device);
        });
    }

    /// Resets the function to its power-on state. Maps and eventfds stay.
    pub(crate) fn reset(&self) {
        self.between_steps(|state| self.reset_device(state));
    }

    fn reset_device(&self, state: &mut State) {
        // Cannot fail: the capabilities were accepted before.
        if let Ok(device) = power_on(self.capabilities) {
            state.device = device;
            state.generation += 1;
            self.vectors.reset();
        }
    }

    /// A client has connected; `messages` reach its memory without a file.
    pub(crate) fn connect(&self, messages: Option<Arc<MessageDma>>) {
        self.between_steps(|state| state.messages = messages);
    }

    /// The client has gone: stops, forgets its memory and its eventfds, and resets the device.
    pub(crate) fn disconnect(&self) {
        self.between_steps(|state| {
            self.reset_device(state);
            state.map.clear();
            state.messages = None;
        });
        self.vectors.disable();
    }

    /// Changes the memory that the function may access. When this has returned, nothing accesses what was removed.
    pub(crate) fn change_memory<R>(&self, change: impl FnOnce(&mut DmaMap) -> R) -> R {
        self.between_steps(|state| change(&mut state.map))
    }

    /// Executes what waits, for one turn. Returns its work in bytes.
    pub(crate) fn execute(&self, own: &mut Engines, pool: &EnginePool, member: usize) -> (TurnEnd, u64) {
        let state = self.read();
        if own.generation != Some(state.generation) {
            let engines = usize::from(self.capabilities.eng_cap.engines());
            own.engines = (0..engines).map(|index| Engine::new(index, 0)).collect();
            own.generation = Some(state.generation);
        }
        let device = &*state.device;
        let access = state.messages.as_deref().map(|messages| MessageAccess { messages, pool, member });
        let map = device.pci().bus_master.then_some(&state.map);
        let spaces = GuestSpaces::new(map, self.kernels, access);
        let work = Work::default();
        let observer = Counting { counts: &self.counts, clocks: &CLOCKS, observer: &work };
        let (mut blocked, mut more) = (false, false);
        for engine in &mut own.engines {
            for step in 0..=TURN_STEPS {
                if step == TURN_STEPS || work.done() >= TURN_WORK {
                    more = true;
                    break;
                }
                let mut interrupted = false;
                let progress = run(engine, device, &spaces, &mut own.scratch, &observer, |_| interrupted = true);
                if interrupted {
                    self.vectors.collect(device);
                }
                match progress {
                    Progress::Worked => {}
                    Progress::Idle => break,
                    Progress::Blocked => {
                        blocked = true;
                        break;
                    }
                }
            }
        }
        // The next turn begins with another engine, so that one with much work does not keep the others from theirs.
        if !own.engines.is_empty() {
            own.engines.rotate_left(1);
        }
        device.advance_command();
        self.vectors.collect(device);
        let end = match (more, blocked || device.cmd_status().active()) {
            (true, _) => TurnEnd::More,
            (false, true) if work.done() > 0 => TurnEnd::More,
            (false, true) => TurnEnd::Blocked,
            (false, false) => TurnEnd::Idle,
        };
        (end, work.done())
    }

    /// What the device has done since the server started.
    pub(crate) fn totals(&self) -> Totals {
        self.counts.totals()
    }

    /// Submissions that the device did not take.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

fn power_on(capabilities: Capabilities) -> Result<Box<Device>, CapabilityError> {
    let device = Device::new(capabilities, AFTER_RESET)?;
    // Vectors are masked and kept pending outside of the model, with the client's eventfds.
    for entry in 0..u64::from(capabilities.msix_entries) {
        device.write_register(layout::MSIX_TABLE + entry * MSIX_ENTRY_BYTES + 12, 4, 0);
    }
    Ok(device)
}

/// Divides an access into aligned ones of 1, 2, 4 or 8 bytes: offset, width, and place in the data.
fn accesses(offset: u64, len: usize) -> impl Iterator<Item = (u64, u8, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset.saturating_add(done as u64);
        let fits = |width: &u8| at.is_multiple_of(u64::from(*width)) && len - done >= usize::from(*width);
        let width = [8_u8, 4, 2, 1].into_iter().find(fits)?;
        let range = done..done + usize::from(width);
        done = range.end;
        Some((at, width, range))
    })
}

/// The work of a descriptor; of a batch, that of reading its list.
fn work_of(descriptor: &Descriptor) -> u64 {
    DESCRIPTOR_WORK + u64::from(descriptor.size())
}

/// The work that a store asks for. A batch counts as long: its members are not known yet.
pub(crate) fn work_of_store(store: &Store) -> u64 {
    let descriptor = Descriptor::from_bytes(&store.bytes);
    if descriptor.opcode() == Opcode::Batch { u64::MAX } else { work_of(&descriptor) }
}

/// Adds up the work of executed descriptors. One thread uses it.
#[derive(Debug, Default)]
struct Work(AtomicU64);

impl Work {
    fn add(&self, work: u64) {
        // Relaxed: only the thread of the engines uses it.
        self.0.store(self.done() + work, Ordering::Relaxed);
    }

    fn done(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Observer for Work {
    fn is_watching(&self) -> bool {
        false
    }

    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        self.add(job.descriptor.size().into());
        act(space)
    }

    // Every descriptor ends, also a No-op, a batch, and one that was refused.
    fn ended(&self, _: &Job<'_>, _: &CompletionRecord, _: ReportedTo) {
        self.add(DESCRIPTOR_WORK);
    }

    fn ended_fast(&self, job: &Job<'_>) {
        self.add(work_of(job.descriptor));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_abi::registers::offset;
    use telpher_model::Preset;

    fn function() -> Function {
        Function::new(Preset::Spr.capabilities()).unwrap()
    }

    fn read(function: &Function, at: u64) -> u32 {
        let mut bytes = [0; 4];
        function.read_registers(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn accesses_are_aligned_and_cover_everything_once() {
        for (offset, len) in [(0, 8), (4, 8), (1, 7), (0x1d, 32), (3, 0)] {
            let mut next = 0;
            for (at, width, range) in accesses(offset, len) {
                assert_eq!((at, range.start), (offset + next as u64, next));
                assert!(at.is_multiple_of(width.into()));
                next = range.end;
            }
            assert_eq!(next, len);
        }
    }

    #[test]
    fn registers_are_those_of_the_model_in_any_width() {
        let function = function();
        assert_eq!(read(&function, offset::VERSION), 0x100);
        let mut all = [0; 0x100];
        function.read_registers(0, &mut all);
        assert_eq!(all[..4], 0x100_u32.to_le_bytes());
        assert_eq!(all[0x10..0x18], function.capabilities().gen_cap.0[0].to_le_bytes());
    }

    #[test]
    fn a_reset_clears_the_registers_and_a_command_ends_at_once() {
        let function = function();
        function.write_registers(offset::GENCTRL, &3_u32.to_le_bytes());
        function.write_registers(offset::CMD, &(5_u32 << 20 | 1 << 31).to_le_bytes());
        assert_eq!((read(&function, offset::CMDSTATUS), read(&function, offset::INTCAUSE)), (0, 2));
        assert_eq!(read(&function, layout::MSIX_PBA), 1, "no eventfd yet");
        function.reset();
        assert_eq!((read(&function, layout::MSIX_PBA), read(&function, offset::INTCAUSE)), (0, 0));
    }

    #[test]
    fn the_table_of_vectors_is_the_clients() {
        let function = function();
        function.write_registers(layout::MSIX_TABLE + 12, &1_u32.to_le_bytes());
        assert_eq!(read(&function, layout::MSIX_TABLE + 12), 0);
    }

    #[test]
    fn enabling_needs_bus_mastering() {
        let function = function();
        let enable = |function: &Function| {
            function.write_registers(offset::CMD, &(1_u32 << 20).to_le_bytes());
            read(function, offset::CMDSTATUS)
        };
        assert_eq!(enable(&function), 0x12);
        function.set_bus_master(true);
        assert_eq!((enable(&function), read(&function, offset::GENSTS) & 3), (0, 1));
        function.set_bus_master(false);
        assert_eq!(read(&function, offset::GENSTS) & 3, 3, "it has halted");
    }
}
