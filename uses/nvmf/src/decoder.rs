//! Splits a stream of bytes into PDUs, for the controller and for the host.
//!
//! ```text
//! bytes ─► header complete? ─► Event::Header ─► the owner keeps or skips the data ─► Event::Whole
//! ```
//!
//! The decoder allocates nothing before its owner has checked the header and called [`Decoder::keep_data`].

use crate::digest::{DIGEST_BYTES, Digests, digest};
use crate::limits::MOST_HEADER;
use crate::pdu::{CommonHeader, FatalError, Kind, Layout, Receiver, layout};
use zerocopy::FromBytes;

/// What the decoder has found.
#[derive(Debug)]
pub enum Event {
    /// A valid header; its bytes are in [`Decoder::header`]. The owner may call [`Decoder::keep_data`]; otherwise the
    /// data is skipped.
    Header(Layout),
    /// The rest of the PDU.
    Whole {
        /// The PDU's parts.
        layout: Layout,
        /// The data; empty if it was skipped.
        data: Vec<u8>,
        /// The digest that came with the data, if there is one.
        digest: Option<u32>,
    },
}

/// The data of a PDU, for a caller that receives into it while it does other work.
#[derive(Debug)]
pub struct DataBuffer {
    data: Vec<u8>,
    /// The first byte that is missing.
    start: usize,
}

impl DataBuffer {
    /// Where the next bytes go. It stays where it is when `self` moves.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.data[self.start..]
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Bytes of the header are missing. With `layout`, the common header is complete.
    Header { layout: Option<Layout> },
    /// The owner has seen the header; `missing` bytes of data are still to come.
    Data { layout: Layout, missing: u32, keep: bool },
    /// Bytes of the data's digest are missing.
    Digest { layout: Layout, have: usize },
    /// An error ended the stream.
    Ended,
}

/// Splits a stream of bytes into PDUs.
#[derive(Debug)]
pub struct Decoder {
    receiver: Receiver,
    digests: Digests,
    alignment: usize,
    is_initialised: bool,
    state: State,
    header: [u8; MOST_HEADER],
    have: usize,
    data: Vec<u8>,
    digest: [u8; DIGEST_BYTES],
}

impl Decoder {
    /// A decoder at the start of a connection.
    #[must_use]
    pub fn new(receiver: Receiver) -> Decoder {
        Decoder {
            receiver,
            digests: Digests::default(),
            alignment: 4,
            is_initialised: false,
            state: State::Header { layout: None },
            header: [0; MOST_HEADER],
            have: 0,
            data: Vec::new(),
            digest: [0; DIGEST_BYTES],
        }
    }

    /// Sets what ICReq and ICResp agreed on. `alignment` is that of the data of received PDUs in bytes.
    pub fn initialise(&mut self, digests: Digests, alignment: usize) {
        (self.digests, self.alignment, self.is_initialised) = (digests, alignment, true);
    }

    /// The bytes of the current PDU's header that have been received so far; all of them after [`Event::Header`].
    #[must_use]
    pub fn header(&self) -> &[u8] {
        let end = match self.state {
            State::Header { .. } | State::Ended => self.have,
            State::Data { layout, .. } | State::Digest { layout, .. } => layout.header_len,
        };
        &self.header[..end.min(self.have)]
    }

    /// Keeps the data of the PDU whose header was reported last. Allocates its bytes.
    pub fn keep_data(&mut self) {
        if let State::Data { layout, keep, .. } = &mut self.state {
            *keep = true;
            self.data = vec![0; layout.data_len as usize];
        }
    }

    /// Where the next bytes of data go, if the current PDU's data is kept and incomplete. A caller that reads from a
    /// socket can read there directly, and then calls [`Decoder::data_filled`].
    pub fn data_space(&mut self) -> Option<&mut [u8]> {
        match self.state {
            State::Data { missing, keep: true, .. } if missing > 0 => {
                let start = self.data.len() - missing as usize;
                Some(&mut self.data[start..])
            }
            _ => None,
        }
    }

    /// Takes the data out, if it is kept and at least `least` bytes are missing. The decoder takes no bytes until
    /// [`Decoder::put_data_space`].
    pub fn take_data_space(&mut self, least: usize) -> Option<DataBuffer> {
        let missing = self.data_space()?.len();
        if missing < least {
            return None;
        }
        let data = std::mem::take(&mut self.data);
        Some(DataBuffer { start: data.len() - missing, data })
    }

    /// Puts the data back. Returns false if an error has ended the stream meanwhile, and drops it.
    pub fn put_data_space(&mut self, buffer: DataBuffer) -> bool {
        let is_awaited = matches!(self.state, State::Data { keep: true, .. });
        if is_awaited {
            self.data = buffer.data;
        }
        is_awaited
    }

    /// `count` bytes were written to [`Decoder::data_space`].
    ///
    /// # Panics
    /// If the space is smaller.
    pub fn data_filled(&mut self, count: usize) {
        let State::Data { missing, keep: true, .. } = &mut self.state else { panic!("there is no space for data") };
        *missing = u32::try_from(count).ok().and_then(|count| missing.checked_sub(count)).expect("at most the space");
    }

    /// Takes bytes from `input`, and returns the next event; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The [`FatalError`] to answer with; [`Decoder::header`] then has the PDU at fault. The decoder takes no more
    /// bytes.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Event>, FatalError> {
        let result = self.step(input);
        if result.is_err() {
            self.state = State::Ended;
        }
        result
    }

    fn step(&mut self, input: &mut &[u8]) -> Result<Option<Event>, FatalError> {
        loop {
            match self.state {
                State::Ended => {
                    *input = &[];
                    return Ok(None);
                }
                State::Header { layout: None } => {
                    // If all of it is in the input, it is copied with the rest of the header, below.
                    let is_here = self.have == 0 && input.len() >= size_of::<CommonHeader>();
                    if !is_here && !self.fill_header(size_of::<CommonHeader>(), input) {
                        return Ok(None);
                    }
                    let layout = match self.check_common(if is_here { input } else { &self.header }) {
                        Ok(layout) => layout,
                        Err(error) => {
                            self.fill_header(size_of::<CommonHeader>(), input);
                            return Err(error);
                        }
                    };
                    self.state = State::Header { layout: Some(layout) };
                }
                State::Header { layout: Some(layout) } => {
                    // Padding is taken like a part of the header; it has no meaning.
                    if !self.fill_header(layout.before_data, input) {
                        return Ok(None);
                    }
                    self.check_digest(&layout)?;
                    self.state = State::Data { layout, missing: layout.data_len, keep: false };
                    return Ok(Some(Event::Header(layout)));
                }
                State::Data { layout, missing: 0, .. } if layout.data_digest => {
                    self.state = State::Digest { layout, have: 0 };
                }
                State::Data { layout, missing: 0, .. } => return Ok(Some(self.whole(layout, None))),
                State::Data { layout, missing, keep } => {
                    let take = input.len().min(missing as usize);
                    if take == 0 {
                        return Ok(None);
                    }
                    let (now, later) = input.split_at(take);
                    *input = later;
                    if keep {
                        let start = self.data.len() - missing as usize;
                        self.data[start..start + take].copy_from_slice(now);
                    }
                    let missing = missing - u32::try_from(take).expect("at most the missing bytes");
                    self.state = State::Data { layout, missing, keep };
                }
                State::Digest { layout, have } => {
                    let take = input.len().min(DIGEST_BYTES - have);
                    let (now, later) = input.split_at(take);
                    *input = later;
                    self.digest[have..have + take].copy_from_slice(now);
                    if have + take < DIGEST_BYTES {
                        self.state = State::Digest { layout, have: have + take };
                        return Ok(None);
                    }
                    let digest = u32::from_le_bytes(self.digest);
                    return Ok(Some(self.whole(layout, Some(digest))));
                }
            }
        }
    }

    fn whole(&mut self, layout: Layout, digest: Option<u32>) -> Event {
        self.state = State::Header { layout: None };
        self.have = 0;
        Event::Whole { layout, data: std::mem::take(&mut self.data), digest }
    }

    /// Takes bytes until the header has `end` bytes; returns whether it has.
    fn fill_header(&mut self, end: usize, input: &mut &[u8]) -> bool {
        let take = input.len().min(end.saturating_sub(self.have));
        let (now, later) = input.split_at(take);
        *input = later;
        self.header[self.have..self.have + take].copy_from_slice(now);
        self.have += take;
        self.have >= end
    }

    /// Checks the common header at the beginning of `bytes`.
    fn check_common(&self, bytes: &[u8]) -> Result<Layout, FatalError> {
        let common = CommonHeader::read_from_prefix(bytes).map_or_else(|_| unreachable!("8 bytes"), |(it, _)| it);
        match Kind::of(common.kind, self.receiver) {
            None => Err(FatalError::HeaderField { offset: crate::pdu::offset::KIND }),
            // The connection is initialised by exactly one pair of PDUs, before all others.
            Some(Kind::IcReq | Kind::IcResp) if self.is_initialised => Err(FatalError::Sequence),
            Some(Kind::IcReq | Kind::IcResp | Kind::H2cTermReq | Kind::C2hTermReq) => {
                layout(&common, self.receiver, self.digests, self.alignment)
            }
            Some(_) if !self.is_initialised => Err(FatalError::Sequence),
            Some(_) => layout(&common, self.receiver, self.digests, self.alignment),
        }
    }

    fn check_digest(&self, layout: &Layout) -> Result<(), FatalError> {
        if !layout.header_digest {
            return Ok(());
        }
        let (header, rest) = self.header.split_at(layout.header_len);
        let received = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        if received == digest(header) { Ok(()) } else { Err(FatalError::HeaderDigest { received }) }
    }
}
