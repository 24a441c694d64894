//! The switch's core: `telpher-vhost`'s own virtqueues between a port and a guest, polled in turn.

use super::lines::Host as BufferPlacement;
use super::{Shared, Times, Vhost};
use crate::apps::device_queue::DeviceQueue;
use crate::picos::Picos;
use crate::world::{Core, Semaphore};
use std::cell::RefCell;
use std::rc::Rc;
use telpher_vhost::{PacketPool, Packets, Stats, Virtqueue};

/// The work that a call to a virtqueue began.
#[derive(Clone, Copy, Default)]
struct Begun {
    packets: u64,
    /// Copies that a DMA queue has.
    by_device: u64,
    /// Lines that the core copied.
    lines: u64,
}

impl Begun {
    fn between(before: Stats, after: &Stats) -> Begun {
        Begun { packets: after.packets - before.packets, by_device: after.by_device - before.by_device, lines: 0 }
    }
}

/// The switch's core.
pub(super) struct Host {
    app: Vhost,
    times: Times,
    shared: Rc<RefCell<Shared>>,
    /// The guest's receive and transmit queues.
    queues: [Virtqueue; 2],
    ways: Vec<DeviceQueue>,
    /// Released when the guest received something.
    bell: Semaphore,
    /// Packets from the port, to the guest; accepted by the guest; spare; from the guest.
    row: Packets,
    done: Packets,
    spare: Packets,
    into: Packets,
}

impl Host {
    pub(super) fn new(
        app: Vhost,
        times: Times,
        shared: Rc<RefCell<Shared>>,
        queues: [Virtqueue; 2],
        ways: Vec<DeviceQueue>,
        bell: Semaphore,
        pool: &PacketPool,
    ) -> Host {
        let row = || pool.empty(app.burst as usize);
        let (row, done, spare, into) = (row(), row(), row(), row());
        Host { app, times, shared, queues, ways, bell, row, done, spare, into }
    }

    /// Charges the time of the work that began, and of half a round.
    async fn work(&mut self, core: &Core, begun: Begun) {
        let Begun { packets, by_device, lines } = begun;
        let (copying, offloading, all) = {
            let Shared { lines: cache, tally, .. } = &mut *self.shared.borrow_mut();
            let (payload, others) = cache.missed();
            tally.payload_misses += payload;
            tally.other_misses += others;
            let copies = packets - by_device;
            let copying =
                self.times.payload_miss * payload + self.times.copy * copies + Picos(self.times.line.0 * lines / 2);
            let rest = Picos(self.times.round.0 / 2) + Picos(self.times.packet.0 * packets / 2);
            let offloading = self.times.offload * by_device;
            (copying, offloading, copying + rest + self.times.header_miss * others + offloading)
        };
        core.busy(all).await;
        let since = core.now();
        for way in &mut self.ways {
            way.submit(core).await;
        }
        let submitting = core.now().since(since);
        for way in &mut self.ways {
            way.look();
        }
        let tally = &mut self.shared.borrow_mut().tally;
        tally.copying += copying;
        tally.offloading += offloading + submitting;
        tally.working += all + submitting;
        tally.by_device += by_device;
        tally.begun += packets;
    }

    /// From the port to the guest.
    async fn enqueue(&mut self, core: &Core) {
        let begun = {
            let Shared { port, lines, guest, .. } = &mut *self.shared.borrow_mut();
            let there = port.waiting(core.now()).min(self.app.burst.into());
            port.receive(usize::try_from(there).unwrap_or(0), &mut self.row, lines);
            self.row.for_each_mut(change_addresses);
            let places: Vec<BufferPlacement> = self.row.iter().map(|packet| port.place(packet)).collect();
            let queue = &mut self.queues[0];
            let before = *queue.stats();
            queue.submit_enqueue_burst(&mut self.row);
            let mut begun = Begun::between(before, queue.stats());
            for host in &places[..places.len() - self.row.len()] {
                let to = guest.receive.take(lines);
                if begun.by_device == 0 {
                    begun.lines += lines.copy_in(*host, to, self.app.bytes());
                }
            }
            // The guest has no room for the rest.
            self.row.iter().for_each(|packet| lines.note(port.place(packet)));
            self.row.truncate(0);
            begun
        };
        self.work(core, begun).await;
        let Shared { port, lines, guest, .. } = &mut *self.shared.borrow_mut();
        let through = self.queues[0].poll_enqueue_completed(&mut self.done);
        guest.receive.give_back(through, lines);
        self.done.iter().for_each(|packet| lines.note(port.place(packet)));
        self.done.truncate(0);
        if through > 0 && core.waiting(self.bell) > 0 {
            core.give(self.bell);
        }
    }

    /// From the guest to the port.
    async fn dequeue(&mut self, core: &Core) {
        let burst = self.app.burst as usize;
        let begun = {
            let Shared { port, lines, guest, .. } = &mut *self.shared.borrow_mut();
            self.spare.fetch(burst);
            let queue = &mut self.queues[1];
            let before = *queue.stats();
            let landed = queue.try_dequeue_burst(&mut self.into, &mut self.spare, burst);
            let mut begun = Begun::between(before, queue.stats());
            let places: Vec<BufferPlacement> = self.into.iter().map(|packet| port.place(packet)).collect();
            for host in &places {
                lines.note(*host);
                if begun.by_device > 0 || begun.packets == 0 {
                    // A device wrote it.
                    lines.written(*host, self.app.bytes());
                }
            }
            for index in 0..usize::try_from(begun.packets).unwrap_or(0) {
                let from = guest.transmit.take(lines);
                if begun.by_device == 0
                    && let Some(host) = places.get(index)
                {
                    begun.lines += lines.copy_out(from, *host, self.app.bytes());
                }
            }
            guest.transmit.give_back(landed, lines);
            if guest.waits_to_send() && core.waiting(self.bell) > 0 {
                core.give(self.bell);
            }
            begun
        };
        self.work(core, begun).await;
        self.into.for_each_mut(change_addresses);
        let Shared { port, lines, tally, .. } = &mut *self.shared.borrow_mut();
        tally.forwarded += self.into.len() as u64;
        port.send(&mut self.into, lines);
    }

    /// Repeats rounds until enough packets are forwarded, or none can ever come.
    pub(super) async fn run(mut self, core: Core) {
        let mut counting = false;
        loop {
            self.enqueue(&core).await;
            self.dequeue(&core).await;
            // The port has no packet, and none is in flight: the core polls until something comes.
            let in_flight = self.queues.iter().any(|queue| queue.in_flight() > 0);
            if !in_flight && self.shared.borrow().guest.is_idle() {
                let Some(next) = self.shared.borrow().port.next() else { break };
                core.busy(next.since(core.now())).await;
            }
            let tally = &mut self.shared.borrow_mut().tally;
            if !counting && tally.forwarded >= self.app.warm_up {
                counting = true;
                tally.begin(core.now());
            }
            if counting && tally.forwarded >= self.app.packets {
                tally.until = core.now();
                break;
            }
        }
        {
            let shared = &mut *self.shared.borrow_mut();
            shared.over = true;
            shared.tally.overtaking = self.ways.iter().map(|way| way.overtaking).sum();
            let drops = self.queues.iter().map(|queue| queue.stats().all_drops());
            shared.tally.dropped = drops.sum();
        }
        core.give(self.bell);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The virtqueues wait for their copies in flight.
        self.ways.iter().for_each(|way| way.gate.open());
    }
}

/// Changes a packet as `macfwd` does: the next hop's address and the own one.
fn change_addresses(packet: &mut [u8]) {
    if let Some((to, from)) = packet.get_mut(..12).map(|addresses| addresses.split_at_mut(6)) {
        to.copy_from_slice(&[2, 0, 0, 0, 0, 0]);
        from.copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    }
}
