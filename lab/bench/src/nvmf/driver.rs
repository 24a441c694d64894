//! The host of a measurement: it keeps reads in flight with as little work as possible, so that the target is the
//! slower side.
//!
//! It is not the load generator: it knows the size of every reply, and checks only the block number in each. So the
//! target and the bare loop get the same requests in the same way.

use super::target::{BLOCK_BYTES, NAMESPACE_BYTES, NQN, failed};
use crate::BenchError;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use telpher_nvmf::command::io::READ;
use telpher_nvmf::digest::{DIGEST_BYTES, Digests};
use telpher_nvmf::initiator::requests;
use telpher_nvmf::load::{Association, LoadOptions, Pattern};
use telpher_nvmf::pdu::{self, CapsuleCmd, Kind};
use telpher_os::Random;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U32, U64};

/// Commands in flight.
pub(super) const DEPTH: u16 = 32;
/// Bytes of the header of C2HData, and of a response.
pub(super) const HEADER: usize = 24;
/// Where a response has the command's identifier.
const RESPONSE_ID: usize = 20;
/// Where a response has the status.
const RESPONSE_STATUS: usize = 22;
/// Where a stamped block has its number.
const STAMPED_NUMBER: usize = 16;
/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(10);

/// A host with random reads of one size.
#[derive(Debug)]
pub(super) struct Driver {
    socket: TcpStream,
    /// Keeps the controller alive.
    _association: Option<Association>,
    random: Random,
    bytes: u32,
    /// Reads are of the first bytes of the namespace, this many.
    span: u64,
    reply_bytes: usize,
    /// The first block of each command, by its identifier.
    asked: Vec<u64>,
    input: Vec<u8>,
    have: usize,
    output: Vec<u8>,
}

impl Driver {
    /// Connects to a target. Reads have this many bytes, from the whole namespace.
    pub(super) fn connect(address: SocketAddr, bytes: u32, data_digest: bool) -> Result<Driver, BenchError> {
        let options = LoadOptions {
            digests: Digests { header: false, data: data_digest },
            keep_alive_ms: 600_000,
            ..LoadOptions::new(address, NQN, Pattern::RandRead4k)
        };
        let mut association = Association::connect(&options, 1)?;
        let (queue, _) = association.open_queue(DEPTH)?;
        let socket = queue.socket().try_clone().map_err(failed("the host's socket"))?;
        Driver::new(socket, Some(association), bytes, data_digest)
    }

    /// Connects to the bare loop, which expects neither ICReq nor Connect.
    pub(super) fn connect_bare(address: SocketAddr, bytes: u32) -> Result<Driver, BenchError> {
        let socket = TcpStream::connect(address).map_err(failed("the bare loop"))?;
        Driver::new(socket, None, bytes, false)
    }

    fn new(
        socket: TcpStream,
        association: Option<Association>,
        bytes: u32,
        data_digest: bool,
    ) -> Result<Driver, BenchError> {
        let prepare = || {
            socket.set_nonblocking(false)?;
            socket.set_nodelay(true)?;
            socket.set_read_timeout(Some(PATIENCE))
        };
        prepare().map_err(failed("the host's socket"))?;
        let digest = if data_digest { DIGEST_BYTES } else { 0 };
        let reply_bytes = HEADER + bytes as usize + digest + HEADER;
        Ok(Driver {
            socket,
            _association: association,
            random: Random::new(24),
            bytes,
            span: NAMESPACE_BYTES,
            reply_bytes,
            asked: vec![0; DEPTH.into()],
            input: vec![0; (256 << 10) + reply_bytes],
            have: 0,
            output: Vec::new(),
        })
    }

    /// The same host, with reads of the first `span` bytes only.
    pub(super) fn within(self, span: u64) -> Driver {
        Driver { span, ..self }
    }

    fn ask(&mut self, cid: u16) {
        let blocks = self.bytes / BLOCK_BYTES;
        let places = self.span / u64::from(self.bytes);
        let first = self.random.below(places) * u64::from(blocks);
        self.asked[usize::from(cid)] = first;
        let mut command = requests::blocks(READ, cid, 1, first, blocks);
        (command.sgl_address, command.sgl_length) = (U64::ZERO, U32::new(self.bytes));
        let capsule = CapsuleCmd { common: pdu::blank(), command };
        pdu::append(&mut self.output, Kind::CapsuleCmd, 0, capsule.as_bytes(), 0, Digests::default(), 4);
    }

    /// Keeps reads in flight for this time, and returns how many there were. Nothing is in flight afterwards.
    pub(super) fn run(&mut self, time: Duration) -> Result<u64, BenchError> {
        let deadline = Instant::now() + time;
        let (mut open, mut count) = (usize::from(DEPTH), 0);
        (0..DEPTH).for_each(|cid| self.ask(cid));
        loop {
            self.socket.write_all(&self.output).map_err(failed("the host's socket"))?;
            self.output.clear();
            if open == 0 {
                return Ok(count);
            }
            let read = self.socket.read(&mut self.input[self.have..]).map_err(failed("the host's socket"))?;
            if read == 0 {
                return Err(failed("the target")(std::io::ErrorKind::UnexpectedEof.into()));
            }
            self.have += read;
            let is_ending = Instant::now() >= deadline;
            let mut start = 0;
            while self.have - start >= self.reply_bytes {
                let cid = self.check(start)?;
                start += self.reply_bytes;
                count += 1;
                if is_ending {
                    open -= 1;
                } else {
                    self.ask(cid);
                }
            }
            self.input.copy_within(start..self.have, 0);
            self.have -= start;
        }
    }

    /// Checks the reply at an offset of the input, and returns the command's identifier.
    fn check(&self, start: usize) -> Result<u16, BenchError> {
        let reply = &self.input[start..start + self.reply_bytes];
        let response = &reply[self.reply_bytes - HEADER..];
        let half = |at: usize| u16::from_le_bytes([response[at], response[at + 1]]);
        let cid = half(RESPONSE_ID);
        let number = reply[HEADER + STAMPED_NUMBER..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let kinds = [reply[0], response[0]];
        let is_right = kinds == [Kind::C2hData as u8, Kind::CapsuleResp as u8]
            && half(RESPONSE_STATUS) == 0
            && self.asked.get(usize::from(cid)) == Some(&number);
        let wrong = || BenchError::Wrong { op: "read".into(), route: format!("{} bytes", self.bytes) };
        if is_right { Ok(cid) } else { Err(wrong()) }
    }
}
