//! The state that one frontend's requests have set, and what the next request changes.
//!
//! ```text
//! request ─► Session::accept ─► change ─► port ─► outcome ─► Session::reply ─► answer
//!                  └ refusal ─────────────────────────────────────┘
//! ```
//!
//! A session has no side effects: it maps no memory, touches no ring and writes no file. So tests can try every order
//! of requests that a frontend could send.
//!
//! Source: vhost-user, "Communication", "Ring states", "Migration", "Front-end message types".

use crate::layout::{Features, MOST_DESCRIPTORS};
use crate::message::{ProtocolFeatures, RecordPlace, Reply, Request};
use crate::ring::{Base, Direction, RingAddresses, RingSetup};
use crate::{MOST_REGIONS, Region};
use std::os::fd::OwnedFd;

/// What a backend offers to its frontends. It must be the same after a restart: a guest that reconnects keeps using the
/// features that it negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Features of the device.
    pub features: Features,
    /// Features of the protocol.
    pub protocol: ProtocolFeatures,
    /// Rings: two per queue pair.
    pub rings: u16,
}

/// The most rings of a device. Source: vhost-user, `SET_VRING_KICK`: a ring's number has eight bits.
pub const MOST_RINGS: u16 = 256;

impl Offer {
    /// Everything that this backend supports, with `pairs` queue pairs; at most 128.
    #[must_use]
    pub fn of_pairs(pairs: u16) -> Offer {
        let rings = pairs.clamp(1, MOST_RINGS / 2) * 2;
        Offer { features: crate::message::FEATURES, protocol: ProtocolFeatures::all(), rings }
    }
}

/// What a frontend has set for one ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct RingState {
    /// Descriptors; 0 until set.
    size: u16,
    addresses: Option<RingAddresses>,
    /// The guest address under which writes to the used ring are marked, if they are logged.
    log: Option<u64>,
    base: Base,
    /// Between `SET_VRING_KICK` and `GET_VRING_BASE`.
    started: bool,
    enabled: bool,
}

/// One frontend's session, from its connection on.
#[derive(Clone, Debug)]
pub struct Session {
    offer: Offer,
    features: Features,
    protocol: ProtocolFeatures,
    status: u64,
    rings: Box<[RingState]>,
}

/// What a request changes.
#[derive(Debug)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// The guest's memory is exactly these regions.
    Memory(Vec<(Region, OwnedFd)>),
    /// The guest's memory has one more region.
    AddRegion(Region, OwnedFd),
    /// The guest's memory has one region less.
    RemoveRegion(Region),
    /// The dirty log is this part of a file.
    Log {
        /// Its length in bytes.
        len: u64,
        /// Its offset in the file.
        offset: u64,
        /// The file.
        file: OwnedFd,
    },
    /// [`Session::ring`], [`Session::is_enabled`] or [`Session::log`] changed for this ring.
    Ring(usize),
    /// The same changed for all rings.
    Rings,
    /// A ring's kicks come through this eventfd, or it has none; the ring may start.
    Kick(usize, Option<OwnedFd>),
    /// A ring's driver is called through this eventfd, or not at all.
    Call(usize, Option<OwnedFd>),
    /// The frontend is notified of a ring's errors through this eventfd, or not at all.
    Error(usize, Option<OwnedFd>),
    /// A ring stops, and its base is reported.
    Stop(usize),
    /// An inflight record is created and sent to the frontend.
    NewRecord(RecordPlace),
    /// The chains in flight are recorded in this file, which may contain a previous backend's record.
    Record(RecordPlace, OwnedFd),
    /// The guest has migrated here: announce its MAC address to the network.
    Announce([u8; 6]),
    /// Rings stop; log and record are released.
    Reset,
}

/// The result of a change.
#[derive(Debug)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// The ring has stopped, and resumes here.
    Stopped(usize, Base),
    /// The record that was created.
    Record(RecordPlace, OwnedFd),
    /// The log's length and offset in bytes.
    Logs(u64, u64),
}

/// A request's change, and the number in the reply if the request asked for one.
#[derive(Debug)]
pub struct Step {
    /// The change to carry out.
    pub change: Change,
    /// The requested number.
    pub answer: Option<u64>,
}

impl Step {
    /// Only a number in the reply.
    fn answer(number: u64) -> Step {
        Step { change: Change::Nothing, answer: Some(number) }
    }
}

/// Why a request is refused. If the frontend asked for a reply, it is told and the session continues. Otherwise the
/// session ends, because the frontend would continue as if the request had succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Features that were not offered.
    #[error("the frontend took features {bits:#x}; only {offered:#x} were offered")]
    Features {
        /// The requested features.
        bits: u64,
        /// The offered features.
        offered: u64,
    },
    /// Features that affect the rings changed while rings run.
    #[error("features change from {from:?} to {to:?} while rings run")]
    WhileRunning {
        /// The features negotiated before.
        from: Features,
        /// The requested features.
        to: Features,
    },
    /// A request that belongs to a protocol feature that was not offered.
    #[error("a request needs {needed:?}, which was not offered")]
    NotOffered {
        /// The feature.
        needed: ProtocolFeatures,
    },
    /// There is no such ring.
    #[error("ring {ring} of {rings}: the frontend has more queues than this backend")]
    NoRing {
        /// The requested ring.
        ring: u32,
        /// The number of rings.
        rings: u16,
    },
    /// An invalid ring size.
    #[error(
        "ring {ring} has {size} descriptors; a split ring needs a power of two, and any at most {MOST_DESCRIPTORS}"
    )]
    RingSize {
        /// The ring's index.
        ring: usize,
        /// The requested size.
        size: u32,
    },
    /// An invalid ring base.
    #[error("the base {base:#x} of ring {ring} does not fit 16 bits")]
    RingBase {
        /// The ring's index.
        ring: usize,
        /// The requested base.
        base: u32,
    },
    /// Size and base of a running ring cannot change.
    #[error("ring {ring} is running; stop it before setting it up")]
    Runs {
        /// The ring's index.
        ring: usize,
    },
    /// A record for more rings or descriptors than there are.
    #[error(
        "a record of {rings} rings with {size} descriptors; this backend has at most {most} rings of {MOST_DESCRIPTORS}"
    )]
    Record {
        /// Rings asked for.
        rings: u16,
        /// Descriptors asked for.
        size: u16,
        /// The number of rings.
        most: u16,
    },
}

impl Session {
    /// Creates a session before its first request.
    #[must_use]
    pub fn new(offer: Offer) -> Session {
        let rings = vec![RingState::default(); offer.rings.into()].into();
        let (features, protocol) = (Features::empty(), ProtocolFeatures::empty());
        Session { offer, features, protocol, status: 0, rings }
    }

    /// The offer of this backend.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// The negotiated features.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// The negotiated protocol features.
    #[must_use]
    pub fn protocol(&self) -> ProtocolFeatures {
        self.protocol
    }

    /// The device's status as set by its driver. Source: VirtIO 1.2 §2.1.
    #[must_use]
    pub fn status(&self) -> u64 {
        self.status
    }

    /// The number of rings.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// The setup of a ring that is to run, otherwise `None`. The guest receives on even rings (VirtIO 1.2 §5.1.2).
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn ring(&self, ring: usize) -> Option<RingSetup> {
        let state = &self.rings[ring];
        let direction = if ring.is_multiple_of(2) { Direction::Receive } else { Direction::Transmit };
        let addresses = state.addresses?;
        let RingState { size, base, .. } = *state;
        // The log feature does not affect the ring's layout.
        let features = self.features - Features::LOG_ALL;
        (state.started && size > 0).then_some(RingSetup { size, features, direction, addresses, base })
    }

    /// Returns whether a ring is enabled: it may have effects visible to the guest.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn is_enabled(&self, ring: usize) -> bool {
        // A frontend without protocol features cannot enable rings; its rings are always enabled.
        self.rings[ring].enabled || !self.features.contains(Features::PROTOCOL_FEATURES)
    }

    /// Returns whether writes of this ring are logged, and if so, the guest address under which its used ring is
    /// marked, if that is logged too.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn log(&self, ring: usize) -> Option<Option<u64>> {
        self.features.contains(Features::LOG_ALL).then_some(self.rings[ring].log)
    }

    /// Applies a request to the session.
    ///
    /// # Errors
    /// [`Refusal`]; the session is unchanged.
    pub fn accept(&mut self, request: Request) -> Result<Step, Refusal> {
        let change = match request {
            Request::GetFeatures => return Ok(Step::answer(self.offer.features.bits())),
            Request::GetProtocolFeatures => return Ok(Step::answer(self.offer.protocol.bits())),
            Request::GetQueues => return self.supported(ProtocolFeatures::MQ, (self.offer.rings / 2).into()),
            Request::GetMemorySlots => {
                return self.supported(ProtocolFeatures::CONFIGURE_MEM_SLOTS, MOST_REGIONS as u64);
            }
            Request::GetStatus => return self.supported(ProtocolFeatures::STATUS, self.status),
            Request::SetOwner | Request::SetLogEvent => Change::Nothing,
            Request::SetFeatures(bits) => self.set_features(bits)?,
            Request::SetProtocolFeatures(bits) => self.set_protocol_features(bits)?,
            Request::SetStatus(status) => self.set_status(status)?,
            Request::ResetOwner => self.disable_rings(),
            Request::Reset => self.reset()?,
            Request::SetRingSize(ring, size) => self.set_ring_size(ring, size)?,
            Request::SetRingAddresses(ring, addresses, log) => self.set_ring_addresses(ring, addresses, log)?,
            Request::SetRingBase(ring, base) => self.set_ring_base(ring, base)?,
            Request::GetRingBase(ring) => self.stop_ring(ring)?,
            Request::SetRingKick(ring, file) => self.start_ring(ring, file)?,
            Request::SetRingCall(ring, file) => Change::Call(self.index(ring)?, file),
            Request::SetRingError(ring, file) => Change::Error(self.index(ring)?, file),
            Request::EnableRing(ring, on) => self.enable_ring(ring, on)?,
            Request::SetMemory(regions) => Change::Memory(regions),
            Request::AddRegion(region, file) => {
                self.expect(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                Change::AddRegion(region, file)
            }
            Request::RemoveRegion(region) => {
                self.expect(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                Change::RemoveRegion(region)
            }
            Request::SetLog(len, offset, file) => {
                self.expect(ProtocolFeatures::LOG_SHMFD)?;
                Change::Log { len, offset, file }
            }
            Request::Announce(address) => {
                self.expect(ProtocolFeatures::RARP)?;
                Change::Announce(address)
            }
            Request::GetRecord(place) => {
                self.check_record(place)?;
                Change::NewRecord(place)
            }
            Request::SetRecord(place, file) => {
                self.check_record(place)?;
                Change::Record(place, file)
            }
        };
        Ok(Step { change, answer: None })
    }

    /// The reply to a request after its change was carried out, if it has one. `asked`: the frontend asked for a reply.
    pub fn reply(&mut self, answer: Option<u64>, outcome: Outcome, asked: bool) -> Option<Reply> {
        match outcome {
            Outcome::Done => answer.or(self.acknowledges(asked).then_some(0)).map(Reply::Number),
            Outcome::Stopped(ring, base) => {
                self.stopped_at(ring, base);
                let upper = if self.features.contains(Features::RING_PACKED) { base.used } else { 0 };
                let number = u32::try_from(ring).unwrap_or(u32::MAX);
                Some(Reply::State { ring: number, base: u32::from(base.available) | u32::from(upper) << 16 })
            }
            Outcome::Record(place, file) => Some(Reply::Record { place, file }),
            // The one request that gets a reply without asking for it (rust-vmm/vhost #217).
            Outcome::Logs(len, offset) => Some(Reply::Log { len, offset }),
        }
    }

    /// Returns whether the frontend gets a reply when it asks for one.
    #[must_use]
    pub fn acknowledges(&self, asked: bool) -> bool {
        asked && self.protocol.contains(ProtocolFeatures::REPLY_ACK)
    }

    /// Sets where a stopped ring resumes when it starts again.
    pub(crate) fn stopped_at(&mut self, ring: usize, base: Base) {
        self.rings[ring].base = base;
    }

    /// Where a stopped ring resumes.
    pub(crate) fn base_of(&self, ring: usize) -> Base {
        self.rings[ring].base
    }

    fn set_features(&mut self, bits: u64) -> Result<Change, Refusal> {
        let offered = self.offer.features;
        let refused = Refusal::Features { bits, offered: offered.bits() };
        let to = Features::from_bits(bits).filter(|&features| offered.contains(features)).ok_or(refused)?;
        let from = self.features;
        if (from ^ to) - Features::LOG_ALL != Features::empty() && self.rings.iter().any(|ring| ring.started) {
            return Err(Refusal::WhileRunning { from, to });
        }
        self.features = to;
        Ok(Change::Rings)
    }

    fn set_protocol_features(&mut self, bits: u64) -> Result<Change, Refusal> {
        let offered = self.offer.protocol.bits();
        if bits & !offered != 0 {
            return Err(Refusal::Features { bits, offered });
        }
        self.protocol = ProtocolFeatures::from_bits_truncate(bits);
        Ok(Change::Nothing)
    }

    fn set_status(&mut self, status: u64) -> Result<Change, Refusal> {
        self.expect(ProtocolFeatures::STATUS)?;
        self.status = status;
        Ok(Change::Nothing)
    }

    fn disable_rings(&mut self) -> Change {
        self.rings.iter_mut().for_each(|ring| ring.enabled = false);
        Change::Rings
    }

    fn reset(&mut self) -> Result<Change, Refusal> {
        self.expect(ProtocolFeatures::RESET_DEVICE)?;
        // Memory is kept: frontends do not send it again.
        self.rings.fill(RingState::default());
        (self.features, self.status) = (Features::empty(), 0);
        Ok(Change::Reset)
    }

    fn set_ring_size(&mut self, ring: u32, size: u32) -> Result<Change, Refusal> {
        let ring = self.stopped_ring(ring)?;
        // A packed ring may have any size; the layout may not be negotiated yet.
        match u16::try_from(size) {
            Ok(descriptors) if (1..=MOST_DESCRIPTORS).contains(&descriptors) => {
                self.rings[ring].size = descriptors;
                Ok(Change::Ring(ring))
            }
            _ => Err(Refusal::RingSize { ring, size }),
        }
    }

    fn set_ring_addresses(&mut self, ring: u32, addresses: RingAddresses, log: Option<u64>) -> Result<Change, Refusal> {
        let ring = self.index(ring)?;
        (self.rings[ring].addresses, self.rings[ring].log) = (Some(addresses), log);
        Ok(Change::Ring(ring))
    }

    fn set_ring_base(&mut self, ring: u32, base: u32) -> Result<Change, Refusal> {
        let ring = self.stopped_ring(ring)?;
        self.rings[ring].base = self.base(ring, base)?;
        Ok(Change::Ring(ring))
    }

    fn stop_ring(&mut self, ring: u32) -> Result<Change, Refusal> {
        let ring = self.index(ring)?;
        self.rings[ring].started = false;
        Ok(Change::Stop(ring))
    }

    fn start_ring(&mut self, ring: u32, kick: Option<OwnedFd>) -> Result<Change, Refusal> {
        let ring = self.index(ring)?;
        self.rings[ring].started = true;
        Ok(Change::Kick(ring, kick))
    }

    fn enable_ring(&mut self, ring: u32, on: bool) -> Result<Change, Refusal> {
        let ring = self.index(ring)?;
        self.rings[ring].enabled = on;
        Ok(Change::Ring(ring))
    }

    /// Parses a ring's base. For a packed ring only the available index counts: all chains in flight have completed
    /// before a base is reported, so the used index is the same. Not every frontend sends both (DPDK's virtio-user
    /// sends one).
    fn base(&self, ring: usize, word: u32) -> Result<Base, Refusal> {
        let [a0, a1, rest @ ..] = word.to_le_bytes();
        let place = u16::from_le_bytes([a0, a1]);
        if rest != [0; 2] && !self.features.contains(Features::RING_PACKED) {
            return Err(Refusal::RingBase { ring, base: word });
        }
        Ok(Base { available: place, used: place })
    }

    /// Answers a request that belongs to a protocol feature.
    fn supported(&self, needed: ProtocolFeatures, answer: u64) -> Result<Step, Refusal> {
        self.expect(needed)?;
        Ok(Step::answer(answer))
    }

    fn expect(&self, needed: ProtocolFeatures) -> Result<(), Refusal> {
        if self.offer.protocol.contains(needed) { Ok(()) } else { Err(Refusal::NotOffered { needed }) }
    }

    fn index(&self, ring: u32) -> Result<usize, Refusal> {
        let none = Refusal::NoRing { ring, rings: self.offer.rings };
        usize::try_from(ring).ok().filter(|&ring| ring < self.rings.len()).ok_or(none)
    }

    fn stopped_ring(&self, ring: u32) -> Result<usize, Refusal> {
        let ring = self.index(ring)?;
        if self.ring(ring).is_some() { Err(Refusal::Runs { ring }) } else { Ok(ring) }
    }

    fn check_record(&self, place: RecordPlace) -> Result<(), Refusal> {
        self.expect(ProtocolFeatures::INFLIGHT_SHMFD)?;
        let RecordPlace { rings, size, .. } = place;
        let most = self.offer.rings;
        if rings == 0 || rings > most || size == 0 || size > MOST_DESCRIPTORS {
            return Err(Refusal::Record { rings, size, most });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
