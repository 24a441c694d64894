//! The bare loop: what a target cannot avoid. It receives capsules and sends data that lies ready, with eight replies
//! for each writev, and looks at nothing but the command's identifier and first block.

use super::driver::HEADER;
use super::target::{BLOCK_BYTES, NAMESPACE_BYTES, failed};
use crate::BenchError;
use crate::ffi::ThreadClock;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use telpher_nvmf::command::Completion;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::load::stamp::Stamp;
use telpher_nvmf::pdu::{self, CapsuleResp, DataHeader, Kind, LAST};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

/// Replies of one writev. Source: issue.
const REPLIES: usize = 8;
/// Bytes of a Read's capsule.
const CAPSULE: usize = 72;
/// Where a capsule has the command's identifier, and the first block.
const CAPSULE_ID: usize = 10;
const CAPSULE_FIRST: usize = 48;

/// The loop, on a thread of its own.
#[derive(Debug)]
pub(super) struct BareLoop {
    pub(super) address: SocketAddr,
    clock: ThreadClock,
    thread: Option<JoinHandle<()>>,
}

impl BareLoop {
    /// Starts the loop on `cpu`. Reads have this many bytes.
    pub(super) fn start(cpu: usize, bytes: u32) -> Result<BareLoop, BenchError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("the bare loop"))?;
        let address = listener.local_addr().map_err(failed("the bare loop"))?;
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let _ = telpher_os::run_on(&[cpu]);
            let memory = memory();
            let _ = sender.send(ThreadClock::of_this_thread());
            // An error ends the connection, and so the measurement.
            let _ = listener.accept().and_then(|(socket, _)| serve(socket, &memory, bytes));
        });
        let clock = receiver.recv().expect("the thread sends its clock").map_err(failed("the clock of a thread"))?;
        Ok(BareLoop { address, clock, thread: Some(thread) })
    }

    /// The CPU time that the loop has used.
    pub(super) fn cpu(&self) -> Duration {
        self.clock.read().unwrap_or_default()
    }
}

impl Drop for BareLoop {
    fn drop(&mut self) {
        // If no host has connected, this connection ends the thread.
        let _ = TcpStream::connect(self.address).and_then(|socket| socket.shutdown(Shutdown::Both));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The same bytes as a filled namespace of the target.
fn memory() -> Vec<u8> {
    let blocks = NAMESPACE_BYTES / u64::from(BLOCK_BYTES);
    let mut memory = vec![0; usize::try_from(NAMESPACE_BYTES).expect("it is in memory")];
    for (block, bytes) in (0..blocks).zip(memory.chunks_exact_mut(BLOCK_BYTES as usize)) {
        Stamp { run: 1, block, generation: 1 }.write(bytes);
    }
    memory
}

/// The header of the data and the response of a reply; the command's identifier is missing.
fn templates(bytes: u32) -> (Vec<u8>, Vec<u8>) {
    let header = DataHeader {
        common: pdu::blank(),
        cccid: U16::ZERO,
        ttag: U16::ZERO,
        datao: U32::ZERO,
        datal: U32::new(bytes),
        reserved: U32::ZERO,
    };
    let response = CapsuleResp { common: pdu::blank(), completion: Completion::new_zeroed() };
    let none = Digests::default();
    let header = pdu::build(Kind::C2hData, LAST, header.as_bytes(), bytes as usize, none, 4);
    let response = pdu::build(Kind::CapsuleResp, 0, response.as_bytes(), 0, none, 4);
    (header, response)
}

fn serve(mut socket: TcpStream, memory: &[u8], bytes: u32) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (mut header, mut response) = templates(bytes);
    let mut input = vec![0; 64 << 10];
    let mut have = 0;
    // Headers and responses of one writev, one after the other.
    let mut small = Vec::with_capacity(REPLIES * 2 * HEADER);
    loop {
        let count = socket.read(&mut input[have..])?;
        if count == 0 {
            return Ok(());
        }
        have += count;
        let whole = have - have % CAPSULE;
        for group in input[..whole].chunks(REPLIES * CAPSULE) {
            small.clear();
            let mut data = Vec::with_capacity(REPLIES);
            for capsule in group.chunks_exact(CAPSULE) {
                let id = &capsule[CAPSULE_ID..CAPSULE_ID + 2];
                header[8..10].copy_from_slice(id);
                response[20..22].copy_from_slice(id);
                small.extend_from_slice(&header);
                small.extend_from_slice(&response);
                let first = capsule[CAPSULE_FIRST..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                let start = usize::try_from(first).unwrap_or(usize::MAX).saturating_mul(BLOCK_BYTES as usize);
                let slice = memory.get(start..).and_then(|rest| rest.get(..bytes as usize));
                data.push(slice.ok_or(io::ErrorKind::InvalidData)?);
            }
            send(&mut socket, &small, &data)?;
        }
        input.copy_within(whole..have, 0);
        have -= whole;
    }
}

fn send(socket: &mut TcpStream, small: &[u8], data: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(REPLIES * 3);
    for (ends, data) in small.chunks_exact(2 * HEADER).zip(data) {
        let (header, response) = ends.split_at(HEADER);
        slices.extend([header, *data, response].map(IoSlice::new));
    }
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let count = socket.write_vectored(rest)?;
        IoSlice::advance_slices(&mut rest, count);
    }
    Ok(())
}
