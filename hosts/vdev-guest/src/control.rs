//! Requests to the host: one connection each, one packet to the host and one back.
//!
//! Nothing stays open, so the program may close, fork or exec at any moment. Nothing is allocated: the packets are on
//! the stack (a page each), so a request may be made where the program was interrupted.
#![allow(unsafe_code, reason = "the socket calls, with their structures on the stack")]

use crate::run;
use crate::sys::{self, Errno, Fd, call, word};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use telpher_vdev_wire::VERSION;
use telpher_vdev_wire::message::{
    EVENT_SECRET, Kind, MAX_PAYLOAD, Opened, PerfControl, PerfOpen, Reply, Report, Request, SETTLE_AT_START,
    WINDOW_SECRET, WindowAccess, WindowCreate, WindowFault, WindowUpdate,
};
use zerocopy::{FromBytes, IntoBytes};

/// Most descriptors in a reply: file, file memory, queue state, occupancy slots.
const MAX_DESCRIPTORS: usize = 4;
/// Seconds after which a host that does not answer counts as gone. Source: chosen; it answers within milliseconds.
const TIMEOUT_SECONDS: i64 = 30;

/// The reply for an opened node: its registers and the descriptors sent with it.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The queue's description.
    pub(crate) opened: Opened,
    /// The file's descriptor; -1 from [`attach`].
    pub(crate) file: Fd,
    /// Descriptor of the file's memory.
    pub(crate) lease: Fd,
    /// Descriptor of the queue state, for reading.
    pub(crate) board: Fd,
    /// Descriptor of the occupancy slots.
    pub(crate) rows: Fd,
}

/// Reads the text of an attribute from its first byte. `path` is physical, `/sys/…`.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn show(path: &[u8], into: &mut [u8]) -> Result<usize, Errno> {
    let mut reply = Answer::new();
    reply.ask(Kind::Show, 0, 0, path, &[])?;
    let text = reply.data();
    let len = text.len().min(into.len());
    into[..len].copy_from_slice(&text[..len]);
    Ok(len)
}

/// Writes an attribute, or bytes of a binary one at an offset. Returns the bytes accepted.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn store(path: &[u8], offset: u64, data: &[u8]) -> Result<usize, Errno> {
    let mut reply = Answer::new();
    reply.ask(Kind::Store, 0, offset, path, data)?;
    usize::try_from(reply.head.value).map_err(|_| Errno::IO)
}

/// Opens a queue's node, `/dev/dsa/wqM.N`, with open(2)'s flags.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn open(path: &[u8], flags: u32) -> Result<Opening, Errno> {
    let mut reply = Answer::new();
    reply.ask(Kind::Open, 0, flags.into(), path, &[])?;
    reply.opening(true)
}

/// Attaches to a node that was opened elsewhere: through the file system, or before an exec.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn attach(open: u64) -> Result<Opening, Errno> {
    let mut reply = Answer::new();
    reply.ask(Kind::Attach, open, 0, &[], &[])?;
    reply.opening(false)
}

/// Sends a device's report to the driver.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn report(open: u64, report: &Report) -> Result<(), Errno> {
    Answer::new().ask(Kind::Report, open, 0, &[], report.as_bytes())
}

/// Opens an event of a device's perf PMU.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn perf_open(open: &PerfOpen) -> Result<Fd, Errno> {
    let mut reply = Answer::new();
    reply.ask(Kind::PerfOpen, 0, 0, &[], open.as_bytes())?;
    let [event, ..] = reply.descriptors;
    if event.number() < 0 { Err(Errno::IO) } else { Ok(event) }
}

/// Reads an event: calls `take` with what read(2) returns.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn perf_read<T>(
    event: u64,
    secret: &[u8; EVENT_SECRET],
    take: impl FnOnce(&[u8]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut reply = Answer::new();
    reply.ask(Kind::PerfRead, event, 0, &[], secret)?;
    take(reply.data())
}

/// Makes a request of ioctl(2) to an event.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn perf_control(event: u64, request: u64, control: &PerfControl) -> Result<u64, Errno> {
    let mut reply = Answer::new();
    reply.ask(Kind::PerfControl, event, request, &[], control.as_bytes())?;
    Ok(reply.head.value)
}

/// Makes a window to this process's memory, of which the host gets the file. Returns its handle and its descriptor.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn create_window(open: u64, create: &WindowCreate, memory: RawFd) -> Result<(u16, Fd), Errno> {
    let mut reply = Answer::new();
    reply.ask_with(Kind::WindowCreate, open, 0, &[&[], create.as_bytes(), &[]], Some(memory))?;
    let handle = reply.handle()?;
    let [window, ..] = reply.descriptors;
    if window.number() < 0 { Err(Errno::IO) } else { Ok((handle, window)) }
}

/// Lets a file's descriptors use the window with this secret; returns its handle.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn attach_window(open: u64, secret: &[u8; WINDOW_SECRET]) -> Result<u16, Errno> {
    let mut reply = Answer::new();
    reply.ask(Kind::WindowAttach, open, 0, &[], secret)?;
    reply.handle()
}

/// Calls `take` with the windows that a file's process owns or may use.
///
/// # Errors
/// The host's; EIO if it is gone.
pub(crate) fn windows(open: u64, take: impl FnOnce(&[u8])) -> Result<(), Errno> {
    let mut reply = Answer::new();
    ask_again(|| reply.ask(Kind::Windows, open, 0, &[], &[]))?;
    take(reply.data());
    Ok(())
}

/// Reads memory of a window; returns the number of bytes up to the first that cannot be read.
///
/// # Errors
/// EACCES if the window does not permit it; EIO if the host is gone.
pub(crate) fn read_window(open: u64, access: &WindowAccess, into: &mut [u8]) -> Result<usize, Errno> {
    let mut reply = Answer::new();
    ask_again(|| reply.ask(Kind::WindowRead, open, 0, &[], access.as_bytes()))?;
    let len = reply.data().len().min(into.len());
    into[..len].copy_from_slice(&reply.data()[..len]);
    Ok(len)
}

/// Writes memory of a window; returns the number of bytes up to the first that cannot be written.
///
/// # Errors
/// EACCES if the window does not permit it; EIO if the host is gone.
pub(crate) fn write_window(open: u64, access: &WindowAccess, from: &[u8]) -> Result<usize, Errno> {
    let mut reply = Answer::new();
    ask_again(|| reply.ask_with(Kind::WindowWrite, open, 0, &[&[], access.as_bytes(), from], None))?;
    usize::try_from(reply.head.value).map(|written| written.min(from.len())).map_err(|_| Errno::IO)
}

/// Brings in a page of a window.
///
/// # Errors
/// EACCES if the window does not permit it, EFAULT if there is no such page; EIO if the host is gone.
pub(crate) fn touch_window(open: u64, access: &WindowAccess, write: bool) -> Result<(), Errno> {
    ask_again(|| Answer::new().ask(Kind::WindowTouch, open, write.into(), &[], access.as_bytes()))
}

/// Replaces the limits of a window that the file's process owns.
///
/// # Errors
/// EACCES if it owns no such window any more; EIO if the host is gone.
pub(crate) fn update_window(open: u64, update: &WindowUpdate) -> Result<(), Errno> {
    ask_again(|| Answer::new().ask(Kind::WindowUpdate, open, 0, &[], update.as_bytes()))
}

/// Brings in pages of a window, by its secret.
///
/// # Errors
/// The driver's; EIO if the host is gone.
pub(crate) fn fault_window(fault: &WindowFault) -> Result<(), Errno> {
    ask_again(|| Answer::new().ask(Kind::WindowFault, 0, 0, &[], fault.as_bytes()))
}

/// Tells the host that a descriptor of the window with this secret is about to be closed.
///
/// # Errors
/// ENOTTY in a run without windows; EIO if the host is gone.
pub(crate) fn close_window(number: u64) -> Result<(), Errno> {
    ask_again(|| Answer::new().ask(Kind::WindowClose, 0, number, &[], &[]))
}

/// Waits until no window that this address space has closed is accessed any more.
///
/// # Errors
/// ENOTTY in a run without windows; EIO if the host is gone.
pub(crate) fn settle_windows() -> Result<(), Errno> {
    ask_again(|| Answer::new().ask(Kind::WindowSettle, 0, 0, &[], &[]))
}

/// Ends the windows of the program that this process was before, and waits until they are not accessed any more.
///
/// # Errors
/// ENOTTY in a run without windows; EIO if the host is gone.
pub(crate) fn settle_former_windows() -> Result<(), Errno> {
    ask_again(|| Answer::new().ask(Kind::WindowSettle, 0, SETTLE_AT_START, &[], &[]))
}

/// True if no host listens any more.
pub(crate) fn is_host_gone() -> bool {
    matches!(Socket::reach(), Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Repeats a request while the host answers too many others.
fn ask_again(mut ask: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let end = sys::now_ns().saturating_add(TIMEOUT_SECONDS.unsigned_abs() * 1_000_000_000);
    loop {
        match ask() {
            Err(Errno::AGAIN) if sys::now_ns() < end => sys::yield_now(),
            result => return result,
        }
    }
}

/// A reply and the descriptors sent with it.
struct Answer {
    head: Reply,
    data: [MaybeUninit<u8>; MAX_PAYLOAD],
    data_len: usize,
    descriptors: [Fd; MAX_DESCRIPTORS],
}

/// Space for the control message with the descriptors.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

impl Answer {
    fn new() -> Self {
        Answer {
            head: Reply::default(),
            data: [MaybeUninit::uninit(); MAX_PAYLOAD],
            data_len: 0,
            descriptors: [const { Fd::own(-1) }; MAX_DESCRIPTORS],
        }
    }

    fn data(&self) -> &[u8] {
        // SAFETY: the kernel has written this many bytes of the buffer.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), self.data_len) }
    }

    /// Converts the reply; with `file`, the first descriptor is the file.
    fn opening(self, file: bool) -> Result<Opening, Errno> {
        let opened = Opened::read_from_bytes(self.data()).map_err(|_| Errno::IO)?;
        let [first, second, third, fourth] = self.descriptors;
        let (file, lease, board, rows) =
            if file { (first, second, third, fourth) } else { (fourth, first, second, third) };
        if [&lease, &board, &rows].into_iter().any(|memory| memory.number() < 0) {
            return Err(Errno::IO);
        }
        Ok(Opening { opened, file, lease, board, rows })
    }

    /// The handle of a window.
    fn handle(&self) -> Result<u16, Errno> {
        u16::try_from(self.head.value).map_err(|_| Errno::IO)
    }

    fn ask(&mut self, kind: Kind, open: u64, argument: u64, path: &[u8], data: &[u8]) -> Result<(), Errno> {
        self.ask_with(kind, open, argument, &[path, data, &[]], None)
    }

    /// Sends a request of a path and data in two parts, and a descriptor if there is one.
    fn ask_with(
        &mut self,
        kind: Kind,
        open: u64,
        argument: u64,
        [path, data, more]: &[&[u8]; 3],
        descriptor: Option<RawFd>,
    ) -> Result<(), Errno> {
        if path.len() + data.len() + more.len() > MAX_PAYLOAD {
            return Err(Errno::TOOBIG);
        }
        // Cannot lose bits: both are at most MAX_PAYLOAD.
        let length = |len: usize| u32::try_from(len).unwrap_or_default();
        let request = Request {
            version: VERSION,
            kind: kind as u32,
            space: run::space(),
            open,
            argument,
            path_len: length(path.len()),
            data_len: length(data.len() + more.len()),
        };
        let socket = Socket::connect()?;
        socket.send(&[request.as_bytes(), path, data, more], descriptor)?;
        self.receive(&socket)?;
        match self.head.errno {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    fn receive(&mut self, socket: &Socket) -> Result<(), Errno> {
        let mut head = [0; size_of::<Reply>()];
        let mut ancillary = Ancillary([0; 64]);
        let mut parts = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() },
            libc::iovec { iov_base: self.data.as_mut_ptr().cast(), iov_len: self.data.len() },
        ];
        // SAFETY: an all-zero header is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        message.msg_control = ancillary.0.as_mut_ptr().cast();
        message.msg_controllen = ancillary.0.len();
        let received = loop {
            let arguments = [word(socket.0.number()), (&raw mut message).addr(), word(libc::MSG_CMSG_CLOEXEC), 0, 0, 0];
            // SAFETY: the header names the buffers above, which outlive the call.
            match unsafe { call(libc::SYS_recvmsg, arguments) } {
                Err(Errno::INTR) => {}
                Err(_) => return Err(Errno::IO),
                Ok(received) => break received,
            }
        };
        self.take_descriptors(&message);
        self.data_len = received.checked_sub(head.len()).ok_or(Errno::IO)?;
        self.head = Reply::read_from_bytes(&head).map_err(|_| Errno::IO)?;
        if self.head.version != VERSION || self.head.data_len as usize != self.data_len {
            return Err(Errno::IO);
        }
        Ok(())
    }

    /// Extracts the descriptors from the received control messages.
    fn take_descriptors(&mut self, message: &libc::msghdr) {
        // SAFETY: the kernel has filled the control buffer and set its length, which CMSG_FIRSTHDR respects; the data
        // after a header is read as the kernel laid it out, unaligned.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(message);
            if header.is_null() || (*header).cmsg_level != libc::SOL_SOCKET || (*header).cmsg_type != libc::SCM_RIGHTS {
                return;
            }
            let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (index, slot) in self.descriptors.iter_mut().enumerate().take(bytes / size_of::<RawFd>()) {
                *slot = Fd::own(data.add(index).read_unaligned());
            }
        }
    }
}

/// A connection to the host.
struct Socket(Fd);

impl Socket {
    /// Connects to the host. Every failure is EIO for the program, as for a device that is gone, except a lack of
    /// descriptors.
    fn connect() -> Result<Self, Errno> {
        Self::reach().map_err(|error| if error == Errno::MFILE || error == Errno::NFILE { error } else { Errno::IO })
    }

    /// Connects, or returns what the system answers.
    fn reach() -> Result<Self, Errno> {
        let (address, len) = run::socket_address().ok_or(Errno::IO)?;
        let arguments = [word(libc::AF_UNIX), word(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC), 0, 0, 0, 0];
        // SAFETY: no pointer is passed.
        let socket = unsafe { call(libc::SYS_socket, arguments) }.map(|fd| Socket(Fd::own(sys::descriptor(fd))))?;
        let timeout = libc::timeval { tv_sec: TIMEOUT_SECONDS, tv_usec: 0 };
        let option = [
            word(socket.0.number()),
            word(libc::SOL_SOCKET),
            word(libc::SO_RCVTIMEO),
            (&raw const timeout).addr(),
            size_of::<libc::timeval>(),
            0,
        ];
        // SAFETY: the option's value outlives the call.
        let _ = unsafe { call(libc::SYS_setsockopt, option) };
        let arguments = [word(socket.0.number()), std::ptr::from_ref(address).addr(), len, 0, 0, 0];
        // SAFETY: the address is a static of this library, with the given length.
        unsafe { call(libc::SYS_connect, arguments) }?;
        Ok(socket)
    }

    fn send(&self, parts: &[&[u8]; 4], descriptor: Option<RawFd>) -> Result<(), Errno> {
        let parts = parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        // SAFETY: an all-zero header is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut();
        message.msg_iovlen = parts.len();
        let mut ancillary = Ancillary([0; 64]);
        if let Some(descriptor) = descriptor {
            // CMSG_SPACE and CMSG_LEN of one int: a header of 16 bytes, then the int, padded.
            message.msg_control = ancillary.0.as_mut_ptr().cast();
            message.msg_controllen = 24;
            // SAFETY: the buffer has room for the header and the descriptor, and is aligned for the header.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = 20;
                libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
            }
        }
        let arguments = [word(self.0.number()), (&raw const message).addr(), word(libc::MSG_NOSIGNAL), 0, 0, 0];
        loop {
            // SAFETY: the header names parts that outlive the call, and which the kernel only reads.
            match unsafe { call(libc::SYS_sendmsg, arguments) } {
                Err(Errno::INTR) => {}
                Err(_) => return Err(Errno::IO),
                Ok(_) => return Ok(()),
            }
        }
    }
}
