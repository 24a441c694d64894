//! MSI-X vectors: eventfds of the client, and interrupts that wait for one.
//!
//! The client programs vectors in pieces and again while the device works, and an interrupt that a driver waits for
//! must not get lost meanwhile. So an interrupt for a vector without an eventfd, or for a masked one, stays pending
//! until it can be delivered. The pending bits are what the guest reads from the device's table.

use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_model::{Device, Interrupt};
use telpher_os::PeerEventfd;

#[derive(Debug, Default)]
struct Vector {
    /// The model's count of this vector that was seen last.
    seen: u64,
    eventfd: Option<PeerEventfd>,
    masked: bool,
    pending: bool,
}

#[derive(Debug)]
struct State {
    vectors: Vec<Vector>,
    /// False while the function may not write to memory, which an interrupt message is.
    bus_master: bool,
    delivered: u64,
}

/// The vectors of a function.
#[derive(Debug)]
pub(crate) struct Vectors(Mutex<State>);

impl Vectors {
    pub(crate) fn new(count: u16) -> Vectors {
        let vectors = (0..count).map(|_| Vector::default()).collect();
        Vectors(Mutex::new(State { vectors, bus_master: false, delivered: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of vectors.
    pub(crate) fn count(&self) -> u32 {
        // Cannot lose bits: made from a u16.
        u32::try_from(self.lock().vectors.len()).unwrap_or_default()
    }

    /// Passes on the interrupts that the model has delivered since the last call.
    pub(crate) fn collect(&self, device: &Device) {
        let mut state = self.lock();
        for (index, vector) in (0_u16..).zip(&mut state.vectors) {
            let now = device.interrupts_delivered(Interrupt { ims: false, index });
            if vector.seen != now {
                (vector.seen, vector.pending) = (now, true);
            }
        }
        state.deliver();
    }

    /// Sets eventfds from vector `start` on; `None` takes one away.
    pub(crate) fn set(&self, start: usize, eventfds: impl IntoIterator<Item = Option<PeerEventfd>>) {
        let mut state = self.lock();
        for (vector, eventfd) in state.vectors.iter_mut().skip(start).zip(eventfds) {
            vector.eventfd = eventfd;
        }
        state.deliver();
    }

    /// Takes all eventfds away.
    pub(crate) fn disable(&self) {
        self.lock().vectors.iter_mut().for_each(|vector| vector.eventfd = None);
    }

    /// Masks or unmasks vectors.
    pub(crate) fn mask(&self, start: usize, count: usize, masked: bool) {
        let mut state = self.lock();
        state.vectors.iter_mut().skip(start).take(count).for_each(|vector| vector.masked = masked);
        state.deliver();
    }

    /// Raises one interrupt, as the client asked.
    pub(crate) fn trigger(&self, index: usize) {
        let mut state = self.lock();
        if let Some(vector) = state.vectors.get_mut(index) {
            vector.pending = true;
        }
        state.deliver();
    }

    /// Bus mastering was switched.
    pub(crate) fn set_bus_master(&self, on: bool) {
        let mut state = self.lock();
        state.bus_master = on;
        state.deliver();
    }

    /// The interrupts that wait, one bit each, as the table of pending bits has them.
    pub(crate) fn pending(&self) -> u64 {
        let state = self.lock();
        let bits = state.vectors.iter().enumerate().take(64);
        bits.fold(0, |bits, (index, vector)| bits | u64::from(vector.pending) << index)
    }

    /// How many eventfds were signalled.
    pub(crate) fn delivered(&self) -> u64 {
        self.lock().delivered
    }

    /// Forgets what the device had raised: it was reset. The client's eventfds stay.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.bus_master = false;
        for vector in &mut state.vectors {
            (vector.seen, vector.pending, vector.masked) = (0, false, false);
        }
    }
}

impl State {
    fn deliver(&mut self) {
        if !self.bus_master {
            return;
        }
        for vector in self.vectors.iter_mut().filter(|vector| vector.pending && !vector.masked) {
            if let Some(eventfd) = &vector.eventfd {
                eventfd.signal();
                vector.pending = false;
                self.delivered += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::OwnedFd;
    use telpher_abi::registers::{Command, CommandCode};
    use telpher_model::{PciControl, Preset, layout};

    fn given(event: &OwnedFd) -> PeerEventfd {
        PeerEventfd::new(event.try_clone().unwrap()).unwrap()
    }

    fn event() -> (PeerEventfd, OwnedFd) {
        let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        (given(&event), event)
    }

    fn is_signalled(event: &OwnedFd) -> bool {
        rustix::io::read(event, &mut [0; 8]).is_ok()
    }

    /// A device whose misc interrupt was raised by a command.
    fn raised(device: &Device) {
        device.start_command(Command::new(CommandCode::ResetDevice, 0).with_interrupt(true));
        while device.cmd_status().active() {
            device.advance_command();
        }
    }

    fn device() -> Box<Device> {
        let pci = PciControl { pasid: false, ats: false, prs: false, ..PciControl::SHARED_VIRTUAL_MEMORY };
        let device = Device::new(Preset::Spr.capabilities(), pci).unwrap();
        for entry in 0..9 {
            device.write_register(layout::MSIX_TABLE + entry * 16 + 12, 4, 0);
        }
        device
    }

    #[test]
    fn an_interrupt_waits_for_its_eventfd_and_for_bus_mastering() {
        let (vectors, device) = (Vectors::new(9), device());
        raised(&device);
        vectors.collect(&device);
        assert_eq!(vectors.pending(), 1);
        let (given, event) = event();
        vectors.set(0, [Some(given)]);
        assert!(!is_signalled(&event), "messages are writes to memory");
        vectors.set_bus_master(true);
        assert!(is_signalled(&event) && vectors.pending() == 0);
        vectors.collect(&device);
        assert!(!is_signalled(&event), "once");
    }

    #[test]
    fn none_is_lost_while_the_client_sets_its_vectors_again() {
        let (vectors, device) = (Vectors::new(9), device());
        vectors.set_bus_master(true);
        let (first, event) = event();
        vectors.set(0, [Some(first)]);
        vectors.disable();
        raised(&device);
        vectors.collect(&device);
        assert!(!is_signalled(&event));
        vectors.set(0, [None]);
        vectors.set(0, [Some(given(&event))]);
        assert!(is_signalled(&event));
        assert_eq!(vectors.delivered(), 1);
    }

    #[test]
    fn masked_vectors_keep_their_interrupts_until_a_reset() {
        let vectors = Vectors::new(9);
        vectors.set_bus_master(true);
        let (given, event) = event();
        vectors.set(3, [Some(given)]);
        vectors.mask(0, 9, true);
        vectors.trigger(3);
        vectors.trigger(99);
        assert_eq!((vectors.pending(), is_signalled(&event)), (8, false));
        vectors.mask(3, 1, false);
        assert!(is_signalled(&event));
        vectors.mask(3, 1, true);
        vectors.trigger(3);
        vectors.reset();
        vectors.set_bus_master(true);
        assert!(!is_signalled(&event) && vectors.pending() == 0);
    }
}
