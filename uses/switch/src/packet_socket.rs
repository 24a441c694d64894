//! Packet sockets on a network interface: the requests to the kernel, and the ring of received frames that it shares.
//!
//! Frames are received through a ring of slots (`TPACKET_V2`): the kernel fills a slot and marks it, and this process
//! gives it back. A frame that is longer than a slot is received whole through the socket besides, in the same order
//! (`PACKET_COPY_THRESH`). Slots are used instead of the blocks of `TPACKET_V3`, because the kernel shows a block that
//! is not full only after a timeout of a millisecond or more.
//!
//! Frames are sent by `sendmmsg`, which copies them, and not through a ring (`PACKET_TX_RING`). With a ring the kernel
//! sends its very pages, and reports them as free when the receiver is on this system and has not read them yet, as
//! behind a veth pair. The next frame would then overwrite a frame that is still to be read.
//!
//! Sources: packet(7); the kernel's Documentation/networking/packet_mmap.rst; UAPI linux/if_packet.h.
#![allow(unsafe_code, reason = "maps a ring that the kernel writes, and options and requests of sockets")]

use crate::segments::OFFLOAD_BYTES;
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use telpher_os::ioctl_number;
use telpher_vhost::Packets;

/// Bytes of a block of the ring: contiguous memory of the kernel. Source: chosen; packet_mmap.rst: a block is a power
/// of two of pages. The kernel finds 32 pages in sequence on all but the most fragmented systems.
const BLOCK: usize = 128 << 10;
/// The longest frame that fits a slot; longer ones are received through the socket. Source: chosen, jumbo frames.
const LONGEST_IN_SLOT: usize = 9216;
/// Bytes of a slot before its frame. Source: packet_mmap.rst: the header and an address, aligned to 16 bytes, with room
/// for an Ethernet header of 16 bytes; and the offload header.
const BEFORE_FRAME: usize = 96;
/// Bytes of frames longer than a slot that wait in the socket. Source: chosen: 16 large frames of 64 KiB, which take
/// twice their size.
const WAITING_BYTES: libc::c_int = 4 << 20;
/// The most frames of one system call. Source: the default of `--burst`.
const TOGETHER: usize = 32;

/// An interface as the kernel sees it now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// Its number, which no other interface ever gets.
    pub(crate) index: i32,
    /// Whether it is up.
    pub(crate) up: bool,
    /// Whether its frames have an Ethernet header.
    pub(crate) ethernet: bool,
}

/// A packet socket for requests about interfaces; it receives nothing.
#[derive(Debug)]
pub(crate) struct Inquiry(OwnedFd);

impl Inquiry {
    /// Opens the socket, if this process may use packet sockets.
    pub(crate) fn open() -> io::Result<Inquiry> {
        socket().map(Inquiry)
    }

    /// Finds an interface by its name; `None` if there is none.
    pub(crate) fn find(&self, name: &str) -> io::Result<Option<Found>> {
        // SAFETY: all zeros are a valid request: an empty name.
        let mut request: libc::ifreq = unsafe { zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
            return Ok(None);
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        let ask = |what: libc::c_ulong, mut request: libc::ifreq| {
            // SAFETY: the three requests below read a name and write one `ifreq`, which lives; the socket is open.
            match unsafe { libc::ioctl(self.0.as_raw_fd(), ioctl_number(what), &raw mut request) } {
                0 => Ok(Some(request.ifr_ifru)),
                _ => match io::Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
                    error => Err(error),
                },
            }
        };
        let Some(number) = ask(libc::SIOCGIFINDEX, request)? else { return Ok(None) };
        let Some(flags) = ask(libc::SIOCGIFFLAGS, request)? else { return Ok(None) };
        let Some(address) = ask(libc::SIOCGIFHWADDR, request)? else { return Ok(None) };
        // SAFETY: each request has written the field that is read here; all are plain numbers.
        let (index, flags, kind) = unsafe { (number.ifru_ifindex, flags.ifru_flags, address.ifru_hwaddr.sa_family) };
        let up = libc::c_int::from(flags) & libc::IFF_UP != 0;
        Ok(Some(Found { index, up, ethernet: [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&kind) }))
    }
}

/// A received frame. While this exists, its slot belongs to this process.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// Its bytes, without a VLAN tag.
    pub(crate) bytes: &'a [u8],
    /// What its sender left to the network card.
    pub(crate) offload: &'a [u8; OFFLOAD_BYTES],
    /// Its VLAN tag, which the kernel has taken out.
    pub(crate) tag: Option<[u8; 4]>,
    /// Whether the frame is longer than these bytes.
    pub(crate) is_cut: bool,
    /// Whether the whole frame is also in the socket, and must be received from there.
    pub(crate) in_socket: bool,
}

/// A socket that receives frames.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: OwnedFd,
    /// The mapped ring, until this is dropped.
    ring: NonNull<u8>,
    bytes: usize,
    slot: usize,
    slots: usize,
    /// The slot of the next frame.
    next: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and only this value accesses it.
unsafe impl Send for Receiver {}

/// A group of sockets among which the kernel divides an interface's frames by their flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FanoutGroup(u16);

impl Receiver {
    /// Opens a socket with a ring of about `slots` frames. It receives no frames yet: see [`start`](Receiver::start).
    pub(crate) fn open(longest: usize, slots: usize) -> io::Result<Receiver> {
        let socket = socket()?;
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &1)?;
        // Without it, frames that this process sends would come back.
        set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &1)?;
        // Needs a right (CAP_NET_ADMIN); without it the system's limit holds.
        if set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &WAITING_BYTES).is_err() {
            set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &WAITING_BYTES)?;
        }
        // An odd number of cache lines, so that slots do not all start in the same cache sets.
        let slot = ((BEFORE_FRAME + longest.min(LONGEST_IN_SLOT)).div_ceil(64) | 1) * 64;
        let per_block = BLOCK / slot;
        let blocks = slots.div_ceil(per_block);
        let (slots, bytes) = (blocks * per_block, blocks * BLOCK);
        let word = |number: usize| libc::c_uint::try_from(number).expect("rings are smaller than 4 GiB");
        let request = libc::tpacket_req {
            tp_block_size: word(BLOCK),
            tp_block_nr: word(blocks),
            tp_frame_size: word(slot),
            tp_frame_nr: word(slots),
        };
        set(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        // SAFETY: without MAP_FIXED the system picks an unused range; the socket is open.
        let ring = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            libc::mmap(ptr::null_mut(), bytes, protection, flags, socket.as_raw_fd(), 0)
        };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = NonNull::new(ring.cast()).expect("mmap gives no null page without MAP_FIXED");
        Ok(Receiver { socket, ring, bytes, slot, slots, next: 0 })
    }

    /// Begins to receive all frames that arrive at an interface, also those for other addresses. With `shared`, frames
    /// are divided among the sockets of a group: the first creates it, the others get it as `group`. They receive from
    /// [`admit`](Receiver::admit) on.
    pub(crate) fn start(
        &self,
        index: i32,
        shared: bool,
        group: Option<FanoutGroup>,
    ) -> io::Result<Option<FanoutGroup>> {
        if shared {
            // Until it has joined its group, a socket would receive all frames.
            self.stop()?;
        }
        bind(&self.socket, index, ALL_PROTOCOLS)?;
        let promiscuous = libc::c_ushort::try_from(libc::PACKET_MR_PROMISC).expect("a small number");
        let everything = libc::packet_mreq { mr_ifindex: index, mr_type: promiscuous, mr_alen: 0, mr_address: [0; 8] };
        set(&self.socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &everything)?;
        if !shared {
            return Ok(None);
        }
        let kind = libc::PACKET_FANOUT_HASH | libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING;
        let number = match group {
            Some(FanoutGroup(number)) => libc::c_uint::from(number) | kind << 16,
            // The kernel chooses a number that no other program uses.
            None => (kind | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16,
        };
        set(&self.socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &number)?;
        let mut joined: libc::c_uint = 0;
        get(&self.socket, libc::PACKET_FANOUT, &mut joined)?;
        Ok(Some(FanoutGroup((joined & 0xffff) as u16)))
    }

    /// Receives nothing more; the frames in the ring stay.
    pub(crate) fn stop(&self) -> io::Result<()> {
        let mut none = libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 };
        let program = libc::sock_fprog { len: 1, filter: &raw mut none };
        set(&self.socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Receives from now on, after [`stop`](Receiver::stop).
    pub(crate) fn admit(&self) -> io::Result<()> {
        set(&self.socket, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)
    }

    /// The address of the next frame's slot.
    fn at(&self) -> *mut u8 {
        let per_block = BLOCK / self.slot;
        let offset = self.next / per_block * BLOCK + self.next % per_block * self.slot;
        // SAFETY: `next` is below `slots`, so that the slot lies in the mapping.
        unsafe { self.ring.as_ptr().add(offset) }
    }

    /// The word with which the kernel and this process give each other the next slot.
    fn status(&self) -> &AtomicU32 {
        // SAFETY: a slot begins with its header, at a multiple of 64 bytes; the mapping outlives the reference. The
        // kernel writes the word at any time, which an atomic allows.
        unsafe { AtomicU32::from_ptr(self.at().add(offset_of!(libc::tpacket2_hdr, tp_status)).cast()) }
    }

    /// Returns the next frame, if there is one.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Frame<'_>> {
        // Acquire: pairs with the kernel's barrier before it sets the status; the slot is complete.
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot starts with this header, which the kernel has written, and does not write again before the
        // slot is given back. That needs `&mut self`, so no `Frame` exists then.
        let header: &libc::tpacket2_hdr = unsafe { &*self.at().cast() };
        // The kernel writes within the slot; the limits hold even if it did not.
        let start = usize::from(header.tp_mac).clamp(OFFLOAD_BYTES, self.slot);
        let len = (header.tp_snaplen as usize).min(self.slot - start);
        // SAFETY: both ranges lie in the slot, by the limits above; who writes the slot is said above.
        let (offload, bytes) = unsafe {
            let frame = self.at().add(start);
            (&*frame.sub(OFFLOAD_BYTES).cast(), std::slice::from_raw_parts(frame, len))
        };
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            // Without it, the customer's tag (IEEE 802.1Q §9.6).
            let [a, b] = if known { header.tp_vlan_tpid } else { 0x8100 }.to_be_bytes();
            let [c, d] = header.tp_vlan_tci.to_be_bytes();
            [a, b, c, d]
        });
        let is_cut = header.tp_len as usize > len;
        Some(Frame { bytes, offload, tag, is_cut, in_socket: status & libc::TP_STATUS_COPY != 0 })
    }

    /// Gives the slot of the frame that [`peek`](Receiver::peek) returned back to the kernel.
    #[inline]
    pub(crate) fn give_back(&mut self) {
        // Release: pairs with the kernel's read of the status; this process has read the slot.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
    }

    /// Receives a frame that was longer than its slot: its offload header, then its bytes. Returns their number, which
    /// exceeds `into` if the frame does.
    pub(crate) fn receive_whole(&self, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the slice lives and has that many bytes; the socket is open.
        let len = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            libc::recv(self.socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags)
        };
        usize::try_from(len).map_err(|_| io::Error::last_os_error())
    }

    /// Returns how many frames the kernel dropped since the last call, since it had no free slot.
    pub(crate) fn dropped(&self) -> u64 {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        // On an error there are no numbers; none is expected.
        let _ = get(&self.socket, libc::PACKET_STATISTICS, &mut stats);
        stats.tp_drops.into()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no `Frame` borrows it.
        unsafe { libc::munmap(self.ring.as_ptr().cast(), self.bytes) };
    }
}

/// A socket that sends frames.
#[derive(Debug)]
pub(crate) struct Sender(OwnedFd);

impl Sender {
    /// Opens a socket that sends through an interface.
    pub(crate) fn open(index: i32) -> io::Result<Sender> {
        let socket = socket()?;
        bind(&socket, index, 0)?;
        Ok(Sender(socket))
    }

    /// Sends frames from the first on, and returns how many the kernel took. An error concerns the first frame.
    pub(crate) fn send(&self, packets: &Packets) -> io::Result<usize> {
        // SAFETY: all zeros are valid: no bytes and no messages.
        let (mut parts, mut messages): ([libc::iovec; TOGETHER], [libc::mmsghdr; TOGETHER]) = unsafe { zeroed() };
        let mut count = 0;
        for ((packet, part), message) in packets.iter().zip(&mut parts).zip(&mut messages) {
            // The kernel only reads it.
            *part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: the first `count` messages have one part each, whose bytes live as long as `packets` is borrowed; the
        // socket is open.
        let sent = unsafe { libc::sendmmsg(self.0.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// `BPF_RET | BPF_K`. Source: UAPI linux/bpf_common.h, linux/filter.h.
const RETURN: u16 = 0x06;
/// `ETH_P_ALL`, as a packet socket takes it: most significant byte first.
const ALL_PROTOCOLS: u16 = 3_u16.to_be();

/// Opens a packet socket that receives nothing yet.
fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: three numbers; a descriptor that is returned belongs to this process alone.
    unsafe {
        match libc::socket(libc::AF_PACKET, kind, 0) {
            ..0 => Err(io::Error::last_os_error()),
            file => Ok(OwnedFd::from_raw_fd(file)),
        }
    }
}

/// Connects a socket to an interface.
fn bind(socket: &OwnedFd, index: i32, protocol: u16) -> io::Result<()> {
    let family = libc::c_ushort::try_from(libc::AF_PACKET).expect("a small number");
    let address = libc::sockaddr_ll {
        sll_family: family,
        sll_protocol: protocol,
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let bytes = libc::socklen_t::try_from(size_of_val(&address)).expect("a small structure");
    // SAFETY: the address lives and has that many bytes; the socket is open.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets an option of a socket. The type must be that of the option.
fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let bytes = libc::socklen_t::try_from(size_of::<T>()).expect("a small structure");
    // SAFETY: the kernel reads that many bytes of a value that lives. All callers are in this file, and give a value of
    // the option's type; the filter's program lives until the call returns.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(value).cast(), bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option of a packet socket.
fn get<T>(socket: &OwnedFd, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut bytes = libc::socklen_t::try_from(size_of::<T>()).expect("a small structure");
    let value = ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most that many bytes of a value that lives, plain numbers; the socket is open.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value, &raw mut bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
