//! Events of the devices' perf PMUs: perf_event_open(2) for their types, and the calls on the returned descriptors.
//!
//! The kernel does not know these PMUs. An event is a socket from the host, which has its state; so it can be
//! duplicated, inherited and closed as any descriptor. Its first bytes are the event's secret, which proves to the host
//! that a process has the descriptor.

use crate::files::descriptor;
use crate::files::table::{self, Kind};
use crate::node::name::parse_socket;
use crate::sys::{self, Errno};
use crate::{control, run};
use std::ffi::c_int;
use std::os::fd::RawFd;
use telpher_vdev_wire::message::{EVENT_SECRET, FIRST_PMU_TYPE, PERF_ATTRIBUTES, PMU_TYPES, PerfControl, PerfOpen};
use telpher_vdev_wire::name::PerfName;

/// Bytes of the oldest attributes. Source: UAPI, PERF_ATTR_SIZE_VER0.
const OLDEST: usize = 64;
/// Most bytes of attributes. Source: K612 `kernel/events/core.c`, perf_copy_attr: a page.
const LONGEST: usize = 4096;
/// Source: UAPI, PERF_FLAG_FD_CLOEXEC.
const FD_CLOEXEC: u64 = 1 << 3;
/// Source: UAPI, PERF_EVENT_IOC_ID.
const GET_ID: u64 = 0x8008_2407;

/// The arguments of the system call, as the program passed them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    pub(crate) attributes: *const u8,
    pub(crate) process: c_int,
    pub(crate) cpu: c_int,
    pub(crate) group: RawFd,
    pub(crate) flags: u64,
}

/// perf_event_open(2) for the type of a device's PMU; `None` for other types, and outside of a run.
pub(crate) fn open(arguments: &Arguments) -> Option<Result<RawFd, Errno>> {
    run::view()?;
    let mut head = [0; 8];
    // The kernel says what is wrong with the pointer.
    descriptor::fetch(arguments.attributes, &mut head).ok()?;
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (kind, size) = (word(0), word(4) as usize);
    (FIRST_PMU_TYPE..FIRST_PMU_TYPE + PMU_TYPES).contains(&kind).then(|| open_ours(arguments, size))
}

fn open_ours(arguments: &Arguments, size: usize) -> Result<RawFd, Errno> {
    let Arguments { process, cpu, group, flags, .. } = *arguments;
    let size = if size == 0 { OLDEST } else { size };
    if !(OLDEST..=LONGEST).contains(&size) {
        return Err(Errno::TOOBIG);
    }
    let mut bytes = [0; LONGEST];
    descriptor::fetch(arguments.attributes, &mut bytes[..size])?;
    let (known, unknown) = bytes.split_at(PERF_ATTRIBUTES);
    if unknown.iter().any(|byte| *byte != 0) {
        return Err(Errno::TOOBIG);
    }
    let (leader, leader_secret) = match group {
        -1 => (0, [0; EVENT_SECRET]),
        group => match number_of(group) {
            Some(leader) => (leader, descriptor::secret(group)?),
            // An event of another PMU, or no event.
            None if sys::fcntl(group, libc::F_GETFD, 0).is_ok() => return Err(Errno::INVAL),
            None => return Err(Errno::BADF),
        },
    };
    let mut attributes = [0; PERF_ATTRIBUTES];
    attributes.copy_from_slice(known);
    let event = control::perf_open(&PerfOpen { process, cpu, flags, leader, leader_secret, attributes })?;
    // The event's number is the first free one.
    let command = if flags & FD_CLOEXEC != 0 { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    sys::fcntl(event.number(), command, 0).map(sys::descriptor)
}

/// The number of the event behind a descriptor; `None` for every other descriptor.
pub(crate) fn number_of(fd: RawFd) -> Option<u64> {
    run::view()?;
    parse_socket(fd, PerfName::parse).map(|PerfName(number)| number)
}

/// An event, and the descriptor by which the program names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    number: u64,
    fd: RawFd,
}

/// The event behind a descriptor that the table calls an event; a wrong hint is cleared.
pub(crate) fn event_of(fd: RawFd) -> Option<Event> {
    if table::kind(fd) != Kind::PerfEvent {
        return None;
    }
    let number = number_of(fd);
    if number.is_none() {
        table::set(fd, Kind::Foreign);
    }
    number.map(|number| Event { number, fd })
}

/// read(2) of an event.
///
/// # Errors
/// ENOSPC if the buffer is too short; EFAULT if it cannot be written.
pub(crate) fn read(event: Event, into: *mut u8, len: usize) -> Result<usize, Errno> {
    control::perf_read(event.number, &descriptor::secret(event.fd)?, |bytes| {
        if bytes.len() > len {
            return Err(Errno::NOSPC);
        }
        descriptor::deliver(bytes, into)?;
        Ok(bytes.len())
    })
}

/// ioctl(2) of an event.
///
/// # Errors
/// The driver's; EFAULT for a pointer that cannot be written.
pub(crate) fn control(event: Event, request: u64, argument: usize) -> Result<c_int, Errno> {
    let control = PerfControl { secret: descriptor::secret(event.fd)?, argument: argument as u64 };
    let value = control::perf_control(event.number, request, &control)?;
    if request == GET_ID {
        descriptor::deliver(&value.to_ne_bytes(), std::ptr::with_exposed_provenance_mut(argument))?;
    }
    Ok(0)
}
