//! `telpher tune`: the lengths from which messages between two cores travel in another way.
//!
//! Two endpoints of this process exchange messages, each in a thread on a core of its own. The sender changes each
//! cache line of its buffer before each send. Two ways take turns, and a way counts as faster if its median is.

use super::library::Rank;
use crate::measure::median;
use std::io;
use std::time::{Duration, Instant};
use telpher_fabric::{Config, Copier, Endpoint, ProgressBy};
use telpher_mover::MessageTuning;

/// Turns of each way at each length. The first one opens the connection, and lets it learn.
const TURNS: usize = 6;
/// Round trips of the shortest turn.
const LEAST_TRIPS: u64 = 3;
/// Round trips of the longest turn. Source: chosen.
const MOST_TRIPS: f64 = 5000.0;
/// A way is faster if it takes at most this part of the other's time. Source: chosen; so equal ones keep the default.
const FASTER: f64 = 0.95;

const EAGER: [u64; 3] = [16 << 10, 32 << 10, 64 << 10];
const PIECES: [u64; 3] = [4 << 10, 8 << 10, 16 << 10];
/// Pieces of a message.
const PIECES_OF_MESSAGE: u64 = 8;

/// Measures for about `time` on idle cores. Whether a receiver should read the sender's memory is not measured: the
/// system permits it within this process, and may refuse it between the ranks of a job.
///
/// # Errors
/// It takes longer than `limit`, so the cores are busy. An endpoint cannot be opened, a thread cannot run on its core,
/// or a message fails.
pub(crate) fn measure(cpus: [usize; 2], time: Duration, limit: Duration) -> io::Result<MessageTuning> {
    let start = Instant::now();
    let lengths = EAGER.len() + PIECES.len();
    let turn = time / u32::try_from(2 * TURNS * lengths).unwrap_or(u32::MAX);
    let compare = |one: &Config, other: &Config, len: u64| {
        if start.elapsed() > limit {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "other programs use the cores"));
        }
        is_faster(cpus, [one, other], len, turn)
    };

    let with = |change: &dyn Fn(&mut Config)| {
        let mut config = Config::default();
        config.mapped_bytes = u64::MAX;
        change(&mut config);
        config
    };
    let pieces = with(&|_| ());
    let eager = with(&|config| config.eager_bytes = 64 << 10);
    let mut eager_bytes = pieces.eager_bytes;
    for len in EAGER {
        if !compare(&eager, &pieces, len)? {
            break;
        }
        eager_bytes = u32::try_from(len).unwrap_or(eager_bytes);
    }
    // `None` keeps the default. These cores may share a cache while others do not, so plain stores that are faster here
    // say nothing about other ranks: each connection learns which stores to use.
    let streaming_bytes = least(&PIECES, |len| {
        let of = |streaming_bytes| {
            with(&|config| {
                // All messages are pieces of this length.
                config.eager_bytes = 1 << 10;
                config.slot_bytes = u32::try_from(len).unwrap_or(config.slot_bytes);
                config.streaming_bytes = streaming_bytes;
            })
        };
        compare(&of(len), &of(u64::MAX), PIECES_OF_MESSAGE * len)
    })?;
    Ok(MessageTuning { eager_bytes: Some(eager_bytes), streaming_bytes, pull_bytes: None })
}

/// Returns the least length from which a way is faster at all measured ones.
fn least(lengths: &[u64], mut is_faster: impl FnMut(u64) -> io::Result<bool>) -> io::Result<Option<u64>> {
    let mut least = None;
    for &len in lengths.iter().rev() {
        if !is_faster(len)? {
            break;
        }
        least = Some(len);
    }
    Ok(least)
}

/// Whether the first configuration is faster for messages of this length.
fn is_faster(cpus: [usize; 2], configs: [&Config; 2], len: u64, turn: Duration) -> io::Result<bool> {
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mut pairs = [Pair::open(configs[0])?, Pair::open(configs[1])?];
    let (mut times, mut trips) = ([Vec::new(), Vec::new()], [LEAST_TRIPS; 2]);
    for number in 0..TURNS {
        for side in 0..2 {
            let ns = pairs[side].half_round_trip(cpus, len, trips[side])?;
            trips[side] = trips_of(turn, ns);
            if number > 0 {
                times[side].push(ns);
            }
        }
    }
    let [one, other] = times.each_mut().map(|times| median(times));
    Ok(one <= FASTER * other)
}

/// Returns how many round trips fit into a turn, at half a round trip in this many nanoseconds.
fn trips_of(turn: Duration, ns: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 3 and MOST_TRIPS")]
    let trips = (turn.as_secs_f64() * 1e9 / (2.0 * ns.max(1.0))).clamp(LEAST_TRIPS as f64, MOST_TRIPS) as u64;
    trips
}

/// Two endpoints that exchange messages.
struct Pair([Rank; 2]);

impl Pair {
    fn open(config: &Config) -> io::Result<Pair> {
        let open = || Endpoint::open(config.clone(), Copier::cpu(), ProgressBy::Caller).map_err(io::Error::other);
        let [first, second] = [open()?, open()?];
        let addresses = [first.address(), second.address()];
        let peer_of =
            |endpoint: &Endpoint, peer: usize| endpoint.insert_peer(&addresses[peer]).map_err(io::Error::other);
        let (second_of_first, first_of_second) = (peer_of(&first, 1)?, peer_of(&second, 0)?);
        Ok(Pair([Rank::new(0, first, second_of_first), Rank::new(1, second, first_of_second)]))
    }

    /// Returns the nanoseconds of half a round trip.
    fn half_round_trip(&mut self, cpus: [usize; 2], len: usize, trips: u64) -> io::Result<f64> {
        let work = |rank: &mut Rank, cpu: usize| {
            telpher_os::run_on(&[cpu])?;
            rank.ping_pong(len, true, trips)
        };
        std::thread::scope(|scope| {
            let [first, second] = &mut self.0;
            let threads = [scope.spawn(move || work(first, cpus[0])), scope.spawn(move || work(second, cpus[1]))];
            let [mine, theirs] =
                threads.map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a panic"))));
            theirs?;
            Ok(mine?.0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_least_length_from_which_all_longer_ones_are_faster() {
        let of = |faster: &[u64]| least(&[1, 2, 4], |len| Ok(faster.contains(&len))).unwrap();
        assert_eq!([of(&[1, 2, 4]), of(&[2, 4]), of(&[1, 4])], [Some(1), Some(2), Some(4)]);
        assert_eq!([of(&[1, 2]), of(&[])], [None, None]);
    }

    #[test]
    fn a_turn_has_at_least_a_few_trips() {
        assert_eq!(trips_of(Duration::from_millis(1), 1000.0), 500);
        assert_eq!(trips_of(Duration::ZERO, 1000.0), LEAST_TRIPS);
        assert_eq!(trips_of(Duration::from_secs(9), 0.0), 5000);
    }

    #[test]
    fn what_is_measured_is_within_what_a_tuning_file_may_say() {
        let cpus = telpher_os::allowed_cpus().unwrap();
        let cpus = [cpus[0], cpus[cpus.len() - 1]];
        assert_eq!(measure(cpus, Duration::ZERO, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        let found = measure(cpus, Duration::ZERO, Duration::MAX).unwrap();
        assert!((8 << 10..=64 << 10).contains(&found.eager_bytes.unwrap()), "{found:?}");
        // Never `u64::MAX`, which would switch the learning of each connection off.
        assert!(found.streaming_bytes.is_none_or(|len| PIECES.contains(&len)), "{found:?}");
        assert_eq!(found.pull_bytes, None, "another process may refuse what this one permits itself");
    }
}
