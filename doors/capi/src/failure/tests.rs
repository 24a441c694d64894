//! Errors keep their details when they are converted for C.

use super::*;
use std::time::Duration;

fn every() -> [JobError; 14] {
    [
        JobError::Stopped { op: Opcode::MemoryMove, why: ELSEWHERE.into() },
        JobError::Lengths { first: 1, second: 2 },
        JobError::Unit { op: Opcode::DifCheck, len: 1, unit: 520 },
        JobError::TooLong { op: Opcode::CreateDelta, len: 1 << 40, max: 1 << 19 },
        JobError::BadDelta { at: 10, status: Status::from_code(0x10) },
        JobError::Fault { address: 0x7000, write: true, done: 4096 },
        JobError::QueueFull { offers: 64 },
        JobError::Refused { op: Opcode::Fill, status: Status::from_code(0x11) },
        JobError::Unsupported { op: Opcode::Drain },
        JobError::Nonsense { op: Opcode::Nop, status: Status::from_code(1), completed: 7 },
        JobError::Abandoned { because: 3 },
        JobError::Deadline { after: Duration::from_millis(5) },
        JobError::Options { op: Opcode::Reduce, why: NOT_THESE },
        JobError::Outside { entry: 3, offset: 1 << 40, len: 4096 },
    ]
}

#[test]
fn a_result_keeps_the_whole_error() {
    for error in every() {
        let result = OpResult::of(&Err(error.clone()), Via::Both);
        assert!(result.status < 0 && result.outcome == outcome::TELPHER_FAILED, "{error:?}");
        assert_eq!(result.job_error(), Some(error));
        assert_eq!(result.via, via::TELPHER_VIA_BOTH);
    }
}

#[test]
fn a_result_that_a_stranger_filled_in_has_a_text_too() {
    for kind in 0..300 {
        let result = OpResult { error: kind, opcode: 999, device_status: 999, at: u64::MAX, ..OpResult::default() };
        assert!(!result.text().is_empty(), "{kind}");
    }
}

#[test]
fn sources_that_are_not_to_be_had_say_by_their_errno_why() {
    let busy = || std::io::Error::from_raw_os_error(libc::EBUSY);
    let text = String::new;
    let damon = |why| TierError::Damon(Box::new(why));
    let cases = [
        (TierError::NoWindows, libc::ENOSYS),
        (TierError::NoTraps, libc::ENOSYS),
        (TierError::Perf(PerfError::None), libc::ENOSYS),
        (damon(DamonError::Missing), libc::ENOSYS),
        (damon(DamonError::Forbidden(busy())), libc::EPERM),
        (damon(DamonError::Busy { other: text(), folder: text() }), libc::EBUSY),
        (damon(DamonError::Alone(busy())), libc::EBUSY),
        (damon(DamonError::Lost { other: text() }), libc::EBUSY),
    ];
    for (error, errno) in cases {
        let text = error.to_string();
        assert_eq!(Failure::from(error).errno(), errno, "{text}");
    }
}
