//! The control plane of one connection: carries out its frontend's requests on the port.
//!
//! A running ring is changed only with its slot locked and after its copies have completed. So no byte is written to
//! memory after the frontend was told that it may reuse it. If copies do not complete, the session ends, and its memory
//! is revoked from the device before the frontend gets an answer.

use crate::error::{RequestError, SessionError};
use crate::inflight_fd::{Record, RingRecord};
use crate::layout::Features;
use crate::log::{DirtyLog, LogError, RingLog};
use crate::message::{Header, Reply, parse};
use crate::port::Port;
use crate::ring::{Base, Ring, RingError, RingSetup};
use crate::session::{Change, Outcome, Session};
use crate::virtqueue::Virtqueue;
use crate::{GuestMemory, RegionError};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use telpher_os::PeerEventfd;

/// One frontend's hold on a port, from connection to disconnection. Dropping it stops the rings.
#[derive(Debug)]
pub struct Control {
    port: Arc<Port>,
    session: Session,
    memory: Arc<GuestMemory>,
    log: Option<Arc<DirtyLog>>,
    record: Option<Arc<Record>>,
    /// How many refusals the session survived, and the last of them.
    refused: (u64, Option<RequestError>),
    /// The time limit for copies in this request.
    deadline: Instant,
    /// Rings that stopped before their copies into the guest had completed, and the memory that these copies write.
    unfinished: Vec<(usize, Arc<GuestMemory>)>,
}

impl Control {
    /// Takes the port for a new frontend. Returns `None` while another frontend has it.
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
            deadline: Instant::now(),
            unfinished: Vec::new(),
        })
    }

    /// The state of the frontend's requests so far.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The frontend's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Returns how many refusals the session survived, and the last of them: requests answered with "refused", and
    /// rings that could not start in the memory that a request set. A refusal that ends the session is in the error of
    /// [`hear`](Control::hear).
    #[must_use]
    pub fn refused(&self) -> (u64, Option<&RequestError>) {
        (self.refused.0, self.refused.1.as_ref())
    }

    /// How often a write could not be marked because it lies beyond the end of the dirty log.
    #[must_use]
    pub fn unmarked(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.missed())
    }

    /// Carries out a message and returns the reply, if it has one. If copies in flight block the request, waits for
    /// them, at most for the port's `drain_timeout`.
    ///
    /// # Errors
    /// [`SessionError`]: the session has ended.
    pub fn hear(
        &mut self,
        header: &Header,
        payload: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, SessionError> {
        self.deadline = Instant::now() + self.port.options.drain_timeout;
        let handled = self.handle_request(header, payload, files);
        match self.unfinished.first() {
            Some(&(ring, _)) => {
                self.deadline = Instant::now() + self.port.options.drain_timeout;
                self.stop_all_rings();
                Err(SessionError::Late { ring, source: self.revoke_memory().err() })
            }
            None => handled,
        }
    }

    fn handle_request(
        &mut self,
        header: &Header,
        payload: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, SessionError> {
        let request = parse(header, payload, files)?;
        // A request that asks for a number cannot be refused by number: the frontend would take it for the answer.
        let gets_refusal = self.session.acknowledges(header.wants_reply()) && !request.asks();
        let done = match self.session.accept(request) {
            Ok(step) => self.change(step.change).map(|outcome| (step.answer, outcome)),
            Err(refusal) => Err(refusal.into()),
        };
        match done {
            Ok((answer, outcome)) => Ok(self.session.reply(answer, outcome, header.wants_reply())),
            Err(error) if gets_refusal => {
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
            // A frontend may send both twice: QEMU before 8.1 does so for each of its queue pairs, although one message
            // covers all. A region already added stays; a region already removed stays removed.
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
                self.port.slot(ring).kick = checked_eventfd(file)?.map(Arc::new);
                self.refresh(ring)?;
            }
            Change::Call(ring, file) => {
                let call = checked_eventfd(file)?;
                let mut slot = self.port.slot(ring);
                if let (Some(call), true) = (&call, slot.virtqueue.is_some()) {
                    // An earlier call may have gone to the previous eventfd, which no thread reads any more.
                    call.signal();
                }
                slot.call = call;
            }
            Change::Error(ring, file) => self.port.slot(ring).error = checked_eventfd(file)?,
            Change::Stop(ring) => {
                self.stop(ring);
                return Ok(Outcome::Stopped(ring, self.session.base_of(ring)));
            }
            Change::Announce(address) => self.port.announce(address),
            Change::Reset => {
                self.stop_all_rings();
                (self.log, self.record) = (None, None);
            }
            Change::NewRecord(asked) => {
                let (place, file) = Record::make(asked, self.session.features())?;
                return Ok(Outcome::Record(place, file));
            }
            Change::Record(place, file) => {
                // For rings that start from now on; running rings keep theirs.
                self.record = Some(Arc::new(Record::open(place, &file, self.session.features())?));
            }
        }
        Ok(Outcome::Done)
    }

    /// Moves all rings to the next memory table. Rings that do not lie in it wait for a table that contains them.
    fn move_to(&mut self, next: Result<GuestMemory, RegionError>) -> Result<(), RequestError> {
        let next = Arc::new(next?);
        self.log_covers(&next)?;
        for ring in 0..self.session.rings() {
            let mut slot = self.port.slot(ring);
            let completed = slot.drain(self.deadline);
            let moved = slot.virtqueue.as_mut().is_none_or(|virtqueue| completed && virtqueue.move_to(&next).is_ok());
            drop(slot);
            if !moved {
                self.stop(ring);
            }
        }
        self.memory = next;
        for ring in 0..self.session.rings() {
            // The memory is set as requested, so the request succeeds. A ring outside it waits for another table.
            if let Err(error) = self.refresh(ring) {
                self.refuse(error);
            }
        }
        Ok(())
    }

    fn refuse(&mut self, error: RequestError) {
        self.refused = (self.refused.0 + 1, Some(error));
    }

    /// Checks that the log, if logging is on, has a bit for all memory. Otherwise a migrated guest would miss writes to
    /// memory added later (CVE-2026-86563). A frontend that adds memory announces a longer log first.
    fn log_covers(&self, memory: &GuestMemory) -> Result<(), LogError> {
        match &self.log {
            Some(log) if self.session.features().contains(Features::LOG_ALL) => log.covers(memory.end()),
            _ => Ok(()),
        }
    }

    fn refresh_all(&mut self) -> Result<(), RequestError> {
        (0..self.session.rings()).try_for_each(|ring| self.refresh(ring))
    }

    /// Brings a ring into the state that the session describes.
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
            // What the guest is to see becomes visible before; copies that are late complete afterwards.
            slot.drain(self.deadline);
        }
        if let (Some(setup), None) = (wanted, &slot.virtqueue) {
            let refused = |source| RequestError::Ring { ring, source };
            let mut made = open_ring(&self.memory, setup).map_err(refused)?;
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
        // Writes in flight were not recorded for the new log, or are still to be marked in the old one.
        if slot.needs_log(log.as_ref()) {
            if !slot.drain(self.deadline) {
                return Err(RequestError::Busy { ring });
            }
            slot.set_log(log);
        }
        Ok(())
    }

    /// Stops the ring: waits for its copies until the deadline.
    fn stop(&mut self, ring: usize) {
        if let Some(stopped) = self.port.slot(ring).stop(self.deadline) {
            self.session.stopped_at(ring, stopped.base);
            self.unfinished.extend(stopped.unfinished.map(|memory| (ring, memory)));
        }
    }

    /// Stops all rings and drops their eventfds.
    fn stop_all_rings(&mut self) {
        for ring in 0..self.session.rings() {
            self.stop(ring);
            let mut slot = self.port.slot(ring);
            (slot.enabled, slot.kick, slot.call, slot.error) = (false, None, None, None);
        }
    }

    /// Revokes the memory that late copies could still write.
    fn revoke_memory(&mut self) -> Result<(), RegionError> {
        self.unfinished.drain(..).map(|(_, memory)| memory.revoke()).fold(Ok(()), Result::and)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.deadline = Instant::now() + self.port.options.drain_timeout;
        self.stop_all_rings();
        // The frontend is gone, so there is no one to send an error to.
        let _ = self.revoke_memory();
        *self.port.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// Creates the ring that the frontend described. Chains that a previous backend took and did not return are taken
/// again. This backend returns chains in order, so every chain the driver waits for lies after the used index.
fn open_ring(memory: &Arc<GuestMemory>, setup: RingSetup) -> Result<Ring, RingError> {
    let ring = Ring::new(memory, setup)?;
    if ring.outstanding() == 0 {
        return Ok(ring);
    }
    let Base { used, .. } = ring.base();
    Ring::new(memory, RingSetup { base: Base { available: used, used }, ..setup })
}

/// Checks that the file is an eventfd.
fn checked_eventfd(file: Option<OwnedFd>) -> Result<Option<PeerEventfd>, RequestError> {
    file.map(|file| PeerEventfd::new(file).ok_or(RequestError::Event)).transpose()
}
