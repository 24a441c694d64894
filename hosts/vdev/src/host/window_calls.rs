//! Requests about windows: each is answered in its own thread, since an access may wait for the file that the
//! memory is mapped from, and an update for such an access.

use super::files::lock;
use super::packet::{MAX_PACKET, ParsedRequest};
use super::reply::{Answer, process, reply};
use super::requests::{Party, Pending};
use super::windows::{Client, Limits, PROCESS, WINDOW, Window, Windows};
use super::{Host, bind};
use crate::tree::Errno;
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::Timespec;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use telpher_abi::registers::IdCap;
use telpher_mem::{ProcessMemory, bring_in_for_writing};
use telpher_vdev_wire::message::{
    Kind, Request, SETTLE_AT_START, WINDOW_BYTES, WINDOW_SECRET, WindowAccess, WindowCreate, WindowFault, WindowUpdate,
};
use telpher_vdev_wire::name::WindowName;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a page that is brought in.
const PAGE: u64 = 4096;

/// What becomes of a request.
enum Course {
    /// It is answered in a thread, and counts for this party.
    Wait(Party),
    /// There is nothing to wait for: success.
    Done,
}

impl Host {
    /// Answers a request about windows, whose head has been looked at, in another thread. It gets EAGAIN while too many
    /// requests of its party wait. The connection is in no epoll instance any more.
    pub(super) fn serve_window(self: &Arc<Self>, connection: OwnedFd, head: &Request, kind: Kind) {
        let peer = process(&connection);
        let connection = Arc::new(connection);
        let started = self.course(head, kind, peer).and_then(|course| match course {
            Course::Done => Ok(false),
            Course::Wait(party) => {
                let pending = Pending::begin(&self.requests, party).ok_or(Errno::AGAIN)?;
                let (host, connection) = (Arc::clone(self), Arc::clone(&connection));
                let answer = move || {
                    let _pending = pending;
                    let answer = host.answer_window(&connection, peer);
                    // Until this thread has dropped its copy of a new window, a close of the client's does not end it.
                    let has_window = answer.as_ref().is_ok_and(|answer| answer.end.is_some());
                    let until_dropped = has_window.then(|| lock(&host.windows));
                    reply(&connection, &answer);
                    drop(answer);
                    drop(until_dropped);
                    // Here, where it delays no other request.
                    drop(connection);
                };
                let thread = std::thread::Builder::new().name("telpher-window".into()).spawn(answer);
                thread.map(|_| true).map_err(|_| Errno::AGAIN)
            }
        });
        let answer = match started {
            Ok(true) => return,
            Ok(false) => Ok(Answer::default()),
            Err(errno) => Err(errno),
        };
        // No thread has the other one.
        if let Some(connection) = Arc::into_inner(connection) {
            self.closer.answer_unread(connection, answer);
        }
    }

    /// What becomes of a request of the process `peer`.
    fn course(&self, head: &Request, kind: Kind, peer: u32) -> Result<Course, Errno> {
        if !self.behaviour.idpt {
            // As for every ioctl that a driver does not know.
            return Err(Errno::NOTTY);
        }
        match kind {
            // Processes that are not visible here cannot be told apart, so they have no windows.
            Kind::WindowSettle if peer == 0 => Ok(Course::Done),
            Kind::WindowSettle => {
                let mut windows = lock(&self.windows);
                if head.argument == SETTLE_AT_START {
                    windows.release_former(peer, head.space);
                }
                let is_settled = windows.closed_by(peer, head.space).is_empty();
                Ok(if is_settled { Course::Done } else { Course::Wait(Party::Owner(peer)) })
            }
            Kind::WindowUpdate => self.own_file(head, peer).map(|_| Course::Wait(Party::Owner(peer))),
            // These name no file.
            Kind::WindowClose => Ok(Course::Wait(Party::Owner(peer))),
            Kind::WindowFault => Ok(Course::Wait(Party::User(peer))),
            _ => self.own_file(head, peer).map(|_| Course::Wait(Party::User(peer))),
        }
    }

    /// The file that a request of the process `peer` names.
    ///
    /// # Errors
    /// EBADF if there is none, EPERM if it was opened by another address space, or by a process that is not visible
    /// here. The number of the address space is not enough: a child has a copy of its parent's memory, and the number
    /// in it.
    fn own_file(&self, head: &Request, peer: u32) -> Result<Arc<super::files::OpenFile>, Errno> {
        let file = self.file(head.open)?;
        let is_own = peer != 0 && head.space != 0 && file.space() == head.space && file.info.process == peer;
        if is_own { Ok(file) } else { Err(Errno::PERM) }
    }

    fn client(&self, head: &Request, peer: u32) -> Result<(Client, IdCap), Errno> {
        let file = self.own_file(head, peer)?;
        let info = &file.info;
        let client = Client { file: info.open, device: info.device, process: info.process, space: head.space };
        match file.opened.id_cap {
            0 => Err(Errno::OPNOTSUPP),
            id_cap => Ok((client, IdCap([id_cap]))),
        }
    }

    fn answer_window(&self, connection: &OwnedFd, peer: u32) -> Result<Answer, Errno> {
        let (packet, descriptor) = receive(connection)?;
        let request = ParsedRequest::read(&packet)?;
        let (head, data) = (&request.head, request.data);
        match request.kind {
            Kind::WindowCreate => {
                let create = parse::<WindowCreate>(data)?;
                let memory = ProcessMemory::received(descriptor.ok_or(Errno::INVAL)?).map_err(|_| Errno::INVAL)?;
                self.create_window(self.client(head, peer)?, &create, memory)
            }
            Kind::WindowAttach => {
                let (client, _) = self.client(head, peer)?;
                let mut windows = lock(&self.windows);
                self.watch_process(&mut windows, client.process)?;
                let handle = windows.attach(client, data)?;
                if !self.lives(client, &windows) {
                    windows.detach(client, data);
                    return Err(Errno::BADF);
                }
                Ok(Answer { value: handle.into(), ..Answer::default() })
            }
            Kind::Windows => {
                let (client, _) = self.client(head, peer)?;
                Ok(Answer { data: lock(&self.windows).listed(client).as_bytes().to_vec(), ..Answer::default() })
            }
            Kind::WindowRead => {
                let (window, client, access) = self.accessed(self.client(head, peer)?.0, data)?;
                let mut bytes = vec![0; access.len as usize];
                let permitted = window.enter(client, &access, false)?;
                let read = done(permitted.memory().read(permitted.address, &mut bytes), bytes.len());
                bytes.truncate(read);
                Ok(Answer { data: bytes, ..Answer::default() })
            }
            Kind::WindowWrite => {
                let (window, client, access) = self.accessed(self.client(head, peer)?.0, data)?;
                let bytes = data.get(size_of::<WindowAccess>()..).filter(|bytes| bytes.len() == access.len as usize);
                let bytes = bytes.ok_or(Errno::INVAL)?;
                let permitted = window.enter(client, &access, true)?;
                let written = done(permitted.memory().write(permitted.address, bytes), bytes.len());
                Ok(Answer { value: written as u64, ..Answer::default() })
            }
            Kind::WindowTouch => {
                let (window, client, access) = self.accessed(self.client(head, peer)?.0, data)?;
                let permitted = window.enter(client, &WindowAccess { len: 1, ..access }, head.argument == 1)?;
                permitted.memory().read(permitted.address, &mut [0]).map_err(|_| Errno::FAULT)?;
                Ok(Answer::default())
            }
            Kind::WindowUpdate => {
                let (client, id_cap) = self.client(head, peer)?;
                let window = lock(&self.windows).update(client, &parse::<WindowUpdate>(data)?, id_cap)?;
                window.settle();
                Ok(Answer::default())
            }
            Kind::WindowFault => self.fault(connection, &parse::<WindowFault>(data)?),
            Kind::WindowClose => {
                lock(&self.windows).close_held(peer, head.space, head.argument);
                Ok(Answer::default())
            }
            Kind::WindowSettle => {
                let closed = lock(&self.windows).closed_by(peer, head.space);
                closed.iter().for_each(|window| window.settle());
                Ok(Answer::default())
            }
            // The head was looked at before; this is another packet.
            _ => Err(Errno::INVAL),
        }
    }

    fn create_window(
        &self,
        (client, id_cap): (Client, IdCap),
        create: &WindowCreate,
        memory: ProcessMemory,
    ) -> Result<Answer, Errno> {
        let limits = Limits::of_create(create, id_cap)?;
        let mut secret = [0; WINDOW_SECRET];
        if getrandom(&mut secret, GetRandomFlags::empty())? != secret.len() {
            return Err(Errno::AGAIN);
        }
        let (end, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::send(&end, &secret, SendFlags::NOSIGNAL)?;
        // Nothing that a process sends to the window waits here, so closing the end closes nothing else.
        rustix::net::shutdown(&end, Shutdown::Read)?;
        let mut windows = lock(&self.windows);
        self.watch_process(&mut windows, client.process)?;
        let number = windows.next_number()?;
        bind(&theirs, |random| WindowName(number).to_text(&self.name, random))?;
        epoll::add(&self.ends, &end, epoll::EventData::new_u64(WINDOW | number), epoll::EventFlags::HUP)?;
        // On an error, and when the window is closed, dropping the end removes it from epoll.
        let kind = (Windows::is_for_several(create), limits);
        let handle = windows.add((number, secret, end), client, kind, memory, id_cap.entries())?;
        if !self.lives(client, &windows) {
            windows.close(number);
            return Err(Errno::BADF);
        }
        Ok(Answer { value: handle.into(), end: Some(theirs), ..Answer::default() })
    }

    /// Has windows and rights of a process end with it, though other processes may keep its descriptors open: a later
    /// process with its number is another one. Without this they end with their files.
    fn watch_process(&self, windows: &mut Windows, number: u32) -> Result<(), Errno> {
        let Some(process) = i32::try_from(number).ok().and_then(Pid::from_raw) else { return Ok(()) };
        if windows.is_watched(number) {
            return Ok(());
        }
        let end = match pidfd_open(process, PidfdFlags::empty()) {
            // Before Linux 5.3, or in a sandbox.
            Err(Errno::NOSYS | Errno::PERM) => return Ok(()),
            opened => opened?,
        };
        let interest = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        epoll::add(&self.ends, &end, epoll::EventData::new_u64(PROCESS | u64::from(number)), interest)?;
        windows.watch(number, end);
        Ok(())
    }

    /// A process that has made or attached windows has ended: no request has its rights any more.
    pub(super) fn process_ended(&self, process: u32) {
        // Before its windows end, so that a request in progress sees it.
        self.open_files().iter().filter(|file| file.info.process == process).for_each(|file| file.join(0));
        lock(&self.windows).release_process(process);
    }

    /// False if the file, or the process, that a request began with is gone, after what was known of it was removed.
    fn lives(&self, client: Client, windows: &Windows) -> bool {
        match self.file(client.file) {
            Ok(file) => file.space() == client.space,
            Err(_) => windows.is_watched(client.process),
        }
    }

    /// The window that an access of a client names.
    fn accessed(&self, client: Client, data: &[u8]) -> Result<(Arc<Window>, Client, WindowAccess), Errno> {
        let (access, _) = WindowAccess::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
        if access.len as usize > WINDOW_BYTES {
            return Err(Errno::INVAL);
        }
        let windows = lock(&self.windows);
        let window = windows.of_handle(client.device, access.handle).ok_or(Errno::ACCESS)?;
        Ok((Arc::clone(window), client, access))
    }

    /// IDXD_WIN_FAULT: brings in the pages of a range of a window.
    fn fault(&self, connection: &OwnedFd, fault: &WindowFault) -> Result<Answer, Errno> {
        let WindowFault { offset, len, write, .. } = *fault;
        let window = lock(&self.windows).of_secret(&fault.secret).cloned().ok_or(Errno::INVAL)?;
        if write > 1 || len == 0 {
            return Err(Errno::INVAL);
        }
        let first = window.enter_offset(offset, len, write == 1)?.address;
        // Each page is checked again: a long range does not keep the owner from closing its window.
        let mut at = 0;
        while at < len {
            if has_hung_up(connection) {
                return Err(Errno::INTR);
            }
            let permitted = window.enter_offset(offset + at, 1, write == 1)?;
            permitted.memory().read(permitted.address, &mut [0]).map_err(|_| Errno::FAULT)?;
            if write == 1 {
                // A file of memory cannot do it without a store, which could undo one of the owner's.
                let brought_in = bring_in_for_writing(window.process(), permitted.memory(), permitted.address);
                brought_in.map_err(|error| match error.kind() {
                    std::io::ErrorKind::PermissionDenied => Errno::PERM,
                    _ => Errno::FAULT,
                })?;
            }
            at += PAGE - first.wrapping_add(at) % PAGE;
        }
        Ok(Answer::default())
    }
}

/// True if the peer waits for no answer any more.
fn has_hung_up(connection: &OwnedFd) -> bool {
    let mut poll = [PollFd::new(connection, PollFlags::empty())];
    rustix::event::poll(&mut poll, Some(&Timespec::default())).is_ok_and(|count| count != 0)
}

fn parse<T: FromBytes>(data: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(data).map_err(|_| Errno::INVAL)
}

/// The bytes of an access that were moved.
fn done(result: Result<(), u64>, len: usize) -> usize {
    result.map_or_else(|done| usize::try_from(done).unwrap_or(len).min(len), |()| len)
}

/// Receives a packet that has arrived, with at most one descriptor.
fn receive(connection: &OwnedFd) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
    let mut packet = vec![0; MAX_PACKET + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(connection, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, flags)?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.flatten().next();
    if received.bytes > MAX_PACKET {
        return Err(Errno::MSGSIZE);
    }
    packet.truncate(received.bytes);
    Ok((packet, descriptor))
}
