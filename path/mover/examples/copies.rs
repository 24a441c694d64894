//! Measures what a short copy costs the submitting thread: through a channel, through a queue of copies, or done by the
//! CPU, with a stub and with the modelled device behind the queue.
//!
//! ```sh
//! cargo run --release -p telpher-mover --example copies
//! ```
//!
//! Each line is the median of rounds that take turns, in nanoseconds for each copy, at bursts of 32. An argument
//! selects the methods whose names contain it.
#![allow(unsafe_code, reason = "copies between memory of its own, by address")]

use std::sync::Arc;
use std::time::Instant;
use telpher_abi::{CompletionRecord, Descriptor, Status, StatusByte};
use telpher_device::{ModelDevice, ModelOptions, Runner};
use telpher_mover::{Channel, ChannelPolicy, Copies, CopiesPolicy, CopyResult, Hint, Order};
use telpher_portal::mock::MockPortal;
use telpher_portal::{Offer, Portal, QueueInfo, QueueMode, RecordCell, Submission};

const BURST: usize = 32;
const BURSTS: usize = 2000;
const ROUNDS: usize = 15;

/// A queue that reports every operation as done without doing it.
#[derive(Debug)]
struct NoCopyPortal(QueueInfo);

// SAFETY: it touches only records, before `offer` returns.
unsafe impl Portal for NoCopyPortal {
    fn info(&self) -> &QueueInfo {
        &self.0
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let d = submission.descriptor();
        let done = |d: &Descriptor| {
            // SAFETY: the caller vouched for it; addresses of records are those of `RecordCell`s.
            let cell = unsafe { &*std::ptr::with_exposed_provenance::<RecordCell>(address(d.completion_address())) };
            cell.complete(&CompletionRecord::new(StatusByte::new(Status::Success)));
        };
        if d.opcode() == telpher_abi::Opcode::Batch {
            for i in 0..d.size() as usize {
                // SAFETY: the caller vouched for it.
                let member = unsafe { *std::ptr::with_exposed_provenance::<Descriptor>(address(d.src())).add(i) };
                if member.flags().contains(telpher_abi::Flags::REQUEST_COMPLETION_RECORD) {
                    done(&member);
                }
            }
        }
        done(d);
        Offer::Taken
    }
}

#[allow(clippy::cast_possible_truncation, reason = "64 bits on x86-64")]
fn address(address: u64) -> usize {
    address as usize
}

/// The packets of a burst.
struct Packets {
    src: Vec<Vec<u8>>,
    dst: Vec<Vec<u8>>,
}

impl Packets {
    fn new(len: usize) -> Packets {
        let of = |byte| (0..BURST).map(|_| vec![byte; len]).collect();
        Packets { src: of(1), dst: of(0) }
    }

    fn pairs(&mut self) -> impl Iterator<Item = (u64, u64, u32)> {
        let pairs = self.src.iter().zip(&mut self.dst);
        pairs.map(|(src, dst)| (src.as_ptr() as u64, dst.as_mut_ptr() as u64, u32::try_from(src.len()).unwrap_or(0)))
    }
}

/// A name, a function that copies a burst, and the time of each round.
type Method = (&'static str, Box<dyn FnMut(&mut Packets)>, Vec<f64>);

fn by_channel(portal: Arc<dyn Portal>) -> impl FnMut(&mut Packets) {
    let policy = ChannelPolicy { hint: Hint::Cache, order: Order::Arrival, ..ChannelPolicy::default() };
    let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(portal, 256, policy).expect("the capacity is valid");
    let mut finished = Vec::with_capacity(BURST);
    move |packets| {
        for (src, dst, len) in packets.pairs() {
            // SAFETY: both stay alive until the burst has ended, below.
            unsafe { channel.raw(Descriptor::memory_move(src, dst, len)) }.expect("room for a burst");
        }
        channel.submit();
        let mut ended = 0;
        while ended < BURST {
            ended += channel.completed(&mut finished);
            for done in finished.drain(..) {
                assert!(done.result.is_ok());
            }
        }
    }
}

fn by_copies(portal: Arc<dyn Portal>) -> impl FnMut(&mut Packets) {
    let policy = CopiesPolicy { hint: Hint::Cache, ..CopiesPolicy::default() };
    let mut copies = Copies::new(portal, 256, policy).expect("the capacity is valid");
    move |packets| {
        for (src, dst, len) in packets.pairs() {
            // SAFETY: both stay alive until the burst has ended, below.
            unsafe { copies.put(src, dst, len) }.expect("room for a burst");
        }
        copies.submit();
        let mut ended = 0;
        while ended < BURST {
            ended += copies.completed(|_, ended| assert_eq!(ended, CopyResult::Done));
        }
    }
}

fn by_cpu() -> impl FnMut(&mut Packets) {
    |packets| {
        for (src, dst) in packets.src.iter().zip(&mut packets.dst) {
            dst.copy_from_slice(std::hint::black_box(src));
        }
        std::hint::black_box(&packets.dst);
    }
}

fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    let no_copy = || Arc::new(NoCopyPortal(MockPortal::new(QueueMode::Shared, 64).info().clone())) as Arc<dyn Portal>;
    let start = |runner| ModelDevice::start(ModelOptions::default().with_runner(runner)).expect("the model starts");
    let devices = [start(Runner::Inline), start(Runner::Threaded)];
    let queue = |device: &ModelDevice| device.portal("wq0.0").expect("the model has this queue");
    for len in [64, 512, 1518] {
        let mut methods: Vec<Method> = vec![
            ("cpu", Box::new(by_cpu()), vec![]),
            ("channel, no copy", Box::new(by_channel(no_copy())), vec![]),
            ("copies, no copy", Box::new(by_copies(no_copy())), vec![]),
            ("channel, model inline", Box::new(by_channel(queue(&devices[0]))), vec![]),
            ("copies, model inline", Box::new(by_copies(queue(&devices[0]))), vec![]),
            ("channel, model threaded", Box::new(by_channel(queue(&devices[1]))), vec![]),
            ("copies, model threaded", Box::new(by_copies(queue(&devices[1]))), vec![]),
        ];
        methods.retain(|(name, ..)| name.contains(&only));
        let mut packets = Packets::new(len);
        for _ in 0..ROUNDS {
            for (_, copy_burst, took) in &mut methods {
                let started = Instant::now();
                (0..BURSTS).for_each(|_| copy_burst(&mut packets));
                #[allow(clippy::cast_precision_loss, reason = "a small count")]
                took.push(started.elapsed().as_secs_f64() * 1e9 / (BURSTS * BURST) as f64);
            }
        }
        for (name, _, took) in &mut methods {
            took.sort_by(f64::total_cmp);
            println!("{len:5} B  {name:24} {:7.1} ns (from {:.1})", took[took.len() / 2], took[0]);
        }
    }
}
