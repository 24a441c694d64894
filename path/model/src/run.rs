//! Drives one engine against real memory by answering its steps.

use crate::device::Device;
use crate::engine::{Engine, Outcome, Step};
use crate::execute::{Alternate, OperandSpaces, Scratch, execute};
use crate::interrupt::Interrupt;
use crate::observe::Observer;
use crate::windows::Window;
use telpher_abi::{Descriptor, Status};
use telpher_mem::{Fault, Space, WriteHint};

/// How often a page request for the same access is repeated before the device gives up. Source: *assumed*; the
/// architecture says only "too many".
const PAGE_REQUESTS: u32 = 4;

/// Finds the memory of a PASID.
pub trait AddressSpaces {
    /// Returns the space of a PASID; `None` means the device's own requests without a PASID. An unknown PASID has no
    /// memory: return a space in which every access faults.
    fn space(&self, pasid: Option<u32>) -> &dyn Space;

    /// Calls `act` with the memory of a window: that of its PASID, unless a driver gives windows memory of their own.
    fn with_window(&self, window: &Window, act: &mut dyn FnMut(&dyn Space)) {
        act(self.space(Some(window.pasid)));
    }
}

/// Calls `act` with the memory of a descriptor's windows.
#[inline]
fn with_windows(
    spaces: &dyn AddressSpaces,
    windows: [Option<Window>; 2],
    mut act: impl FnMut([Option<Alternate<'_>>; 2]) -> Outcome,
) -> Outcome {
    if windows == [None; 2] {
        return act([None; 2]);
    }
    // Replaced, since both calls below call their argument.
    let mut outcome = Outcome::of(Status::InterDomainHandle);
    with_window(spaces, windows[0], &mut |first| {
        with_window(spaces, windows[1], &mut |second| outcome = act([first, second]));
    });
    outcome
}

fn with_window(spaces: &dyn AddressSpaces, window: Option<Window>, act: &mut dyn FnMut(Option<Alternate<'_>>)) {
    match window {
        None => act(None),
        Some(window) => spaces.with_window(&window, &mut |space| act(Some(Alternate { space, window }))),
    }
}

/// The result of driving an engine.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// No descriptor waits for the engine.
    Idle,
    /// The engine did something; call again.
    Worked,
    /// The engine waits for another engine or for software.
    Blocked,
}

/// Takes an engine through its next step and answers it. Calls `observer` for every descriptor, and `interrupts` for
/// every completion interrupt.
#[inline]
pub fn run<O: Observer + ?Sized>(
    engine: &mut Engine,
    device: &Device,
    spaces: &dyn AddressSpaces,
    scratch: &mut Scratch,
    observer: &O,
    mut interrupts: impl FnMut(Interrupt),
) -> Progress {
    match engine.step(device, observer) {
        Step::Idle => return Progress::Idle,
        // The thread that holds the lock, or is submitting, needs the CPU time more than another attempt here.
        Step::Again | Step::Wait => return Progress::Blocked,
        Step::Ended => {}
        Step::Execute => {
            let space = spaces.space(engine.submitter().pasid);
            if !observer.is_watching() && engine.run_fast_path(device, space, scratch, observer) {
                return Progress::Worked;
            }
            let (blocks, requests) = (engine.blocks_on_fault(), engine.has_page_requests(device));
            let outcome = observer.execute(&engine.job(), space, &mut |own| {
                with_windows(spaces, engine.windows(), |alternates| {
                    execute(engine.action(), &OperandSpaces { own, alternates }, blocks, requests, scratch)
                })
            });
            engine.executed(device, outcome);
        }
        Step::Record { address } => {
            let space = spaces.space(engine.submitter().pasid);
            let record = engine.record();
            let written = observer.record(&engine.job(), record, &mut || {
                let written = space.write_record(address, &record.0);
                written.or_else(|fault| rewrite_record(engine, device, space, address, fault))
            });
            engine.recorded(device, written);
        }
        Step::Fetch { address } => {
            let space = spaces.space(engine.submitter().pasid);
            let mut bytes = [0; 64];
            let read = space.read(address, &mut bytes);
            let member = match read {
                Ok(()) => Ok(Descriptor::from_bytes(&bytes)),
                Err(fault) => reread_member(engine, device, space, address, fault),
            };
            engine.fetched(device, member);
        }
        Step::ReadBitmap { pasid, address } => {
            let mut byte = [0];
            let read = spaces.space(pasid).read(address, &mut byte);
            engine.bitmap_read(device, read.map(|()| byte[0]));
        }
        Step::Log { pasid, address, bytes } => {
            let mut image = [0; 256];
            image[..64].copy_from_slice(&engine.log_entry().to_bytes());
            let length = usize::try_from(bytes).unwrap_or(64).min(image.len());
            let written = spaces.space(pasid).write(address, &image[..length], WriteHint::Cache);
            engine.logged(device, written);
        }
        Step::Interrupt(interrupt) => interrupts(interrupt),
    }
    Progress::Worked
}

/// Writes the current descriptor's record again after a fault, if its queue waits for pages.
#[cold]
pub(crate) fn rewrite_record(
    engine: &Engine,
    device: &Device,
    space: &dyn Space,
    address: u64,
    fault: Fault,
) -> Result<(), Fault> {
    if !engine.has_page_requests(device) {
        return Err(fault);
    }
    retry(fault, space, || space.write_record(address, &engine.record().0))
}

/// Reads a batch member again after a fault, if its queue waits for pages.
#[cold]
pub(crate) fn reread_member(
    engine: &Engine,
    device: &Device,
    space: &dyn Space,
    address: u64,
    fault: Fault,
) -> Result<Descriptor, Fault> {
    if !engine.has_page_requests(device) {
        return Err(fault);
    }
    let mut bytes = [0; 64];
    retry(fault, space, || space.read(address, &mut bytes))?;
    Ok(Descriptor::from_bytes(&bytes))
}

/// Repeats a faulting access after asking the system for the page, a bounded number of times.
#[cold]
fn retry(first: Fault, space: &dyn Space, mut access: impl FnMut() -> Result<(), Fault>) -> Result<(), Fault> {
    let mut result = Err(first);
    for _ in 0..PAGE_REQUESTS {
        let Err(fault) = result else { break };
        if !space.page_request(fault.address, fault.write) {
            break;
        }
        result = access();
    }
    result
}
