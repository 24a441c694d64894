//! A proxy between a host and a target: it logs each PDU, and injects a chosen fault into PDUs of a chosen type.
//!
//! It relies on PLEN only, so it passes everything on that a correct peer sends, with any digests.

use std::collections::VecDeque;
use std::fmt;
use std::io::{Read, Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use telpher_nvmf::pdu::{Kind, Receiver};
use telpher_nvmf::status::Status;

/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
/// PDUs that the log keeps, the last ones.
const LOG_ENTRIES: usize = 100_000;

/// A bit of a PDU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FlippedBit {
    /// Bit 0 of this byte of the header.
    Header(usize),
    /// Bit 0 of this byte of the data.
    Data(usize),
}

/// What happens to a PDU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// One bit is inverted.
    Flip(FlippedBit),
    /// The PDU arrives later.
    Delay(Duration),
    /// The connection is closed before the PDU.
    Cut,
    /// The PDU arrives after the one behind it, if that has already come and belongs to another command.
    Swap,
}

/// A fault, and the PDUs that have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// The type of the PDUs.
    pub(crate) kind: Kind,
    /// The fewest bytes of data that such a PDU has.
    pub(crate) least_data: usize,
    /// Such PDUs that pass before the first one with the fault.
    pub(crate) skip: u32,
    /// From there on, one of this many such PDUs has the fault.
    pub(crate) one_of: u32,
    /// The most PDUs with the fault.
    pub(crate) most: u32,
    pub(crate) action: Action,
}

impl Fault {
    /// A fault of each PDU of this type.
    pub(crate) fn each(kind: Kind, action: Action) -> Fault {
        Fault { kind, least_data: 0, skip: 0, one_of: 1, most: u32::MAX, action }
    }

    /// The fewest bytes of data that a PDU with the fault has.
    fn least(&self) -> usize {
        self.least_data.max(usize::from(matches!(self.action, Action::Flip(FlippedBit::Data(_)))))
    }
}

/// A logged PDU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The connection, counted from 0.
    pub(crate) connection: u32,
    pub(crate) sender: Sender,
    /// The type, unless it is unknown.
    pub(crate) kind: Option<Kind>,
    pub(crate) flags: u8,
    /// The command's identifier, if PDUs of this type have one.
    pub(crate) cid: Option<u16>,
    /// The status in a response.
    pub(crate) status: Option<Status>,
    /// Bytes of the whole PDU.
    pub(crate) len: usize,
    /// The PDU had the fault.
    pub(crate) has_fault: bool,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { connection, sender, kind, flags, cid, status, len, has_fault } = self;
        let kind = kind.map_or_else(|| "unknown type".into(), |kind| format!("{kind:?}"));
        let cid = cid.map_or_else(String::new, |cid| format!(" command {cid}"));
        let status = status.map_or_else(String::new, |status| format!(" {status:?}"));
        let fault = if *has_fault { " FAULT" } else { "" };
        write!(f, "{connection} {sender:?}: {kind}{cid}{status} flags {flags:#x}, {len} bytes{fault}")
    }
}

/// The end that sent a PDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sender {
    Host,
    Target,
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// PDUs that the current fault could have had.
    candidates: u32,
    /// PDUs that had the current fault.
    faults: u32,
    connections: u32,
    log: VecDeque<Entry>,
}

/// A proxy in front of a target. Its threads end with their connections; the one that accepts ends with the process.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Proxy {
    /// Starts a proxy without faults.
    pub(crate) fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = Proxy { address: listener.local_addr().expect("an address"), state: Arc::default() };
        let state = Arc::clone(&proxy.state);
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let Ok(target) = TcpStream::connect(target) else { continue };
                let pair = (host.try_clone(), target.try_clone());
                let (Ok(host_again), Ok(target_again)) = pair else { continue };
                let connection = {
                    let mut state = lock(&state);
                    state.connections += 1;
                    state.connections - 1
                };
                let (one, other) = (Arc::clone(&state), Arc::clone(&state));
                std::thread::spawn(move || {
                    Direction { state: one, connection, sender: Sender::Host }.pass(host, target)
                });
                std::thread::spawn(move || {
                    Direction { state: other, connection, sender: Sender::Target }.pass(target_again, host_again);
                });
            }
        });
        proxy
    }

    /// Injects another fault from now on, or none.
    pub(crate) fn inject(&self, fault: Option<Fault>) {
        let mut state = lock(&self.state);
        (state.fault, state.candidates, state.faults) = (fault, 0, 0);
    }

    /// The number of PDUs that had the current fault.
    pub(crate) fn faults(&self) -> u32 {
        lock(&self.state).faults
    }

    /// The last PDUs.
    pub(crate) fn log(&self) -> Vec<Entry> {
        lock(&self.state).log.iter().copied().collect()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A thread that panics while it holds the lock leaves numbers that are still right.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One direction of a connection.
struct Direction {
    state: Arc<Mutex<State>>,
    connection: u32,
    sender: Sender,
}

impl Direction {
    /// Passes on what arrives, until one end closes.
    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        let _ = to.set_nodelay(true);
        // An error is the end of the connection.
        let _ = self.pass_pdus(&mut from, &mut to);
        for socket in [from, to] {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn pass_pdus(&self, from: &mut TcpStream, to: &mut TcpStream) -> Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        let mut waiting = Vec::new();
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                return to.write_all(&waiting);
            }
            waiting.extend_from_slice(&buffer[..count]);
            let mut pdus = Vec::new();
            while let Some(len) = whole_pdu(&waiting) {
                let rest = waiting.split_off(len);
                pdus.push(std::mem::replace(&mut waiting, rest));
            }
            let mut index = 0;
            while index < pdus.len() {
                match self.fault_of(&pdus[index]) {
                    None => {}
                    Some(Action::Flip(place)) => flip(&mut pdus[index], place),
                    Some(Action::Delay(time)) => std::thread::sleep(time),
                    Some(Action::Cut) => return Ok(()),
                    Some(Action::Swap) if pdus.get(index + 1).is_some_and(|next| can_pass(next, &pdus[index])) => {
                        pdus.swap(index, index + 1);
                        to.write_all(&pdus[index])?;
                        index += 1;
                        self.count_fault();
                    }
                    Some(Action::Swap) => {}
                }
                to.write_all(&pdus[index])?;
                index += 1;
            }
        }
    }

    /// Logs a PDU, and returns the fault that it gets.
    fn fault_of(&self, pdu: &[u8]) -> Option<Action> {
        let mut state = lock(&self.state);
        let kind = kind(pdu, self.sender);
        let mut action = None;
        if let Some(fault) = state.fault
            && Some(fault.kind) == kind
            && data(pdu).len() >= fault.least()
            && state.faults < fault.most
        {
            let number = state.candidates.checked_sub(fault.skip);
            if number.is_some_and(|number| number.is_multiple_of(fault.one_of)) {
                action = Some(fault.action);
            }
            state.candidates += 1;
        }
        // Whether PDUs can be swapped is known later.
        let has_fault = action.is_some_and(|action| !matches!(action, Action::Swap));
        state.faults += u32::from(has_fault);
        if state.log.len() == LOG_ENTRIES {
            state.log.pop_front();
        }
        let (connection, sender) = (self.connection, self.sender);
        let (flags, cid, status, len) = (pdu[1], command(pdu), status(pdu), pdu.len());
        state.log.push_back(Entry { connection, sender, kind, flags, cid, status, len, has_fault });
        action
    }

    fn count_fault(&self) {
        lock(&self.state).faults += 1;
    }
}

/// The length of the first PDU, once all of it is there.
fn whole_pdu(bytes: &[u8]) -> Option<usize> {
    let plen = bytes.get(4..8)?;
    let len = u32::from_le_bytes([plen[0], plen[1], plen[2], plen[3]]) as usize;
    // A peer that violates the protocol sends such a length; then the bytes at hand are passed on as they are.
    let len = if len < 8 { bytes.len() } else { len };
    (bytes.len() >= len).then_some(len)
}

fn kind(pdu: &[u8], sender: Sender) -> Option<Kind> {
    let receiver = if sender == Sender::Host { Receiver::Controller } else { Receiver::Host };
    Kind::of(pdu[0], receiver)
}

/// Returns whether a PDU may overtake another one: both belong to commands, but not to the same one.
fn can_pass(pdu: &[u8], other: &[u8]) -> bool {
    command(pdu).is_some() && command(other).is_some() && command(pdu) != command(other)
}

/// The identifier of the PDU's command.
fn command(pdu: &[u8]) -> Option<u16> {
    let at = match pdu[0] {
        // In the submission queue entry, and in the completion queue entry.
        4 => 10,
        5 => 20,
        6 | 7 | 9 => 8,
        _ => return None,
    };
    Some(u16::from_le_bytes([*pdu.get(at)?, *pdu.get(at + 1)?]))
}

fn status(pdu: &[u8]) -> Option<Status> {
    let bytes = pdu.get(22..24).filter(|_| pdu[0] == Kind::CapsuleResp as u8)?;
    Some(Status::from_word(u16::from_le_bytes([bytes[0], bytes[1]])))
}

/// The data of a PDU, without its digest.
fn data(pdu: &[u8]) -> &[u8] {
    let has_digest = pdu[1] & telpher_nvmf::pdu::HAS_DATA_DIGEST != 0;
    let end = pdu.len().saturating_sub(if has_digest { 4 } else { 0 });
    let start = usize::from(pdu[3]);
    if start == 0 { &[] } else { pdu.get(start..end).unwrap_or(&[]) }
}

fn flip(pdu: &mut [u8], place: FlippedBit) {
    let at = match place {
        FlippedBit::Header(byte) => byte,
        FlippedBit::Data(byte) => usize::from(pdu[3]) + byte.min(data(pdu).len() - 1),
    };
    pdu[at] ^= 1;
}
