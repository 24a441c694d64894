//! vhost-user's messages: parses the bytes on a socket into requests, and encodes replies.
//!
//! Every length is checked before a field is read. A message with more files than its request takes is refused, and all
//! its files are closed.
//!
//! Source: vhost-user, "Message Specification", "Front-end message types", "Protocol features".

use crate::Region;
use crate::layout::Features;
use crate::ring::RingAddresses;
use bitflags::bitflags;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a message's header. Source: vhost-user, "Header".
pub const HEADER_BYTES: usize = size_of::<Header>();
/// The most regions in one `SET_MEM_TABLE`. Source: vhost-user, "Memory regions description".
pub const MOST_TABLE_REGIONS: usize = 8;
/// The most files with one message. Source: vhost-user, `SET_MEM_TABLE`: one per region.
pub const MOST_FILES: usize = MOST_TABLE_REGIONS;
/// The longest payload, in bytes: a full table of regions.
pub const MOST_PAYLOAD: usize = size_of::<[u32; 2]>() + MOST_TABLE_REGIONS * size_of::<RegionWords>();

/// The protocol version in messages. Source: vhost-user, "Header".
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 0b11;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Set if no file comes with the message: the ring is polled. Source: vhost-user, `SET_VRING_KICK`.
const NO_FILE: u64 = 1 << 8;
/// The used ring is logged. Source: vhost-user, "Migration", `VHOST_VRING_F_LOG`.
const LOG_RING: u32 = 1;

bitflags! {
    /// Features of the protocol itself. Source: vhost-user, "Protocol features".
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct ProtocolFeatures: u64 {
        /// `MQ`: the frontend can ask for the number of rings.
        const MQ = 1 << 0;
        /// `LOG_SHMFD`: the dirty log is a file.
        const LOG_SHMFD = 1 << 1;
        /// `RARP`: the backend announces the guest after a migration.
        const RARP = 1 << 2;
        /// `REPLY_ACK`: every request can ask for a reply.
        const REPLY_ACK = 1 << 3;
        /// `INFLIGHT_SHMFD`: the chains in flight are recorded in a file that outlives the backend.
        const INFLIGHT_SHMFD = 1 << 12;
        /// `RESET_DEVICE`: the device can be reset.
        const RESET_DEVICE = 1 << 13;
        /// `CONFIGURE_MEM_SLOTS`: regions come and go one by one.
        const CONFIGURE_MEM_SLOTS = 1 << 15;
        /// `STATUS`: the device's status is reported.
        const STATUS = 1 << 16;
    }
}

/// The header of every message. Source: vhost-user, "Header".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// The request's number.
    pub request: u32,
    /// The version, and whether it is a reply or asks for one.
    pub flags: u32,
    /// Length of the payload in bytes.
    pub size: u32,
}

impl Header {
    /// Returns whether the frontend asks for a reply, provided that this was negotiated.
    #[must_use]
    pub fn wants_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// Returns the length of the payload that follows.
    ///
    /// # Errors
    /// [`MessageError`]: it is not a frontend's request, or is longer than any request.
    pub fn payload(&self) -> Result<usize, MessageError> {
        if self.flags & VERSION_MASK != VERSION || self.flags & REPLY != 0 {
            return Err(MessageError::Flags { flags: self.flags });
        }
        match usize::try_from(self.size) {
            Ok(size) if size <= MOST_PAYLOAD => Ok(size),
            _ => Err(MessageError::Long { size: self.size }),
        }
    }
}

/// Why a message is invalid. The session with its sender ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Another version, or a reply to nothing.
    #[error("a message has the flags {flags:#x}, which no request of version {VERSION} has")]
    Flags {
        /// The message's flags.
        flags: u32,
    },
    /// Its payload is longer than any request's.
    #[error("a message announces {size} bytes; no request has more than {MOST_PAYLOAD}")]
    Long {
        /// The announced length.
        size: u32,
    },
    /// An unknown request, which was not offered.
    #[error("request {number} was not offered by this backend")]
    Unknown {
        /// The request's number.
        number: u32,
    },
    /// Its payload does not have the length of its request.
    #[error("request {number} has {size} bytes, which is the wrong length")]
    Size {
        /// The request's number.
        number: u32,
        /// Its length in bytes.
        size: usize,
    },
    /// It names more regions than fit in a message.
    #[error("a memory table has {count} regions; one message may have {MOST_TABLE_REGIONS}")]
    Regions {
        /// The number of regions.
        count: u32,
    },
    /// It came with too many files. Source: DPDK's backend refuses them as well (`validate_msg_fds`).
    #[error("request {number} came with {found} files and takes at most {most}; all of them were closed")]
    Surplus {
        /// Its number.
        number: u32,
        /// How many came.
        found: usize,
        /// How many it takes.
        most: usize,
    },
    /// It came with too few files.
    #[error("request {number} came with {found} files and needs {needed}")]
    Files {
        /// Its number.
        number: u32,
        /// How many came.
        found: usize,
        /// How many it needs.
        needed: usize,
    },
}

/// Where an inflight record lies in its file, and which rings it is for. Source: vhost-user, "Inflight description".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordPlace {
    /// Its length in bytes.
    pub len: u64,
    /// Its offset in the file.
    pub offset: u64,
    /// Number of rings.
    pub rings: u16,
    /// Descriptors of each ring.
    pub size: u16,
}

/// A frontend's request. `ring` is a virtqueue's number as sent by the frontend, not yet checked.
#[derive(Debug)]
pub enum Request {
    /// `GET_FEATURES`
    GetFeatures,
    /// `SET_FEATURES`
    SetFeatures(u64),
    /// `SET_OWNER`
    SetOwner,
    /// `RESET_OWNER`
    ResetOwner,
    /// `SET_MEM_TABLE`
    SetMemory(Vec<(Region, OwnedFd)>),
    /// `SET_LOG_BASE`: length, offset in the file, and the file.
    SetLog(u64, u64, OwnedFd),
    /// `SET_LOG_FD`: a file for notifications of marks; not needed here.
    SetLogEvent,
    /// `SET_VRING_NUM`: the number of descriptors.
    SetRingSize(u32, u32),
    /// `SET_VRING_ADDR`: the addresses of its parts, and the guest address of its used ring if that is logged.
    SetRingAddresses(u32, RingAddresses, Option<u64>),
    /// `SET_VRING_BASE`: where it resumes.
    SetRingBase(u32, u32),
    /// `GET_VRING_BASE`: it stops.
    GetRingBase(u32),
    /// `SET_VRING_KICK`: it starts; without a file it is polled.
    SetRingKick(u32, Option<OwnedFd>),
    /// `SET_VRING_CALL`
    SetRingCall(u32, Option<OwnedFd>),
    /// `SET_VRING_ERR`
    SetRingError(u32, Option<OwnedFd>),
    /// `GET_PROTOCOL_FEATURES`
    GetProtocolFeatures,
    /// `SET_PROTOCOL_FEATURES`
    SetProtocolFeatures(u64),
    /// `GET_QUEUE_NUM`
    GetQueues,
    /// `SET_VRING_ENABLE`
    EnableRing(u32, bool),
    /// `SEND_RARP`: the guest's MAC address.
    Announce([u8; 6]),
    /// `GET_INFLIGHT_FD`: creates a record.
    GetRecord(RecordPlace),
    /// `SET_INFLIGHT_FD`
    SetRecord(RecordPlace, OwnedFd),
    /// `RESET_DEVICE`
    Reset,
    /// `GET_MAX_MEM_SLOTS`
    GetMemorySlots,
    /// `ADD_MEM_REG`
    AddRegion(Region, OwnedFd),
    /// `REM_MEM_REG`
    RemoveRegion(Region),
    /// `SET_STATUS`
    SetStatus(u64),
    /// `GET_STATUS`
    GetStatus,
}

impl Request {
    /// Returns whether its reply is more than "done" or "refused".
    #[must_use]
    pub fn asks(&self) -> bool {
        matches!(
            self,
            Request::GetFeatures
                | Request::GetProtocolFeatures
                | Request::GetQueues
                | Request::GetRingBase(_)
                | Request::GetRecord(_)
                | Request::GetMemorySlots
                | Request::GetStatus
        )
    }
}

/// Source: vhost-user, "A region is".
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RegionWords {
    guest: u64,
    len: u64,
    user: u64,
    offset: u64,
}

/// Source: vhost-user, "A vring state description".
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct StateWords {
    ring: u32,
    number: u32,
}

/// Source: vhost-user, "A vring address description".
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AddressWords {
    ring: u32,
    flags: u32,
    descriptors: u64,
    used: u64,
    available: u64,
    log: u64,
}

/// Source: vhost-user, "Inflight description".
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
struct RecordWords {
    len: u64,
    offset: u64,
    rings: u16,
    size: u16,
}

/// Length of a record's description from frontends that pad it, as QEMU does. Source: vhost-user, "Inflight
/// description", in C.
const PADDED_RECORD: usize = size_of::<RecordWords>().next_multiple_of(size_of::<u64>());

impl RegionWords {
    fn region(self) -> Region {
        let RegionWords { guest, len, user, offset } = self;
        Region { guest, len, user, offset }
    }
}

/// A request's number, payload and files, before parsing.
struct Raw<'a> {
    number: u32,
    payload: &'a [u8],
    files: Vec<OwnedFd>,
}

impl Raw<'_> {
    fn size(&self) -> MessageError {
        MessageError::Size { number: self.number, size: self.payload.len() }
    }

    /// Parses the payload, which is one `T`.
    fn words<T: FromBytes>(&self) -> Result<T, MessageError> {
        T::read_from_bytes(self.payload).map_err(|_| self.size())
    }

    /// Takes the first file.
    fn file(&mut self) -> Result<OwnedFd, MessageError> {
        self.files(1).map(|mut files| files.swap_remove(0))
    }

    /// Takes the first `needed` files.
    fn files(&mut self, needed: usize) -> Result<Vec<OwnedFd>, MessageError> {
        let found = self.files.len();
        if found < needed {
            return Err(MessageError::Files { number: self.number, found, needed });
        }
        Ok(self.files.drain(..needed).collect())
    }

    /// Closes one file that the request does not need, if it came with one.
    fn close_file(&mut self) {
        self.files.pop();
    }

    /// Parses a ring's number, and takes the file for its events if there is one.
    fn event(&mut self) -> Result<(u32, Option<OwnedFd>), MessageError> {
        let word: u64 = self.words()?;
        let file = if word & NO_FILE == 0 { Some(self.file()?) } else { None };
        let [ring, ..] = word.to_le_bytes();
        Ok((ring.into(), file))
    }

    fn table(&mut self) -> Result<Vec<(Region, OwnedFd)>, MessageError> {
        let ([count, _padding], rest) = <[u32; 2]>::read_from_prefix(self.payload).map_err(|_| self.size())?;
        let regions = match usize::try_from(count) {
            Ok(regions) if regions <= MOST_TABLE_REGIONS => regions,
            _ => return Err(MessageError::Regions { count }),
        };
        if rest.len() != regions * size_of::<RegionWords>() {
            return Err(self.size());
        }
        let words = rest.chunks_exact(size_of::<RegionWords>()).filter_map(|it| RegionWords::read_from_bytes(it).ok());
        let regions: Vec<_> = words.map(RegionWords::region).collect();
        let files = self.files(regions.len())?;
        Ok(regions.into_iter().zip(files).collect())
    }

    fn region(&self) -> Result<Region, MessageError> {
        let words: [u64; 5] = self.words()?;
        let [_padding, guest, len, user, offset] = words;
        Ok(Region { guest, len, user, offset })
    }

    fn record(&self) -> Result<RecordPlace, MessageError> {
        let (words, rest) = RecordWords::read_from_prefix(self.payload).map_err(|_| self.size())?;
        if !rest.is_empty() && self.payload.len() != PADDED_RECORD {
            return Err(self.size());
        }
        let RecordWords { len, offset, rings, size } = words;
        Ok(RecordPlace { len, offset, rings, size })
    }

    fn nothing(&self, request: Request) -> Result<Request, MessageError> {
        if self.payload.is_empty() { Ok(request) } else { Err(self.size()) }
    }
}

/// Parses a message into a request. Its files are in the request, or closed.
///
/// # Errors
/// [`MessageError`]; the files are closed.
pub fn parse(header: &Header, payload: &[u8], files: Vec<OwnedFd>) -> Result<Request, MessageError> {
    let found = files.len();
    let mut raw = Raw { number: header.request, payload, files };
    let request = request_of(&mut raw)?;
    match raw.files.len() {
        0 => Ok(request),
        surplus => Err(MessageError::Surplus { number: header.request, found, most: found - surplus }),
    }
}

/// Parses the request and takes its files; surplus files stay in `raw`.
fn request_of(raw: &mut Raw<'_>) -> Result<Request, MessageError> {
    let state = |raw: &Raw<'_>| raw.words().map(|words: StateWords| (words.ring, words.number));
    match raw.number {
        1 => raw.nothing(Request::GetFeatures),
        2 => raw.words().map(Request::SetFeatures),
        3 => raw.nothing(Request::SetOwner),
        4 => raw.nothing(Request::ResetOwner),
        5 => raw.table().map(Request::SetMemory),
        6 => {
            let [len, offset] = raw.words()?;
            Ok(Request::SetLog(len, offset, raw.file()?))
        }
        7 => {
            raw.close_file();
            Ok(Request::SetLogEvent)
        }
        8 => state(raw).map(|(ring, size)| Request::SetRingSize(ring, size)),
        9 => {
            let words: AddressWords = raw.words()?;
            let addresses =
                RingAddresses { descriptors: words.descriptors, driver: words.available, device: words.used };
            let log = (words.flags & LOG_RING != 0).then_some(words.log);
            Ok(Request::SetRingAddresses(words.ring, addresses, log))
        }
        10 => state(raw).map(|(ring, base)| Request::SetRingBase(ring, base)),
        11 => state(raw).map(|(ring, _)| Request::GetRingBase(ring)),
        12 => raw.event().map(|(ring, file)| Request::SetRingKick(ring, file)),
        13 => raw.event().map(|(ring, file)| Request::SetRingCall(ring, file)),
        14 => raw.event().map(|(ring, file)| Request::SetRingError(ring, file)),
        15 => raw.nothing(Request::GetProtocolFeatures),
        16 => raw.words().map(Request::SetProtocolFeatures),
        17 => raw.nothing(Request::GetQueues),
        18 => state(raw).map(|(ring, on)| Request::EnableRing(ring, on != 0)),
        19 => {
            let [m0, m1, m2, m3, m4, m5, _, _]: [u8; 8] = raw.words()?;
            Ok(Request::Announce([m0, m1, m2, m3, m4, m5]))
        }
        31 => raw.record().map(Request::GetRecord),
        32 => Ok(Request::SetRecord(raw.record()?, raw.file()?)),
        34 => raw.nothing(Request::Reset),
        36 => raw.nothing(Request::GetMemorySlots),
        37 => Ok(Request::AddRegion(raw.region()?, raw.file()?)),
        38 => {
            // QEMU sends the region's file. Source: vhost-user, `REM_MEM_REG`: a backend may accept one file, and
            // closes it.
            raw.close_file();
            raw.region().map(Request::RemoveRegion)
        }
        39 => raw.words().map(Request::SetStatus),
        40 => raw.nothing(Request::GetStatus),
        number => Err(MessageError::Unknown { number }),
    }
}

/// The reply to a request.
#[derive(Debug)]
pub enum Reply {
    /// A number: the requested value, or 0 for "done" and any other value for "refused".
    Number(u64),
    /// The dirty log, as it was announced. The specification does not define the reply to `SET_LOG_BASE`. QEMU accepts
    /// a reply of any length, and rust-vmm's frontend (Cloud Hypervisor's) waits for this one.
    Log {
        /// Its length in bytes.
        len: u64,
        /// Its offset in the file.
        offset: u64,
    },
    /// Where a stopped ring resumes.
    State {
        /// The ring's index.
        ring: u32,
        /// Its base.
        base: u32,
    },
    /// An inflight record.
    Record {
        /// Its position in the file.
        place: RecordPlace,
        /// The file.
        file: OwnedFd,
    },
}

impl Reply {
    /// Encodes the reply to the request with header `to`. Returns the bytes, and the file to send with them.
    #[must_use]
    pub fn message(self, to: &Header) -> (Vec<u8>, Option<OwnedFd>) {
        let (payload, file) = match self {
            Reply::Number(number) => (number.as_bytes().to_vec(), None),
            Reply::Log { len, offset } => ([len, offset].as_bytes().to_vec(), None),
            Reply::State { ring, base } => (StateWords { ring, number: base }.as_bytes().to_vec(), None),
            Reply::Record { place: RecordPlace { len, offset, rings, size }, file } => {
                let mut words = RecordWords { len, offset, rings, size }.as_bytes().to_vec();
                // As long as the frontend's own description: frontends that pad it compare lengths.
                words.resize((to.size as usize).clamp(words.len(), PADDED_RECORD), 0);
                (words, Some(file))
            }
        };
        let size = u32::try_from(payload.len()).unwrap_or(0);
        let header = Header { request: to.request, flags: VERSION | REPLY, size };
        ([header.as_bytes(), &payload].concat(), file)
    }
}

/// The features that a network device offers here.
pub const FEATURES: Features = Features::MRG_RXBUF
    .union(Features::MQ)
    .union(Features::CTRL_VQ)
    .union(Features::STATUS)
    .union(Features::GUEST_ANNOUNCE)
    .union(Features::LOG_ALL)
    .union(Features::ANY_LAYOUT)
    .union(Features::INDIRECT_DESC)
    .union(Features::EVENT_IDX)
    .union(Features::PROTOCOL_FEATURES)
    .union(Features::VERSION_1)
    .union(Features::RING_PACKED)
    .union(Features::IN_ORDER);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    fn header(request: u32, payload: &[u8]) -> Header {
        Header { request, flags: VERSION, size: u32::try_from(payload.len()).unwrap() }
    }

    fn ask(request: u32, payload: &[u8], files: Vec<OwnedFd>) -> Result<Request, MessageError> {
        parse(&header(request, payload), payload, files)
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn file() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn a_header_with_a_wrong_version_or_length_is_refused() {
        let sane = Header { request: 1, flags: 1, size: 264 };
        assert_eq!((sane.payload(), MOST_PAYLOAD), (Ok(264), 264));
        for flags in [0, 2, 3, 5] {
            assert_eq!(Header { flags, ..sane }.payload(), Err(MessageError::Flags { flags }));
        }
        for size in [265, 1 << 31, u32::MAX] {
            assert_eq!(Header { size, ..sane }.payload(), Err(MessageError::Long { size }));
        }
        assert!(Header { flags: 9, ..sane }.wants_reply() && !sane.wants_reply());
    }

    #[test]
    fn a_payload_of_the_wrong_length_is_refused() {
        for request in 0..=64 {
            // Of the right length, all have more files than they take.
            let files = || (0..=MOST_FILES).map(|_| file()).collect();
            let surplus = |asked| matches!(asked, Err(MessageError::Surplus { found: 9, .. }));
            let right: Vec<usize> =
                (0..=MOST_PAYLOAD).filter(|&len| surplus(ask(request, &vec![0; len], files()))).collect();
            let expected: &[usize] = match request {
                1 | 3 | 4 | 15 | 17 | 34 | 36 | 40 => &[0],
                2 | 8 | 10..=14 | 16 | 18 | 19 | 39 => &[8],
                // No regions: eight bytes that say so.
                5 => &[8],
                6 => &[16],
                7 => {
                    assert_eq!(right.len(), MOST_PAYLOAD + 1);
                    continue;
                }
                9 | 37 | 38 => &[40],
                31 | 32 => &[20, 24],
                _ => &[],
            };
            assert_eq!(right, expected, "request {request}");
        }
    }

    #[test]
    fn a_memory_table_needs_the_announced_regions_and_a_file_each() {
        let table = |count: usize, regions: usize| words(&[&[count as u64][..], &vec![7; 4 * regions]].concat());
        let files = |count| (0..count).map(|_| file()).collect::<Vec<_>>();
        for count in 0..=8 {
            let Ok(Request::SetMemory(regions)) = ask(5, &table(count, count), files(count)) else { panic!("{count}") };
            assert_eq!(regions.len(), count);
            assert!(regions.iter().all(|(region, _)| *region == Region { guest: 7, len: 7, user: 7, offset: 7 }));
            if count > 0 {
                let found = count - 1;
                let missing = MessageError::Files { number: 5, found, needed: found + 1 };
                assert_eq!(ask(5, &table(count, count), files(count - 1)).unwrap_err(), missing);
                assert!(matches!(ask(5, &table(count, count - 1), files(count)), Err(MessageError::Size { .. })));
            }
        }
        for count in [9, u32::MAX] {
            let many = table(count as usize, 8);
            assert_eq!(ask(5, &many, files(8)).unwrap_err(), MessageError::Regions { count });
        }
    }

    /// CVE-2019-14818: unexpected files stayed open for ever. A first fix here closed them without an error.
    #[test]
    fn a_message_with_surplus_files_is_refused_and_all_are_closed() {
        // Request, payload, and how many files it takes.
        let cases: [(u32, Vec<u8>, usize); 9] = [
            (1, vec![], 0),
            (2, words(&[0]), 0),
            (8, words(&[0]), 0),
            (12, words(&[3]), 1),
            (12, words(&[0x103]), 0),
            (18, words(&[0]), 0),
            (31, vec![0; 20], 0),
            (7, vec![], 1),
            (38, vec![0; 40], 1),
        ];
        for (request, payload, most) in cases {
            let taken = ask(request, &payload, (0..most).map(|_| file()).collect());
            assert!(taken.is_ok(), "request {request} with {most} files: {taken:?}");
            let pipes: Vec<_> = (0..most + 3).map(|_| std::io::pipe().unwrap()).collect();
            let (readers, writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
            let refused = ask(request, &payload, writers.into_iter().map(OwnedFd::from).collect());
            assert_eq!(refused.unwrap_err(), MessageError::Surplus { number: request, found: most + 3, most });
            for mut reader in readers {
                assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the other end is closed");
            }
        }
    }

    #[test]
    fn a_ring_without_a_file_is_recognised() {
        assert!(matches!(ask(13, &words(&[0x105]), Vec::new()), Ok(Request::SetRingCall(5, None))));
        assert!(matches!(ask(13, &words(&[5]), Vec::new()), Err(MessageError::Files { found: 0, needed: 1, .. })));
    }

    /// CVE-2020-10723: an index was cut to 16 bits before it was compared.
    #[test]
    fn a_rings_number_is_not_truncated() {
        let state = [0x0001_0000_u32.to_le_bytes(), 256_u32.to_le_bytes()].concat();
        assert!(matches!(ask(8, &state, Vec::new()), Ok(Request::SetRingSize(0x1_0000, 256))));
    }

    #[test]
    fn a_record_reply_has_the_frontends_length() {
        for size in [20, 24] {
            let to = Header { request: 31, flags: 1, size };
            let place = RecordPlace { len: 4096, offset: 0, rings: 2, size: 256 };
            let (message, file) = Reply::Record { place, file: file() }.message(&to);
            assert_eq!(message.len(), HEADER_BYTES + size as usize);
            assert_eq!(message[4..12], [5_u32.to_le_bytes(), size.to_le_bytes()].concat());
            let Ok(Request::GetRecord(back)) = ask(31, &message[HEADER_BYTES..], Vec::new()) else { panic!("{size}") };
            assert!(back == place && file.is_some());
        }
    }

    proptest! {
        #[test]
        fn no_input_makes_the_parser_panic(request in 0_u32..50, payload in prop::collection::vec(any::<u8>(), 0..300), files in 0_usize..9) {
            let _ = ask(request, &payload, (0..files).map(|_| file()).collect());
        }
    }
}
