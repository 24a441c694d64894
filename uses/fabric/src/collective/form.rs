//! How members agree on a group. Either all get one or none does, and all know why.
//!
//! ```text
//! all         exchange     version, machine, user, and whether each wants a group; rank 0's socket
//! others      connect to rank 0's socket, and send their rank
//! all         exchange     whether they have connected
//! rank 0      creates the memory, and sends it to all connections
//! all         exchange     whether that has worked
//! all         map the memory, and lock their byte of it
//! all         exchange     whether that has worked
//! ```
//!
//! Each step needs only what the steps before it have finished, so no member waits for another one outside of an
//! exchange.

use super::group::Group;
use super::layout::Layout;
use super::lock::MemberLock;
use crate::address::{ADDRESS_BYTES, Address};
use crate::connector::boot;
use crate::memory::{check_file, create_file};
use crate::socket::{is_of_user, socket, socket_name};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, accept_with, bind, connect, listen, recv, recvmsg, send, sendmsg,
};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use telpher_mem::SharedMapping;

/// The most members of a group. Source: chosen; their memory takes 16 MiB.
pub const MOST_MEMBERS: usize = 64;

/// Bytes that each member gives to an exchange.
pub const EXCHANGE_BYTES: usize = 80;

/// What a member gives to an exchange.
pub type ExchangeBytes = [u8; EXCHANGE_BYTES];

/// The version of the agreement and of the memory. It must be the same in all members.
const VERSION: u32 = 1;
/// Begins the packets between members. Source: chosen.
const MAGIC: [u8; 8] = *b"telpherG";
/// Bytes of the packet with which a member connects: the magic, rank 0's number, and its rank.
const JOIN_BYTES: usize = 24;
const VERSION_AT: usize = ADDRESS_BYTES;
const STATUS_AT: usize = ADDRESS_BYTES + 4;
const PROCESS_AT: usize = ADDRESS_BYTES + 8;
const _: () = assert!(PROCESS_AT + 8 <= EXCHANGE_BYTES);

/// Lets the members exchange bytes before they have a group, such as by MPI.
pub trait Exchange {
    /// Why an exchange failed.
    type Error;

    /// Gives the bytes of this member to all, and returns those of all members by rank. All members call it in the same
    /// order.
    ///
    /// # Errors
    /// The exchange is not possible any more.
    fn all_gather(&mut self, own: &ExchangeBytes) -> Result<Vec<ExchangeBytes>, Self::Error>;
}

/// What the members have agreed on.
#[derive(Debug)]
pub enum Formed {
    /// A group.
    Group(Box<Group>),
    /// There is no group.
    Refused {
        /// The first rank that has a reason.
        rank: usize,
        /// The reason: the rest of a sentence about the rank.
        reason: &'static str,
    },
}

/// Why a member cannot have a group. The order is that of [`Status::REASONS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Fine,
    NotWanted,
    NoSocket,
    NotConnected,
    NotAdmitted,
    NoMemory,
    NotMapped,
}

impl Status {
    const REASONS: [&str; 7] = [
        "has no reason",
        "does not want it",
        "cannot open a Unix socket",
        "cannot connect to the Unix socket of rank 0; all must have the same network namespace",
        "has not got the connections of all ranks",
        "cannot create the shared memory",
        "cannot map or lock the shared memory",
    ];

    fn reason(byte: u8) -> Option<&'static str> {
        (byte != Status::Fine as u8)
            .then(|| *Status::REASONS.get(usize::from(byte)).unwrap_or(&"is of another version"))
    }
}

/// Agrees with the other members of `ranks` on a group, in which this one has the number `rank`. All must call it. A
/// member that does not `want` a group makes all of them refuse.
///
/// # Errors
/// An exchange failed, so the members may disagree.
pub fn form<E: Exchange>(rank: usize, ranks: usize, want: bool, exchange: &mut E) -> Result<Formed, E::Error> {
    let (own, listener) = introduce(rank, want);
    let all = exchange.all_gather(&own)?;
    let founder = match check_introductions(&all, ranks) {
        Ok(founder) => founder,
        Err((rank, reason)) => return Ok(Formed::Refused { rank, reason }),
    };
    let connected = if rank == 0 { Ok(None) } else { join(&founder, rank).map(Some) };
    if let Some(refused) = agree(exchange, connected.as_ref().err())? {
        return Ok(refused);
    }
    let layout = Layout { members: ranks };
    let admitted = match &listener {
        Some(listener) if rank == 0 => admit(listener, &founder, layout).map(Some),
        _ => Ok(None),
    };
    if let Some(refused) = agree(exchange, admitted.as_ref().err())? {
        return Ok(refused);
    }
    let file = match (admitted, connected) {
        (Ok(Some(file)), _) => Ok(file),
        (_, Ok(Some(socket))) => receive(&socket, layout),
        _ => Err(Status::NotAdmitted),
    };
    let entered = file.and_then(|file| enter(file, rank, layout));
    if let Some(refused) = agree(exchange, entered.as_ref().err())? {
        return Ok(refused);
    }
    // All have agreed, so this member has a lock and a mapping.
    let Ok((lock, mapping)) = entered else {
        return Ok(Formed::Refused { rank, reason: Status::REASONS[Status::NotMapped as usize] });
    };
    let own_process = &own[PROCESS_AT..PROCESS_AT + 8];
    let is_here = all.iter().map(|other| &other[PROCESS_AT..PROCESS_AT + 8] == own_process).collect();
    Ok(Formed::Group(Box::new(Group::new(rank, layout, mapping, lock, is_here))))
}

/// Exchanges how a step went. Returns what ends the agreement, which is the same for all members.
fn agree<E: Exchange>(exchange: &mut E, problem: Option<&Status>) -> Result<Option<Formed>, E::Error> {
    let mut own = [0; EXCHANGE_BYTES];
    own[STATUS_AT] = *problem.unwrap_or(&Status::Fine) as u8;
    let all = exchange.all_gather(&own)?;
    let refused = all.iter().enumerate().find_map(|(rank, other)| Some((rank, Status::reason(other[STATUS_AT])?)));
    Ok(refused.map(|(rank, reason)| Formed::Refused { rank, reason }))
}

/// Returns what this member says of itself, and the socket that rank 0 opens.
fn introduce(rank: usize, want: bool) -> (ExchangeBytes, Option<OwnedFd>) {
    let mut own = [0; EXCHANGE_BYTES];
    own[VERSION_AT..STATUS_AT].copy_from_slice(&VERSION.to_le_bytes());
    own[PROCESS_AT..PROCESS_AT + 8].copy_from_slice(&this_process().to_le_bytes());
    let mut status = if want { Status::Fine } else { Status::NotWanted };
    let mut listener = None;
    match boot().ok().zip(random()) {
        None => status = Status::NoSocket,
        Some((boot, number)) => {
            let user = rustix::process::geteuid().as_raw();
            let address = Address { boot, user, process: std::process::id(), number };
            own[..ADDRESS_BYTES].copy_from_slice(&address.encode());
            if rank == 0 && want {
                listener = open(&address).ok();
                status = if listener.is_some() { Status::Fine } else { Status::NoSocket };
            }
        }
    }
    own[STATUS_AT] = status as u8;
    (own, listener)
}

/// Identifies this process among all on the machine: a group may have several members in one process, which cannot see
/// each other's locks.
fn this_process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| random().unwrap_or_default())
}

fn random() -> Option<u64> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty()).ok()?;
    Some(u64::from_ne_bytes(random))
}

/// Opens the socket of rank 0. All others can connect before it accepts.
fn open(address: &Address) -> Result<OwnedFd, Errno> {
    let listener = socket()?;
    bind(&listener, &socket_name(address)?)?;
    listen(&listener, i32::try_from(2 * MOST_MEMBERS).unwrap_or(i32::MAX))?;
    Ok(listener)
}

/// Checks what all members say of themselves, and returns the address of rank 0.
fn check_introductions(all: &[ExchangeBytes], ranks: usize) -> Result<Address, (usize, &'static str)> {
    if ranks > MOST_MEMBERS {
        return Err((MOST_MEMBERS, "is one more than a group can have"));
    }
    let first = all.first().and_then(|first| Address::decode(first));
    let Some(founder) = first.filter(|_| all.len() == ranks) else { return Err((0, "sent no introduction")) };
    for (rank, other) in all.iter().enumerate() {
        let is_version = other[VERSION_AT..STATUS_AT] == VERSION.to_le_bytes();
        let reason = match (Address::decode(other), Status::reason(other[STATUS_AT])) {
            _ if !is_version => Some("is of another version of telpher"),
            (_, Some(reason)) => Some(reason),
            (None, _) => Some("sent no introduction"),
            (Some(address), _) if address.boot != founder.boot => Some("is on another machine than rank 0"),
            (Some(address), _) if address.user != founder.user => Some("has another user than rank 0"),
            _ => None,
        };
        if let Some(reason) = reason {
            return Err((rank, reason));
        }
    }
    Ok(founder)
}

/// Connects to rank 0.
fn join(founder: &Address, rank: usize) -> Result<OwnedFd, Status> {
    let connected = || {
        let socket = socket()?;
        connect(&socket, &socket_name(founder)?)?;
        send(&socket, &packet(founder, rank), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok::<OwnedFd, Errno>(socket)
    };
    connected().ok().filter(|socket| is_of_user(socket, founder.user)).ok_or(Status::NotConnected)
}

fn packet(founder: &Address, rank: usize) -> [u8; JOIN_BYTES] {
    let mut packet = [0; JOIN_BYTES];
    packet[..8].copy_from_slice(&MAGIC);
    packet[8..16].copy_from_slice(&founder.number.to_le_bytes());
    packet[16..].copy_from_slice(&(rank as u64).to_le_bytes());
    packet
}

/// Accepts the connections, which all others have made, and sends them the memory.
fn admit(listener: &OwnedFd, founder: &Address, layout: Layout) -> Result<OwnedFd, Status> {
    let mut sockets: Vec<Option<OwnedFd>> = (0..layout.members).map(|_| None).collect();
    loop {
        let socket = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(_) => break,
        };
        let mut bytes = [0; JOIN_BYTES + 1];
        let len = recv(&socket, &mut bytes, RecvFlags::DONTWAIT).map_or(0, |(len, _)| len);
        let rank = (1..layout.members).find(|&rank| bytes[..len] == packet(founder, rank));
        // Others may connect to the socket, too; their connections are closed.
        if let Some(rank) = rank.filter(|_| is_of_user(&socket, founder.user)) {
            sockets[rank] = Some(socket);
        }
    }
    if sockets[1..].iter().any(Option::is_none) {
        return Err(Status::NotAdmitted);
    }
    let file = create_file(layout.total()).map_err(|_| Status::NoMemory)?;
    // All pages now, so that no access fails later for want of memory.
    fallocate(&file, FallocateFlags::empty(), 0, layout.total()).map_err(|_| Status::NoMemory)?;
    for socket in sockets.iter().flatten() {
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(socket, &[IoSlice::new(&MAGIC)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            .map_err(|_| Status::NotAdmitted)?;
    }
    Ok(file)
}

/// Receives the memory, which rank 0 has sent.
fn receive(socket: &OwnedFd, layout: Layout) -> Result<OwnedFd, Status> {
    let mut bytes = [0; MAGIC.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).map_err(|_| Status::NotMapped)?;
    let files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().last().filter(|_| bytes == MAGIC).ok_or(Status::NotMapped)?;
    check_file(file.as_fd(), layout.total()).map_err(|_| Status::NotMapped)?;
    Ok(file)
}

/// Maps the memory, and locks the byte of this member.
fn enter(file: OwnedFd, rank: usize, layout: Layout) -> Result<(MemberLock, Arc<SharedMapping>), Status> {
    let mapping = SharedMapping::map(file.as_fd(), 0, layout.total()).map_err(|_| Status::NotMapped)?;
    mapping.keep_from_children().map_err(|_| Status::NotMapped)?;
    let lock = MemberLock::take(file, rank).map_err(|_| Status::NotMapped)?;
    Ok((lock, Arc::new(mapping)))
}
