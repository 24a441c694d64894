//! The control plane of one connection: what its frontend asks for is done to the port.
//!
//! A ring that runs is changed only with its slot locked, after its copies have landed. So no byte is written to memory that a frontend
//! was told is its own again. If copies do not land, the session ends, and its memory is taken from whoever still writes there before
//! the frontend hears of it.

use crate::error::{RequestError, SessionError};
use crate::inflight::{Record, RingRecord};
use crate::log::{DirtyLog, LogError, RingLog};
use crate::message::{Header, Reply, parse};
use crate::port::{Port, ring_bell};
use crate::ring::{Base, Ring, RingError, RingSetup};
use crate::session::{Change, Outcome, Session};
use crate::virtqueue::Virtqueue;
use crate::words::Features;
use crate::{GuestMemory, RegionError};
use rustix::fs::OFlags;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// One frontend's hold on a port, from its connection to its end; then its rings stop.
#[derive(Debug)]
pub struct Control {
    port: Arc<Port>,
    session: Session,
    memory: Arc<GuestMemory>,
    log: Option<Arc<DirtyLog>>,
    record: Option<Arc<Record>>,
    /// How many refusals there were that the session outlived, and the last of them.
    refused: (u64, Option<RequestError>),
    /// How long this request waits for copies.
    until: Instant,
    /// Rings that stopped before copies into the guest had landed, and the memory that those are to.
    late: Vec<(usize, Arc<GuestMemory>)>,
}

impl Control {
    /// Takes the port for a new frontend. `None` while another has it.
    #[must_use]
    pub fn take(port: &Arc<Port>) -> Option<Control> {
        let mut taken = port.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *taken, true) {
            return None;
        }
        let (port, session) = (Arc::clone(port), Session::new(port.options.offer));
        Some(Control {
            port: Arc::clone(&port),
            session,
            memory: Arc::default(),
            log: None,
            record: None,
            refused: (0, None),
            until: Instant::now(),
            late: Vec::new(),
        })
    }

    /// What the frontend has said so far.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// How many refusals the session has outlived, and the last of them: requests that were answered with "refused", and rings that could not start in
    /// the memory that a request gave them. A refusal that ends the session is in the error of [`hear`](Control::hear).
    #[must_use]
    pub fn refused(&self) -> (u64, Option<&RequestError>) {
        (self.refused.0, self.refused.1.as_ref())
    }

    /// Times that a write could not be marked in the dirty log, which ends before it.
    #[must_use]
    pub fn unmarked(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.missed())
    }

    /// Does what a message asks for. Returns what it is answered with, if at all. Waits for copies in flight, for as long as the port's patience,
    /// if they are in the request's way.
    ///
    /// # Errors
    /// [`SessionError`]: the session is at its end.
    pub fn hear(
        &mut self,
        header: &Header,
        payload: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, SessionError> {
        self.until = Instant::now() + self.port.options.patience;
        let heard = self.hear_all(header, payload, files);
        match self.late.first() {
            Some(&(ring, _)) => {
                self.until = Instant::now() + self.port.options.patience;
                self.leave();
                Err(SessionError::Late { ring, source: self.take_away().err() })
            }
            None => heard,
        }
    }

    fn hear_all(
        &mut self,
        header: &Header,
        payload: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, SessionError> {
        let request = parse(header, payload, files)?;
        // Whoever asks for a number takes any for it.
        let told = self.session.acknowledges(header.wants_reply()) && !request.asks();
        let done = match self.session.accept(request) {
            Ok(step) => self.change(step.change).map(|outcome| (step.answer, outcome)),
            Err(refusal) => Err(refusal.into()),
        };
        match done {
            Ok((answer, outcome)) => Ok(self.session.reply(answer, outcome, header.wants_reply())),
            Err(error) if told => {
                self.refuse(error);
                Ok(Some(Reply::Number(1)))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn change(&mut self, change: Change) -> Result<Outcome, RequestError> {
        match change {
            Change::Nothing => {}
            Change::Memory(regions) => {
                let regions: Vec<_> = regions.iter().map(|(region, file)| (*region, file.as_fd())).collect();
                self.move_to(self.memory.replaced(&regions))?;
            }
            // A frontend may say both again: QEMU before 8.1 does so for each pair of its queues, where one message is for all of them. What is there stays
            // there, and what is not there is gone.
            Change::AddRegion(region, file) if self.memory.has(region, file.as_fd()) => {}
            Change::AddRegion(region, file) => self.move_to(self.memory.with(region, file.as_fd()))?,
            Change::RemoveRegion(region) if !self.memory.meets(region) => {}
            Change::RemoveRegion(region) => self.move_to(self.memory.without(region))?,
            Change::Log { len, offset, file } => {
                self.log = Some(Arc::new(DirtyLog::new(len, offset, &file, self.memory.end())?));
                self.refresh_all()?;
                return Ok(Outcome::Logs(len, offset));
            }
            Change::Ring(ring) => self.refresh(ring)?,
            Change::Rings => {
                self.log_covers(&self.memory)?;
                self.refresh_all()?;
            }
            Change::Kick(ring, file) => {
                self.port.slot(ring).kick = event(file)?.map(Arc::new);
                self.refresh(ring)?;
            }
            Change::Call(ring, file) => {
                let call = event(file)?;
                let mut slot = self.port.slot(ring);
                if let (Some(call), true) = (&call, slot.virtqueue.is_some()) {
                    // A call may have gone to the one before, which nobody heard any more.
                    ring_bell(call);
                }
                slot.call = call;
            }
            Change::Error(ring, file) => self.port.slot(ring).error = event(file)?,
            Change::Stop(ring) => {
                self.stop(ring);
                return Ok(Outcome::Stopped(ring, self.session.base_of(ring)));
            }
            Change::Announce(address) => self.port.announce(address),
            Change::Reset => {
                self.leave();
                (self.log, self.record) = (None, None);
            }
            Change::NewRecord(asked) => {
                let (place, file) = Record::make(asked, self.session.features())?;
                return Ok(Outcome::Record(place, file));
            }
            Change::Record(place, file) => {
                // For rings that start from now on; those that run have theirs.
                self.record = Some(Arc::new(Record::open(place, &file, self.session.features())?));
            }
        }
        Ok(Outcome::Done)
    }

    /// All rings go on in the next table of memory; those that do not lie in it wait for one that has them.
    fn move_to(&mut self, next: Result<GuestMemory, RegionError>) -> Result<(), RequestError> {
        let next = Arc::new(next?);
        self.log_covers(&next)?;
        for ring in 0..self.session.rings() {
            let mut slot = self.port.slot(ring);
            let landed = slot.drain(self.until);
            let moved = slot.virtqueue.as_mut().is_none_or(|virtqueue| landed && virtqueue.move_to(&next).is_ok());
            drop(slot);
            if !moved {
                self.stop(ring);
            }
        }
        self.memory = next;
        for ring in 0..self.session.rings() {
            // The memory is as it was asked for, so the request succeeds. A ring that does not lie in it waits for another table.
            if let Err(error) = self.refresh(ring) {
                self.refuse(error);
            }
        }
        Ok(())
    }

    fn refuse(&mut self, error: RequestError) {
        self.refused = (self.refused.0 + 1, Some(error));
    }

    /// What is marked in the log, if anything is, has a bit there; or a migrated guest would miss what was written to memory that came later
    /// (CVE-2026-86563). A frontend that adds memory announces a longer log before.
    fn log_covers(&self, memory: &GuestMemory) -> Result<(), LogError> {
        match &self.log {
            Some(log) if self.session.features().contains(Features::LOG_ALL) => log.covers(memory.end()),
            _ => Ok(()),
        }
    }

    fn refresh_all(&mut self) -> Result<(), RequestError> {
        (0..self.session.rings()).try_for_each(|ring| self.refresh(ring))
    }

    /// Makes a ring what the session says it is.
    fn refresh(&mut self, ring: usize) -> Result<(), RequestError> {
        let wanted = self.session.ring(ring).filter(|_| self.memory.regions() > 0);
        let now = self.port.slot(ring).virtqueue.as_ref().map(|virtqueue| *virtqueue.ring().setup());
        let same = |wanted: RingSetup, now: RingSetup| RingSetup { base: now.base, ..wanted } == now;
        if now.is_some_and(|now| !wanted.is_some_and(|wanted| same(wanted, now))) {
            self.stop(ring);
        }
        let wanted = self.session.ring(ring).filter(|_| wanted.is_some());
        let mut slot = self.port.slot(ring);
        let enabled = self.session.is_enabled(ring);
        if std::mem::replace(&mut slot.enabled, enabled) && !enabled {
            // What the guest is to see, it sees before; what has not landed by then goes on landing.
            slot.drain(self.until);
        }
        if let (Some(setup), None) = (wanted, &slot.virtqueue) {
            let refused = |source| RequestError::Ring { ring, source };
            let mut made = begin(&self.memory, setup).map_err(refused)?;
            let record = match &self.record {
                Some(record) => {
                    let (record, resumed) = RingRecord::begin(record, ring, &made)?;
                    if resumed.base != made.base() {
                        made = Ring::new(&self.memory, RingSetup { base: resumed.base, ..setup }).map_err(refused)?;
                    }
                    made.resume(resumed.heads);
                    Some(record)
                }
                None => None,
            };
            let mut virtqueue = Virtqueue::new(made, &self.port.pool, &self.port.queue_options(ring));
            virtqueue.record = record;
            slot.run(virtqueue);
        }
        let log = self.log.as_ref().zip(self.session.log(ring));
        let log = log.map(|(log, used)| RingLog { log: Arc::clone(log), used });
        // What is in flight was not noted, or is to be marked yet.
        if slot.needs_log(log.as_ref()) {
            if !slot.drain(self.until) {
                return Err(RequestError::Busy { ring });
            }
            slot.set_log(log);
        }
        Ok(())
    }

    /// The ring stands still, and its copies have landed, or nobody waits for them any more.
    fn stop(&mut self, ring: usize) {
        if let Some(stopped) = self.port.slot(ring).stop(self.until) {
            self.session.stopped_at(ring, stopped.base);
            self.late.extend(stopped.late.map(|memory| (ring, memory)));
        }
    }

    /// All rings stop, and nobody is called any more.
    fn leave(&mut self) {
        for ring in 0..self.session.rings() {
            self.stop(ring);
            let mut slot = self.port.slot(ring);
            (slot.enabled, slot.kick, slot.call, slot.error) = (false, None, None, None);
        }
    }

    /// Whoever is late writes to no memory of the guest's any more.
    fn take_away(&mut self) -> Result<(), RegionError> {
        self.late.drain(..).map(|(_, memory)| memory.revoke()).fold(Ok(()), Result::and)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.until = Instant::now() + self.port.options.patience;
        self.leave();
        // Nobody is there to be told of a refusal.
        let _ = self.take_away();
        *self.port.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// The ring that a frontend described. What a backend before this one took and did not put back is taken again: this one puts back in order,
/// and so nothing that the driver waits for lies behind what it has got back.
fn begin(memory: &Arc<GuestMemory>, setup: RingSetup) -> Result<Ring, RingError> {
    let ring = Ring::new(memory, setup)?;
    if ring.outstanding() == 0 {
        return Ok(ring);
    }
    let Base { used, .. } = ring.base();
    Ring::new(memory, RingSetup { base: Base { available: used, used }, ..setup })
}

/// A file that counts events, which nobody waits for who writes to it.
fn event(file: Option<OwnedFd>) -> Result<Option<OwnedFd>, RequestError> {
    let Some(file) = file else { return Ok(None) };
    // Anything else could make a write wait, or signal that nobody reads. Source: proc(5), /proc/pid/fd.
    let name = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    if !name.is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]") {
        return Err(RequestError::Event);
    }
    let flags = rustix::fs::fcntl_getfl(&file).unwrap_or(OFlags::RDWR);
    rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(|_| RequestError::Event)?;
    Ok(Some(file))
}
