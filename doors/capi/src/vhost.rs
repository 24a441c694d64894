//! vhost-user backends: pools of packets, DMA queues, ports and their sockets, and the state that the C side of a port
//! needs.

use crate::c_structs::{VhostDmaQueueStats, VhostSocketState, VhostState, VhostStats, vhost_broken};
use crate::failure::{Failure, Refusal};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use telpher_vhost::ring::Broken;
use telpher_vhost::{
    DetachedPacket, DmaQueue, DropReason, MAX_DETACHED, PacketPool, Packets, PoolOptions, Port, PortOptions, Role,
    Socket,
};

/// Memory for packets. Any number of threads may use it at once.
#[derive(Debug)]
pub struct VhostPool(PacketPool);

/// One queue of a device, shared by virtqueues. Any number of threads may use it at once.
#[derive(Debug)]
pub struct VhostDmaQueue(pub(crate) Arc<DmaQueue>);

/// A port and, for each of its queue pairs, the packet lists through which a burst passes. Any number of threads may
/// use it at once.
#[derive(Debug)]
pub struct VhostPort {
    inner: Arc<Port>,
    pairs: Box<[Pair]>,
}

/// A port's socket. Any number of threads may use it at once.
#[derive(Debug)]
pub struct VhostSocket(Socket);

/// The packet lists of one queue pair. A thread that finds another thread using them does nothing.
#[derive(Debug)]
struct Pair {
    receive: Mutex<Rows>,
    transmit: Mutex<Rows>,
}

#[derive(Debug)]
struct Rows {
    /// Packets of the current burst.
    burst: Packets,
    /// To the guest: packets that it has received and that the caller has not fetched. From the guest: buffers for the
    /// next packets.
    kept: Packets,
}

/// The most packets of one call. Source: assumed; DPDK programs use 32.
const BURST: usize = 1024;
/// The longest packet in bytes. Source: assumed, many times what a virtio-net device without offloads sends.
const LONGEST: u32 = 1 << 20;

impl VhostPool {
    /// The options of a pool with these sizes, if they are valid.
    pub(crate) fn options(buffers: u32, longest: u32) -> Result<PoolOptions, Failure> {
        let good = (1..=MAX_DETACHED).contains(&buffers) && (1..=LONGEST).contains(&longest);
        if good { Ok(PoolOptions { buffers, longest }) } else { Err(Refusal::Pool { buffers, longest }.into()) }
    }

    pub(crate) fn new(pool: PacketPool) -> VhostPool {
        VhostPool(pool)
    }

    pub(crate) fn inner(&self) -> &PacketPool {
        &self.0
    }

    /// Why the first packet of a burst is refused.
    pub(crate) fn objection(&self, burst: &[DetachedPacket]) -> Result<(), Failure> {
        burst.first().and_then(|first| self.0.objection(first)).map_or(Ok(()), |why| Err(why.into()))
    }
}

impl VhostDmaQueue {
    pub(crate) fn stats(&self) -> VhostDmaQueueStats {
        let stats = self.0.stats();
        VhostDmaQueueStats {
            copies: stats.copies,
            bytes: stats.bytes,
            redone: stats.redone,
            contended: stats.contended,
            in_flight: self.0.in_flight(),
            silent: stats.silent.into(),
            reserved: [0; 2],
        }
    }
}

impl VhostPort {
    pub(crate) fn new(pool: &VhostPool, options: PortOptions) -> VhostPort {
        let in_flight = options.rings.iter().map(|ring| ring.in_flight).max().unwrap_or(BURST);
        let rows = || Mutex::new(Rows { burst: pool.0.empty(BURST), kept: pool.0.empty(in_flight.max(BURST)) });
        let inner = Port::new(&pool.0, options);
        let pairs = (0..inner.pairs()).map(|_| Pair { receive: rows(), transmit: rows() }).collect();
        VhostPort { inner, pairs }
    }

    fn pair(&self, pair: u32) -> Result<(usize, &Pair), Failure> {
        let found = self.pairs.get(pair as usize).map(|rows| (pair as usize, rows));
        Ok(found.ok_or(Refusal::Index {
            what: "pair of queues",
            index: pair.into(),
            count: self.pairs.len() as u64,
        })?)
    }

    fn ring(&self, ring: u32) -> Result<usize, Failure> {
        let count = 2 * self.pairs.len();
        let found = Some(ring as usize).filter(|ring| *ring < count);
        Ok(found.ok_or(Refusal::Index { what: "virtqueue", index: ring.into(), count: count as u64 })?)
    }

    /// Starts to copy those packets of a burst to the guest that `take_in` accepts; returns how many were taken.
    #[inline]
    pub(crate) fn submit(
        &self,
        pair: u32,
        burst: &[DetachedPacket],
        take_in: impl FnOnce(&mut Packets, &[DetachedPacket]) -> usize,
    ) -> Result<usize, Failure> {
        let (pair, rows) = self.pair(pair)?;
        let Some(mut rows) = try_lock(&rows.receive) else { return Ok(0) };
        let row = &mut rows.burst;
        if take_in(row, &burst[..burst.len().min(BURST)]) == 0 {
            let why = burst.first().and_then(|first| self.inner.pool().objection(first));
            return why.map_or(Ok(0), |why| Err(why.into()));
        }
        let taken = self.inner.submit_enqueue_burst(pair, row);
        row.refuse();
        Ok(taken)
    }

    /// Packets that the guest has received; without room in the array they return to the pool.
    #[inline]
    pub(crate) fn completed(
        &self,
        pair: u32,
        into: Option<&mut [MaybeUninit<DetachedPacket>]>,
    ) -> Result<usize, Failure> {
        let (pair, rows) = self.pair(pair)?;
        let Some(mut rows) = try_lock(&rows.receive) else { return Ok(0) };
        let done = &mut rows.kept;
        self.inner.poll_enqueue_completed(pair, done);
        Ok(match into {
            Some(into) => done.let_out(into),
            None => {
                let count = done.len();
                done.truncate(0);
                count
            }
        })
    }

    /// Packets that the guest has sent.
    #[inline]
    pub(crate) fn dequeue(&self, pair: u32, into: &mut [MaybeUninit<DetachedPacket>]) -> Result<usize, Failure> {
        let (pair, rows) = self.pair(pair)?;
        let Some(mut rows) = try_lock(&rows.transmit) else { return Ok(0) };
        let Rows { burst, kept: spare } = &mut *rows;
        let most = into.len().min(BURST);
        spare.fetch(most);
        self.inner.transmit(pair, burst, spare, most);
        Ok(burst.let_out(into))
    }

    pub(crate) fn wait(&self, ring: u32, at_most: Option<Duration>) -> Result<(), Failure> {
        self.inner.wait(self.ring(ring)?, at_most.unwrap_or(Duration::MAX));
        Ok(())
    }

    pub(crate) fn state(&self, ring: u32) -> Result<VhostState, Failure> {
        let ring = self.ring(ring)?;
        let setup = self.inner.setup(ring);
        Ok(VhostState {
            frontend: self.inner.has_frontend().into(),
            running: self.inner.is_running(ring).into(),
            broken: self.inner.broken(ring).map_or(vhost_broken::TELPHER_VHOST_WHOLE, number_of),
            size: setup.map_or(0, |setup| setup.size.into()),
            features: setup.map_or(0, |setup| setup.features.bits()),
            in_flight: self.inner.in_flight(ring) as u64,
            reserved: [0; 4],
        })
    }

    /// Why nothing is taken from a virtqueue any more; empty if it is intact.
    pub(crate) fn broken(&self, ring: u32) -> Result<String, Failure> {
        Ok(self.inner.broken(self.ring(ring)?).map_or(String::new(), |why| why.to_string()))
    }

    pub(crate) fn stats(&self, ring: u32) -> Result<VhostStats, Failure> {
        Ok(virtqueue_stats(&self.inner, self.ring(ring)?))
    }

    pub(crate) fn announcement(&self) -> Option<[u8; 6]> {
        self.inner.take_announcement()
    }

    pub(crate) fn serve(&self, path: &str, role: Role) -> Result<VhostSocket, Failure> {
        Ok(VhostSocket(Socket::serve(&self.inner, path, role)?))
    }
}

impl VhostSocket {
    pub(crate) fn state(&self) -> VhostSocketState {
        socket_state(&self.0)
    }

    /// Why the last session ended, or the last request was refused; empty if there was none.
    pub(crate) fn last(&self) -> String {
        self.0.state().last.unwrap_or_default()
    }
}

/// The counters of a virtqueue that exists.
pub(crate) fn virtqueue_stats(port: &Port, ring: usize) -> VhostStats {
    let stats = port.stats(ring);
    let mut drops = [0; 16];
    drops.iter_mut().zip(DropReason::ALL).for_each(|(count, reason)| *count = stats.drops(reason));
    VhostStats {
        packets: stats.packets,
        bytes: stats.bytes,
        by_device: stats.by_device,
        bytes_by_device: stats.bytes_by_device,
        calls: stats.calls,
        drops,
        reserved: [0; 3],
    }
}

pub(crate) fn socket_state(socket: &Socket) -> VhostSocketState {
    let state = socket.state();
    VhostSocketState {
        connected: state.connected.into(),
        sessions: state.sessions,
        refused: state.refused,
        ..VhostSocketState::default()
    }
}

fn number_of(broken: Broken) -> u32 {
    match broken {
        Broken::Ahead { .. } => vhost_broken::TELPHER_VHOST_AHEAD,
        Broken::Head { .. } => vhost_broken::TELPHER_VHOST_HEAD,
        Broken::Torn => vhost_broken::TELPHER_VHOST_TORN,
        Broken::Silent => vhost_broken::TELPHER_VHOST_SILENT,
        _ => vhost_broken::TELPHER_VHOST_BROKEN,
    }
}

/// The packet lists, unless another thread uses them.
fn try_lock(rows: &Mutex<Rows>) -> Option<MutexGuard<'_, Rows>> {
    match rows.try_lock() {
        Ok(rows) => Some(rows),
        Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::c_structs::vhost_drop;
    use telpher_vhost::ring::Dropped as Chain;

    #[test]
    fn whatever_breaks_a_virtqueue_has_its_number() {
        use vhost_broken::*;
        let numbers = [
            (Broken::Ahead { ahead: 9, size: 8 }, TELPHER_VHOST_AHEAD),
            (Broken::Head { head: 9, size: 8 }, TELPHER_VHOST_HEAD),
            (Broken::Torn, TELPHER_VHOST_TORN),
            (Broken::Silent, TELPHER_VHOST_SILENT),
        ];
        for (broken, number) in numbers {
            assert_eq!(number_of(broken), number, "{broken}");
        }
    }

    #[test]
    fn every_reason_has_the_number_that_the_header_gives_it() {
        use vhost_drop::*;
        let chains = [
            (Chain::Next, TELPHER_VHOST_DROP_NEXT),
            (Chain::Loop, TELPHER_VHOST_DROP_LOOP),
            (Chain::Direction, TELPHER_VHOST_DROP_DIRECTION),
            (Chain::Address, TELPHER_VHOST_DROP_ADDRESS),
            (Chain::Length, TELPHER_VHOST_DROP_LENGTH),
            (Chain::Indirect, TELPHER_VHOST_DROP_INDIRECT),
            (Chain::Table, TELPHER_VHOST_DROP_TABLE),
        ];
        let others = [
            (DropReason::Runt, TELPHER_VHOST_DROP_RUNT),
            (DropReason::Long, TELPHER_VHOST_DROP_LONG),
            (DropReason::Short, TELPHER_VHOST_DROP_SHORT),
            (DropReason::Silent, TELPHER_VHOST_DROP_SILENT),
        ];
        let numbers = chains.map(|(chain, number)| (DropReason::Chain(chain), number)).into_iter().chain(others);
        let expected: Vec<_> = DropReason::ALL.into_iter().zip(0..).collect();
        assert_eq!(numbers.collect::<Vec<_>>(), expected);
        assert!(expected.len() <= VhostStats::default().drops.len());
    }
}
