//! What one frontend has said so far, and what follows from the next thing it says.
//!
//! ```text
//! request ─► Session::accept ─► change ─► port ─► outcome ─► Session::reply ─► answer
//!                  └ refusal ─────────────────────────────────────┘
//! ```
//!
//! A session does nothing itself: no memory is mapped, no ring touched, no file written to. So every order of requests that a frontend can
//! think of can be tried on it.
//!
//! Source: vhost-user, "Communication", "Ring states", "Migration", "Front-end message types".

use crate::message::{ProtocolFeatures, RecordPlace, Reply, Request};
use crate::ring::{Base, Direction, RingAddresses, RingSetup};
use crate::words::{Features, MOST_DESCRIPTORS};
use crate::{MOST_REGIONS, Region};
use std::os::fd::OwnedFd;

/// What a backend offers to its frontend. The same after a restart, or a guest that reconnects has agreed on what is not there any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Features of the device.
    pub features: Features,
    /// Features of the protocol.
    pub protocol: ProtocolFeatures,
    /// Rings: two for each pair of queues.
    pub rings: u16,
}

/// The most rings a device can have here. Source: vhost-user, `SET_VRING_KICK`: a ring's number has eight bits.
pub const MOST_RINGS: u16 = 256;

impl Offer {
    /// All that this backend can do, with so many pairs of queues; 128 at most.
    #[must_use]
    pub fn of_pairs(pairs: u16) -> Offer {
        let rings = pairs.clamp(1, MOST_RINGS / 2) * 2;
        Offer { features: crate::message::FEATURES, protocol: ProtocolFeatures::all(), rings }
    }
}

/// What a frontend said of one ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct RingState {
    /// Descriptors; 0 as long as nobody said.
    size: u16,
    addresses: Option<RingAddresses>,
    /// Guest address of what is marked when the ring is written, if it is.
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

/// What is to be done after a request.
#[derive(Debug)]
pub enum Change {
    /// Nothing.
    Nothing,
    /// The guest's memory is these regions.
    Memory(Vec<(Region, OwnedFd)>),
    /// It has one more.
    AddRegion(Region, OwnedFd),
    /// It has one less.
    RemoveRegion(Region),
    /// Marks go to so many bytes of a file, from an offset on.
    Log {
        /// Bytes.
        len: u64,
        /// Where they begin.
        offset: u64,
        /// The file.
        file: OwnedFd,
    },
    /// [`Session::ring`], [`Session::is_enabled`] or [`Session::log`] say something else of this ring.
    Ring(usize),
    /// The same, of all.
    Rings,
    /// A ring's kicks come through this file, or none do; it may start.
    Kick(usize, Option<OwnedFd>),
    /// A ring's driver is called through this file, or not at all.
    Call(usize, Option<OwnedFd>),
    /// A ring's driver is told of errors through this file, or not at all.
    Error(usize, Option<OwnedFd>),
    /// A ring stops, and its base is told.
    Stop(usize),
    /// A record of what is in flight is made and given away.
    NewRecord(RecordPlace),
    /// What is in flight is recorded there, and perhaps was by somebody before.
    Record(RecordPlace, OwnedFd),
    /// The guest has moved here: its address is announced to the network.
    Announce([u8; 6]),
    /// Rings stop, and logs and records are let go.
    Reset,
}

/// What has become of a change.
#[derive(Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The ring has stopped, and goes on here.
    Stopped(usize, Base),
    /// The record that was made.
    Record(RecordPlace, OwnedFd),
    /// Marks go to so many bytes, from an offset on.
    Logs(u64, u64),
}

/// A request's change, and the number it is answered with, if it asked for one.
#[derive(Debug)]
pub struct Step {
    /// What is to be done.
    pub change: Change,
    /// The number that was asked for.
    pub answer: Option<u64>,
}

/// Why a request is not done. The session goes on if the frontend asked to be told, and ends if not: it would go on as if it were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Features that were not offered.
    #[error("the frontend took features {bits:#x}, of which {offered:#x} were offered")]
    Features {
        /// What it took.
        bits: u64,
        /// What there was.
        offered: u64,
    },
    /// Features that change how rings look, under rings that run.
    #[error("features change from {from:?} to {to:?} while rings run")]
    WhileRunning {
        /// What was agreed on.
        from: Features,
        /// What was asked for.
        to: Features,
    },
    /// A request of a protocol feature that was not offered.
    #[error("a request needs {needed:?}, which was not offered")]
    NotOffered {
        /// Which feature.
        needed: ProtocolFeatures,
    },
    /// There is no such ring.
    #[error("ring {ring} of {rings}: the frontend has more queues than this backend")]
    NoRing {
        /// What was named.
        ring: u32,
        /// How many there are.
        rings: u16,
    },
    /// A size that rings do not have.
    #[error(
        "ring {ring} of {size} descriptors: a split ring has a power of two, and none more than {MOST_DESCRIPTORS}"
    )]
    RingSize {
        /// Which.
        ring: usize,
        /// What was asked for.
        size: u32,
    },
    /// A place that rings do not have.
    #[error("ring {ring} goes on at {base:#x}, which does not fit 16 bits")]
    RingBase {
        /// Which.
        ring: usize,
        /// What was asked for.
        base: u32,
    },
    /// A ring that runs has its size and place.
    #[error("ring {ring} runs; stop it before it is set up")]
    Runs {
        /// Which.
        ring: usize,
    },
    /// A record of more than there is.
    #[error("a record of {rings} rings with {size} descriptors; this backend has {most} of {MOST_DESCRIPTORS} at most")]
    Record {
        /// Rings asked for.
        rings: u16,
        /// Descriptors asked for.
        size: u16,
        /// Rings there are.
        most: u16,
    },
}

impl Session {
    /// A session in which nobody said anything yet.
    #[must_use]
    pub fn new(offer: Offer) -> Session {
        let rings = vec![RingState::default(); offer.rings.into()].into();
        let (features, protocol) = (Features::empty(), ProtocolFeatures::empty());
        Session { offer, features, protocol, status: 0, rings }
    }

    /// What was offered.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// What was agreed on.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// What of the protocol was agreed on.
    #[must_use]
    pub fn protocol(&self) -> ProtocolFeatures {
        self.protocol
    }

    /// The device's status as its driver set it. Source: VirtIO 1.2 §2.1.
    #[must_use]
    pub fn status(&self) -> u64 {
        self.status
    }

    /// How many rings.
    #[must_use]
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// What a ring is set up with, if it is to run. Even rings are those that the guest receives on (VirtIO 1.2 §5.1.2).
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn ring(&self, ring: usize) -> Option<RingSetup> {
        let state = &self.rings[ring];
        let direction = if ring.is_multiple_of(2) { Direction::Receive } else { Direction::Transmit };
        let addresses = state.addresses?;
        let RingState { size, base, .. } = *state;
        // What is agreed on for the log does not change how a ring looks.
        let features = self.features - Features::LOG_ALL;
        (state.started && size > 0).then_some(RingSetup { size, features, direction, addresses, base })
    }

    /// Whether a ring may do what is seen outside.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn is_enabled(&self, ring: usize) -> bool {
        // Who does not know how to enable rings wants them enabled.
        self.rings[ring].enabled || !self.features.contains(Features::PROTOCOL_FEATURES)
    }

    /// Whether what is written for this ring is marked, and if so, the guest address by which its used ring is, if that is.
    ///
    /// # Panics
    /// If there is no such ring.
    #[must_use]
    pub fn log(&self, ring: usize) -> Option<Option<u64>> {
        self.features.contains(Features::LOG_ALL).then_some(self.rings[ring].log)
    }

    /// Hears a request.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed.
    pub fn accept(&mut self, request: Request) -> Result<Step, Refusal> {
        let done = |change| Ok(Step { change, answer: None });
        let tell = |answer| Ok(Step { change: Change::Nothing, answer: Some(answer) });
        match request {
            Request::GetFeatures => tell(self.offer.features.bits()),
            Request::SetFeatures(bits) => self.set_features(bits).and_then(done),
            Request::SetOwner | Request::SetLogEvent => done(Change::Nothing),
            Request::ResetOwner => {
                self.rings.iter_mut().for_each(|ring| ring.enabled = false);
                done(Change::Rings)
            }
            Request::SetMemory(regions) => done(Change::Memory(regions)),
            Request::SetLog(len, offset, file) => {
                self.expect(ProtocolFeatures::LOG_SHMFD)?;
                done(Change::Log { len, offset, file })
            }
            Request::SetRingSize(ring, size) => {
                let ring = self.stopped_ring(ring)?;
                // A packed ring has any size; which it is may not be agreed on yet.
                match u16::try_from(size) {
                    Ok(descriptors) if (1..=MOST_DESCRIPTORS).contains(&descriptors) => {
                        self.rings[ring].size = descriptors;
                        done(Change::Ring(ring))
                    }
                    _ => Err(Refusal::RingSize { ring, size }),
                }
            }
            Request::SetRingAddresses(ring, addresses, log) => {
                let ring = self.index(ring)?;
                (self.rings[ring].addresses, self.rings[ring].log) = (Some(addresses), log);
                done(Change::Ring(ring))
            }
            Request::SetRingBase(ring, base) => {
                let ring = self.stopped_ring(ring)?;
                self.rings[ring].base = self.base(ring, base)?;
                done(Change::Ring(ring))
            }
            Request::GetRingBase(ring) => {
                let ring = self.index(ring)?;
                self.rings[ring].started = false;
                done(Change::Stop(ring))
            }
            Request::SetRingKick(ring, file) => {
                let ring = self.index(ring)?;
                self.rings[ring].started = true;
                done(Change::Kick(ring, file))
            }
            Request::SetRingCall(ring, file) => done(Change::Call(self.index(ring)?, file)),
            Request::SetRingError(ring, file) => done(Change::Error(self.index(ring)?, file)),
            Request::GetProtocolFeatures => tell(self.offer.protocol.bits()),
            Request::SetProtocolFeatures(bits) => {
                let offered = self.offer.protocol.bits();
                if bits & !offered != 0 {
                    return Err(Refusal::Features { bits, offered });
                }
                self.protocol = ProtocolFeatures::from_bits_truncate(bits);
                done(Change::Nothing)
            }
            Request::GetQueues => {
                self.expect(ProtocolFeatures::MQ)?;
                tell((self.offer.rings / 2).into())
            }
            Request::EnableRing(ring, on) => {
                let ring = self.index(ring)?;
                self.rings[ring].enabled = on;
                done(Change::Ring(ring))
            }
            Request::Announce(address) => {
                self.expect(ProtocolFeatures::RARP)?;
                done(Change::Announce(address))
            }
            Request::GetRecord(place) => {
                self.check_record(place)?;
                done(Change::NewRecord(place))
            }
            Request::SetRecord(place, file) => {
                self.check_record(place)?;
                done(Change::Record(place, file))
            }
            Request::Reset => {
                self.expect(ProtocolFeatures::RESET_DEVICE)?;
                // Memory stays: frontends do not send it again.
                self.rings.fill(RingState::default());
                (self.features, self.status) = (Features::empty(), 0);
                done(Change::Reset)
            }
            Request::GetMemorySlots => {
                self.expect(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                tell(MOST_REGIONS as u64)
            }
            Request::AddRegion(region, file) => {
                self.expect(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                done(Change::AddRegion(region, file))
            }
            Request::RemoveRegion(region) => {
                self.expect(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                done(Change::RemoveRegion(region))
            }
            Request::SetStatus(status) => {
                self.expect(ProtocolFeatures::STATUS)?;
                self.status = status;
                done(Change::Nothing)
            }
            Request::GetStatus => {
                self.expect(ProtocolFeatures::STATUS)?;
                tell(self.status)
            }
        }
    }

    /// What a request is answered with, if at all, once its change is an outcome. `asked`: the frontend wants to be told.
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
            // The one request that is answered without being asked to (rust-vmm/vhost #217).
            Outcome::Logs(len, offset) => Some(Reply::Log { len, offset }),
        }
    }

    /// Whether the frontend is told when it wants to be.
    #[must_use]
    pub fn acknowledges(&self, asked: bool) -> bool {
        asked && self.protocol.contains(ProtocolFeatures::REPLY_ACK)
    }

    /// A ring that stood still goes on here when it starts again.
    pub(crate) fn stopped_at(&mut self, ring: usize, base: Base) {
        self.rings[ring].base = base;
    }

    /// Where a ring goes on that did not run since.
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

    /// Where a ring goes on, as the frontend says it. Of a packed ring only where it takes: what is in flight has landed before a base is
    /// told, so that it puts there, too, and not every frontend says both (DPDK's virtio-user says one).
    fn base(&self, ring: usize, word: u32) -> Result<Base, Refusal> {
        let [a0, a1, rest @ ..] = word.to_le_bytes();
        let place = u16::from_le_bytes([a0, a1]);
        if rest != [0; 2] && !self.features.contains(Features::RING_PACKED) {
            return Err(Refusal::RingBase { ring, base: word });
        }
        Ok(Base { available: place, used: place })
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
