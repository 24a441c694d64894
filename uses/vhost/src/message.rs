//! vhost-user's messages: words on a socket become what a frontend asks for, once, and answers become words.
//!
//! Every length is compared before a word is read. A message that comes with more files than its request takes is refused, and all are closed.
//!
//! Source: vhost-user, "Message Specification", "Front-end message types", "Protocol features".

use crate::Region;
use crate::ring::RingAddresses;
use crate::words::Features;
use bitflags::bitflags;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a message before its payload. Source: vhost-user, "Header".
pub const HEADER_BYTES: usize = size_of::<Header>();
/// Regions one `SET_MEM_TABLE` can name. Source: vhost-user, "Memory regions description".
pub const MOST_TABLE_REGIONS: usize = 8;
/// Files that come with one message. Source: vhost-user, `SET_MEM_TABLE`: one a region.
pub const MOST_FILES: usize = MOST_TABLE_REGIONS;
/// The longest payload, in bytes: a full table of regions.
pub const MOST_PAYLOAD: usize = size_of::<[u32; 2]>() + MOST_TABLE_REGIONS * size_of::<RegionWords>();

/// The version that messages name. Source: vhost-user, "Header".
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 0b11;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// No file comes with the message: the ring is polled. Source: vhost-user, `SET_VRING_KICK`.
const NO_FILE: u64 = 1 << 8;
/// The used ring is logged. Source: vhost-user, "Migration", `VHOST_VRING_F_LOG`.
const LOG_RING: u32 = 1;

bitflags! {
    /// What of the protocol both sides know. Source: vhost-user, "Protocol features".
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct ProtocolFeatures: u64 {
        /// `MQ`: how many rings there are can be asked for.
        const MQ = 1 << 0;
        /// `LOG_SHMFD`: the dirty log is a file.
        const LOG_SHMFD = 1 << 1;
        /// `RARP`: the guest is announced by the backend after a migration.
        const RARP = 1 << 2;
        /// `REPLY_ACK`: every request can ask for an answer.
        const REPLY_ACK = 1 << 3;
        /// `INFLIGHT_SHMFD`: what is in flight is recorded in a file that outlives the backend.
        const INFLIGHT_SHMFD = 1 << 12;
        /// `RESET_DEVICE`: the device can be reset.
        const RESET_DEVICE = 1 << 13;
        /// `CONFIGURE_MEM_SLOTS`: regions come and go one by one.
        const CONFIGURE_MEM_SLOTS = 1 << 15;
        /// `STATUS`: the device's status is told.
        const STATUS = 1 << 16;
    }
}

/// What every message begins with. Source: vhost-user, "Header".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Which request.
    pub request: u32,
    /// Version, and whether it is, or wants, a reply.
    pub flags: u32,
    /// Bytes of the payload.
    pub size: u32,
}

impl Header {
    /// Whether the frontend asks for an answer, if that was agreed on.
    #[must_use]
    pub fn wants_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// Bytes of the payload that follows.
    ///
    /// # Errors
    /// [`MessageError`]: it is none of a frontend's requests, or longer than any.
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

/// Why a message makes no sense. Whoever sent it is not listened to any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Another version, or an answer to what nobody asked.
    #[error("a message has the flags {flags:#x}, which no request of version {VERSION} has")]
    Flags {
        /// Its flags.
        flags: u32,
    },
    /// Its payload is longer than any request's.
    #[error("a message announces {size} bytes, more than the {MOST_PAYLOAD} that any request has")]
    Long {
        /// Bytes it announces.
        size: u32,
    },
    /// A request that is not known here, and was not offered.
    #[error("request {number} is none that this backend offered")]
    Unknown {
        /// Its number.
        number: u32,
    },
    /// Its payload is not as long as its request's.
    #[error("request {number} has {size} bytes, which is not what it has to say")]
    Size {
        /// Its number.
        number: u32,
        /// Bytes it has.
        size: usize,
    },
    /// It names more regions than a message has room for.
    #[error("a table of {count} regions: there are {MOST_TABLE_REGIONS} at most in one message")]
    Regions {
        /// How many.
        count: u32,
    },
    /// There are more files than it takes. Source: DPDK's backend, `validate_msg_fds`, refuses them as well.
    #[error("request {number} came with {found} files, and takes {most} at most; all of them were closed")]
    Surplus {
        /// Its number.
        number: u32,
        /// How many came.
        found: usize,
        /// How many it takes.
        most: usize,
    },
    /// Files are missing.
    #[error("request {number} came with {found} files, and needs {needed}")]
    Files {
        /// Its number.
        number: u32,
        /// How many came.
        found: usize,
        /// How many it needs.
        needed: usize,
    },
}

/// Where a record of what is in flight lies in its file, and for what. Source: vhost-user, "Inflight description".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordPlace {
    /// Bytes of it.
    pub len: u64,
    /// Where it begins.
    pub offset: u64,
    /// Rings.
    pub rings: u16,
    /// Descriptors of each ring.
    pub size: u16,
}

/// What a frontend asks for. `ring` is a virtqueue's number, as the frontend says it: nobody has looked yet whether there is one.
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
    /// `SET_LOG_BASE`: bytes, where they begin in the file, and the file.
    SetLog(u64, u64, OwnedFd),
    /// `SET_LOG_FD`: to be told of marks; nobody needs to.
    SetLogEvent,
    /// `SET_VRING_NUM`: descriptors.
    SetRingSize(u32, u32),
    /// `SET_VRING_ADDR`: where its parts are, and, if it is logged, the guest address of its used ring.
    SetRingAddresses(u32, RingAddresses, Option<u64>),
    /// `SET_VRING_BASE`: where it goes on.
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
    /// `SEND_RARP`: the guest's address.
    Announce([u8; 6]),
    /// `GET_INFLIGHT_FD`: a new record.
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
    /// Whether its answer is more than "done" or "refused".
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

/// Bytes of a record's description from frontends that pad it, as QEMU does. Source: vhost-user, "Inflight description", in C.
const PADDED_RECORD: usize = size_of::<RecordWords>().next_multiple_of(size_of::<u64>());

impl RegionWords {
    fn region(self) -> Region {
        let RegionWords { guest, len, user, offset } = self;
        Region { guest, len, user, offset }
    }
}

/// A request's number, payload and files, before they mean anything.
struct Raw<'a> {
    number: u32,
    payload: &'a [u8],
    files: Vec<OwnedFd>,
}

impl Raw<'_> {
    fn size(&self) -> MessageError {
        MessageError::Size { number: self.number, size: self.payload.len() }
    }

    /// The payload, which is one `T`.
    fn words<T: FromBytes>(&self) -> Result<T, MessageError> {
        T::read_from_bytes(self.payload).map_err(|_| self.size())
    }

    /// The first file.
    fn file(&mut self) -> Result<OwnedFd, MessageError> {
        self.files(1).map(|mut files| files.swap_remove(0))
    }

    /// So many files, the first that came.
    fn files(&mut self, needed: usize) -> Result<Vec<OwnedFd>, MessageError> {
        let found = self.files.len();
        if found < needed {
            return Err(MessageError::Files { number: self.number, found, needed });
        }
        Ok(self.files.drain(..needed).collect())
    }

    /// One file that the request has no use for is closed, if there is one.
    fn close_file(&mut self) {
        self.files.pop();
    }

    /// A ring's number, and the file that its events go through, if there is one.
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

/// What a message asks for. Its files are in the request, or closed.
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

/// What the words ask for, with the files that it takes; the others stay.
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
            // QEMU sends the region's file. Source: vhost-user, `REM_MEM_REG`: a backend may accept one file, and closes it.
            raw.close_file();
            raw.region().map(Request::RemoveRegion)
        }
        39 => raw.words().map(Request::SetStatus),
        40 => raw.nothing(Request::GetStatus),
        number => Err(MessageError::Unknown { number }),
    }
}

/// What a request is answered with.
#[derive(Debug)]
pub enum Reply {
    /// A number: what was asked for, or 0 for "done" and anything else for "refused".
    Number(u64),
    /// The dirty log, as it was announced. The document leaves open what is answered to `SET_LOG_BASE`: QEMU reads an answer of any length,
    /// and rust-vmm's frontend (Cloud Hypervisor's) waits for this one.
    Log {
        /// Bytes.
        len: u64,
        /// Where they begin.
        offset: u64,
    },
    /// Where a ring went on to.
    State {
        /// Which.
        ring: u32,
        /// Where.
        base: u32,
    },
    /// A record of what is in flight.
    Record {
        /// Where it lies in the file.
        place: RecordPlace,
        /// The file.
        file: OwnedFd,
    },
}

impl Reply {
    /// The message that answers a request, whose header it is; and the file that goes with it.
    #[must_use]
    pub fn message(self, to: &Header) -> (Vec<u8>, Option<OwnedFd>) {
        let (payload, file) = match self {
            Reply::Number(number) => (number.as_bytes().to_vec(), None),
            Reply::Log { len, offset } => ([len, offset].as_bytes().to_vec(), None),
            Reply::State { ring, base } => (StateWords { ring, number: base }.as_bytes().to_vec(), None),
            Reply::Record { place: RecordPlace { len, offset, rings, size }, file } => {
                let mut words = RecordWords { len, offset, rings, size }.as_bytes().to_vec();
                // As long as the frontend's own: those that pad it compare lengths.
                words.resize((to.size as usize).clamp(words.len(), PADDED_RECORD), 0);
                (words, Some(file))
            }
        };
        let size = u32::try_from(payload.len()).unwrap_or(0);
        let header = Header { request: to.request, flags: VERSION | REPLY, size };
        ([header.as_bytes(), &payload].concat(), file)
    }
}

/// What a device for networks offers here.
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
    fn a_header_of_another_version_or_too_long_is_refused() {
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
    fn a_payload_has_the_length_of_its_request_or_is_refused() {
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
    fn a_table_has_as_many_regions_as_it_says_and_a_file_each() {
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

    /// CVE-2019-14818: files that no request had asked for stayed open for ever. Then they were closed here and nothing was said of it.
    #[test]
    fn a_message_with_more_files_than_its_request_takes_is_refused_and_all_are_closed() {
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
    fn a_ring_without_a_file_says_so() {
        assert!(matches!(ask(13, &words(&[0x105]), Vec::new()), Ok(Request::SetRingCall(5, None))));
        assert!(matches!(ask(13, &words(&[5]), Vec::new()), Err(MessageError::Files { found: 0, needed: 1, .. })));
    }

    /// CVE-2020-10723: an index was cut to 16 bits before it was compared.
    #[test]
    fn a_rings_number_is_kept_whole() {
        let state = [0x0001_0000_u32.to_le_bytes(), 256_u32.to_le_bytes()].concat();
        assert!(matches!(ask(8, &state, Vec::new()), Ok(Request::SetRingSize(0x1_0000, 256))));
    }

    #[test]
    fn a_record_is_answered_in_the_frontends_length() {
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
        fn no_bytes_make_it_panic(request in 0_u32..50, payload in prop::collection::vec(any::<u8>(), 0..300), files in 0_usize..9) {
            let _ = ask(request, &payload, (0..files).map(|_| file()).collect());
        }
    }
}
