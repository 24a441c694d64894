//! Closes what untrusted processes have sent, where closing may block: a socket that lingers, or a file of a file
//! system that does not answer.
//!
//! ```text
//! connection ──holds nothing──► closed by the server
//!            ──holds a packet, of which a descriptor may be a part──► closed by this thread
//! ```

use super::files::lock;
use super::reply::{Answer, reply};
use crate::tree::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown};
use std::fmt;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

type Closing = Box<dyn FnOnce() + Send>;

/// A thread that closes things one after the other; it is started when there is something to close.
#[derive(Default)]
pub(super) struct Closer(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    thread: Option<Sender<Closing>>,
    /// What waits until a thread can be started.
    left: Vec<Closing>,
}

impl fmt::Debug for Closer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closer")
    }
}

impl Closer {
    /// Calls a function in the thread, and drops what it returns there.
    pub(super) fn run<T>(&self, close: impl FnOnce() -> T + Send + 'static) {
        self.run_in(close, |work| std::thread::Builder::new().name("telpher-close".into()).spawn(work).map(drop));
    }

    /// As [`run`](Closer::run); `start` starts a thread. Nothing is ever closed in the calling thread.
    fn run_in<T>(
        &self,
        close: impl FnOnce() -> T + Send + 'static,
        start: impl FnOnce(Closing) -> std::io::Result<()>,
    ) {
        let mut queue = lock(&self.0);
        queue.left.push(Box::new(move || drop(close())));
        if queue.thread.is_none() {
            let (sender, receiver) = channel::<Closing>();
            let work = move || receiver.into_iter().for_each(|closing| closing());
            queue.thread = start(Box::new(work)).is_ok().then_some(sender);
        }
        let Queue { thread, left } = &mut *queue;
        if let Some(sender) = thread {
            let unsent: Vec<Closing> =
                left.drain(..).filter_map(|closing| sender.send(closing).err()).map(|error| error.0).collect();
            if !unsent.is_empty() {
                // The thread has panicked; the next call starts another one.
                (*thread, *left) = (None, unsent);
            }
        }
    }

    /// Answers the packet that is next in a connection without reading it.
    pub(super) fn answer_unread(&self, connection: OwnedFd, answer: Result<Answer, Errno>) {
        let has_descriptors = peek(&connection, 1).is_none_or(|waiting| waiting.has_descriptors);
        let answer = move || {
            // The packet is taken out, since a connection that is closed before reports an error instead of the reply.
            // There is no place for a descriptor, so the kernel closes those of the packet now.
            let _ = rustix::net::recv(&connection, &mut [0; 1], RecvFlags::DONTWAIT);
            reply(&connection, &answer);
            connection
        };
        if has_descriptors {
            self.run(answer);
        } else {
            self.close(answer());
        }
    }

    /// Closes a connection of which no packet is wanted any more.
    pub(super) fn close(&self, connection: OwnedFd) {
        // Then nothing arrives any more.
        let _ = rustix::net::shutdown(&connection, Shutdown::Read);
        if !is_empty(&connection) {
            self.run(move || connection);
        }
    }
}

/// What waits in a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    /// Bytes that one call can read.
    pub(super) bytes: usize,
    /// With them come descriptors, or other control messages.
    pub(super) has_descriptors: bool,
}

/// Looks at what one call would read of at most `len` bytes (4,096 at most), and leaves it; `None` if nothing waits.
pub(super) fn peek(socket: &OwnedFd, len: usize) -> Option<Waiting> {
    let mut bytes = [0; 4096];
    // Without a place for descriptors, the kernel reports them, and they stay in the socket.
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(bytes.get_mut(..len)?)],
        &mut RecvAncillaryBuffer::default(),
        RecvFlags::PEEK | RecvFlags::DONTWAIT,
    );
    let received = received.ok()?;
    Some(Waiting { bytes: received.bytes, has_descriptors: received.flags.contains(ReturnFlags::CTRUNC) })
}

/// True if no packet, not even one without bytes, waits in a connection that was shut down for reading.
fn is_empty(connection: &OwnedFd) -> bool {
    // With this option each packet carries its sender's credentials, and the end carries none.
    rustix::net::sockopt::set_socket_passcred(connection, true).is_ok()
        && peek(connection, 1).is_none_or(|waiting| !waiting.has_descriptors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
        socketpair,
    };
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn send(to: &OwnedFd, bytes: &[u8], with_descriptor: bool) {
        let descriptors = [to.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if with_descriptor {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).unwrap();
    }

    #[test]
    fn descriptors_of_a_packet_are_seen_and_left() {
        let (ours, theirs) = pair();
        assert_eq!(peek(&ours, 1), None);
        send(&theirs, b"x", false);
        assert_eq!(peek(&ours, 1), Some(Waiting { bytes: 1, has_descriptors: false }));
        rustix::net::recv(&ours, &mut [0; 1], RecvFlags::empty()).unwrap();
        send(&theirs, b"x", true);
        assert_eq!([peek(&ours, 1), peek(&ours, 1)], [Some(Waiting { bytes: 1, has_descriptors: true }); 2]);
    }

    #[test]
    fn descriptors_that_come_later_in_a_stream_are_seen() {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        send(&theirs, b"ab", false);
        assert_eq!(peek(&ours, 4096), Some(Waiting { bytes: 2, has_descriptors: false }));
        send(&theirs, b"c", true);
        assert_eq!(peek(&ours, 4096), Some(Waiting { bytes: 3, has_descriptors: true }));
    }

    #[test]
    fn every_packet_that_is_left_is_seen() {
        let holds = |packets: &[(&[u8], bool)]| {
            let (ours, theirs) = pair();
            packets.iter().for_each(|(bytes, with_descriptor)| send(&theirs, bytes, *with_descriptor));
            rustix::net::shutdown(&ours, Shutdown::Read).unwrap();
            !is_empty(&ours)
        };
        assert!(!holds(&[]));
        assert!(holds(&[(b"x", false)]) && holds(&[(b"x", true)]));
        assert!(holds(&[(b"", false)]) && holds(&[(b"", false), (b"", true)]));
        let (ours, theirs) = pair();
        drop(theirs);
        rustix::net::shutdown(&ours, Shutdown::Read).unwrap();
        assert!(is_empty(&ours), "a connection that has hung up");
    }

    /// Regression: it was dropped in the calling thread, the server's, which closes it there.
    #[test]
    fn without_a_thread_a_thing_is_kept_for_the_next_one() {
        let closer = Closer::default();
        let (sender, receiver) = channel();
        let late = sender.clone();
        closer.run_in(
            move || late.send(0),
            |work| {
                // The system refuses a thread.
                drop(work);
                Err(std::io::ErrorKind::WouldBlock.into())
            },
        );
        assert_eq!(receiver.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
        closer.run(move || sender.send(1));
        assert_eq!([receiver.recv(), receiver.recv()], [Ok(0), Ok(1)]);
        assert!(receiver.recv().is_err(), "each is closed once");
    }

    #[test]
    fn later_things_are_closed_too() {
        let closer = Closer::default();
        let (sender, receiver) = channel();
        for number in 0..3 {
            let sender = sender.clone();
            closer.run(move || sender.send(number).unwrap());
        }
        assert_eq!([receiver.recv(), receiver.recv(), receiver.recv()], [Ok(0), Ok(1), Ok(2)]);
    }
}
