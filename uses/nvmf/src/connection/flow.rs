//! From headers to commands with all their data: initialisation, capsules, R2Ts and H2CData.

use super::{Accepted, Connection, Executor, Incoming, OpenCommand, OpenR2t, PendingPart, Phase, SPARE_COMMANDS, Slot};
use crate::command::{self, Direction, SGL_IN_CAPSULE, SGL_TRANSPORT, Submission, USES_SGL, admin, fabrics};
use crate::commands::Plan;
use crate::controller::Controller;
use crate::digest::{Digests, digest as digest_of};
use crate::engine::{DoneBy, FinishedJob, Job, JobId, Segment, Shared, Work};
use crate::limits::{ADMIN_CAPSULE_BYTES, EVENT_REQUESTS, MOST_R2TS, SMALL_PART};
use crate::pdu::{self, CapsuleCmd, DataHeader, FatalError, IcReq, IcResp, Kind, LAST, Layout, R2t, TermReq, offset};
use crate::status::Status;
use crate::storage::Piece;
use crate::target::CONNECT_BYTES;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

/// PSDT: the bits of the command's second byte.
const PSDT: u8 = 0xc0;

/// Identifiers of commands.
const IDS: usize = 1 << 16;

impl Connection {
    /// Checks a PDU's header, and decides about its data.
    pub(super) fn header(&mut self, layout: Layout, now: u64) -> Result<(), FatalError> {
        self.incoming = match layout.kind {
            Kind::IcReq => self.ic_req()?,
            Kind::CapsuleCmd => self.capsule_header(&layout, now)?,
            Kind::H2cData => self.data_header(&layout)?,
            Kind::H2cTermReq => Incoming::TermReq { fes: self.parse::<TermReq>().fes.get() },
            // The decoder passes only types that the controller receives.
            _ => return Err(FatalError::HeaderField { offset: offset::KIND }),
        };
        Ok(())
    }

    fn parse<T: FromBytes + KnownLayout + zerocopy::Immutable>(&self) -> T {
        T::read_from_bytes(self.decoder.header()).expect("the decoder checked the header's length")
    }

    fn ic_req(&self) -> Result<Incoming, FatalError> {
        let request: IcReq = self.parse();
        if request.pfv.get() != 0 {
            return Err(FatalError::HeaderField { offset: offset::PFV });
        }
        if request.hpda > 31 {
            return Err(FatalError::HeaderField { offset: offset::HPDA });
        }
        Ok(Incoming::IcReq {
            host_alignment: (usize::from(request.hpda) + 1) * 4,
            digests: Digests::from_bits(request.dgst),
            most_r2ts: request.maxr2t.get().saturating_add(1),
        })
    }

    /// Answers ICReq. The digests are exactly those that the host asked for: Linux closes on any difference.
    pub(super) fn initialise(&mut self, host_alignment: usize, digests: Digests, most_r2ts: u32, now: u64) {
        let response = IcResp {
            common: pdu::blank(),
            pfv: U16::ZERO,
            cpda: 0,
            dgst: digests.bits(),
            maxh2cdata: U32::new(self.limits().h2c_bytes),
            reserved: [0; 112],
        };
        self.output.push_pdu(Kind::IcResp, 0, response.as_bytes(), 0, Digests::default(), 4);
        (self.host_alignment, self.digests, self.most_r2ts) = (host_alignment, digests, most_r2ts);
        self.decoder.initialise(digests, 4);
        self.phase = Phase::Ready;
        self.connect_by = now.saturating_add(self.limits().connect_ms);
    }

    /// Bytes of data that a capsule may have.
    fn capsule_limit(&self) -> u32 {
        match &self.queue {
            Some(queue) if queue.qid > 0 => self.limits().capsule_bytes,
            _ => ADMIN_CAPSULE_BYTES,
        }
    }

    fn capsule_header(&mut self, layout: &Layout, now: u64) -> Result<Incoming, FatalError> {
        let command = self.parse::<CapsuleCmd>().command;
        if layout.data_len > self.capsule_limit() {
            return Err(FatalError::Limit);
        }
        // The length in the capsule and in the descriptor must agree, or the end of the PDU is unknown.
        let in_capsule = if command.sgl_kind == SGL_IN_CAPSULE { command.sgl_length.get() } else { 0 };
        let is_known_kind = [SGL_IN_CAPSULE, SGL_TRANSPORT].contains(&command.sgl_kind);
        if is_known_kind && in_capsule != layout.data_len {
            return Err(FatalError::HeaderField { offset: offset::PLEN });
        }
        let entries = self.queue.as_ref().map_or(1, |queue| queue.entries);
        if self.open_count >= entries {
            return Err(FatalError::Sequence);
        }
        let verdict = self.accept(&command, now);
        if let Ok(accepted) = &verdict
            && accepted.from_host > 0
            && layout.data_len > 0
        {
            self.decoder.keep_data();
        }
        Ok(Incoming::Capsule { command, verdict })
    }

    /// Checks a command before its data is received.
    fn accept(&self, command: &Submission, now: u64) -> Result<Accepted, Status> {
        if self.is_used(command.cid.get()) {
            return Err(Status::ID_CONFLICT.do_not_retry());
        }
        if command.flags & PSDT != USES_SGL {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        // Data in the capsule starts at offset 0, and only commands with data for the controller have it.
        let is_in_capsule = command.sgl_kind == SGL_IN_CAPSULE;
        let is_misplaced = command.sgl_address.get() != 0 || command.direction() != Direction::ToController;
        if (is_in_capsule && is_misplaced) || (!is_in_capsule && command.sgl_kind != SGL_TRANSPORT) {
            return Err(Status::SGL_TYPE.do_not_retry());
        }
        let Some(queue) = &self.queue else { return accept_first(command) };
        let state = queue.controller.begin_command(now);
        if command.opcode == command::FABRICS {
            return accept_fabrics(command, queue.qid);
        }
        if queue.qid == 0 {
            return self.accept_admin(command, &queue.controller);
        }
        // After a reset, the queue is dead even if the controller is enabled again.
        if !state.is_ready || state.epoch != queue.epoch {
            return Err(Status::SEQUENCE_ERROR.do_not_retry());
        }
        let plan = Plan::of(command, queue.controller.subsystem(), self.limits(), state.has_write_cache)?;
        let from_host = plan.from_host();
        Ok(Accepted { executor: Executor::Io(plan), from_host })
    }

    fn accept_admin(&self, command: &Submission, controller: &Controller) -> Result<Accepted, Status> {
        controller.check_admin(command).map_err(Status::do_not_retry)?;
        if command.direction() == Direction::ToHost && command.sgl_length.get() > self.limits().transfer_bytes {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        if command.opcode == admin::EVENT_REQUEST && self.event_requests.len() >= EVENT_REQUESTS {
            return Err(Status::EVENT_LIMIT.do_not_retry());
        }
        // No admin command that is served needs data from the host; data in the capsule is skipped.
        Ok(Accepted { executor: Executor::Admin, from_host: 0 })
    }

    /// Takes a complete capsule.
    pub(super) fn capsule(
        &mut self,
        command: Submission,
        verdict: Result<Accepted, Status>,
        data: Vec<u8>,
        digest: Option<u32>,
        context: &mut super::Context<'_>,
    ) -> Result<(), FatalError> {
        if self.is_finishing {
            return Ok(());
        }
        let is_io = self.queue.as_ref().is_some_and(|queue| queue.qid > 0);
        self.stats.count_command(command.opcode, is_io, !data.is_empty());
        self.advance_head();
        let (verdict, fused) = self.fuse(&command, verdict, context);
        let accepted = match verdict {
            Ok(accepted) => accepted,
            Err(status) => {
                self.respond(command.cid.get(), status, 0);
                return Ok(());
            }
        };
        if command.opcode == admin::EVENT_REQUEST && matches!(accepted.executor, Executor::Admin) {
            self.set_used(command.cid.get(), true);
            self.event_requests.push(command.cid.get());
            self.report_events();
            return Ok(());
        }
        // Most short reads end here: they need no slot, and nothing of them is kept.
        if fused.is_none()
            && let Executor::Io(plan) = &accepted.executor
            && (!self.digests.data || context.engine.is_immediate(plan.to_host() as usize))
            && let Some(result) = plan.read_at_once()
        {
            self.answer_read(&command, result, context);
            return Ok(());
        }
        let index = self.take_slot(command, accepted);
        if let Some(fused) = fused {
            self.take_fused(index, fused);
        }
        if data.is_empty() {
            self.proceed(index, context);
        } else {
            self.stats.in_capsule += 1;
            let len = u32::try_from(data.len()).expect("at most the capsule limit");
            self.open_command(index).expect("just taken").asked = len;
            self.take_part(index, 0, data, digest, context);
        }
        Ok(())
    }

    fn take_slot(&mut self, command: Submission, accepted: Accepted) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("at most the queue's entries")
        });
        self.set_used(command.cid.get(), true);
        self.open_count += 1;
        let new = OpenCommand::new(command, accepted, self.clock_read);
        let open = match self.spare.pop() {
            Some(mut spare) => {
                *spare = new;
                spare
            }
            None => Box::new(new),
        };
        self.slots[index as usize].open = Some(open);
        index
    }

    /// Frees the slot of a command that ends with this status. Its jobs that return later have an old generation.
    pub(super) fn free_slot(&mut self, index: u32, status: Status) {
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let Some(mut open) = slot.open.take() else { return };
        self.free.push(index);
        self.open_count -= 1;
        if let Executor::Io(_) | Executor::Task = open.executor {
            self.count_completed(open.command.opcode, open.begun, status);
        }
        self.set_used(open.command.cid.get(), false);
        self.buffered -= open.buffer_bytes;
        if open.is_waiting {
            self.waiting.retain(|waiting| *waiting != index);
        }
        let budgeted = if open.is_budgeted { open.from_host } else { 0 };
        if self.spare.len() < SPARE_COMMANDS {
            open.release();
            self.spare.push(open);
        }
        if budgeted > 0 {
            self.budgeted -= budgeted;
            self.ask_for_data();
        }
    }

    /// Counts an I/O command that has begun at this time and ends now.
    pub(super) fn count_completed(&mut self, opcode: u8, begun: u64, status: Status) {
        self.stats.completed_io += 1;
        if self.clock.is_some() && status.is_success() {
            let latency = self.read_clock().saturating_sub(begun);
            self.stats.count_latency(opcode, latency);
        }
    }

    pub(super) fn is_used(&self, cid: u16) -> bool {
        self.used_ids.get(usize::from(cid / 64)).is_some_and(|word| word & 1 << (cid % 64) != 0)
    }

    pub(super) fn set_used(&mut self, cid: u16, is_used: bool) {
        if self.used_ids.is_empty() {
            self.used_ids = vec![0; IDS / 64];
        }
        let word = &mut self.used_ids[usize::from(cid / 64)];
        let bit = 1 << (cid % 64);
        if is_used { *word |= bit } else { *word &= !bit }
    }

    /// Takes a part of a command's data.
    fn take_part(
        &mut self,
        index: u32,
        offset: u32,
        data: Vec<u8>,
        digest: Option<u32>,
        context: &mut super::Context<'_>,
    ) {
        self.stats.bytes_from_host += data.len() as u64;
        let id =
            JobId { connection: self.number, slot: index, generation: self.slots[index as usize].generation, part: 0 };
        let Some(open) = self.open_command(index) else { return };
        match (digest, &open.executor) {
            (None, _) => open.add_data(offset, data),
            (Some(digest), Executor::Io(plan)) if data.len() >= SMALL_PART => {
                let source = Shared::new(data);
                let work = match plan.place(offset, source.len()) {
                    Some(runs) => Work::Place { source, runs },
                    None => Work::Digest(vec![Segment::all(source)]),
                };
                let part = open.next_part;
                open.next_part += 1;
                open.pending.push(PendingPart { part, offset, digest });
                context.engine.prepare(Job { id: JobId { part, ..id }, work });
            }
            // Small parts, and data of Connect: too short or too rare for an engine.
            (Some(digest), executor) => {
                let (is_io, bytes) = (matches!(executor, Executor::Io(_)), data.len());
                let is_right = digest == digest_of(&data);
                if is_right {
                    open.add_data(offset, data);
                }
                if is_io {
                    self.stats.count_digest(bytes, DoneBy::Cpu);
                }
                if !is_right {
                    self.damaged(index);
                }
            }
        }
        self.proceed(index, context);
    }

    /// The data of a command was damaged: it is not executed, and the host sends it again.
    fn damaged(&mut self, index: u32) {
        self.stats.data_digest_errors += 1;
        if let Some(open) = self.open_command(index) {
            open.failure = Some(Status::TRANSIENT_TRANSPORT_ERROR);
        }
    }

    pub(super) fn part_digested(&mut self, index: u32, mut job: FinishedJob, context: &mut super::Context<'_>) {
        let Some(open) = self.open_command(index) else { return };
        let Some(place) = open.pending.iter().position(|pending| pending.part == job.id.part) else { return };
        let pending = open.pending.swap_remove(place);
        if pending.digest != job.digest && job.by != DoneBy::Cpu {
            // A device that did all or a part of the job may be wrong, and not the data. The CPU decides.
            job.digest = job.work.run();
            self.stats.wrong_device_digests += u64::from(pending.digest == job.digest);
        }
        if pending.digest == job.digest {
            let Some(open) = self.open_command(index) else { return };
            let pieces = match job.work {
                Work::Place { runs, .. } => vec![Piece::Blocks(runs)],
                Work::Digest(segments) => segments.into_iter().map(Piece::Bytes).collect(),
                // Tuples are inserted later, when all data has arrived.
                Work::Protect(_) => return,
            };
            let mut offset = pending.offset;
            for piece in pieces {
                let len = u32::try_from(piece.len()).expect("at most a transfer");
                open.pieces.push((offset, piece));
                offset += len;
            }
        } else {
            self.damaged(index);
        }
        self.proceed(index, context);
    }

    /// Goes on with a command after a change: waits, asks for more data, answers, or executes.
    pub(super) fn proceed(&mut self, index: u32, context: &mut super::Context<'_>) {
        let Some(open) = self.open_command(index) else { return };
        if open.r2ts > 0 || !open.pending.is_empty() {
            if open.failure.is_none() && open.asked < open.from_host && open.r2ts > 0 {
                self.wait_for_data(index);
            }
            return;
        }
        if let Some(status) = open.failure {
            let (cid, fused) = (open.command.cid.get(), open.fused);
            self.free_slot(index, status);
            self.respond(cid, status, 0);
            if let Some(fused) = fused {
                self.partner_fails(index, fused, context);
            }
        } else if open.asked < open.from_host {
            self.wait_for_data(index);
        } else {
            self.execute(index, context);
        }
    }

    fn wait_for_data(&mut self, index: u32) {
        let Some(open) = self.open_command(index) else { return };
        let is_budgeted = open.is_budgeted;
        if !std::mem::replace(&mut open.is_waiting, true) {
            // A command that has its part of the budget goes first: the others may be waiting for that part.
            if is_budgeted { self.waiting.push_front(index) } else { self.waiting.push_back(index) }
        }
        self.ask_for_data();
    }

    /// Sends R2Ts for the commands that wait, in their order, as far as the receive budget and the host allow.
    pub(super) fn ask_for_data(&mut self) {
        while let Some(index) = self.waiting.pop_front() {
            match self.ask_for(index) {
                // If the host takes no more R2Ts for this command now, its next data puts it back in the line.
                Asked::All | Asked::HostLimit => {
                    if let Some(open) = self.open_command(index) {
                        open.is_waiting = false;
                    }
                }
                Asked::NoRoom => {
                    self.waiting.push_front(index);
                    return;
                }
            }
        }
    }

    fn ask_for(&mut self, index: u32) -> Asked {
        let (budget, longest, most_r2ts) = (self.limits().receive_bytes, self.limits().r2t_bytes, self.most_r2ts);
        let budgeted = self.budgeted;
        loop {
            let Some(open) = self.open_command(index) else { return Asked::All };
            if open.failure.is_some() || open.asked >= open.from_host {
                return Asked::All;
            }
            if open.r2ts >= most_r2ts {
                return Asked::HostLimit;
            }
            let needed = if open.is_budgeted { 0 } else { open.from_host };
            if needed > budget.saturating_sub(budgeted) && needed > 0 && !open.is_budgeted {
                return Asked::NoRoom;
            }
            let (start, cid) = (open.asked, open.command.cid);
            let len = longest.min(open.from_host - start);
            let r2t = OpenR2t { slot: index, cid: cid.get(), is_aborted: false, next: start, end: start + len };
            let Some(tag) = self.take_tag(r2t) else { return Asked::NoRoom };
            let open = self.open_command(index).expect("seen above");
            open.asked += len;
            open.r2ts += 1;
            if !std::mem::replace(&mut open.is_budgeted, true) {
                self.budgeted += needed;
            }
            let request = R2t {
                common: pdu::blank(),
                cccid: cid,
                ttag: U16::new(tag),
                r2to: U32::new(start),
                r2tl: U32::new(len),
                reserved: U32::ZERO,
            };
            self.stats.r2ts += 1;
            self.output.push_pdu(Kind::R2t, 0, request.as_bytes(), 0, self.digests, 4);
        }
    }

    /// Stores an R2T and returns its tag, from 1; `None` if as many as possible are outstanding.
    fn take_tag(&mut self, r2t: OpenR2t) -> Option<u16> {
        if self.active_r2ts >= usize::from(MOST_R2TS) {
            return None;
        }
        let index = self.open_r2ts.iter().position(Option::is_none).unwrap_or_else(|| {
            self.open_r2ts.push(None);
            self.open_r2ts.len() - 1
        });
        self.open_r2ts[index] = Some(r2t);
        self.active_r2ts += 1;
        u16::try_from(index + 1).ok()
    }

    /// Checks the header of H2CData. Sums are computed in 64 bits: SPDK's wrap at 32.
    fn data_header(&mut self, layout: &Layout) -> Result<Incoming, FatalError> {
        let header: DataHeader = self.parse();
        let tag = header.ttag.get();
        let index = match usize::from(tag).checked_sub(1) {
            Some(index) if index < self.open_r2ts.len().max(MOST_R2TS.into()) => index,
            _ => return Err(FatalError::Sequence),
        };
        let not_waiting = FatalError::HeaderField { offset: offset::TTAG };
        let r2t = self.open_r2ts.get(index).copied().flatten().ok_or(not_waiting)?;
        if r2t.cid != header.cccid.get() {
            return Err(FatalError::Sequence);
        }
        let (start, len) = (header.datao.get(), header.datal.get());
        let end = u64::from(start) + u64::from(len);
        if start != r2t.next || end > r2t.end.into() {
            return Err(FatalError::Range);
        }
        if len > self.limits().h2c_bytes {
            return Err(FatalError::Limit);
        }
        if len == 0 || len != layout.data_len {
            return Err(FatalError::HeaderField { offset: offset::DATAL });
        }
        let is_last = layout.flags & LAST != 0;
        if is_last != (end == u64::from(r2t.end)) {
            return Err(FatalError::HeaderField { offset: offset::FLAGS });
        }
        if !r2t.is_aborted {
            self.decoder.keep_data();
        }
        Ok(Incoming::Data { tag, len, is_last })
    }

    /// Takes a complete H2CData.
    pub(super) fn data(
        &mut self,
        tag: u16,
        len: u32,
        is_last: bool,
        data: Vec<u8>,
        digest: Option<u32>,
        context: &mut super::Context<'_>,
    ) {
        let Some(entry) = self.open_r2ts.get_mut(usize::from(tag) - 1) else { return };
        let Some(r2t) = entry else { return };
        let (index, offset, is_aborted) = (r2t.slot, r2t.next, r2t.is_aborted);
        r2t.next += len;
        if is_aborted {
            if is_last {
                *entry = None;
                self.aborted_r2ts -= 1;
            }
            return;
        }
        if is_last {
            *entry = None;
            self.active_r2ts -= 1;
            if let Some(open) = self.open_command(index) {
                open.r2ts -= 1;
            }
        }
        self.take_part(index, offset, data, digest, context);
        if is_last {
            self.ask_for_data();
        }
    }
}

/// How far the data of a command was asked for.
enum Asked {
    All,
    HostLimit,
    NoRoom,
}

/// The first command of a connection is Connect.
fn accept_first(command: &Submission) -> Result<Accepted, Status> {
    if (command.opcode, command.fabrics_kind()) != (command::FABRICS, fabrics::CONNECT) {
        return Err(Status::SEQUENCE_ERROR.do_not_retry());
    }
    match command.sgl_length.get() {
        // Linux sends the data in the capsule; SPDK's initiator once let it be asked for (spdk/spdk #1546).
        from_host if from_host as usize == CONNECT_BYTES => Ok(Accepted { executor: Executor::Connect, from_host }),
        _ => Err(Status::INVALID_FIELD.do_not_retry()),
    }
}

fn accept_fabrics(command: &Submission, qid: u16) -> Result<Accepted, Status> {
    let executor = match (command.fabrics_kind(), qid) {
        (fabrics::CONNECT, _) => return Err(Status::SEQUENCE_ERROR.do_not_retry()),
        (fabrics::PROPERTY_GET, 0) => Executor::PropertyGet,
        (fabrics::PROPERTY_SET, 0) => Executor::PropertySet,
        _ => return Err(Status::INVALID_OPCODE.do_not_retry()),
    };
    Ok(Accepted { executor, from_host: 0 })
}
