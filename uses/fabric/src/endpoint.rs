//! An endpoint: the operations of its callers, and the work on its helper thread.
//!
//! One lock guards its state. It is held for copies, but never while a thread waits.

use crate::access_counters::AccessCounters;
use crate::address::Address;
use crate::completion::{Completion, Failure};
use crate::config::{Config, ProgressBy};
use crate::connector::Connector;
use crate::copier::Copier;
use crate::error::FabricError;
use crate::events::Progress;
use crate::operation_counters::OperationCounters;
use crate::regions::Regions;
use crate::request::{AccessRequest, Completes, PeerId, ProbeAction, ProbeRequest, ReceiveRequest, SendRequest};
use crate::state::State;
use crate::stats::Stats;
use std::borrow::Borrow;
use std::io::Write;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use telpher_os::{BiasedGuard, BiasedMutex, Lineage, NoBarrier};

/// Passes without a move after which the helper thread wakes the peers it waits for, and sleeps. Source: assumed.
const HELPER_PASSES: u32 = 50;
/// The most passes of one call on the helper thread, which must also serve its sockets. Source: chosen.
const MOST_HELPER_PASSES: u32 = 1 << 16;

/// What [`Endpoint::take_successes`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Successes {
    /// Completions that it has passed on.
    pub count: usize,
    /// True if the next completion is a failure, which stays in the endpoint.
    pub is_failure_next: bool,
}

/// One address of this process: it sends and receives messages, and ends each operation with one [`Completion`].
///
/// Any thread may call it. Its lock is never held while a thread waits. An endpoint that is dropped is closed, see
/// [`close`](Endpoint::close).
#[derive(Debug)]
pub struct Endpoint {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// With a helper thread that moves messages on, this thread locks it as often as the callers.
    state: BiasedMutex<State>,
    connector: Connector,
    created_in: Lineage,
    progress: ProgressBy,
    linger: Duration,
}

impl Endpoint {
    /// Opens an endpoint with a new address.
    ///
    /// # Errors
    ///
    /// [`FabricError::WrongSize`], or [`FabricError::System`] if the system refuses a socket or a thread.
    pub fn open(config: Config, copier: Copier, progress: ProgressBy) -> Result<Endpoint, FabricError> {
        Endpoint::open_with(config, copier, progress, Arc::default())
    }

    /// Opens an endpoint whose peers may access the regions of a table. Several endpoints may have the same table.
    ///
    /// # Errors
    ///
    /// As for [`open`](Endpoint::open).
    pub fn open_with(
        config: Config,
        copier: Copier,
        progress: ProgressBy,
        regions: Arc<Regions>,
    ) -> Result<Endpoint, FabricError> {
        let connector = Connector::open(&config)?;
        let linger = config.linger;
        let state = State::new(config, copier, regions);
        let state = match progress {
            ProgressBy::HelperThread => BiasedMutex::unbiased(state),
            _ => BiasedMutex::new(state),
        };
        let inner = Arc::new(Inner { state, connector, created_in: Lineage::current(), progress, linger });
        let weak: Weak<Inner> = Arc::downgrade(&inner);
        if progress != ProgressBy::Caller {
            inner.connector.set_progress(weak);
        }
        Ok(Endpoint { inner })
    }

    /// Returns the address that peers insert.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.connector.address()
    }

    /// Makes a peer known. The same address has the same number until it is removed. The connection is opened by the
    /// first send. An endpoint may insert its own address.
    ///
    /// # Errors
    ///
    /// [`FabricError::OtherMachine`], [`FabricError::OtherUser`], [`FabricError::Forked`].
    pub fn insert_peer(&self, address: &Address) -> Result<PeerId, FabricError> {
        let mut state = self.inner.lock()?;
        self.address().check_reaches(address)?;
        Ok(state.insert_peer(address))
    }

    /// Forgets a peer. Its number is never used again. Its unfinished sends, and unmatched receives that name it, end
    /// with [`Failure::Canceled`]. Its messages still match receives from any sender.
    ///
    /// # Errors
    ///
    /// [`FabricError::UnknownPeer`], [`FabricError::Forked`].
    pub fn remove_peer(&self, peer: PeerId) -> Result<(), FabricError> {
        let mut state = self.inner.lock()?;
        let source = state.party(peer)?;
        if let Some(index) = state.parties[source.0 as usize].sender {
            state.end_sender(index, Failure::Canceled, &self.inner.connector);
        }
        state.receives.fail_source(source, Failure::Canceled);
        state.parties[source.0 as usize].peer = None;
        if let Some(party) = usize::try_from(peer.0).ok().and_then(|number| state.peers.get_mut(number)) {
            *party = None;
        }
        Ok(())
    }

    /// Returns the address of a peer.
    #[must_use]
    pub fn peer_address(&self, peer: PeerId) -> Option<Address> {
        let state = self.inner.lock().ok()?;
        let source = state.party(peer).ok()?;
        Some(state.parties[source.0 as usize].address)
    }

    /// Returns the number of an inserted address.
    #[must_use]
    pub fn peer_of(&self, address: &Address) -> Option<PeerId> {
        let state = self.inner.lock().ok()?;
        let source = state.party_of.get(address)?;
        state.parties[source.0 as usize].peer
    }

    /// Starts a send. The buffer belongs to the endpoint until the completion, or until the call returns if
    /// [`inject`](SendRequest::inject) is set.
    ///
    /// # Errors
    ///
    /// [`FabricError::Full`] if too many sends to the peer wait, [`FabricError::Unreachable`] if its process has ended,
    /// [`FabricError::UnknownPeer`], [`FabricError::Limit`] if the connection needs more memory than is allowed,
    /// [`FabricError::Forked`]. Nothing was started then, and no completion follows.
    #[inline]
    pub fn send(&self, request: impl Borrow<SendRequest>) -> Result<(), FabricError> {
        let request = request.borrow();
        let mut state = self.inner.lock()?;
        let index = state.sender_to(request.to, &self.inner.connector)?;
        let sent = state.send(index, request, &self.inner.connector);
        self.inner.leave(state);
        sent
    }

    /// Starts an access to the memory of a peer. The buffers belong to the endpoint until the completion; those of a
    /// write until the call returns if [`inject`](AccessRequest::inject) is set. Reads and writes have no order among
    /// each other and with messages.
    ///
    /// # Errors
    ///
    /// As for [`send`](Endpoint::send). What the peer refuses is a failure of the completion.
    pub fn access(&self, request: AccessRequest) -> Result<(), FabricError> {
        let mut state = self.inner.lock()?;
        let index = state.sender_to(request.peer, &self.inner.connector)?;
        let started = state.access(index, &request, &self.inner.connector);
        self.inner.leave(state);
        started
    }

    /// Sets what counts the accesses of peers through this endpoint to the memory of this process.
    ///
    /// # Errors
    ///
    /// [`FabricError::Forked`], [`FabricError::Closed`].
    pub fn count_accesses_of_peers(&self, counters: AccessCounters) -> Result<(), FabricError> {
        self.inner.lock()?.receives.reports.accesses_of_peers = counters;
        Ok(())
    }

    /// Sets what counts the operations of this endpoint's callers.
    ///
    /// # Errors
    ///
    /// [`FabricError::Forked`], [`FabricError::Closed`].
    pub fn count_operations(&self, counters: OperationCounters) -> Result<(), FabricError> {
        self.inner.lock()?.receives.reports.operations = counters;
        Ok(())
    }

    /// Starts a receive. The buffer belongs to the endpoint until the completion.
    ///
    /// # Errors
    ///
    /// [`FabricError::UnknownPeer`], [`FabricError::Forked`]. Nothing was started then, and no completion follows.
    #[inline]
    pub fn receive(&self, request: impl Borrow<ReceiveRequest>) -> Result<(), FabricError> {
        let request = request.borrow();
        let mut state = self.inner.lock()?;
        let selector = state.selector(request.from, request.tag)?;
        state.receive(selector, request, &self.inner.connector);
        self.inner.leave(state);
        Ok(())
    }

    /// Looks for a message that has arrived; makes progress before. The answer is a completion, with
    /// [`Failure::NoMessage`] if there is none.
    ///
    /// # Errors
    ///
    /// [`FabricError::UnknownPeer`], [`FabricError::AlreadyClaimed`], [`FabricError::Forked`].
    pub fn probe(&self, request: ProbeRequest) -> Result<(), FabricError> {
        let mut state = self.inner.lock()?;
        let selector = state.selector(request.from, request.tag)?;
        if request.action == ProbeAction::Claim && state.receives.is_claimed(request.context) {
            return Err(FabricError::AlreadyClaimed { context: request.context });
        }
        state.advance(&self.inner.connector);
        state.probe(&selector, &request, &self.inner.connector);
        self.inner.leave(state);
        Ok(())
    }

    /// Receives the message that the probe with the context `claim` has claimed. Sender and tags of the request are
    /// not looked at; a buffer for many messages is used for this message alone.
    ///
    /// # Errors
    ///
    /// [`FabricError::NotClaimed`], [`FabricError::Forked`].
    pub fn receive_claimed(&self, claim: u64, request: ReceiveRequest) -> Result<(), FabricError> {
        let mut state = self.inner.lock()?;
        let (key, kept) = state.receives.take_claimed(claim).ok_or(FabricError::NotClaimed { context: claim })?;
        let target = state.receives.target(&request, None, kept.envelope.len);
        state.deliver(&key, kept, target, &self.inner.connector);
        self.inner.leave(state);
        Ok(())
    }

    /// Drops the message that the probe with the context `claim` has claimed. The completion, if one is asked for, is
    /// that of a probe.
    ///
    /// # Errors
    ///
    /// [`FabricError::NotClaimed`], [`FabricError::Forked`].
    pub fn discard_claimed(&self, claim: u64, completes: Completes) -> Result<(), FabricError> {
        let mut state = self.inner.lock()?;
        let (key, kept) = state.receives.take_claimed(claim).ok_or(FabricError::NotClaimed { context: claim })?;
        if completes == Completes::Always {
            state.receives.found(claim, &key, &kept.envelope);
        }
        state.discard(&kept, &self.inner.connector);
        self.inner.leave(state);
        Ok(())
    }

    /// Cancels the oldest receive with this context that no message has matched. True if there is one; it ends with
    /// [`Failure::Canceled`]. A buffer for many messages ends after its last message.
    #[must_use]
    pub fn cancel(&self, context: u64) -> bool {
        self.inner.lock().is_ok_and(|mut state| state.receives.cancel(context))
    }

    /// Moves all messages on as far as possible without waiting. True if something moved, so that the next call may
    /// move more.
    pub fn progress(&self) -> bool {
        let Ok(mut state) = self.inner.lock() else { return false };
        let has_moved = state.advance(&self.inner.connector);
        if has_moved {
            self.inner.leave(state);
        }
        has_moved
    }

    /// Makes progress, then moves at most `most` completions to the end of `into`. Failures are among them.
    #[inline]
    pub fn completions(&self, into: &mut Vec<Completion>, most: usize) {
        let Ok(mut state) = self.inner.lock() else { return };
        let has_moved = state.advance(&self.inner.connector);
        let completions = &mut state.receives.reports.completions;
        let count = completions.len().min(most);
        into.extend(completions.drain(..count));
        if has_moved {
            self.inner.leave(state);
        }
    }

    /// Makes progress, then passes the successful completions before the first failure to `take`, at most `most`. They
    /// are not copied on the way, so this is the fast way to poll; [`completions`](Endpoint::completions) takes the
    /// failures.
    ///
    /// The endpoint is locked while `take` runs, so `take` must not call it, nor wait for a thread that does.
    #[inline]
    pub fn take_successes(&self, most: usize, mut take: impl FnMut(&Completion)) -> Successes {
        let Ok(mut state) = self.inner.lock() else { return Successes::default() };
        let has_moved = state.advance(&self.inner.connector);
        let completions = &mut state.receives.reports.completions;
        let mut successes = Successes::default();
        while let Some(completion) = completions.front() {
            if completion.result.is_err() || successes.count == most {
                successes.is_failure_next = completion.result.is_err();
                break;
            }
            take(completion);
            completions.pop_front();
            successes.count += 1;
        }
        if has_moved {
            self.inner.leave(state);
        } else {
            // A processor runs loads of the next passes ahead. When the awaited line comes, it throws that work away,
            // which takes longer than this fence.
            fence(Ordering::SeqCst);
        }
        successes
    }

    /// Closes the endpoint, also while other threads call it: their calls fail from then on.
    ///
    /// When this returns, no thread and no device of this process uses the callers' buffers any more. Operations that
    /// are not complete end without completions. Messages that were [injected](crate::SendRequest::inject) count as
    /// sent, so this waits until they are in the rings of their peers, at most [`linger`](Config::linger). It returns
    /// how many are lost after that.
    ///
    /// The peers notice it, also if the value is kept. A device that does not answer for as long keeps the memory of
    /// the connections for ever.
    pub fn close(&self) -> usize {
        let end = Instant::now() + self.inner.linger;
        let lost = loop {
            // A forked child leaves everything to its parent.
            let Ok(mut state) = self.inner.lock() else { return 0 };
            let unsent = state.unsent_injections();
            if unsent == 0 || Instant::now() >= end {
                state.is_closed = true;
                break unsent;
            }
            state.advance(&self.inner.connector);
            drop(state);
            std::thread::yield_now();
        };
        let end = Instant::now() + self.inner.linger;
        let mut state = self.inner.lock_closed();
        while state.copier.is_busy() && Instant::now() < end {
            let mut collected = std::mem::take(&mut state.collected);
            state.copier.collect(&mut collected);
            collected.clear();
            state.collected = collected;
            drop(state);
            std::thread::yield_now();
            state = self.inner.lock_closed();
        }
        if state.copier.is_busy() {
            std::mem::forget((std::mem::take(&mut state.senders), std::mem::take(&mut state.receivers)));
        }
        state.end_publication();
        state.copier = Copier::cpu();
        (state.senders, state.receivers) = (Vec::new(), Vec::new());
        drop(state);
        self.inner.connector.stop();
        lost
    }

    /// Returns the counters. A forked child gets zeros.
    #[must_use]
    pub fn statistics(&self) -> Stats {
        self.inner.lock().map_or_else(|_| Stats::default(), |state| state.statistics())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if self.inner.created_in.is_current() {
            self.close();
        } else {
            // A forked child has not the mappings of its parent, and other memory may lie there: unmap nothing.
            std::mem::forget(Arc::clone(&self.inner));
        }
    }
}

impl Inner {
    /// Locks the state. A forked child is refused before it waits for a lock that a thread of its parent may hold.
    #[inline]
    fn lock(&self) -> Result<BiasedGuard<'_, State>, FabricError> {
        if !self.created_in.is_current() {
            return Err(FabricError::Forked);
        }
        let state = self.lock_closed();
        if state.is_closed { Err(FabricError::Closed) } else { Ok(state) }
    }

    /// Locks the state on the helper thread, whose calls are few unless it moves all messages on.
    fn lock_on_helper(&self) -> Option<BiasedGuard<'_, State>> {
        if !self.created_in.is_current() {
            return None;
        }
        // Without barriers, messages move when the program calls.
        let state = self.state.lock_as_guest().ok()?;
        if state.is_closed { None } else { Some(state) }
    }

    /// Ends a call. It may have left work that needs a peer, and its thread may not call again for a long time: then
    /// the helper thread goes on.
    #[inline]
    fn leave(&self, mut state: BiasedGuard<'_, State>) {
        if self.progress == ProgressBy::HelperThread && !state.is_helper_asked && state.has_work() {
            state.is_helper_asked = true;
            drop(state);
            self.connector.ask_for_progress();
        }
    }

    /// Locks the state of an endpoint that may be closed.
    #[inline]
    fn lock_closed(&self) -> BiasedGuard<'_, State> {
        self.state.lock().unwrap_or_else(|NoBarrier| end_without_barriers())
    }
}

/// Ends the process: another thread may be in the endpoint, and this one cannot find out. An error would not do: a
/// thread that waits for completions would wait for ever, and a device might write to buffers of an endpoint that was
/// not closed.
#[cold]
fn end_without_barriers() -> ! {
    // A failed write changes nothing.
    let _ = writeln!(
        std::io::stderr(),
        "telpher: cannot lock a fabric endpoint for a second thread: the system refuses membarrier, which it permitted \
         when the endpoint was opened. Permit this call in the filter of system calls, or install the filter before \
         MPI_Init"
    );
    std::process::abort()
}

impl Progress for Inner {
    /// A peer or an event waits for this process, whose threads may be busy with other work.
    fn progress(&self) -> bool {
        if self.progress != ProgressBy::HelperThread {
            if let Some(mut state) = self.lock_on_helper() {
                state.advance(&self.connector);
            }
            return false;
        }
        let (mut idle, mut has_moved) = (0, false);
        for _ in 0..MOST_HELPER_PASSES {
            let Ok(mut state) = self.lock() else { return false };
            // What the caller's call has moved, the peers do not know yet.
            has_moved |= std::mem::take(&mut state.is_helper_asked);
            if state.advance(&self.connector) {
                (idle, has_moved) = (0, true);
            } else {
                idle += u32::from(!state.copier.is_busy());
            }
            if idle >= HELPER_PASSES {
                // The peers do the next step, and wake this thread when they wait. If nothing moved, they know of
                // nothing new: two helper threads would only wake each other.
                if has_moved {
                    state.wake_awaited(&self.connector);
                }
                return false;
            }
            drop(state);
            std::thread::yield_now();
        }
        if let Ok(mut state) = self.lock() {
            state.wake_awaited(&self.connector);
        }
        true
    }
}
