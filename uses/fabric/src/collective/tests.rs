//! Groups whose members are threads. Expected results are computed number by number, in the order of the ranks.

mod devices;

use super::counts::Stage;
use super::*;
use crate::buffer::Buffer;
use crate::number::Number;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Barrier, Mutex};
use telpher_os::Random;

/// Exchanges bytes between threads.
struct Threads<'a> {
    rank: usize,
    barrier: &'a Barrier,
    places: &'a Mutex<Vec<ExchangeBytes>>,
}

impl Exchange for Threads<'_> {
    type Error = Infallible;

    fn all_gather(&mut self, own: &ExchangeBytes) -> Result<Vec<ExchangeBytes>, Infallible> {
        self.places.lock().unwrap()[self.rank] = *own;
        self.barrier.wait();
        let all = self.places.lock().unwrap().clone();
        self.barrier.wait();
        Ok(all)
    }
}

/// Forms a group of threads, and returns what each of them returns.
fn formed<T: Send>(ranks: usize, wants: fn(usize) -> bool, member: impl Fn(Formed) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(ranks);
    let places = Mutex::new(vec![[0; EXCHANGE_BYTES]; ranks]);
    std::thread::scope(|scope| {
        let start = |rank| {
            let mut exchange = Threads { rank, barrier: &barrier, places: &places };
            let member = &member;
            scope.spawn(move || member(form(rank, ranks, wants(rank), &mut exchange).unwrap()))
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Forms a group of threads that all want it.
fn members<T: Send>(ranks: usize, member: impl Fn(Group) -> T + Sync) -> Vec<T> {
    formed(
        ranks,
        |_| true,
        |formed| match formed {
            Formed::Group(group) => member(*group),
            Formed::Refused { rank, reason } => panic!("rank {rank} {reason}"),
        },
    )
}

#[allow(unsafe_code, reason = "the vector is borrowed until the operation has returned")]
fn buffer(bytes: &mut [u8]) -> Buffer {
    // SAFETY: the callers keep the bytes, and use them after the operation only.
    unsafe { Buffer::vouch(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64) }
}

fn idle() -> impl FnMut() {
    || ()
}

/// The bytes that a member contributes: small numbers, so that products do not all overflow.
fn contribution(number: Number, rank: usize, count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed ^ (rank as u64) << 32);
    let mut small = move || u8::try_from(random.below(7)).unwrap();
    macro_rules! numbers {
        ($number:ty) => {
            (0..count).flat_map(|_| (<$number>::from(small())).wrapping_sub(3).to_ne_bytes()).collect()
        };
    }
    match number {
        Number::I8 => (0..count).map(|_| small().wrapping_sub(3)).collect(),
        Number::U8 => numbers!(u8),
        Number::I16 => numbers!(i16),
        Number::U16 => numbers!(u16),
        Number::I32 => numbers!(i32),
        Number::U32 => numbers!(u32),
        Number::I64 => numbers!(i64),
        Number::U64 => numbers!(u64),
        // Sums of thirds depend on the order of the additions.
        Number::F32 => (0..count).flat_map(|_| ((f32::from(small()) - 3.0) / 3.0).to_ne_bytes()).collect(),
        Number::F64 => (0..count).flat_map(|_| ((f64::from(small()) - 3.0) / 3.0).to_ne_bytes()).collect(),
    }
}

/// The expected result, by rank.
fn expected(reduction: Reduction, number: Number, ranks: usize, count: usize, seed: u64) -> Vec<u8> {
    let all: Vec<Vec<u8>> = (0..ranks).map(|rank| contribution(number, rank, count, seed)).collect();
    macro_rules! fold {
        ($number:ty, $join:expr) => {{
            let at = |rank: usize, index: usize| {
                let size = size_of::<$number>();
                <$number>::from_ne_bytes(all[rank][index * size..(index + 1) * size].try_into().unwrap())
            };
            let join = $join;
            let one = |index| (1..ranks).fold(at(0, index), |sum, rank| join(sum, at(rank, index)));
            (0..count).flat_map(|index| one(index).to_ne_bytes()).collect()
        }};
    }
    macro_rules! integer {
        ($number:ty) => {
            match reduction {
                Reduction::Sum => fold!($number, |a: $number, b: $number| a.wrapping_add(b)),
                Reduction::Product => fold!($number, |a: $number, b: $number| a.wrapping_mul(b)),
                Reduction::Least => fold!($number, |a: $number, b: $number| a.min(b)),
                Reduction::Greatest => fold!($number, |a: $number, b: $number| a.max(b)),
                Reduction::BitAnd => fold!($number, |a: $number, b: $number| a & b),
                Reduction::BitOr => fold!($number, |a: $number, b: $number| a | b),
                Reduction::BitXor => fold!($number, |a: $number, b: $number| a ^ b),
                Reduction::And => fold!($number, |a: $number, b: $number| <$number>::from(a != 0 && b != 0)),
                Reduction::Or => fold!($number, |a: $number, b: $number| <$number>::from(a != 0 || b != 0)),
                Reduction::Xor => fold!($number, |a: $number, b: $number| <$number>::from((a != 0) ^ (b != 0))),
            }
        };
    }
    macro_rules! float {
        ($number:ty) => {
            match reduction {
                Reduction::Sum => fold!($number, |a: $number, b: $number| a + b),
                Reduction::Product => fold!($number, |a: $number, b: $number| a * b),
                Reduction::Least => fold!($number, |a: $number, b: $number| if a < b { a } else { b }),
                Reduction::Greatest => fold!($number, |a: $number, b: $number| if a > b { a } else { b }),
                _ => unreachable!(),
            }
        };
    }
    match number {
        Number::I8 => integer!(i8),
        Number::U8 => integer!(u8),
        Number::I16 => integer!(i16),
        Number::U16 => integer!(u16),
        Number::I32 => integer!(i32),
        Number::U32 => integer!(u32),
        Number::I64 => integer!(i64),
        Number::U64 => integer!(u64),
        Number::F32 => float!(f32),
        Number::F64 => float!(f64),
    }
}

#[test]
fn every_reduction_of_every_type_is_that_by_rank() {
    for ranks in [2, 3] {
        members(ranks, |mut group| {
            for number in Number::ALL {
                for reduction in Reduction::ALL.into_iter().filter(|reduction| reduction.applies_to(number)) {
                    // Reduced by each member alone, and shared in several chunks.
                    for count in [1, 100, 20_011] {
                        let mut from = contribution(number, group.rank(), count, 1);
                        let expected = expected(reduction, number, ranks, count, 1);
                        let mut to = vec![0xee; from.len()];
                        let kind = (reduction, number);
                        group.all_reduce(kind, buffer(&mut from), buffer(&mut to), &mut idle()).unwrap();
                        assert!(to == expected, "{number:?} {reduction:?} {count}");
                    }
                }
            }
        });
    }
}

/// Lengths in bytes around those from which operations proceed otherwise.
const LENGTHS: [usize; 14] =
    [8, 64, 136, 4096, 8184, 10_928, 16_384, 16_392, 32_768, 65_536, 65_544, 131_072, 262_152, 700_000];

#[test]
fn operations_of_all_lengths_follow_one_another() {
    for ranks in [1, 2, 3, 5] {
        members(ranks, |mut group| {
            let rank = group.rank();
            for (seed, len) in (0..).zip(LENGTHS) {
                let count = len / 8;
                let kind = (Reduction::Sum, Number::F64);
                let expected = expected(Reduction::Sum, Number::F64, ranks, count, seed);
                let own = contribution(Number::F64, rank, count, seed);
                let (mut from, mut to) = (own.clone(), vec![0; len]);
                group.all_reduce(kind, buffer(&mut from), buffer(&mut to), &mut idle()).unwrap();
                assert!(to == expected && from == own, "AllReduce of {len} bytes");
                // In place.
                let same = buffer(&mut from);
                group.all_reduce(kind, same, same, &mut idle()).unwrap();
                assert!(from == expected, "AllReduce of {len} bytes in place");
                let root = len % ranks;
                from.clone_from(&own);
                to.fill(0);
                let receives = (rank == root).then(|| buffer(&mut to));
                group.reduce(kind, root, buffer(&mut from), receives, &mut idle()).unwrap();
                assert!(if rank == root { to == expected } else { to == vec![0; len] }, "Reduce of {len} bytes");
                from.clone_from(&own);
                group.broadcast(root, buffer(&mut from), &mut idle()).unwrap();
                assert!(from == contribution(Number::F64, root, count, seed), "broadcast of {len} bytes");
                let mut all = vec![0; ranks * len];
                from.clone_from(&own);
                group.all_gather(buffer(&mut from), buffer(&mut all), &mut idle()).unwrap();
                let gathered: Vec<u8> =
                    (0..ranks).flat_map(|rank| contribution(Number::F64, rank, count, seed)).collect();
                assert!(all == gathered, "AllGather of {len} bytes");
                all.fill(0);
                all[rank * len..(rank + 1) * len].copy_from_slice(&own);
                let place = buffer(&mut all[rank * len..(rank + 1) * len]);
                group.all_gather(place, buffer(&mut all), &mut idle()).unwrap();
                assert!(all == gathered, "AllGather of {len} bytes in place");
            }
        });
    }
}

#[test]
fn roots_need_not_wait_for_late_members() {
    let first_has_left = Barrier::new(2);
    members(2, |mut group| {
        let mut bytes = vec![u8::try_from(group.rank()).unwrap(); 1000];
        if group.rank() == 1 {
            first_has_left.wait();
        }
        group.broadcast(0, buffer(&mut bytes), &mut idle()).unwrap();
        assert_eq!(bytes, vec![0; 1000]);
        if group.rank() == 0 {
            drop(group);
            first_has_left.wait();
        }
    });
}

#[test]
fn members_that_disagree_refuse_for_the_same_reason() {
    let answers = formed(
        4,
        |rank| rank != 2,
        |formed| match formed {
            Formed::Refused { rank, reason } => (rank, reason),
            Formed::Group(_) => panic!("a group"),
        },
    );
    assert_eq!(answers, [(2, "does not want it"); 4]);
    let many = formed(MOST_MEMBERS + 1, |_| true, |formed| matches!(formed, Formed::Refused { .. }));
    assert!(many.iter().all(|refused| *refused));
}

#[test]
fn members_that_call_other_operations_fail() {
    let answers = members(2, |mut group| {
        let mut bytes = vec![0; 4096];
        let kind = if group.rank() == 0 { Reduction::Sum } else { Reduction::Product };
        let same = buffer(&mut bytes);
        let error = group.all_reduce((kind, Number::I32), same, same, &mut idle()).unwrap_err();
        let next = group.broadcast(0, buffer(&mut bytes), &mut idle()).unwrap_err();
        assert_eq!(next, GroupError::Unusable);
        error
    });
    let is_right = |error: &GroupError| matches!(error, GroupError::Different { .. } | GroupError::Failed);
    assert!(answers.iter().all(is_right), "{answers:?}");
}

#[test]
fn wrong_arguments_and_buffers_fail_for_all() {
    let mistakes: [fn(&mut Group) -> GroupError; 4] = [
        |group| {
            let mut bytes = [0; 30];
            let same = buffer(&mut bytes);
            group.all_reduce((Reduction::Sum, Number::F64), same, same, &mut idle()).unwrap_err()
        },
        |group| group.broadcast(9, buffer(&mut [0; 8]), &mut idle()).unwrap_err(),
        |group| {
            let mut bytes = [0; 32];
            let same = buffer(&mut bytes);
            group.all_reduce((Reduction::BitOr, Number::F64), same, same, &mut idle()).unwrap_err()
        },
        |group| {
            #[allow(unsafe_code, reason = "an address that is not mapped")]
            // SAFETY: no reference to the first page exists.
            let nothing = unsafe { Buffer::vouch(64, 100_000) };
            group.broadcast(0, nothing, &mut idle()).unwrap_err()
        },
    ];
    for mistake in mistakes {
        let answers = members(2, |mut group| {
            if group.rank() == 0 {
                return mistake(&mut group);
            }
            let mut bytes = vec![0; 100_000];
            group.broadcast(0, buffer(&mut bytes), &mut idle()).unwrap_err()
        });
        assert!(
            matches!(answers[0], GroupError::WrongArguments | GroupError::BadBuffer { address: 64 }),
            "{answers:?}"
        );
        assert_eq!(answers[1], GroupError::Failed);
    }
}

/// A member writes what it likes into the words and slots that it can reach. The others return: with an error, or with
/// a result that the bytes explain.
#[test]
fn hostile_words_end_the_group() {
    for seed in 0..200 {
        let answers = members(2, |mut group| {
            if group.rank() == 1 {
                let mut random = Random::new(seed);
                for _ in 0..100 {
                    let words = group.own_words();
                    let value = match random.below(4) {
                        0 => random.next(),
                        1 => u64::MAX - random.below(3),
                        _ => random.below(9),
                    };
                    let word = usize::try_from(random.below(words.len() as u64)).unwrap();
                    words[word].store(value, Ordering::Release);
                }
                return Ok(());
            }
            // The lock of a member in this process is not visible, as if its process had ended.
            group.forget_that_members_are_here();
            let mut bytes = vec![1; 200_000];
            for _ in 0..20 {
                let same = buffer(&mut bytes);
                group.all_reduce((Reduction::Sum, Number::U8), same, same, &mut idle())?;
                group.broadcast(1, buffer(&mut bytes), &mut idle())?;
            }
            Ok(())
        });
        let is_explained = |answer: &Result<(), GroupError>| {
            use GroupError as E;
            matches!(answer, Ok(()) | Err(E::Broken { rank: 1 } | E::Ended { rank: 1 } | E::Different { rank: 1 }))
        };
        assert!(answers.iter().all(is_explained), "seed {seed}: {answers:?}");
    }
}

#[test]
fn a_count_that_cannot_be_is_noticed() {
    let answers = members(2, |mut group| {
        if group.rank() == 1 {
            group.own_counts().publish(Stage::Filled, 1 << 40);
            return None;
        }
        let mut bytes = vec![1; 1000];
        group.broadcast(1, buffer(&mut bytes), &mut idle()).err()
    });
    assert_eq!(answers, [Some(GroupError::Broken { rank: 1 }), None]);
}
