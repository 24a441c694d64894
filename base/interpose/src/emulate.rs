//! The effects of the emulated instructions.
#![allow(unsafe_code, reason = "stores at the program's addresses, and is called by the assembly entry")]

use crate::decode::{Instruction, Operation, Pointer, Segment};
use crate::frame::{Exit, Frame};
use crate::guarded_access::{self, Faulted};
use crate::handler::{self, Handler, SubmitInstruction};
use crate::registers::{ARITHMETIC, CF, Registers, ZF};
use crate::sites::entered;
use crate::thread::{Monitor, Thread, segment_base};
use std::sync::atomic::Ordering;
use telpher_abi::Offer;

/// The reason why an instruction did not complete.
enum Stop {
    /// #GP: a SIGSEGV without an address.
    GeneralProtection,
    /// The fault that a guarded access stored in the thread.
    Access(Segment),
}

/// Called by [`entry::enter`](crate::entry::enter): emulates the instruction of the site whose trampoline was entered,
/// or the one that trapped.
pub(crate) unsafe extern "sysv64" fn emulate(frame: &mut Frame) -> Exit {
    let thread = Thread::current();
    let (instruction, site, data, trapped) = match thread.take_trapped() {
        Some(trapped) => {
            // Counted by both the handler and the entry.
            thread.inside.fetch_sub(1, Ordering::Relaxed);
            (trapped.instruction, trapped.site, trapped.data, true)
        }
        None => {
            // SAFETY: otherwise a trampoline called, with this return address.
            let (instruction, site) = unsafe { entered(frame.back) };
            (instruction, site, [0; 8], false)
        }
    };
    thread.by_trap.set(trapped);
    let next = site + u64::from(instruction.length);
    let registers = Registers { general: frame.general, next };
    thread.resume.store(next, Ordering::Relaxed);
    match perform(handler::handler(), thread, instruction, &registers, &mut frame.flags, &data) {
        Ok(()) if trapped => {
            frame.back = next;
            Exit::Elsewhere
        }
        Ok(()) => Exit::Back,
        Err(stop) => {
            let fault = match stop {
                Stop::GeneralProtection => guarded_access::general_protection(),
                // SAFETY: a guarded access has just written it.
                Stop::Access(segment) => unsafe { (*thread.fault.get()).assume_init() }.seen_by(segment),
            };
            // SAFETY: this thread's; no reference to it exists.
            unsafe { (*thread.fault.get()).write(fault) };
            thread.faulted.set(true);
            thread.resume.store(site, Ordering::Relaxed);
            Exit::Trap
        }
    }
}

/// Converts a fault of an operand in `segment`.
fn access(segment: Segment) -> impl FnOnce(Faulted) -> Stop {
    move |Faulted| Stop::Access(segment)
}

fn perform(
    handler: &dyn Handler,
    thread: &Thread,
    instruction: Instruction,
    registers: &Registers,
    flags: &mut u64,
    data: &[u64; 8],
) -> Result<(), Stop> {
    let address = |memory| registers.address(memory, segment_base);
    let in_line = |pointer: Pointer| {
        let destination = registers.pointer(pointer, segment_base);
        if destination.is_multiple_of(64) { Ok(destination) } else { Err(Stop::GeneralProtection) }
    };
    match instruction.operation {
        Operation::Movdir64b { destination, source } => {
            let destination = in_line(destination)?;
            let data = guarded_access::load(address(source)).map_err(access(source.segment))?;
            if handler.is_portal(destination) {
                let _posted = handler.enqueue(SubmitInstruction::Movdir64b, destination, &data);
            } else {
                // SAFETY: aligned; the program itself stores there.
                unsafe { guarded_access::store(destination, &data) }.map_err(access(Segment::Flat))?;
            }
        }
        Operation::Enqcmd { supervisor, destination, source } => {
            // ENQCMDS is for the supervisor only.
            if supervisor {
                return Err(Stop::GeneralProtection);
            }
            let destination = in_line(destination)?;
            let data = guarded_access::load(address(source)).map_err(access(source.segment))?;
            if data[0] & 0xffff_ffff != 0 {
                return Err(Stop::GeneralProtection);
            }
            let offer = if handler.is_portal(destination) {
                handler.enqueue(SubmitInstruction::Enqcmd, destination, &data)
            } else {
                // Memory gives no answer, but the address is translated for a write.
                guarded_access::probe_write(destination).map_err(access(Segment::Flat))?;
                Offer::Retry
            };
            *flags &= !ARITHMETIC;
            if offer == Offer::Retry {
                *flags |= ZF;
            }
        }
        Operation::Movdiri { destination, source, bytes } => {
            let segment = destination.segment;
            let destination = address(destination);
            // A device drops stores that are not 64 bytes.
            if !handler.is_portal(destination) {
                // SAFETY: the program itself stores there.
                unsafe { guarded_access::store_word(destination, registers.get(source), bytes) }
                    .map_err(access(segment))?;
            }
        }
        Operation::Umonitor { address } => {
            let at = registers.pointer(address, segment_base);
            guarded_access::probe_read(at).map_err(access(address.segment))?;
            let line = at & !63;
            // The line is in the page that was just read.
            let contents = guarded_access::load(line).map_err(access(address.segment))?;
            thread.arm(Monitor { address: line, line: contents });
        }
        Operation::Umwait { control } | Operation::Tpause { control } => {
            let control = (registers.get(control) & 0xffff_ffff) as u32;
            if control > 1 {
                return Err(Stop::GeneralProtection);
            }
            let deadline = (registers.get(2) << 32) | registers.get(0) & 0xffff_ffff;
            let waits = matches!(instruction.operation, Operation::Umwait { .. });
            let monitor = if waits { thread.disarm() } else { None };
            // Without an armed monitor UMWAIT does not wait.
            let limited = (monitor.is_some() || !waits) && handler.wait(monitor.as_ref(), control, deadline);
            *flags &= !ARITHMETIC;
            if limited {
                *flags |= CF;
            }
        }
        Operation::Store64 { destination, .. } => {
            // The trap handler has checked that it is a portal's.
            let _posted = handler.enqueue(SubmitInstruction::Store, address(destination), data);
        }
        // The trap handler drops these; they never come here.
        Operation::Store { .. } | Operation::StringStore { .. } => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;

    /// A handler with one portal page; waits do not occur.
    struct Page;

    const PORTAL: u64 = 0x7000;

    impl Handler for Page {
        fn is_portal(&self, address: u64) -> bool {
            address & !0xfff == PORTAL
        }

        fn enqueue(&self, _how: SubmitInstruction, _destination: u64, _descriptor: &[u64; 8]) -> Offer {
            Offer::Taken
        }

        fn wait(&self, _monitor: Option<&Monitor>, _control: u32, _deadline: u64) -> bool {
            unreachable!("nothing waits")
        }

        fn fixup(&self, _context: &mut libc::ucontext_t) -> bool {
            false
        }
    }

    fn performed(bytes: &[u8], general: &[(usize, u64)]) -> Result<(), Stop> {
        let mut registers = Registers::default();
        for &(register, value) in general {
            registers.general[register] = value;
        }
        perform(&Page, Thread::current(), decode(bytes).unwrap(), &registers, &mut 0, &[0; 8])
    }

    // Processors with the instruction come here only if it is for a portal.
    #[test]
    fn movdiri_stores_four_or_eight_bytes_and_a_portal_drops_them() {
        let mut memory = [0x1111_1111_1111_1111u64; 4];
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let value = (6, 0x1234_5678_9abc_def0);
        for (bytes, expected) in [
            (&[0x0f, 0x38, 0xf9, 0x77, 0x08][..], 0x1111_1111_9abc_def0),
            (&[0x48, 0x0f, 0x38, 0xf9, 0x77, 0x08], 0x1234_5678_9abc_def0),
        ] {
            assert!(performed(bytes, &[(7, address), value]).is_ok());
            // SAFETY: the array; the store has changed it without the compiler's knowledge.
            assert_eq!(unsafe { memory.as_ptr().add(1).read_volatile() }, expected);
            // Nothing is mapped there: a store would fault.
            assert!(performed(bytes, &[(7, PORTAL), value]).is_ok());
        }
    }
}
