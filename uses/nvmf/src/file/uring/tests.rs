//! The steps of requests, with a kernel of our own: it transfers parts, interrupts, and refuses.

use super::*;
use crate::file::contents::Contents;
use crate::storage::Piece;
use rustix::io::Errno;
use std::fs::File;
use telpher_os::Random;

const SIZE: usize = 1 << 20;

/// Executes operations on bytes in memory.
struct Kernel {
    bytes: Vec<u8>,
    random: Random,
    /// Modes of fallocate that are refused.
    refused: Vec<FallocateFlags>,
    /// Whether all bytes written so far survive a crash.
    is_durable: bool,
}

impl Kernel {
    fn new(seed: u64, refused: Vec<FallocateFlags>) -> Kernel {
        let mut random = Random::new(seed);
        let mut bytes = vec![0; SIZE];
        random.fill(&mut bytes);
        Kernel { bytes, random, refused, is_durable: true }
    }

    fn execute(&mut self, operation: &mut Operation) -> io::Result<usize> {
        match self.random.below(8) {
            0 => return Err(Errno::INTR.into()),
            1 => return Err(Errno::AGAIN.into()),
            _ => {}
        }
        let at = |position: u64| usize::try_from(position).unwrap();
        match operation {
            Operation::Read { buffer, position } => {
                let count = self.part(buffer.missing());
                buffer.append(&self.bytes[at(*position)..][..count]);
                Ok(count)
            }
            Operation::Write { data, position, is_durable } => {
                let count = self.part(data.len());
                self.bytes[at(*position)..][..count].copy_from_slice(&data.as_slice()[..count]);
                self.is_durable &= *is_durable;
                Ok(count)
            }
            Operation::Sync => {
                self.is_durable = true;
                Ok(0)
            }
            Operation::Fallocate { mode, .. } if self.refused.contains(mode) => Err(Errno::OPNOTSUPP.into()),
            Operation::Fallocate { start, len, .. } => {
                self.bytes[at(*start)..at(*start + *len)].fill(0);
                self.is_durable = false;
                Ok(0)
            }
        }
    }

    /// All of `len` bytes, or a part of them.
    fn part(&mut self, len: usize) -> usize {
        if self.random.below(2) == 0 { len } else { 1 + usize::try_from(self.random.below(len as u64)).unwrap() }
    }
}

fn admitted(request: &StorageRequest) -> Admitted {
    let file = File::open("/dev/null").unwrap();
    let contents = Arc::new(Contents::of_size(file, SIZE as u64));
    contents.admit(request).unwrap()
}

/// Executes a request up to its answer.
fn run(request: StorageRequest, mut execute: impl FnMut(&mut Operation) -> io::Result<usize>) -> StorageResult {
    let admitted = admitted(&request);
    let mut spare = SpareMemory::default();
    let mut next = begin(&admitted, request, &mut spare);
    loop {
        match next {
            Next::Answer(result) => return result,
            Next::Start(mut operation, step) => {
                let result = execute(&mut operation);
                next = advance(&admitted, operation, step, result, &mut spare);
            }
        }
    }
}

fn write(start: u64, data: &[u8], force: bool) -> StorageRequest {
    let pieces = data.chunks(777).map(|part| Piece::Bytes(Segment::whole(part.to_vec()))).collect();
    StorageRequest::Write { start, pieces, force }
}

#[test]
fn requests_have_their_effect_with_a_kernel_that_transfers_parts() {
    let refusals = [vec![], vec![ZERO_MODES[0]], ZERO_MODES.to_vec()];
    for (seed, refused) in (0..60).zip(refusals.iter().cycle()) {
        let mut kernel = Kernel::new(seed, refused.clone());
        let mut expected = kernel.bytes.clone();
        let mut random = Random::new(seed + 1000);
        for _ in 0..40 {
            let len = 1 + random.below(200_000);
            let start = random.below(SIZE as u64 - len);
            let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
            let force = random.below(2) == 0;
            let was_durable = kernel.is_durable;
            match random.below(4) {
                0 => {
                    let answer = run(StorageRequest::Read { start, len }, |operation| kernel.execute(operation));
                    assert!(answer.unwrap()[0].as_slice() == &expected[range], "seed {seed}");
                }
                1 => {
                    let mut data = vec![0; range.len()];
                    random.fill(&mut data);
                    run(write(start, &data, force), |operation| kernel.execute(operation)).unwrap();
                    expected[range].copy_from_slice(&data);
                    assert!(!force || !was_durable || kernel.is_durable, "seed {seed}");
                }
                2 => {
                    let request = StorageRequest::WriteZeroes { start, len, force };
                    run(request, |operation| kernel.execute(operation)).unwrap();
                    expected[range].fill(0);
                    assert!(!force || kernel.is_durable, "seed {seed}");
                }
                _ => {
                    run(StorageRequest::Flush, |operation| kernel.execute(operation)).unwrap();
                    assert!(kernel.is_durable, "seed {seed}");
                }
            }
            assert!(kernel.bytes == expected, "seed {seed}");
        }
    }
}

#[test]
fn errors_have_their_status() {
    let write = || write(4096, &[7; 4096], false);
    let zeroes = || StorageRequest::WriteZeroes { start: 0, len: 4096, force: true };
    let read = || StorageRequest::Read { start: 0, len: 4096 };
    for (errno, status) in [
        (Errno::NOSPC, Status::CAPACITY_EXCEEDED),
        (Errno::DQUOT, Status::CAPACITY_EXCEEDED),
        (Errno::FBIG, Status::CAPACITY_EXCEEDED),
        (Errno::IO, Status::WRITE_FAULT),
    ] {
        let fail = |_: &mut Operation| Err(errno.into());
        for request in [write(), zeroes(), StorageRequest::Flush] {
            assert_eq!(run(request, fail).unwrap_err(), status);
        }
        assert_eq!(run(read(), fail).unwrap_err(), Status::READ_ERROR);
        // The zeroes are there, but the flush behind them fails.
        let answer = run(zeroes(), |operation| match operation {
            Operation::Sync => Err(errno.into()),
            _ => Ok(0),
        });
        assert_eq!(answer.unwrap_err(), status);
    }
    assert_eq!(run(read(), |_| Ok(0)).unwrap_err(), Status::READ_ERROR, "the file was cut");
    assert_eq!(run(write(), |_| Ok(0)).unwrap_err(), Status::WRITE_FAULT);
}

#[test]
fn deallocate_goes_through_all_ranges_whatever_the_kernel_says() {
    for answer in [Ok(0), Err(Errno::OPNOTSUPP)] {
        let mut seen = Vec::new();
        let ranges = vec![(4096, 512), (0, 0), (8192, 4096)];
        let result = run(StorageRequest::Deallocate { ranges: ranges.clone() }, |operation| {
            let Operation::Fallocate { mode: DEALLOCATE, start, len } = *operation else { panic!("{operation:?}") };
            seen.push((start, len));
            Ok(answer?)
        });
        assert!(result.unwrap().is_empty());
        assert_eq!(seen, ranges);
    }
}
