//! Routing: the queues of a mover, and which of them is asked first.

use crate::plan::credit::{Credit, Credits};
use crate::plan::limits::Limits;
use crate::plan::queue_health::QueueHealth;
use crate::plan::request::Request;
use crate::plan::topology::{NodeMap, Topology};
use crate::reentrancy::InPortal;
use crate::report::AbortOnUnwind;
use crate::sync::{AtomicU32, Ordering};
use crate::thread_stripe::Padded;
use crate::wait::forecast::BusyUntil;
use crate::wait::stall_timer::StallAction;
use std::sync::Arc;
use telpher_portal::{Health, Offer, Portal, QueueMode, Submission};

/// Which queue is asked first; if it is full, the others follow in their order.
///
/// If all queues are on one node, or their nodes are not known, all of them are near, for [`Local`](Route::Local) and
/// for [`PushPull`](Route::PushPull), which then works like [`RoundRobin`](Route::RoundRobin). A queue's node is
/// [`QueueInfo::numa_node`](telpher_portal::QueueInfo::numa_node); a [`Topology`] describes the
/// machine's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Route {
    /// Always the first: for programs that place their work themselves.
    First,
    /// Each operation goes to the next queue. Source: *Data movement with DSA*, §5.2, for many small tasks.
    RoundRobin,
    /// The queue with the fewest descriptors of this mover in flight, which balances operations of different lengths. A
    /// well-known policy; the papers at hand have measured only round robin.
    LeastLoaded,
    /// The queues nearest to the calling thread: the path to the portal is short, and memory is mostly where its
    /// threads are. If there are several, each thread has its own queue. It asks that queue while nothing of this mover
    /// is in flight there, and otherwise the least loaded. So threads that wait for each operation use different
    /// queues, and a thread with many operations in flight uses all.
    /// Source: guideline G4 (Kuper et al., ASPLOS 2024, §6.2: "the ideal case in most scenarios favors having data
    /// local"), and *Data movement with DSA*, §3.2.3: "utilizing off-socket DSAs proves disadvantageous in the average
    /// case".
    #[default]
    Local,
    /// The queues nearest to the source and those nearest to the destination: in turn for whole operations, both for a
    /// split operation. Source: *Data movement with DSA*, §3.2.3 and §3.3: close to the peak of four devices, with two.
    PushPull,
}

/// One queue of a mover: its portal, its limits, and this mover's use of it.
#[derive(Debug)]
pub(crate) struct PortalQueue {
    /// The queue's portal.
    pub(crate) portal: Arc<dyn Portal>,
    /// Whether the queue is still usable.
    health: QueueHealth,
    /// What the queue accepts.
    pub(crate) limits: Limits,
    /// The device it belongs to, derived from the queue's name.
    device: Box<str>,
    /// Exact credits if the queue is dedicated.
    credits: Padded<Option<Credits>>,
    /// Descriptors of this mover in flight.
    load: Padded<AtomicU32>,
    /// Until when the queue is expected to be busy.
    pub(crate) busy_until: Padded<BusyUntil>,
}

/// The right to offer one descriptor to a queue; given back by [`PortalQueue::leave`].
#[must_use = "an entry that is not given back is a queue entry lost for ever"]
#[derive(Debug)]
pub(crate) struct Entry(Option<Credit>);

impl PortalQueue {
    pub(crate) fn new(portal: Arc<dyn Portal>) -> Self {
        let info = portal.info();
        let credits = (info.mode == QueueMode::Dedicated).then(|| Credits::new(info.size));
        let limits = Limits::of(info);
        let device = device_of(&info.name).into();
        PortalQueue {
            limits,
            device,
            credits: Padded(credits),
            load: Padded(AtomicU32::new(0)),
            busy_until: Padded(BusyUntil::new()),
            health: QueueHealth::new(),
            portal,
        }
    }

    /// Returns true once no descriptor may be offered any more and no descriptor that was taken touches memory any
    /// more. A record that is empty after this returned true stays empty.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.health.is_dead()
    }

    /// Returns true in the process that opened the portal.
    pub(crate) fn is_own_process(&self) -> bool {
        self.health.is_own_process()
    }

    /// Returns why the queue is dead.
    pub(crate) fn why(&self) -> Arc<str> {
        self.health.why()
    }

    /// Asks the queue whether it still works; if not, it is dead from now on. May make system calls.
    #[cold]
    pub(crate) fn check_health(&self) {
        if self.is_dead() {
            return;
        }
        let _inside = InPortal::enter();
        if let Health::Stopped(why) = self.portal.health() {
            self.health.stop(why);
        }
    }

    /// Acts on a failed check of something that the queue has or refuses.
    #[inline]
    pub(crate) fn on_stall(&self, late: StallAction) {
        match late {
            StallAction::LookAgain => {}
            StallAction::CheckHealth => self.check_health(),
            StallAction::GiveUp => self.give_up(),
        }
    }

    /// Gives the queue up: it is dead from now on, if its portal can guarantee that. May make system calls, and wait.
    #[cold]
    fn give_up(&self) {
        if self.is_dead() {
            return;
        }
        let _inside = InPortal::enter();
        if let Health::Stopped(why) = self.portal.retire() {
            self.health.stop(why);
        }
    }

    /// Lets an executor without a thread work.
    #[inline]
    pub(crate) fn drive(&self) {
        if !self.is_dead() {
            let _inside = InPortal::enter();
            self.portal.drive();
        }
    }

    /// Takes room for one descriptor, if there is some as far as this mover knows.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Entry> {
        if self.is_dead() {
            return None;
        }
        let credit = match &*self.credits {
            Some(credits) => Some(credits.take()?),
            None => None,
        };
        // Relaxed: a number for `LeastLoaded` only.
        self.load.fetch_add(1, Ordering::Relaxed);
        Some(Entry(credit))
    }

    /// Like [`enter`](PortalQueue::enter), for the only user of this value: no atomic addition.
    #[inline]
    pub(crate) fn enter_alone(&mut self) -> Option<Entry> {
        if self.is_dead() {
            return None;
        }
        match &mut self.credits.0 {
            Some(credits) => Some(Entry(Some(credits.take_alone()?))),
            None => Some(Entry(None)),
        }
    }

    /// Gives back an entry of [`enter_alone`](PortalQueue::enter_alone).
    #[inline]
    pub(crate) fn leave_alone(&mut self, entry: Entry) {
        if let (Some(credits), Some(credit)) = (&mut self.credits.0, entry.0) {
            credits.give_alone(credit);
        }
    }

    /// Offers a descriptor for which the caller holds an entry.
    ///
    /// A portal that unwinds here may have taken the descriptor (which [`Portal`] forbids). Then memory would be given
    /// back while a device has it, so the process is aborted instead.
    #[inline]
    pub(crate) fn offer(&self, submission: &Submission) -> Offer {
        let guard = AbortOnUnwind("a portal panicked while it was offered a descriptor, which it may have taken");
        let inside = InPortal::enter();
        let answer = self.portal.offer(submission);
        drop(inside);
        guard.disarm();
        answer
    }

    /// Gives an entry back: the descriptor's record was seen, or it was not taken.
    #[inline]
    pub(crate) fn leave(&self, entry: Entry) {
        // Relaxed: as in `enter`. Cannot underflow because every entry was counted there.
        self.load.fetch_sub(1, Ordering::Relaxed);
        if let (Some(credits), Some(credit)) = (&*self.credits, entry.0) {
            credits.give(credit);
        }
    }

    /// Returns the descriptors of this mover in flight here.
    ///
    /// **Staleness**: other threads enter and leave meanwhile.
    pub(crate) fn load(&self) -> u32 {
        // Relaxed: a hint.
        self.load.load(Ordering::Relaxed)
    }
}

impl Drop for PortalQueue {
    fn drop(&mut self) {
        if !self.health.is_own_process() {
            // The portal is the parent's: threads that its drop would join do not exist here, and threads of the parent
            // may hold locks that it would take.
            std::mem::forget(Arc::clone(&self.portal));
        }
    }
}

/// The queues of a mover and the round-robin counter.
#[derive(Debug)]
pub(crate) struct PortalQueues {
    queues: Box<[PortalQueue]>,
    /// The smallest of the queues' largest transfers.
    max_transfer: u64,
    turn: Padded<AtomicU32>,
    /// The indexes of all queues, for callers that are near all of them.
    every: Box<[usize]>,
    /// The queues nearest to each node, if that makes a difference.
    node_map: Option<NodeMap>,
}

impl PortalQueues {
    /// One queue for each portal. A portal that is passed twice gets one queue with one set of credits.
    pub(crate) fn new(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        topology: impl FnOnce() -> Arc<dyn Topology>,
    ) -> Self {
        let mut queues: Vec<PortalQueue> = Vec::new();
        for portal in portals {
            // By address alone: the same portal may come with two vtables.
            if !queues.iter().any(|queue| std::ptr::addr_eq(Arc::as_ptr(&queue.portal), Arc::as_ptr(&portal))) {
                queues.push(PortalQueue::new(portal));
            }
        }
        let max_transfer = queues.iter().map(|queue| queue.limits.max_transfer).min().unwrap_or(0);
        let nodes: Vec<_> = queues.iter().map(|queue| queue.portal.info().numa_node).collect();
        PortalQueues {
            node_map: NodeMap::of(&nodes, topology),
            every: (0..queues.len()).collect(),
            queues: queues.into(),
            max_transfer,
            turn: Padded(AtomicU32::new(0)),
        }
    }

    pub(crate) fn all(&self) -> &[PortalQueue] {
        &self.queues
    }

    /// Returns the largest transfer that every queue takes; a request up to this length needs no parts.
    pub(crate) fn max_transfer(&self) -> u64 {
        self.max_transfer
    }

    /// Returns up to `ways` queues for the parts of a request, in the order in which to ask them. They belong to
    /// different devices if there are enough, and are near ones only if the route goes by node. `thread` returns the
    /// number of the calling thread.
    pub(crate) fn several(&self, route: Route, request: &Request, ways: u32, thread: impl Fn() -> usize) -> Vec<usize> {
        let in_turn = |queues: &[usize], first: usize| -> Vec<usize> {
            (0..queues.len()).map(|i| queues[(first + i) % queues.len()]).collect()
        };
        let order = match (route, &self.node_map) {
            (Route::Local, _) => {
                let near = self.near_thread();
                in_turn(near, self.own(near, thread()))
            }
            (Route::PushPull, Some(node_map)) => {
                let turn = self.turn();
                let [read, written] = node_map.near_memory(request).map(|queues| in_turn(queues, turn));
                // One of each side in turn; the rest of the longer side comes last.
                let most = read.len().max(written.len());
                (0..most).flat_map(|i| [read.get(i), written.get(i)]).flatten().copied().collect()
            }
            _ => in_turn(&self.every, self.first(route, request, thread)),
        };
        let ways = (ways.max(1) as usize).min(self.queues.len());
        let mut chosen: Vec<usize> = Vec::with_capacity(ways);
        for other_devices in [true, false] {
            for &queue in order.iter().filter(|&&queue| request.cut(&self.queues[queue].limits).is_some()) {
                let device = &self.queues[queue].device;
                let known = |&other: &usize| other == queue || other_devices && self.queues[other].device == *device;
                if chosen.len() < ways && !chosen.iter().any(known) {
                    chosen.push(queue);
                }
            }
        }
        chosen
    }

    fn turn(&self) -> usize {
        // Relaxed: only the number counts, and any order of turns is fair.
        self.turn.fetch_add(1, Ordering::Relaxed) as usize
    }

    /// Returns the index of the queue to ask first for a request; 0 if there is no queue. `thread` as above.
    #[inline]
    pub(crate) fn first(&self, route: Route, request: &Request, thread: impl Fn() -> usize) -> usize {
        if self.queues.len() < 2 {
            return 0;
        }
        match (route, &self.node_map) {
            (Route::First, _) => 0,
            (Route::RoundRobin, _) | (Route::PushPull, None) => self.turn() % self.queues.len(),
            (Route::LeastLoaded, _) => self.every[self.least_loaded(&self.every, 0)],
            (Route::Local, _) => {
                let near = self.near_thread();
                near[self.own(near, thread())]
            }
            (Route::PushPull, Some(node_map)) => {
                let turn = self.turn();
                let near = node_map.near_memory(request)[turn % 2];
                near[turn / 2 % near.len()]
            }
        }
    }

    /// Returns the queues nearest to the calling thread; all queues, if that makes no difference.
    fn near_thread(&self) -> &[usize] {
        self.node_map.as_ref().map_or(&self.every, NodeMap::near_thread)
    }

    /// Returns which of these queues a thread with this number asks first: its own, or the least loaded if its own has
    /// work.
    fn own(&self, near: &[usize], thread: usize) -> usize {
        let own = thread % near.len();
        // The loads of other queues are on cache lines that other threads write, so they are read only if needed.
        if self.queues[near[own]].load() == 0 { own } else { self.least_loaded(near, own) }
    }

    /// Returns which of these queues has the fewest descriptors; among equals, the first from `start` on.
    fn least_loaded(&self, queues: &[usize], start: usize) -> usize {
        let all = (0..queues.len()).map(|i| (start + i) % queues.len());
        all.min_by_key(|&at| self.queues[queues[at]].load()).unwrap_or(0)
    }
}

/// Returns the part of a queue's name that all queues of its device share: everything before the last dot (`wq0` of
/// `wq0.1`).
fn device_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(device, _)| device)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::plan::topology::SystemTopology;
    use crate::thread_stripe;
    use telpher_abi::Descriptor;
    use telpher_portal::mock::MockPortal;

    fn queues(modes: &[QueueMode]) -> PortalQueues {
        PortalQueues::new(
            modes.iter().map(|&mode| Arc::new(MockPortal::new(mode, 2)) as Arc<dyn Portal>),
            SystemTopology::shared,
        )
    }

    #[test]
    fn a_dedicated_queue_hands_out_as_many_entries_as_it_has() {
        let queues = queues(&[QueueMode::Dedicated]);
        let queue = &queues.all()[0];
        let (a, b) = (queue.enter().unwrap(), queue.enter().unwrap());
        assert!(queue.enter().is_none());
        queue.leave(a);
        let c = queue.enter().unwrap();
        assert_eq!(queue.load(), 2);
        queue.leave(b);
        queue.leave(c);
    }

    #[test]
    fn a_portal_passed_twice_is_one_queue_with_one_set_of_credits() {
        let portal: Arc<dyn Portal> = Arc::new(MockPortal::new(QueueMode::Dedicated, 1));
        let queues = PortalQueues::new(
            [Arc::clone(&portal), Arc::new(MockPortal::new(QueueMode::Dedicated, 1)), portal],
            SystemTopology::shared,
        );
        assert_eq!(queues.all().len(), 2);
        let entry = queues.all()[0].enter().unwrap();
        assert!(queues.all()[0].enter().is_none());
        queues.all()[0].leave(entry);
    }

    #[test]
    fn a_shared_queue_hands_out_any_number_of_entries() {
        let queues = queues(&[QueueMode::Shared]);
        let entries: Vec<_> = (0..5).map(|_| queues.all()[0].enter().unwrap()).collect();
        assert_eq!(queues.all()[0].load(), 5);
        entries.into_iter().for_each(|entry| queues.all()[0].leave(entry));
    }

    #[test]
    fn round_robin_takes_turns_and_least_loaded_the_emptiest() {
        let queues = queues(&[QueueMode::Shared, QueueMode::Shared, QueueMode::Shared]);
        let request = Request::new(Descriptor::nop(), 0);
        assert_eq!(
            [0; 4].map(|_| queues.first(Route::RoundRobin, &request, thread_stripe::of_this_thread)),
            [0, 1, 2, 0]
        );
        let held = [queues.all()[0].enter().unwrap(), queues.all()[2].enter().unwrap()];
        assert_eq!(queues.first(Route::LeastLoaded, &request, thread_stripe::of_this_thread), 1);
        assert_eq!(queues.first(Route::First, &request, thread_stripe::of_this_thread), 0);
        let [a, b] = held;
        queues.all()[0].leave(a);
        queues.all()[2].leave(b);
    }

    #[test]
    fn a_thread_uses_its_own_queue_until_that_has_work_then_spreads_evenly() {
        let queues = queues(&[QueueMode::Shared; 3]);
        let all = [0, 1, 2];
        assert_eq!([4, 4, 5, 6, 4].map(|thread| queues.own(&all, thread)), [1, 1, 2, 0, 1]);
        let held = [(); 6].map(|()| {
            let queue = queues.own(&all, 4);
            (queue, queues.all()[queue].enter().unwrap())
        });
        assert_eq!(held.each_ref().map(|(queue, _)| *queue), [1, 2, 0, 1, 2, 0]);
        held.into_iter().for_each(|(queue, entry)| queues.all()[queue].leave(entry));
        // The same holds for two near queues.
        assert_eq!([4, 5].map(|thread| queues.own(&all[1..], thread)), [0, 1]);
    }
}
