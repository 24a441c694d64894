//! Memory of another process, as far as it has granted it.

use crate::api::error::JobError;
use crate::api::mover::Mover;
use crate::api::outcome::{Outcome, Via};
use crate::api::policy::WindowPath;
use crate::inflight::{Shared, WindowOperation, run_in_window};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use telpher_abi::Opcode;
use telpher_mem::{Access, GrantError, GrantFile, GrantedMemory};
use telpher_portal::{AttachedWindow, WindowError as PortalError};

/// Bytes that the CPU handles at a time. Source: chosen; hides the cost of a system call, and within L2.
const CPU_STEP: usize = 64 << 10;

/// A window between processes cannot be made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The grant does not allow it, or its owner is gone.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// A queue refused.
    #[error("{queue} does not give a window")]
    Device {
        /// The queue.
        queue: String,
        /// Its reason.
        #[source]
        source: PortalError,
    },
    /// No device gives the window, and the policy does not allow the CPU to copy.
    #[error(
        "no queue of this mover gives the window ({tried}), and the policy keeps the CPU from copying; set \
         windows=device-or-cpu, or open a device with inter-domain operations, such as model:v2-full"
    )]
    NoDevice {
        /// What each queue said.
        tried: String,
    },
    /// The device failed, and the CPU cannot do it either.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A grant has one file or two.
    #[error("a grant has one file or two, not {given}; pass them in the order of Grant::files")]
    Files {
        /// The number of files that were passed.
        given: usize,
    },
}

/// The result of an operation with a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowDone {
    /// The outcome.
    pub outcome: Outcome,
    /// What did the work.
    pub via: Via,
}

/// A window to memory that another process has granted. Offsets count from the first granted byte.
///
/// Operations wait for their end. A device with inter-domain operations does those from the policy's threshold on, with
/// one copy between the two memories; the CPU does the others, by the system's file of the other process' memory, if
/// [`Policy::windows`](crate::Policy::windows) allows it.
///
/// An operation that fails may have done a part of its work.
#[derive(Debug)]
pub struct Window {
    shared: Arc<Shared>,
    file: GrantFile,
    /// How the CPU reaches it, if it can.
    memory: Option<GrantedMemory>,
    attached: Option<Attached>,
}

/// The right to use the window in descriptors of one queue.
#[derive(Debug)]
struct Attached {
    queue: usize,
    window: AttachedWindow,
}

impl Mover {
    /// Opens a window to memory of another process by the files of its [`Grant`](crate::Grant).
    ///
    /// Keep the files open while the window is used on a real device: Intel's driver ends the right to it when this
    /// process closes one.
    ///
    /// # Errors
    ///
    /// [`WindowError`]: the files are no grant, the grant is revoked, or neither a device nor, as far as the policy
    /// allows it, the CPU reaches the memory.
    pub fn open_window(&self, files: &[impl AsFd]) -> Result<Window, WindowError> {
        let shared = Arc::clone(self.shared());
        let (first, second) = match files {
            [first] => (first.as_fd(), None),
            [first, second] => (first.as_fd(), Some(second.as_fd())),
            _ => return Err(WindowError::Files { given: files.len() }),
        };
        let file = GrantFile::open(first)?;
        let attached = attach(&shared, first, second);
        let memory = GrantedMemory::open(first);
        match (attached, memory, shared.policy.windows) {
            (Ok(attached), memory, _) => Ok(Window { shared, file, memory: memory.ok(), attached: Some(attached) }),
            (Err(tried), _, WindowPath::Device) => Err(WindowError::NoDevice { tried }),
            (Err(_), memory, WindowPath::DeviceOrCpu) => {
                Ok(Window { shared, file, memory: Some(memory?), attached: None })
            }
        }
    }
}

/// Attaches a window to the first queue that accepts it; otherwise returns what each of them said.
fn attach(shared: &Shared, grant: BorrowedFd<'_>, driver: Option<BorrowedFd<'_>>) -> Result<Attached, String> {
    let mut tried = Vec::new();
    for (queue, each) in shared.queues.all().iter().enumerate() {
        let name = &each.portal.info().name;
        if !each.limits.operations.contains(Opcode::InterDomainCopy) {
            tried.push(format!("{name} has no inter-domain operations"));
            continue;
        }
        // A modelled device knows grants of memory, a real device's driver its own windows.
        for file in driver.into_iter().chain([grant]) {
            match each.portal.attach_window(file) {
                Ok(window) => return Ok(Attached { queue, window }),
                Err(error) => tried.push(format!("{name}: {}", telpher_os::chain(&error))),
            }
        }
    }
    Err(if tried.is_empty() { "it has no queue".into() } else { tried.join("; ") })
}

impl Window {
    /// Number of granted bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// What this process may do with them.
    #[must_use]
    pub fn access(&self) -> Access {
        self.file.access()
    }

    /// True if a device does long operations.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.attached.is_some()
    }

    /// Copies bytes of the window, from `at` on, to `into`. The outcome is [`Done`](Outcome::Done).
    ///
    /// # Errors
    ///
    /// [`WindowError`]
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<WindowDone, WindowError> {
        self.perform(at, WindowOperation::Read(into))
    }

    /// Copies `from` to the bytes of the window from `at` on. The outcome is [`Done`](Outcome::Done).
    ///
    /// # Errors
    ///
    /// [`WindowError`]
    pub fn write(&self, at: u64, from: &[u8]) -> Result<WindowDone, WindowError> {
        self.perform(at, WindowOperation::Write(from))
    }

    /// Repeats the 8 bytes of `pattern`, lowest first, over `len` bytes of the window from `at` on. The outcome is
    /// [`Done`](Outcome::Done).
    ///
    /// # Errors
    ///
    /// [`WindowError`]
    pub fn fill(&self, at: u64, len: u64, pattern: u64) -> Result<WindowDone, WindowError> {
        self.perform(at, WindowOperation::Fill(pattern, len))
    }

    /// Compares the bytes of the window from `at` on with `with`. The outcome is [`Equal`](Outcome::Equal) or
    /// [`Different`](Outcome::Different).
    ///
    /// # Errors
    ///
    /// [`WindowError`]
    pub fn compare(&self, at: u64, with: &[u8]) -> Result<WindowDone, WindowError> {
        self.perform(at, WindowOperation::Compare(with))
    }

    /// Compares `len` bytes of the window from `at` on with the repeated 8 bytes of `pattern`. The outcome is
    /// [`Equal`](Outcome::Equal) or [`Different`](Outcome::Different).
    ///
    /// # Errors
    ///
    /// [`WindowError`]
    pub fn compare_pattern(&self, at: u64, len: u64, pattern: u64) -> Result<WindowDone, WindowError> {
        let done = self.perform(at, WindowOperation::ComparePattern(pattern, len))?;
        match done.outcome {
            // A device finds the eight bytes with the difference (SPEC §8.3.7).
            Outcome::Different { at: near } if done.via == Via::Device => {
                let mut bytes = [0; 8];
                let rest = usize::try_from(len - near).unwrap_or(bytes.len()).min(bytes.len());
                self.read(at + near, &mut bytes[..rest])?;
                // Below 64.
                let turned = 8 * u32::try_from(near % 8).unwrap_or_default();
                let expected = pattern.rotate_right(turned).to_le_bytes();
                let exact = telpher_ops::compare(&bytes[..rest], &expected[..rest]).unwrap_or(0) as u64;
                Ok(WindowDone { outcome: Outcome::Different { at: near + exact }, ..done })
            }
            _ => Ok(done),
        }
    }

    /// Has the device do an operation if it should, and otherwise the CPU, also for what the device cannot finish.
    fn perform(&self, at: u64, mut operation: WindowOperation<'_>) -> Result<WindowDone, WindowError> {
        let (shared, (op, len)) = (&self.shared, operation.weight());
        self.file.check(at, len, operation.writes_window())?;
        let on_cpu = self.memory.as_ref().filter(|_| shared.policy.windows == WindowPath::DeviceOrCpu || len == 0);
        let wants_device = on_cpu.is_none() || shared.choose(op, len).device;
        let mut failed = None;
        if let Some(Attached { queue, window }) = self.attached.as_ref().filter(|_| wants_device && len > 0) {
            let address = self.file.address() + at;
            match run_in_window(shared, *queue, window.handle(), address, &mut operation) {
                Ok(outcome) => {
                    shared.count(Via::Device, len);
                    return Ok(WindowDone { outcome, via: Via::Device });
                }
                Err(error) => failed = Some(error),
            }
        }
        match (on_cpu, failed) {
            (Some(memory), _) => {
                let outcome = on_the_cpu(memory, at, operation)?;
                shared.count(Via::Cpu, len);
                Ok(WindowDone { outcome, via: Via::Cpu })
            }
            (None, Some(error)) => Err(self.explain(error)),
            // No bytes, and no right to access others.
            (None, None) => {
                let outcome = if operation.compares() { Outcome::Equal } else { Outcome::Done };
                Ok(WindowDone { outcome, via: Via::Cpu })
            }
        }
    }

    /// Returns the reason for a device's failure: the state of the grant, if that explains it.
    fn explain(&self, error: JobError) -> WindowError {
        if self.file.is_revoked() {
            return GrantError::Revoked.into();
        }
        match self.memory.as_ref().map(|memory| memory.read(0, &mut [0])) {
            Some(Err(gone)) => gone.into(),
            _ => error.into(),
        }
    }
}

/// Does an operation with granted memory on the CPU.
fn on_the_cpu(memory: &GrantedMemory, at: u64, operation: WindowOperation<'_>) -> Result<Outcome, GrantError> {
    match operation {
        WindowOperation::Read(into) => memory.read(at, into)?,
        WindowOperation::Write(from) => memory.write(at, from)?,
        WindowOperation::Fill(pattern, len) => {
            let bytes = repeated(pattern, len);
            in_steps(len, |done, step| memory.write(at + done, &bytes[..step]))?;
        }
        WindowOperation::Compare(with) => {
            let part = |done: u64, step| usize::try_from(done).map_or(&[][..], |done| &with[done..done + step]);
            return differences(memory, at, with.len() as u64, part);
        }
        WindowOperation::ComparePattern(pattern, len) => {
            let bytes = repeated(pattern, len);
            // Each step but the last is a multiple of the pattern.
            return differences(memory, at, len, |_, step| &bytes[..step]);
        }
        WindowOperation::Close(_) => {}
    }
    Ok(Outcome::Done)
}

/// Returns a pattern as often as a step, or the whole length, needs it.
fn repeated(pattern: u64, len: u64) -> Vec<u8> {
    let most = usize::try_from(len).unwrap_or(CPU_STEP).min(CPU_STEP);
    pattern.to_le_bytes().repeat(most.div_ceil(8))
}

/// Calls `each` for every step of a length.
fn in_steps(len: u64, mut each: impl FnMut(u64, usize) -> Result<(), GrantError>) -> Result<(), GrantError> {
    let mut done = 0;
    while done < len {
        let step = usize::try_from(len - done).unwrap_or(CPU_STEP).min(CPU_STEP);
        each(done, step)?;
        done += step as u64;
    }
    Ok(())
}

/// Compares granted memory with expected bytes, step by step.
fn differences<'a>(
    memory: &GrantedMemory,
    at: u64,
    len: u64,
    expected: impl Fn(u64, usize) -> &'a [u8],
) -> Result<Outcome, GrantError> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(CPU_STEP).min(CPU_STEP)];
    let mut outcome = Outcome::Equal;
    in_steps(len, |done, step| {
        if outcome != Outcome::Equal {
            return Ok(());
        }
        memory.read(at + done, &mut bytes[..step])?;
        if let Some(offset) = telpher_ops::compare(&bytes[..step], expected(done, step)) {
            outcome = Outcome::Different { at: done + offset as u64 };
        }
        Ok(())
    })?;
    Ok(outcome)
}
