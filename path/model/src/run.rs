//! Drives one engine against real memory: the answers to its steps.

use crate::device::Device;
use crate::engine::{Engine, Step};
use crate::execute::{Scratch, execute};
use crate::interrupt::Interrupt;
use crate::observe::Observer;
use telpher_abi::Descriptor;
use telpher_mem::{Fault, Space, WriteHint};

/// Times a page request for the same access is repeated before the device gives up. Source: *assumed*; the architecture
/// says only "too many".
const PAGE_REQUESTS: u32 = 4;

/// Which memory a PASID names.
pub trait Spaces {
    /// The space of a PASID; `None` names the device's own requests without one. An unknown PASID has no memory at all:
    /// return a space in which every access faults.
    fn space(&self, pasid: Option<u32>) -> &dyn Space;
}

/// What driving an engine came to.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Nothing waits for it.
    Idle,
    /// It did something; call again.
    Worked,
    /// It waits for another engine or for software.
    Blocked,
}

/// Takes an engine through its next step and answers it. `observer` hears of every descriptor, `interrupts` of every
/// completion interrupt.
#[inline]
pub fn run<O: Observer + ?Sized>(
    engine: &mut Engine,
    device: &Device,
    spaces: &dyn Spaces,
    scratch: &mut Scratch,
    observer: &O,
    mut interrupts: impl FnMut(Interrupt),
) -> Progress {
    match engine.step(device, observer) {
        Step::Idle => return Progress::Idle,
        // Whoever has the turn, or is just arriving, needs the time more than another try at once.
        Step::Again | Step::Wait => return Progress::Blocked,
        Step::Ended => {}
        Step::Execute => {
            let space = spaces.space(engine.submitter().pasid);
            let (blocks, requests) = (engine.blocks_on_fault(), engine.has_page_requests(device));
            let outcome = observer
                .execute(&engine.job(), space, &mut |space| execute(engine.action(), space, blocks, requests, scratch));
            engine.executed(device, outcome);
        }
        Step::Record { address } => {
            let space = spaces.space(engine.submitter().pasid);
            let record = engine.record();
            let written = observer.record(&engine.job(), record, &mut || {
                let written = space.write_record(address, &record.0);
                if written.is_err() && engine.has_page_requests(device) {
                    return persist(written, space, || space.write_record(address, &record.0));
                }
                written
            });
            engine.recorded(device, written);
        }
        Step::Fetch { address } => {
            let space = spaces.space(engine.submitter().pasid);
            let mut bytes = [0; 64];
            let mut read = space.read(address, &mut bytes);
            if read.is_err() && engine.has_page_requests(device) {
                read = persist(read, space, || space.read(address, &mut bytes));
            }
            engine.fetched(device, read.map(|()| Descriptor::from_bytes(&bytes)));
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

/// Repeats a faulting access after asking the system for the page, a bounded number of times.
#[cold]
fn persist(
    first: Result<(), Fault>,
    space: &dyn Space,
    mut access: impl FnMut() -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut result = first;
    for _ in 0..PAGE_REQUESTS {
        let Err(fault) = result else { break };
        if !space.page_request(fault.address, fault.write) {
            break;
        }
        result = access();
    }
    result
}
