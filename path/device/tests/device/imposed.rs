//! Modelled devices on whose descriptors the times of another device are imposed.
#![allow(unsafe_code, reason = "the tests vouch for their own buffers")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_abi::{Descriptor, Status};
use telpher_device::{
    DescriptorTime, DeviceTimes, ImposedSum, ImposedTimes, ModelDevice, ModelOptions, OpenError, prepare,
};
use telpher_mem::{Pages, Protection};
use telpher_portal::{Offer, Portal, QueueMode, RecordCell, Submission};

/// Longer than the model takes for a page on any machine, also when other processes use its cores.
const LATENCY: Duration = Duration::from_secs(1);
const LATENCY_NS: u64 = 1_000_000_000;
const INTERVAL_NS: u64 = 1_000_000;

/// The same times for all descriptors.
fn times(latency: Duration) -> Arc<ImposedTimes> {
    let latency_ns = u64::try_from(latency.as_nanos()).unwrap();
    let all = || vec![DescriptorTime { bytes: 1, latency_ns, interval_ns: INTERVAL_NS }];
    Arc::new(ImposedTimes::new(DeviceTimes::new(all(), all(), all()).unwrap()))
}

fn portal(times: &Arc<ImposedTimes>) -> Arc<dyn Portal> {
    let device = ModelDevice::start(ModelOptions::default().with_times(Arc::clone(times))).unwrap();
    let queue = device.enabled_queues()[0];
    device.portal(&format!("wq0.{queue}")).unwrap()
}

/// A copy of a page.
struct Copy {
    source: Vec<u8>,
    target: Vec<u8>,
    record: RecordCell,
}

impl Copy {
    fn new() -> Box<Copy> {
        Box::new(Copy { source: vec![7; 4096], target: vec![0; 4096], record: RecordCell::new() })
    }

    fn offer(&mut self, portal: &dyn Portal) {
        assert_eq!(self.try_offer(portal), Offer::Taken);
    }

    fn try_offer(&mut self, portal: &dyn Portal) -> Offer {
        let (source, target) = (self.source.as_ptr().expose_provenance(), self.target.as_mut_ptr().expose_provenance());
        let copy = Descriptor::memory_move(source as u64, target as u64, 4096).with_record(self.record.address());
        // SAFETY: the buffers live until the record was seen; until then the test reads the target only after the
        // device, which executes in this thread.
        portal.offer(&unsafe { Submission::vouch(copy) })
    }

    fn wait(&self, portal: &dyn Portal) {
        while self.record.status().is_none() {
            portal.drive();
        }
        assert_eq!(self.record.status().map(|status| status.status()), Some(Status::Success));
        assert_eq!(self.source, self.target);
    }
}

#[test]
fn a_record_is_written_when_it_is_due_and_not_before() {
    let times = times(LATENCY);
    let portal = portal(&times);
    let mut copy = Copy::new();
    let start = Instant::now();
    copy.offer(&*portal);
    assert_eq!(copy.record.status(), None, "the effect is there, and the record is not");
    assert_eq!(copy.source, copy.target);
    copy.wait(&*portal);
    assert!(start.elapsed() >= LATENCY);
    assert_eq!(times.take(), ImposedSum { device_ns: LATENCY_NS, late: 0 });
    assert_eq!(times.take(), ImposedSum::default(), "what was taken is not counted again");
}

#[test]
fn descriptors_that_are_in_flight_together_follow_each_other_and_their_time_counts_once() {
    let times = times(LATENCY);
    let portal = portal(&times);
    let mut copies = [Copy::new(), Copy::new(), Copy::new()];
    copies.iter_mut().for_each(|copy| copy.offer(&*portal));
    copies.iter().for_each(|copy| copy.wait(&*portal));
    assert_eq!(times.take(), ImposedSum { device_ns: LATENCY_NS + 2 * INTERVAL_NS, late: 0 });
    // The next one arrives after these.
    copies[0].record.clear();
    copies[0].offer(&*portal);
    copies[0].wait(&*portal);
    assert_eq!(times.take().device_ns, LATENCY_NS);
}

/// Regression: such a descriptor took the time of all its bytes.
#[test]
fn a_descriptor_that_stops_at_a_page_takes_the_time_of_the_bytes_before() {
    let time = |bytes, latency_ns| DescriptorTime { bytes, latency_ns, interval_ns: INTERVAL_NS };
    let all = || vec![time(4096, LATENCY_NS), time(8192, 20 * LATENCY_NS)];
    let times = Arc::new(ImposedTimes::new(DeviceTimes::new(all(), all(), all()).unwrap()));
    let portal = portal(&times);
    let target = Pages::new(2).unwrap();
    target.protect(1..2, Protection::None).unwrap();
    let (source, record) = (vec![7_u8; 8192], RecordCell::new());
    let copy = Descriptor::memory_move(source.as_ptr().expose_provenance() as u64, target.address(), 8192);
    // SAFETY: the buffers live until the record was seen.
    let copy = unsafe { Submission::vouch(copy.with_record(record.address())) };
    assert_eq!(portal.offer(&copy), Offer::Taken);
    while record.status().is_none() {
        portal.drive();
    }
    assert_eq!(record.status().map(|status| status.status()), Some(Status::PageFault));
    assert_eq!(times.take(), ImposedSum { device_ns: LATENCY_NS, late: 0 });
}

/// Regression: each refused descriptor occupied the device, so that later ones took longer.
#[test]
fn refused_descriptors_take_no_time() {
    let times = times(LATENCY);
    let device = ModelDevice::start(ModelOptions::default().with_times(Arc::clone(&times))).unwrap();
    let queues = device.enabled_queues().into_iter().map(|queue| device.portal(&format!("wq0.{queue}")).unwrap());
    let portal = queues.into_iter().find(|portal| portal.info().mode == QueueMode::Shared).expect("a shared queue");
    let mut taken = Vec::new();
    let mut refused = Copy::new();
    while refused.try_offer(&*portal) == Offer::Taken {
        taken.push(std::mem::replace(&mut refused, Copy::new()));
        assert!(taken.len() < 10_000, "the queue is never full");
    }
    for _ in 0..5000 {
        assert_eq!(refused.try_offer(&*portal), Offer::Retry);
    }
    taken.iter().for_each(|copy| copy.wait(&*portal));
    let _ = times.take();
    refused.offer(&*portal);
    refused.wait(&*portal);
    assert_eq!(times.take(), ImposedSum { device_ns: LATENCY_NS, late: 0 });
}

#[test]
fn a_thread_waits_for_two_devices_at_the_same_time() {
    let times = times(LATENCY);
    let portals = [portal(&times), portal(&times)];
    let mut copies = [Copy::new(), Copy::new()];
    copies.iter_mut().zip(&portals).for_each(|(copy, portal)| copy.offer(&**portal));
    copies.iter().zip(&portals).for_each(|(copy, portal)| copy.wait(&**portal));
    assert_eq!(times.take().device_ns, LATENCY_NS);
}

#[test]
fn a_device_that_is_faster_than_the_cpu_makes_records_late() {
    let times = times(Duration::ZERO);
    let portal = portal(&times);
    let mut copy = Copy::new();
    copy.offer(&*portal);
    copy.wait(&*portal);
    assert_eq!(times.take(), ImposedSum { device_ns: 0, late: 1 });
}

#[test]
fn other_operations_have_no_times() {
    let times = times(LATENCY);
    let portal = portal(&times);
    let record = RecordCell::new();
    // SAFETY: a No-op accesses no memory but its record.
    let nop = unsafe { Submission::vouch(Descriptor::nop().with_record(record.address())) };
    assert_eq!(portal.offer(&nop), Offer::Taken);
    assert_eq!(record.status().map(|status| status.status()), Some(Status::Success));
    assert_eq!(times.take(), ImposedSum::default());
}

#[test]
fn only_a_modelled_device_has_imposed_times() {
    let refused = prepare(&"cpu".parse().unwrap()).unwrap().with_times(times(LATENCY));
    assert!(matches!(refused, Err(OpenError::NotModelled { .. })));
    prepare(&"model:spr".parse().unwrap()).unwrap().with_times(times(LATENCY)).unwrap();
}
