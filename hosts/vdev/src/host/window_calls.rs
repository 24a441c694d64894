//! Requests about windows: each is answered in its own thread, since an access may wait for the file that the
//! memory is mapped from, and an update for such an access.

use super::Host;
use super::files::lock;
use super::packet::{Answer, MAX_PACKET, ParsedRequest};
use super::server::reply;
use super::windows::{Client, Limits, WINDOW, Window, Windows};
use crate::tree::Errno;
use rustix::event::epoll;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use telpher_abi::registers::IdCap;
use telpher_mem::ProcessMemory;
use telpher_vdev_wire::message::{
    Kind, Request, WINDOW_BYTES, WINDOW_SECRET, WindowAccess, WindowCreate, WindowFault, WindowUpdate,
};
use telpher_vdev_wire::name::WindowName;
use zerocopy::{FromBytes, IntoBytes};

/// Most requests of one file, or by one window's secret, that are answered at the same time. Source: chosen; a file has
/// one for each descriptor that its engines execute.
const MOST_REQUESTS: u32 = 64;
/// Bytes of a page that is brought in.
const PAGE: u64 = 4096;

/// A request that is being answered; dropping this makes room for another.
struct Pending(Arc<AtomicU32>);

impl Pending {
    fn begin(count: &Arc<AtomicU32>) -> Option<Pending> {
        // Relaxed, here and below: the count publishes nothing.
        let pending = Pending(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < MOST_REQUESTS).then_some(pending)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Host {
    /// Answers a request about windows, whose head has been looked at, in another thread. It gets EAGAIN while too many
    /// requests of its file wait.
    pub(super) fn serve_window(self: &Arc<Self>, connection: OwnedFd, head: &Request, kind: Kind) {
        let pending = match self.count_of(head, kind, &connection) {
            Ok(count) => Pending::begin(&count).ok_or(Errno::AGAIN),
            Err(errno) => Err(errno),
        };
        let started = pending.and_then(|pending| {
            let (host, kept) = (Arc::clone(self), rustix::io::fcntl_dupfd_cloexec(&connection, 0)?);
            let answer = move || {
                let _pending = pending;
                reply(&kept, &host.answer_window(&kept));
            };
            let thread = std::thread::Builder::new().name("telpher-window".into()).spawn(answer);
            thread.map(drop).map_err(|_| Errno::AGAIN)
        });
        if let Err(errno) = started {
            // The packet is taken out, since a connection that is closed before reports an error instead of the reply.
            // There is no room for a descriptor that it carries: closing that one could block.
            let _ = rustix::net::recv(&connection, &mut [0; 1], RecvFlags::DONTWAIT);
            reply(&connection, &Err(errno));
        }
    }

    /// The count of requests that a request belongs to.
    fn count_of(&self, head: &Request, kind: Kind, connection: &OwnedFd) -> Result<Arc<AtomicU32>, Errno> {
        if !self.behaviour.idpt {
            // As for every ioctl that a driver does not know.
            return Err(Errno::NOTTY);
        }
        match kind {
            Kind::WindowSettle => Ok(Arc::clone(&self.settling)),
            Kind::WindowFault => {
                let mut packet = [0; size_of::<Request>() + size_of::<WindowFault>()];
                rustix::net::recv(connection, &mut packet, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
                let secret = &packet[size_of::<Request>()..][..WINDOW_SECRET];
                lock(&self.windows).of_secret(secret).map(|window| Arc::clone(&window.requests)).ok_or(Errno::INVAL)
            }
            _ => self.own_file(head.open, head.space).map(|file| Arc::clone(&file.window_requests)),
        }
    }

    fn own_file(&self, open: u64, space: u64) -> Result<Arc<super::files::OpenFile>, Errno> {
        let file = self.file(open)?;
        if space == 0 || file.space() != space { Err(Errno::PERM) } else { Ok(file) }
    }

    fn client(&self, head: &Request) -> Result<(Client, IdCap), Errno> {
        let file = self.own_file(head.open, head.space)?;
        let (info, opened) = (&file.info, &file.opened);
        let client = Client { file: info.open, device: info.device, pasid: opened.pasid, space: head.space };
        match opened.id_cap {
            0 => Err(Errno::OPNOTSUPP),
            id_cap => Ok((client, IdCap([id_cap]))),
        }
    }

    fn answer_window(&self, connection: &OwnedFd) -> Result<Answer, Errno> {
        let (packet, descriptor) = receive(connection)?;
        let request = ParsedRequest::read(&packet)?;
        let (head, data) = (&request.head, request.data);
        match request.kind {
            Kind::WindowCreate => {
                let create = parse::<WindowCreate>(data)?;
                let memory = ProcessMemory::received(descriptor.ok_or(Errno::INVAL)?).map_err(|_| Errno::INVAL)?;
                self.create_window(head, &create, memory)
            }
            Kind::WindowAttach => {
                let (client, _) = self.client(head)?;
                let mut windows = lock(&self.windows);
                let handle = windows.attach(client, data)?;
                self.still_open(client, &mut windows)?;
                Ok(Answer { value: handle.into(), ..Answer::default() })
            }
            Kind::Windows => {
                let (client, _) = self.client(head)?;
                Ok(Answer { data: lock(&self.windows).listed(client).as_bytes().to_vec(), ..Answer::default() })
            }
            Kind::WindowRead => {
                let (window, client, access) = self.accessed(head, data)?;
                let mut bytes = vec![0; access.len as usize];
                let permitted = window.enter(client, access.address, access.len.into(), false)?;
                let read = done(permitted.memory.read(access.address, &mut bytes), bytes.len());
                bytes.truncate(read);
                Ok(Answer { data: bytes, ..Answer::default() })
            }
            Kind::WindowWrite => {
                let (window, client, access) = self.accessed(head, data)?;
                let bytes = data.get(size_of::<WindowAccess>()..).filter(|bytes| bytes.len() == access.len as usize);
                let bytes = bytes.ok_or(Errno::INVAL)?;
                let permitted = window.enter(client, access.address, access.len.into(), true)?;
                let written = done(permitted.memory.write(access.address, bytes), bytes.len());
                Ok(Answer { value: written as u64, ..Answer::default() })
            }
            Kind::WindowTouch => {
                let (window, client, access) = self.accessed(head, data)?;
                let permitted = window.enter(client, access.address, 1, head.argument == 1)?;
                permitted.memory.read(access.address, &mut [0]).map_err(|_| Errno::FAULT)?;
                Ok(Answer::default())
            }
            Kind::WindowUpdate => {
                let (client, id_cap) = self.client(head)?;
                let window = lock(&self.windows).update(client, &parse::<WindowUpdate>(data)?, id_cap)?;
                window.settle();
                Ok(Answer::default())
            }
            Kind::WindowFault => self.fault(&parse::<WindowFault>(data)?),
            Kind::WindowSettle => {
                let closed = lock(&self.windows).closed_by(head.space);
                closed.iter().for_each(|window| window.settle());
                Ok(Answer::default())
            }
            // The head was looked at before; this is another packet.
            _ => Err(Errno::INVAL),
        }
    }

    fn create_window(&self, head: &Request, create: &WindowCreate, memory: ProcessMemory) -> Result<Answer, Errno> {
        let (client, id_cap) = self.client(head)?;
        let limits = Limits::of_create(create, id_cap)?;
        let mut secret = [0; WINDOW_SECRET];
        if getrandom(&mut secret, GetRandomFlags::empty())? != secret.len() {
            return Err(Errno::AGAIN);
        }
        let (end, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::send(&end, &secret, SendFlags::NOSIGNAL)?;
        let mut windows = lock(&self.windows);
        let number = windows.next_number();
        let name = SocketAddrUnix::new_abstract_name(WindowName(number).to_text(&self.name).as_bytes())?;
        rustix::net::bind(&theirs, &name)?;
        epoll::add(&self.ends, &end, epoll::EventData::new_u64(WINDOW | number), epoll::EventFlags::HUP)?;
        // On an error, and when the window is closed, dropping the end removes it from epoll.
        let kind = (Windows::is_for_several(create), limits);
        let handle = windows.add((number, secret, end), client, kind, memory, id_cap.entries())?;
        self.still_open(client, &mut windows)?;
        Ok(Answer { value: handle.into(), end: Some(theirs), ..Answer::default() })
    }

    /// Undoes a change for a file that was released meanwhile, after what was known of it was removed.
    fn still_open(&self, client: Client, windows: &mut Windows) -> Result<(), Errno> {
        let open = self.file(client.file).map(drop);
        open.inspect_err(|_| windows.release_file(client.file))
    }

    /// The window that an access names, and the file that it is for.
    fn accessed(&self, head: &Request, data: &[u8]) -> Result<(Arc<Window>, Client, WindowAccess), Errno> {
        let (client, _) = self.client(head)?;
        let (access, _) = WindowAccess::read_from_prefix(data).map_err(|_| Errno::INVAL)?;
        if access.len as usize > WINDOW_BYTES {
            return Err(Errno::INVAL);
        }
        let windows = lock(&self.windows);
        let window = windows.of_handle(client.device, access.handle).ok_or(Errno::ACCESS)?;
        Ok((Arc::clone(window), client, access))
    }

    /// IDXD_WIN_FAULT: brings in the pages of a range of a window.
    fn fault(&self, fault: &WindowFault) -> Result<Answer, Errno> {
        let WindowFault { offset, len, write, .. } = *fault;
        let window = lock(&self.windows).of_secret(&fault.secret).cloned().ok_or(Errno::INVAL)?;
        if write > 1 || len == 0 {
            return Err(Errno::INVAL);
        }
        let (permitted, first) = window.enter_at(offset, len, write == 1)?;
        drop(permitted);
        // Each page is checked again: a long range does not keep the owner from closing its window.
        let mut at = 0;
        while at < len {
            let (permitted, address) = window.enter_at(offset + at, 1, write == 1)?;
            permitted.memory.read(address, &mut [0]).map_err(|_| Errno::FAULT)?;
            at += PAGE - first.wrapping_add(at) % PAGE;
        }
        Ok(Answer::default())
    }
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
