//! Modelled devices on whose descriptors the times of another device are imposed.
#![allow(unsafe_code, reason = "the tests vouch for their own buffers")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_abi::{Descriptor, Status};
use telpher_device::{
    DescriptorTime, DeviceTimes, ImposedSum, ImposedTimes, ModelDevice, ModelOptions, OpenError, prepare,
};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// Longer than the model takes for a page on any machine, also when other processes use its cores.
const LATENCY: Duration = Duration::from_millis(300);
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
        let (source, target) = (self.source.as_ptr().expose_provenance(), self.target.as_mut_ptr().expose_provenance());
        let copy = Descriptor::memory_move(source as u64, target as u64, 4096).with_record(self.record.address());
        // SAFETY: the buffers live until the record was seen; until then the test reads the target only after the
        // device, which executes in this thread.
        assert_eq!(portal.offer(&unsafe { Submission::vouch(copy) }), Offer::Taken);
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
    let begun = Instant::now();
    copy.offer(&*portal);
    assert_eq!(copy.record.status(), None, "the effect is there, and the record is not");
    assert_eq!(copy.source, copy.target);
    copy.wait(&*portal);
    assert!(begun.elapsed() >= LATENCY);
    assert_eq!(times.take(), ImposedSum { device_ns: 300_000_000, late: 0 });
    assert_eq!(times.take(), ImposedSum::default(), "what was taken is not counted again");
}

#[test]
fn descriptors_that_are_in_flight_together_follow_each_other_and_their_time_counts_once() {
    let times = times(LATENCY);
    let portal = portal(&times);
    let mut copies = [Copy::new(), Copy::new(), Copy::new()];
    copies.iter_mut().for_each(|copy| copy.offer(&*portal));
    copies.iter().for_each(|copy| copy.wait(&*portal));
    assert_eq!(times.take(), ImposedSum { device_ns: 300_000_000 + 2 * INTERVAL_NS, late: 0 });
    // The next one arrives after these.
    copies[0].record.clear();
    copies[0].offer(&*portal);
    copies[0].wait(&*portal);
    assert_eq!(times.take().device_ns, 300_000_000);
}

#[test]
fn a_thread_waits_for_two_devices_at_the_same_time() {
    let times = times(LATENCY);
    let portals = [portal(&times), portal(&times)];
    let mut copies = [Copy::new(), Copy::new()];
    copies.iter_mut().zip(&portals).for_each(|(copy, portal)| copy.offer(&**portal));
    copies.iter().zip(&portals).for_each(|(copy, portal)| copy.wait(&**portal));
    assert_eq!(times.take().device_ns, 300_000_000);
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
