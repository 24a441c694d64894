//! Endpoints: an endpoint of `telpher-fabric`, and where its completions go.

use crate::abi::errors;
use crate::abi::flags as f;
use crate::address_vector::AddressVector;
use crate::bound::{BoundEndpoint, Direction};
use crate::capabilities::{RX_OP_FLAGS, TX_OP_FLAGS};
use crate::completion_queue::CompletionQueue;
use crate::counter::Counter;
use crate::domain::Domain;
use crate::event_queue::EventQueue;
use crate::failure::{AGAIN, Errno, INVALID};
use crate::limits;
use crate::log;
use crate::settings;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use telpher_fabric::{
    AccessCounters, AccessKind, AccessRequest, Address, Completes, Completion, Config, Endpoint, FabricError,
    Operation, OperationCounters, PeerId, ProbeAction, ProbeRequest, ProgressBy, ReceiveRequest, RemoteAddress,
    Segments, SendEnd, SendRequest, TagMatch,
};

/// What a buffer for many messages keeps free, unless the program sets it. Source: as libfabric's shm provider.
const MIN_MULTI_RECV: u64 = 4096;

/// Completions that are taken from the endpoint at once. Source: chosen.
const BURST: usize = 64;

/// What an application asked for when it opened an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpOptions {
    /// True if the endpoint may access memory of peers.
    pub(crate) accesses: bool,
    /// True if counters may count the accesses of peers.
    pub(crate) counts_peers: bool,
    /// True if the source of a receive is looked at; otherwise programs may pass any number.
    pub(crate) directed: bool,
    /// True if the endpoint sends, and true if it receives.
    pub(crate) directions: (bool, bool),
    /// Default flags of sends, and of receives.
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Ep {
    domain: Arc<Domain>,
    options: EpOptions,
    endpoint: Arc<Endpoint>,
    peers: Peers,
    min_multi_recv: AtomicU64,
    is_enabled: AtomicBool,
    /// What the program binds before it enables the endpoint.
    binding: Mutex<Bindings>,
    /// The same, once the endpoint is enabled.
    bound: OnceLock<Bound>,
    taken: Mutex<TakenCompletions>,
}

/// What a program binds.
#[derive(Clone, Debug, Default)]
struct Bindings {
    av: Option<Arc<AddressVector>>,
    /// Gets no events of the endpoint; it stays open as long as it is bound.
    events: Option<Arc<EventQueue>>,
    sends: Option<Target>,
    receives: Option<Target>,
    count_sends: Option<Arc<Counter>>,
    count_receives: Option<Arc<Counter>>,
    count_reads: Option<Arc<Counter>>,
    count_writes: Option<Arc<Counter>>,
    count_reads_of_peers: Option<Arc<Counter>>,
    count_writes_of_peers: Option<Arc<Counter>>,
}

impl Bindings {
    /// Returns the counters of the endpoint's own operations.
    fn counters(&self) -> impl Iterator<Item = &Arc<Counter>> {
        [&self.count_sends, &self.count_receives, &self.count_reads, &self.count_writes].into_iter().flatten()
    }

    /// Returns the counters of accesses of peers.
    fn counters_of_peers(&self) -> impl Iterator<Item = &Arc<Counter>> {
        [&self.count_reads_of_peers, &self.count_writes_of_peers].into_iter().flatten()
    }
}

/// A queue, and whether operations have completions only if they ask for them.
#[derive(Clone, Debug)]
struct Target {
    queue: Arc<CompletionQueue>,
    selective: bool,
}

/// What was bound.
#[derive(Debug)]
struct Bound {
    bindings: Bindings,
    /// Flags of sends and receives without flags of their own, and what is added to such flags.
    send: Defaults,
    receive: Defaults,
    /// True if the only queue may take completions from the endpoint directly.
    direct: bool,
}

#[derive(Clone, Copy, Debug)]
struct Defaults {
    plain: u64,
    added: u64,
}

/// Completions that were taken from the endpoint for two queues.
#[derive(Debug, Default)]
struct TakenCompletions {
    scratch: Vec<Completion>,
    sends: VecDeque<Completion>,
    receives: VecDeque<Completion>,
}

/// The most bytes of an endpoint in its connections: room for 480 peers. Pages count here before they are used. Source:
/// chosen; the default of 192 MiB is used up by 60 peers.
const MEMORY_BYTES: u64 = 3 << 29;

impl Ep {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// If the system refuses a socket or a thread.
    pub(crate) fn open(domain: Arc<Domain>, options: EpOptions) -> Result<Ep, Errno> {
        // A program with manual progress may send its first message and then wait for something else: the message must
        // not wait for the program's next call, only because its connection was not open yet.
        let manual = ProgressBy::CallerAndEvents;
        let progress = if domain.automatic_progress { ProgressBy::HelperThread } else { manual };
        let mut config = Config::default();
        config.memory_bytes = MEMORY_BYTES;
        settings::set_lengths(&mut config);
        // A program without remote memory access expects no completions of it.
        config.accepts_words = options.accesses;
        let regions = Arc::clone(&domain.regions);
        let endpoint = Endpoint::open_with(config, settings::copier(), progress, regions).map_err(|error| {
            log::warn(format_args!("{error}"));
            Errno::from(error)
        })?;
        Ok(Ep {
            domain,
            options,
            endpoint: Arc::new(endpoint),
            peers: Peers::default(),
            min_multi_recv: AtomicU64::new(MIN_MULTI_RECV),
            is_enabled: AtomicBool::new(false),
            binding: Mutex::default(),
            bound: OnceLock::new(),
            taken: Mutex::default(),
        })
    }

    /// Returns the address that peers insert.
    pub(crate) fn address(&self) -> Address {
        self.endpoint.address()
    }

    fn binding(&self) -> MutexGuard<'_, Bindings> {
        self.binding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error once the endpoint is enabled.
    fn still_binds(&self) -> Result<(), Errno> {
        if self.is_enabled.load(Ordering::Relaxed) { Err(Errno(errors::EOPBADSTATE)) } else { Ok(()) }
    }

    /// Binds an address vector.
    pub(crate) fn bind_av(&self, av: Arc<AddressVector>) -> Result<(), Errno> {
        self.still_binds()?;
        let mut binding = self.binding();
        if binding.av.is_some() {
            return Err(INVALID);
        }
        binding.av = Some(av);
        Ok(())
    }

    /// Binds an event queue.
    pub(crate) fn bind_events(&self, queue: Arc<EventQueue>) -> Result<(), Errno> {
        self.still_binds()?;
        let mut binding = self.binding();
        if binding.events.is_some() {
            return Err(INVALID);
        }
        binding.events = Some(queue);
        Ok(())
    }

    /// Binds a completion queue for the directions in `flags`.
    pub(crate) fn bind_queue(&self, queue: Arc<CompletionQueue>, flags: u64) -> Result<(), Errno> {
        self.still_binds()?;
        if flags & !(f::SEND | f::RECV | f::SELECTIVE_COMPLETION) != 0 {
            return Err(Errno(errors::EBADFLAGS));
        }
        let mut binding = self.binding();
        let sends = flags & f::SEND != 0;
        let receives = flags & f::RECV != 0;
        if (!sends && !receives) || (sends && binding.sends.is_some()) || (receives && binding.receives.is_some()) {
            return Err(INVALID);
        }
        let target = Target { queue, selective: flags & f::SELECTIVE_COMPLETION != 0 };
        if sends {
            binding.sends = Some(target.clone());
        }
        if receives {
            binding.receives = Some(target);
        }
        Ok(())
    }

    /// Binds a counter for the directions in `flags`. Accesses of peers are counted with `FI_RMA_EVENT`; without it,
    /// libfabric's manual says that the flags are ignored.
    pub(crate) fn bind_counter(&self, counter: &Arc<Counter>, flags: u64) -> Result<(), Errno> {
        self.still_binds()?;
        let mut binding = self.binding();
        if flags & f::SEND != 0 {
            binding.count_sends = Some(Arc::clone(counter));
        }
        if flags & f::RECV != 0 {
            binding.count_receives = Some(Arc::clone(counter));
        }
        if flags & f::READ != 0 {
            binding.count_reads = Some(Arc::clone(counter));
        }
        if flags & f::WRITE != 0 {
            binding.count_writes = Some(Arc::clone(counter));
        }
        if self.options.counts_peers && flags & f::REMOTE_READ != 0 {
            binding.count_reads_of_peers = Some(Arc::clone(counter));
        }
        if self.options.counts_peers && flags & f::REMOTE_WRITE != 0 {
            binding.count_writes_of_peers = Some(Arc::clone(counter));
        }
        Ok(())
    }

    /// Enables the endpoint: from now on it sends and receives.
    ///
    /// # Errors
    /// If an address vector or a completion queue is missing.
    pub(crate) fn enable(self: &Arc<Ep>) -> Result<(), Errno> {
        self.still_binds()?;
        let bindings = self.binding().clone();
        let av = bindings.av.clone().ok_or(Errno(errors::ENOAV))?;
        let (sends, receives) = self.options.directions;
        if (sends && bindings.sends.is_none()) || (receives && bindings.receives.is_none()) {
            return Err(Errno(errors::ENOCQ));
        }
        let direct = match (&bindings.sends, &bindings.receives) {
            (Some(sends), Some(receives)) => Arc::ptr_eq(&sends.queue, &receives.queue),
            _ => false,
        };
        let defaults = |target: Option<&Target>, flags: u64| {
            let added = if target.is_some_and(|target| !target.selective) { f::COMPLETION } else { 0 };
            Defaults { plain: flags | added, added }
        };
        let send = defaults(bindings.sends.as_ref(), self.options.tx_flags);
        let receive = defaults(bindings.receives.as_ref(), self.options.rx_flags);
        let this: Arc<dyn BoundEndpoint> = Arc::clone(self) as _;
        av.bind(&this)?;
        self.domain.enabled(&this);
        for counter in bindings.counters().chain(bindings.counters_of_peers()) {
            counter.bind(&this);
        }
        let successes = |counter: &Option<Arc<Counter>>| counter.as_ref().map(|counter| counter.successes());
        self.endpoint.count_accesses_of_peers(AccessCounters {
            reads: successes(&bindings.count_reads_of_peers),
            writes: successes(&bindings.count_writes_of_peers),
        })?;
        let counts = |counter: &Option<Arc<Counter>>| counter.as_ref().map(|counter| counter.counts());
        self.endpoint.count_operations(OperationCounters {
            sends: counts(&bindings.count_sends),
            receives: counts(&bindings.count_receives),
            reads: counts(&bindings.count_reads),
            writes: counts(&bindings.count_writes),
        })?;
        let queues = [&bindings.sends, &bindings.receives].map(|target| target.as_ref().map(|target| &target.queue));
        for (direction, queue) in [Direction::Sends, Direction::Receives].into_iter().zip(queues) {
            if let Some(queue) = queue
                && !(direct && direction == Direction::Receives)
            {
                queue.bind(&this, direction, direct.then_some(&self.endpoint));
            }
        }
        if self.bound.set(Bound { send, receive, direct, bindings }).is_err() {
            return Err(Errno(errors::EOPBADSTATE));
        }
        self.is_enabled.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Closes the endpoint, also while other threads fetch its completions. Waits a while for injected messages that
    /// the peers have no room for.
    pub(crate) fn close(&self) {
        let lost = self.endpoint.close();
        if lost > 0 {
            log::warn(format_args!(
                "{lost} injected messages are lost: the endpoint is closed, and the peers take none"
            ));
        }
    }

    /// Sets what a buffer for many messages keeps free.
    pub(crate) fn set_min_multi_recv(&self, bytes: u64) {
        self.min_multi_recv.store(bytes, Ordering::Relaxed);
    }

    /// Returns what a buffer for many messages keeps free.
    pub(crate) fn min_multi_recv(&self) -> u64 {
        self.min_multi_recv.load(Ordering::Relaxed)
    }

    fn bound(&self) -> Result<&Bound, Errno> {
        self.bound.get().ok_or(Errno(errors::EOPBADSTATE))
    }

    /// Starts a send. `flags` are those of the call; `None` if the call has none.
    pub(crate) fn send(&self, mut send: SendCall) -> Result<(), Errno> {
        let bound = self.bound()?;
        let flags = match send.flags {
            Some(flags) if flags & !(TX_OP_FLAGS | f::REMOTE_CQ_DATA | f::MORE) != 0 => {
                return Err(Errno(errors::EBADFLAGS));
            }
            Some(flags) => flags | bound.send.added,
            None => bound.send.plain,
        };
        let inject = send.silent || flags & f::INJECT != 0;
        if inject && send.request.segments.len() > limits::inject_bytes() as u64 {
            return Err(Errno(libc::EMSGSIZE));
        }
        send.request.to = self.peers.get(send.to).ok_or(INVALID)?;
        let reports = !send.silent && flags & f::COMPLETION != 0;
        send.request.end = match flags {
            _ if send.silent => SendEnd::BufferFree,
            flags if flags & f::DELIVERY_COMPLETE != 0 => SendEnd::Received,
            flags if flags & f::MATCH_COMPLETE != 0 => SendEnd::Matched,
            _ => SendEnd::BufferFree,
        };
        send.request.inject = inject;
        send.request.completes = completes(reports);
        // Not by value, which would copy it.
        let request = &send.request;
        self.endpoint.send(request).map_err(refused)
    }

    /// Starts an access to the memory of a peer.
    pub(crate) fn access(&self, access: AccessCall) -> Result<(), Errno> {
        let bound = self.bound()?;
        if !self.options.accesses {
            return Err(Errno(libc::ENOSYS));
        }
        let flags = match access.flags {
            // A fence would wait for all accesses before; its capability is not offered.
            Some(flags) if flags & !(TX_OP_FLAGS | f::REMOTE_CQ_DATA | f::MORE) != 0 => {
                return Err(Errno(errors::EBADFLAGS));
            }
            Some(flags) => flags | bound.send.added,
            None => bound.send.plain,
        };
        let (len, takes_bytes) = match access.kind {
            AccessKind::Write { from, .. } => (from.len(), true),
            AccessKind::Read { into } => (into.len(), false),
            AccessKind::Atomic { len, results, .. } => {
                if len > limits::atomic_bytes() as u64 {
                    return Err(Errno(libc::EMSGSIZE));
                }
                (len, results.is_none())
            }
        };
        let inject = takes_bytes && (access.silent || flags & f::INJECT != 0);
        if inject && len > limits::inject_bytes() as u64 {
            return Err(Errno(libc::EMSGSIZE));
        }
        let peer = self.peers.get(access.peer).ok_or(INVALID)?;
        let reports = !access.silent && flags & f::COMPLETION != 0;
        let AccessCall { kind, remote, context, .. } = access;
        // It completes when the peer has done it, so all kinds of completion are the same.
        let request = AccessRequest { peer, remote, kind, context, completes: completes(reports), inject };
        self.endpoint.access(request).map_err(refused)
    }

    /// Starts a receive, a probe, or the end of a claimed message, as the flags say.
    pub(crate) fn receive(&self, mut receive: ReceiveCall) -> Result<(), Errno> {
        let bound = self.bound()?;
        let flags = match receive.flags {
            Some(flags) if flags & !(RX_OP_FLAGS | f::PEEK | f::CLAIM | f::DISCARD | f::MORE) != 0 => {
                return Err(Errno(errors::EBADFLAGS));
            }
            Some(flags) => flags | bound.receive.added,
            None => bound.receive.plain,
        };
        receive.request.from = match receive.from {
            f::ADDRESS_UNSPECIFIED => None,
            _ if !self.options.directed => None,
            number => Some(self.peers.get(number).ok_or(INVALID)?),
        };
        let reports = flags & f::COMPLETION != 0;
        if flags & f::PEEK != 0 {
            let action = match flags & (f::CLAIM | f::DISCARD) {
                0 => ProbeAction::Look,
                f::CLAIM => ProbeAction::Claim,
                f::DISCARD => ProbeAction::Discard,
                _ => return Err(Errno(errors::EBADFLAGS)),
            };
            // A probe's answer is its completion, so it always has one.
            let request = &receive.request;
            let probe = ProbeRequest { from: request.from, tag: request.tag, context: request.context, action };
            return self.endpoint.probe(probe).map_err(Errno::from);
        }
        if flags & (f::CLAIM | f::DISCARD) == f::CLAIM | f::DISCARD {
            return self.endpoint.discard_claimed(receive.request.context, completes(reports)).map_err(Errno::from);
        }
        if flags & f::DISCARD != 0 {
            return Err(Errno(errors::EBADFLAGS));
        }
        let many = (flags & f::MULTI_RECV != 0).then(|| self.min_multi_recv());
        if many.is_some() && receive.request.segments.as_slice().len() > 1 {
            log::info(format_args!(
                "a receive with FI_MULTI_RECV has one buffer, not {}",
                receive.request.segments.as_slice().len()
            ));
            return Err(INVALID);
        }
        receive.request.many = many;
        receive.request.completes = completes(reports);
        let request = &receive.request;
        let started = match flags & f::CLAIM {
            0 => self.endpoint.receive(request),
            _ => self.endpoint.receive_claimed(request.context, *request),
        };
        started.map_err(refused)
    }

    /// Cancels a receive that no message has matched.
    ///
    /// # Errors
    /// `EAGAIN` if there is none: it was matched, or never existed.
    pub(crate) fn cancel(&self, context: u64) -> Result<(), Errno> {
        self.bound()?;
        if self.endpoint.cancel(context) { Ok(()) } else { Err(AGAIN) }
    }

    fn taken(&self) -> MutexGuard<'_, TakenCompletions> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all completions, and gives each to the queue of its direction.
    fn distribute(&self, bound: &Bound, taken: &mut TakenCompletions) {
        let TakenCompletions { scratch, sends, receives } = taken;
        loop {
            self.endpoint.completions(scratch, BURST);
            let count = scratch.len();
            for completion in scratch.drain(..) {
                let is_received =
                    matches!(completion.operation, Operation::Receive | Operation::Probe | Operation::WrittenByPeer);
                let (target, queue) = if is_received {
                    (&bound.bindings.receives, &mut *receives)
                } else {
                    (&bound.bindings.sends, &mut *sends)
                };
                if target.is_some() {
                    queue.push_back(completion);
                }
            }
            if count < BURST {
                return;
            }
        }
    }
}

/// Returns how an operation completes. Counters count it in any case.
fn completes(reports: bool) -> Completes {
    if reports { Completes::Always } else { Completes::OnError }
}

/// Returns the error of an operation that was refused.
#[cold]
fn refused(error: FabricError) -> Errno {
    if !matches!(error, FabricError::Full { .. }) {
        log::info(format_args!("{error}"));
    }
    Errno::from(error)
}

impl BoundEndpoint for Ep {
    fn insert_peer(&self, number: u64, address: &Address) -> Result<(), FabricError> {
        let peer = self.endpoint.insert_peer(address)?;
        self.peers.set(number, Some(peer));
        Ok(())
    }

    fn remove_peer(&self, number: u64) {
        if let Some(peer) = self.peers.get(number) {
            self.peers.set(number, None);
            if let Err(error) = self.endpoint.remove_peer(peer) {
                log::warn(format_args!("{error}"));
            }
        }
    }

    fn number_of(&self, address: &Address) -> Option<u64> {
        self.bound.get()?.bindings.av.as_ref()?.number(address)
    }

    fn take(&self, direction: Direction, into: &mut Vec<Completion>, most: usize) {
        let Some(bound) = self.bound.get() else { return };
        if bound.direct {
            self.endpoint.completions(into, most);
            return;
        }
        let mut taken = self.taken();
        self.distribute(bound, &mut taken);
        let waiting = match direction {
            Direction::Sends => &mut taken.sends,
            Direction::Receives => &mut taken.receives,
        };
        let count = waiting.len().min(most);
        into.extend(waiting.drain(..count));
    }

    fn progress(&self) {
        if self.bound.get().is_some() {
            self.endpoint.progress();
        }
    }
}

/// A send as a program calls it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendCall {
    /// What the endpoint below gets. Without a copy on the way: a copy right after the fields were written waits for
    /// them. The peer, the context and how it completes are set by [`Ep::send`].
    pub(crate) request: SendRequest,
    pub(crate) to: u64,
    /// `None` for a call without flags.
    pub(crate) flags: Option<u64>,
    /// True for `fi_inject` and its relatives: the bytes are taken at once, and success has no completion.
    pub(crate) silent: bool,
}

impl SendCall {
    /// A call without flags.
    #[inline]
    pub(crate) fn new(segments: Segments, to: u64, tag: Option<u64>, data: Option<u64>, context: u64) -> SendCall {
        let (completes, end) = (Completes::Always, SendEnd::BufferFree);
        let request = SendRequest { to: PeerId(0), segments, tag, data, context, completes, end, inject: false };
        SendCall { request, to, flags: None, silent: false }
    }
}

/// An access to the memory of a peer as a program calls it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessCall {
    pub(crate) kind: AccessKind,
    pub(crate) peer: u64,
    pub(crate) remote: RemoteAddress,
    pub(crate) context: u64,
    /// `None` for a call without flags.
    pub(crate) flags: Option<u64>,
    /// True for `fi_inject_write` and its relatives.
    pub(crate) silent: bool,
}

/// A receive as a program calls it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveCall {
    /// As for [`SendCall`]. The sender, the context and how it completes are set by [`Ep::receive`].
    pub(crate) request: ReceiveRequest,
    pub(crate) from: u64,
    /// `None` for a call without flags.
    pub(crate) flags: Option<u64>,
}

impl ReceiveCall {
    /// A call without flags.
    #[inline]
    pub(crate) fn new(segments: Segments, from: u64, tag: Option<TagMatch>, context: u64) -> ReceiveCall {
        let completes = Completes::Always;
        ReceiveCall {
            request: ReceiveRequest { segments, from: None, tag, context, completes, many: None },
            from,
            flags: None,
        }
    }
}

/// The peers by the numbers of the address vector. Every send looks one up, so reading takes no lock.
#[derive(Debug, Default)]
struct Peers {
    /// Chunk `k` has the numbers from `2^k - 1` on, `2^k` of them.
    chunks: [OnceLock<Box<[AtomicU64]>>; 32],
}

/// No peer has this number.
const NO_PEER: u64 = u64::MAX;

impl Peers {
    /// Returns the chunk and the place in it.
    fn place(number: u64) -> Option<(usize, usize)> {
        let position = number.checked_add(1)?;
        let chunk = position.ilog2();
        Some((usize::try_from(chunk).ok()?, usize::try_from(position - (1 << chunk)).ok()?))
    }

    fn get(&self, number: u64) -> Option<PeerId> {
        let (chunk, place) = Peers::place(number)?;
        let peer = self.chunks.get(chunk)?.get()?[place].load(Ordering::Acquire);
        (peer != NO_PEER).then_some(PeerId(peer))
    }

    fn set(&self, number: u64, peer: Option<PeerId>) {
        // An address vector counts up from 0, so its numbers are far below the last chunk.
        let Some((chunk, place)) = Peers::place(number) else { return };
        let Some(chunk_of) = self.chunks.get(chunk) else { return };
        let words = chunk_of.get_or_init(|| (0..1_u64 << chunk).map(|_| AtomicU64::new(NO_PEER)).collect());
        words[place].store(peer.map_or(NO_PEER, |peer| peer.0), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_found_by_their_numbers_until_they_are_removed() {
        let peers = Peers::default();
        for number in 0..1000 {
            assert_eq!(peers.get(number), None);
            peers.set(number, Some(PeerId(number * 3)));
        }
        assert!((0..1000).all(|number| peers.get(number) == Some(PeerId(number * 3))));
        peers.set(7, None);
        assert_eq!((peers.get(7), peers.get(8)), (None, Some(PeerId(24))));
        for missing in [1000, 1 << 50, u64::MAX - 1, u64::MAX] {
            assert_eq!(peers.get(missing), None);
            peers.set(missing, None);
        }
    }
}
