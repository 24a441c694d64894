//! The host's side of one connection as a state machine: for load generators, tests and hostile hosts.
//!
//! ```text
//! Initiator::new ─► ICReq ─► HostEvent::Initialised ─► send ─► HostEvent::Completed
//! ```
//!
//! It checks everything that the target sends, and ends with [`HostError`] if the target violates the protocol.
//!
//! Source: NVMe/TCP Transport 1.1 §3.

pub mod requests;

use crate::command::{Completion, SGL_IN_CAPSULE, SGL_TRANSPORT, Submission};
use crate::decoder::{Decoder, Event};
use crate::digest::{Digests, digest};
use crate::pdu::{
    self, CapsuleCmd, CapsuleResp, DataHeader, FatalError, IcReq, IcResp, Kind, LAST, Layout, R2t, Receiver, SUCCESS,
    TermReq, offset,
};
use std::collections::{HashMap, VecDeque};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// What the host asks for in ICReq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostOptions {
    /// The digests.
    pub digests: Digests,
    /// HPDA: data to the host is aligned to (HPDA + 1) × 4 bytes.
    pub alignment: u8,
    /// R2Ts that the host accepts for one command at once, at least 1.
    pub most_r2ts: u32,
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions { digests: Digests::default(), alignment: 0, most_r2ts: 1 }
    }
}

/// The data of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// No data.
    None,
    /// Data for the controller, in the capsule.
    InCapsule(Vec<u8>),
    /// Data for the controller, sent when it asks.
    OnRequest(Vec<u8>),
    /// This many bytes of data for the host.
    ToHost(u32),
}

/// What the initiator reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HostEvent {
    /// ICResp has come; commands may be sent.
    Initialised {
        /// The largest data of one H2CData.
        h2c_bytes: u32,
    },
    /// A command has completed.
    Completed {
        /// The completion. After a C2HData with the flag SUCCESS, it has only the identifier.
        completion: Completion,
        /// The data of a read.
        data: Vec<u8>,
        /// The data was complete, and its digests were right.
        is_intact: bool,
        /// A response came, and not only the flag SUCCESS.
        has_response: bool,
    },
    /// The controller ended the connection.
    Terminated {
        /// FES.
        fes: u16,
        /// FEI.
        fei: u32,
        /// The header at fault.
        header: Vec<u8>,
    },
}

/// How the target violated the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A PDU is invalid, or came at the wrong time.
    #[error("the target sent an invalid PDU")]
    Pdu(#[from] FatalError),
    /// ICResp is not what was asked for.
    #[error("the target answered ICReq with digests {digests:?}, alignment {alignment} and MAXH2CDATA {h2c_bytes}")]
    Parameters {
        /// Its digests.
        digests: Digests,
        /// CPDA.
        alignment: u8,
        /// MAXH2CDATA.
        h2c_bytes: u32,
    },
    /// A PDU for a command that is not open.
    #[error("the target answered command {cid}, which is not open")]
    UnknownCommand {
        /// The identifier.
        cid: u16,
    },
    /// Data that does not follow the data before, or exceeds the command's.
    #[error("the target moved bytes {start} to {end} of command {cid} out of order")]
    Data {
        /// The command's identifier.
        cid: u16,
        /// The first byte.
        start: u64,
        /// The byte behind the last.
        end: u64,
    },
}

#[derive(Debug)]
struct Sent {
    /// Data that the target may ask for.
    to_target: Vec<u8>,
    /// Bytes that the target asked for.
    asked: usize,
    /// Data from the target.
    data: Vec<u8>,
    expected: usize,
    is_intact: bool,
}

#[derive(Debug)]
enum Incoming {
    None,
    IcResp(IcResp),
    Response(Completion),
    Data { cid: u16, flags: u8 },
    R2t(R2t),
    TermReq(TermReq),
}

/// The host's side of one connection.
#[derive(Debug)]
pub struct Initiator {
    options: HostOptions,
    decoder: Decoder,
    incoming: Incoming,
    h2c_bytes: u32,
    commands: HashMap<u16, Sent>,
    output: Vec<u8>,
    events: VecDeque<HostEvent>,
}

impl Initiator {
    /// A host that has just connected; ICReq is its first output.
    #[must_use]
    pub fn new(options: HostOptions) -> Initiator {
        let request = IcReq {
            common: pdu::blank(),
            pfv: U16::ZERO,
            hpda: options.alignment,
            dgst: options.digests.bits(),
            maxr2t: U32::new(options.most_r2ts.saturating_sub(1)),
            reserved: [0; 112],
        };
        Initiator {
            options,
            decoder: Decoder::new(Receiver::Host),
            incoming: Incoming::None,
            h2c_bytes: 0,
            commands: HashMap::new(),
            output: pdu::build(Kind::IcReq, 0, request.as_bytes(), 0, Digests::default(), 4),
            events: VecDeque::new(),
        }
    }

    /// Takes the bytes to send.
    #[must_use]
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Takes the next event.
    pub fn take_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// The number of commands that have not completed.
    #[must_use]
    pub fn open_commands(&self) -> usize {
        self.commands.len()
    }

    /// Sends a command. Its data descriptor is set from `transfer`.
    pub fn send(&mut self, mut command: Submission, transfer: Transfer) {
        let length = |bytes: &[u8]| U32::new(u32::try_from(bytes.len()).expect("data of a command is below 4 GiB"));
        let mut sent = Sent { to_target: Vec::new(), asked: 0, data: Vec::new(), expected: 0, is_intact: true };
        command.sgl_address = U64::ZERO;
        command.sgl_kind = SGL_TRANSPORT;
        let mut in_capsule = Vec::new();
        match transfer {
            Transfer::None => command.sgl_length = U32::ZERO,
            Transfer::InCapsule(bytes) => {
                (command.sgl_kind, command.sgl_length) = (SGL_IN_CAPSULE, length(&bytes));
                in_capsule = bytes;
            }
            Transfer::OnRequest(bytes) => {
                command.sgl_length = length(&bytes);
                sent.to_target = bytes;
            }
            Transfer::ToHost(bytes) => {
                command.sgl_length = U32::new(bytes);
                sent.expected = bytes as usize;
            }
        }
        self.commands.insert(command.cid.get(), sent);
        self.send_capsule(&command, &in_capsule);
    }

    /// Sends a capsule as it is, without keeping track of the command. For hostile hosts.
    pub fn send_capsule(&mut self, command: &Submission, data: &[u8]) {
        let capsule = CapsuleCmd { common: pdu::blank(), command: *command };
        let digests = self.options.digests;
        pdu::append(&mut self.output, Kind::CapsuleCmd, 0, capsule.as_bytes(), data.len(), digests, 4);
        self.push_data(data);
    }

    /// Sends bytes as they are. For hostile hosts.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    fn push_data(&mut self, data: &[u8]) {
        self.output.extend_from_slice(data);
        if self.options.digests.data && !data.is_empty() {
            self.output.extend_from_slice(&digest(data).to_le_bytes());
        }
    }

    /// Takes received bytes.
    ///
    /// # Errors
    /// [`HostError`] if the target violates the protocol; the connection is then to be closed.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let mut input = bytes;
        while let Some(event) = self.decoder.next(&mut input)? {
            match event {
                Event::Header(layout) => self.header(layout)?,
                Event::Whole { data, digest: value, .. } => {
                    let is_intact = value.is_none_or(|value| value == digest(&data));
                    self.whole(data, is_intact)?;
                }
            }
        }
        Ok(())
    }

    fn parse<T: FromBytes + KnownLayout + Immutable>(&self) -> T {
        T::read_from_bytes(self.decoder.header()).expect("the decoder checked the header's length")
    }

    fn header(&mut self, layout: Layout) -> Result<(), HostError> {
        self.incoming = match layout.kind {
            Kind::IcResp => Incoming::IcResp(self.parse()),
            Kind::CapsuleResp => Incoming::Response(self.parse::<CapsuleResp>().completion),
            Kind::R2t => Incoming::R2t(self.parse()),
            Kind::C2hData => self.data_header(&layout)?,
            Kind::C2hTermReq => {
                let request = self.parse();
                self.decoder.keep_data();
                Incoming::TermReq(request)
            }
            _ => return Err(FatalError::HeaderField { offset: offset::KIND }.into()),
        };
        Ok(())
    }

    fn data_header(&mut self, layout: &Layout) -> Result<Incoming, HostError> {
        let header: DataHeader = self.parse();
        let cid = header.cccid.get();
        let sent = self.commands.get(&cid).ok_or(HostError::UnknownCommand { cid })?;
        let start = u64::from(header.datao.get());
        let end = start + u64::from(header.datal.get());
        if start != sent.data.len() as u64 || end > sent.expected as u64 || end == start {
            return Err(HostError::Data { cid, start, end });
        }
        if header.datal.get() != layout.data_len {
            return Err(FatalError::HeaderField { offset: offset::DATAL }.into());
        }
        let is_last = layout.flags & LAST != 0;
        if (layout.flags & SUCCESS != 0 && !is_last) || is_last != (end == sent.expected as u64) {
            return Err(FatalError::HeaderField { offset: offset::FLAGS }.into());
        }
        self.decoder.keep_data();
        Ok(Incoming::Data { cid, flags: layout.flags })
    }

    fn whole(&mut self, data: Vec<u8>, is_intact: bool) -> Result<(), HostError> {
        match std::mem::replace(&mut self.incoming, Incoming::None) {
            Incoming::None => Ok(()),
            Incoming::IcResp(response) => self.initialised(&response),
            Incoming::Response(completion) => self.completed(completion, true),
            Incoming::R2t(request) => self.requested(&request),
            Incoming::Data { cid, flags } => {
                let sent = self.commands.get_mut(&cid).ok_or(HostError::UnknownCommand { cid })?;
                // The data of a read usually comes in one PDU.
                if sent.data.is_empty() {
                    sent.data = data;
                } else {
                    sent.data.extend_from_slice(&data);
                }
                sent.is_intact &= is_intact;
                if flags & SUCCESS != 0 {
                    let completion = Completion { cid: U16::new(cid), ..Completion::new_zeroed() };
                    return self.completed(completion, false);
                }
                Ok(())
            }
            Incoming::TermReq(request) => {
                let (fes, fei) = (request.fes.get(), request.fei.get());
                self.events.push_back(HostEvent::Terminated { fes, fei, header: data });
                Ok(())
            }
        }
    }

    /// Like Linux: the parameters must be exactly those that were asked for.
    fn initialised(&mut self, response: &IcResp) -> Result<(), HostError> {
        let (digests, alignment) = (Digests::from_bits(response.dgst), response.cpda);
        let h2c_bytes = response.maxh2cdata.get();
        let is_sized = h2c_bytes >= crate::limits::LEAST_H2C_DATA && h2c_bytes.is_multiple_of(4);
        if response.pfv.get() != 0 || digests != self.options.digests || alignment != 0 || !is_sized {
            return Err(HostError::Parameters { digests, alignment, h2c_bytes });
        }
        self.h2c_bytes = h2c_bytes;
        self.decoder.initialise(digests, (usize::from(self.options.alignment) + 1) * 4);
        self.events.push_back(HostEvent::Initialised { h2c_bytes });
        Ok(())
    }

    fn completed(&mut self, completion: Completion, has_response: bool) -> Result<(), HostError> {
        let cid = completion.cid.get();
        let sent = self.commands.remove(&cid).ok_or(HostError::UnknownCommand { cid })?;
        let is_short = completion.status().is_success() && sent.data.len() != sent.expected;
        let is_intact = sent.is_intact && !is_short;
        self.events.push_back(HostEvent::Completed { completion, data: sent.data, is_intact, has_response });
        Ok(())
    }

    /// Answers an R2T at once with all of its data, so one is outstanding only until this function returns.
    fn requested(&mut self, request: &R2t) -> Result<(), HostError> {
        let cid = request.cccid.get();
        let sent = self.commands.get_mut(&cid).ok_or(HostError::UnknownCommand { cid })?;
        let (start, len) = (request.r2to.get() as usize, request.r2tl.get() as usize);
        let error = HostError::Data { cid, start: start as u64, end: start as u64 + len as u64 };
        if len == 0 || start != sent.asked {
            return Err(error);
        }
        let data = sent.to_target.get(start..).and_then(|rest| rest.get(..len)).ok_or(error)?.to_vec();
        sent.asked += len;
        let part_bytes = self.h2c_bytes as usize;
        let mut offset = start;
        for part in data.chunks(part_bytes) {
            let is_last = offset + part.len() == start + len;
            self.send_data(cid, request.ttag.get(), offset, part, is_last);
            offset += part.len();
        }
        Ok(())
    }

    /// Sends one H2CData.
    ///
    /// # Panics
    /// If the offset or the length exceeds 32 bits.
    pub fn send_data(&mut self, cid: u16, tag: u16, offset: usize, data: &[u8], is_last: bool) {
        let header = DataHeader {
            common: pdu::blank(),
            cccid: U16::new(cid),
            ttag: U16::new(tag),
            datao: U32::new(u32::try_from(offset).expect("an offset has 32 bits")),
            datal: U32::new(u32::try_from(data.len()).expect("a length has 32 bits")),
            reserved: U32::ZERO,
        };
        let flags = if is_last { LAST } else { 0 };
        let digests = self.options.digests;
        pdu::append(&mut self.output, Kind::H2cData, flags, header.as_bytes(), data.len(), digests, 4);
        self.push_data(data);
    }
}
