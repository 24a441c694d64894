//! The limits of a group on work descriptors and batches in progress in an engine.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "submissions are vouched for: their memory is simulated")]

use telpher_abi::registers::{Command, CommandCode, GrpCfg, PortalKind, WqCfg};
use telpher_abi::{Descriptor, Flags};
use telpher_mem::{Fault, MockSpace, Protection, Space};
use telpher_model::{
    Capabilities, Device, Engine, MAX_LANES, NoObserver, OperandSpaces, PciControl, Preset, Scratch, Step, Write,
    execute, layout,
};
use telpher_portal::{Offer, Submission};

const MEMORY: u64 = 0x10_0000;
const SUBMITTED: u64 = 40;
const SUBMITTED_COUNT: usize = 40;

/// A device with one engine, whose group has limits, and a queue of copies that wait for it.
fn device(capabilities: Capabilities, code: u8) -> Box<Device> {
    let device = empty(capabilities, GrpCfg::default().with_work_limit_code(code));
    for number in 0..SUBMITTED {
        submit(&device, 0, copy(number));
    }
    device
}

fn copy(number: u64) -> Descriptor {
    let at = MEMORY + 0x100 * number;
    Descriptor::memory_move(at, at + 64, 8).and_flags(Flags::RECORD).with_record(at + 128)
}

fn submit(device: &Device, queue: usize, descriptor: Descriptor) {
    // SAFETY: the memory is simulated.
    let submission = unsafe { Submission::vouch(descriptor) };
    assert_eq!(device.submit(queue, PortalKind::UnlimitedMsix, Write::Posted, &submission), Offer::Taken);
}

/// A device with one engine and two queues in a group with the limits of `limits`.
fn empty(capabilities: Capabilities, limits: GrpCfg) -> Box<Device> {
    let device = Device::new(capabilities, PciControl::SHARED_VIRTUAL_MEMORY).unwrap();
    let write = |at: u64, words: &[u64]| {
        for (word, at) in words.iter().zip((at..).step_by(8)) {
            device.write_register(at, 8, *word);
        }
    };
    let codes = (limits.work_limit_code(), limits.batch_limit_code());
    let group =
        device.grp_cfg(0).with_wqs(0b11).with_engines(1).with_work_limit_code(codes.0).with_batch_limit_code(codes.1);
    write(layout::GRPCFG, &GrpCfg(group.0).0);
    let queue =
        WqCfg::default().with_size(64).with_dedicated(true).with_priority(1).with_pasid(1).with_pasid_enable(true);
    let stride = 32 << capabilities.wq_cap.wqcfg_size_shift();
    for at in [layout::WQCFG, layout::WQCFG + stride] {
        write(at, &queue.with_max_transfer_shift(20).with_max_batch_shift(4).0[..3]);
    }
    for (code, operand) in [(CommandCode::EnableDevice, 0), (CommandCode::EnableWq, 0), (CommandCode::EnableWq, 1)] {
        assert!(device.start_command(Command::new(code, operand)));
        assert_eq!(device.cmd_status().error_code(), 0, "{code:?}");
    }
    device
}

/// Steps every lane once that is not in progress, and returns those that got a descriptor.
fn take(device: &Device, lanes: &mut [Engine], in_progress: &[usize]) -> Vec<usize> {
    let free = (0..lanes.len()).filter(|lane| !in_progress.contains(lane));
    free.filter(|&lane| lanes[lane].step(device, &NoObserver) == Step::Execute).collect()
}

/// Takes a lane's descriptor to its end; returns true if the lane has the next one then.
fn finish(device: &Device, lane: &mut Engine, space: &MockSpace) -> bool {
    let outcome = execute(lane.action(), &OperandSpaces::own(space), false, false, &mut Scratch::default());
    lane.executed(device, outcome);
    loop {
        match lane.step(device, &NoObserver) {
            Step::Record { address } => {
                lane.recorded(device, space.write_record(address, &lane.record().0));
            }
            Step::Ended => {}
            Step::Execute => return true,
            Step::Idle => return false,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_engine_takes_as_many_descriptors_as_its_group_allows() {
    let full = Preset::Full.capabilities();
    let without = Capabilities { grp_cap: full.grp_cap.with_progress_limits(false), ..full };
    let most = usize::from(full.eng_cap.work_descriptors());
    let states = |count| Capabilities { eng_cap: full.eng_cap.with_work_descriptors(count), ..full };
    for (capabilities, code, limit) in [
        (full, 0, MAX_LANES),
        // All that ENGCAP states, which is fewer than the lanes.
        (states(10), 0, 10),
        // It states nothing. Regression: an engine took one descriptor at a time.
        (states(0), 0, MAX_LANES),
        (states(0), 3, MAX_LANES),
        (full, 1, MAX_LANES.min(most / 2)),
        (full, 2, most / 4),
        (full, 3, most / 8),
        (without, 3, MAX_LANES),
    ] {
        let space = MockSpace::default();
        space.map(MEMORY, 4, Protection::ReadWrite);
        let device = device(capabilities, code);
        let mut lanes: Vec<Engine> = (0..MAX_LANES).map(|lane| Engine::new(0, lane)).collect();
        let mut in_progress = take(&device, &mut lanes, &[]);
        assert_eq!(in_progress.len(), limit, "code {code}");
        let mut finished = 0;
        while let Some(lane) = in_progress.pop() {
            if finish(&device, &mut lanes[lane], &space) {
                in_progress.push(lane);
            }
            finished += 1;
            let more = take(&device, &mut lanes, &in_progress);
            in_progress.extend(more);
            let expected = limit.min(SUBMITTED_COUNT - finished);
            assert_eq!(in_progress.len(), expected, "code {code}: one begins for each that ends");
        }
        assert_eq!(finished, SUBMITTED_COUNT, "code {code}");
    }
}

/// Steps every lane that is not in progress once, and returns those that got a Batch, and those that got a copy.
fn take_both(device: &Device, lanes: &mut [Engine], in_progress: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let (mut batches, mut copies) = (Vec::new(), Vec::new());
    for lane in (0..lanes.len()).filter(|lane| !in_progress.contains(lane)) {
        match lanes[lane].step(device, &NoObserver) {
            Step::Fetch { .. } => batches.push(lane),
            Step::Execute => copies.push(lane),
            Step::Idle => {}
            other => panic!("{other:?}"),
        }
    }
    (batches, copies)
}

#[test]
fn an_engine_takes_as_many_batches_as_its_group_allows_and_goes_on_with_other_queues() {
    const BATCHES: usize = 20;
    const COPIES: usize = 8;
    let full = Preset::Full.capabilities();
    let without = Capabilities { grp_cap: full.grp_cap.with_progress_limits(false), ..full };
    let most = usize::from(full.eng_cap.batch_descriptors());
    let silent = Capabilities { eng_cap: full.eng_cap.with_batch_descriptors(0), ..full };
    for (capabilities, code, limit) in [
        (full, 0, most),
        (full, 1, most / 2),
        (full, 2, most / 4),
        (full, 3, most / 8),
        (without, 3, most),
        (silent, 0, BATCHES),
    ] {
        let device = empty(capabilities, GrpCfg::default().with_batch_limit_code(code));
        for _ in 0..BATCHES {
            submit(&device, 0, Descriptor::batch(MEMORY, 2));
        }
        for number in 0..COPIES as u64 {
            submit(&device, 1, copy(number));
        }
        let mut lanes: Vec<Engine> = (0..MAX_LANES).map(|lane| Engine::new(0, lane)).collect();
        let (mut batches, copies) = take_both(&device, &mut lanes, &[]);
        assert_eq!((batches.len(), copies.len()), (limit, COPIES), "code {code}");
        // A Batch that ends makes room for the next one.
        let mut begun = batches.len();
        while let Some(lane) = batches.pop() {
            let unreadable = Fault { address: MEMORY, write: false, done: 0 };
            lanes[lane].fetched(&device, Err(unreadable));
            let next = loop {
                match lanes[lane].step(&device, &NoObserver) {
                    Step::Fetch { .. } => break true,
                    Step::Idle => break false,
                    Step::Ended | Step::Interrupt(_) => {}
                    other => panic!("{other:?}"),
                }
            };
            if next {
                batches.push(lane);
                begun += 1;
            }
            assert_eq!(batches.len(), limit.min(BATCHES - begun + batches.len()), "code {code}");
        }
        assert_eq!(begun, BATCHES, "code {code}");
    }
}
