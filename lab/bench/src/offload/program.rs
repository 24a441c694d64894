//! The measured program: it copies with the C library's functions, and does not know about `telpher offload`.
//!
//! A line on standard input names a task and a number. For most tasks the number is their duration in milliseconds
//! (`copy-64 20`), and the answer is nanoseconds of CPU time per operation. The task `mixed` makes that many rounds of
//! copies, always the same ones, and answers their number. An answer that begins with `-` is an error.

use crate::buffers::{Arena, Temperature, fill_known};
use crate::ffi;
use crate::measure::{Window, window};
use std::convert::Infallible;
use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::time::Duration;
use telpher_report::machine::Machine;

/// Sizes of the short copies: below every threshold.
pub const SHORT: [usize; 3] = [8, 64, 1024];
/// Bytes of the long copies.
pub const LONG: usize = 64 << 10;
/// Words of a long copy.
pub(super) const WORDS: usize = LONG / 8;
/// Source and destination of short copies are this many bytes apart. If their addresses had equal lower 12 bits, a
/// processor could let the loads of a copy wait for the stores of the one before, and a few instructions in between
/// would change the time of the copy. Source: Intel's optimization manual, "4-KByte aliasing".
const APART: usize = 2048;
/// Copies of one step.
const STEP: u64 = 256;
/// Copies of cached data in a round of the task `mixed`, beside one of data in memory.
pub const HOT_COPIES: u64 = 4;

/// Runs the tasks from standard input until it ends.
pub fn obey() -> io::Result<()> {
    let mut buffers = Buffers::default();
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        match answer(&line?, &mut buffers) {
            Ok(number) => writeln!(out, "{number}")?,
            Err(error) => writeln!(out, "- {error}")?,
        }
        out.flush()?;
    }
    Ok(())
}

fn answer(line: &str, buffers: &mut Buffers) -> io::Result<f64> {
    let unknown = || io::Error::new(io::ErrorKind::InvalidInput, format!("'{line}' is no task"));
    let (word, number) = line.split_once(' ').ok_or_else(unknown)?;
    let number: u64 = number.parse().map_err(|_| unknown())?;
    let time = Duration::from_millis(number);
    let size = word.strip_prefix("copy-").and_then(|size| size.parse().ok()).filter(|size| SHORT.contains(size));
    let result: Result<Window, Infallible> = match (word, size) {
        (_, Some(size)) => window(time, || Ok(buffers.copy_short(size))),
        ("hot", _) => window(time, || Ok(buffers.copy_hot())),
        ("mixed", _) => return buffers.mixed(number).map(|()| number as f64),
        _ => {
            let words = word.strip_prefix("read-and-copy-").and_then(|words| words.parse().ok());
            let words = words.filter(|words| *words <= WORDS).ok_or_else(unknown)?;
            window(time, || Ok(buffers.read_and_copy_hot(words)))
        }
    };
    let Ok(seen) = result;
    Ok(seen.cpu_ns_per_op())
}

/// The program's buffers.
struct Buffers {
    /// Two halves of [`APART`] bytes.
    short: Vec<u8>,
    /// Two halves of [`LONG`] bytes.
    halves: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Self {
        let mut buffers = Buffers { short: vec![0; 2 * APART], halves: vec![0; 2 * LONG] };
        fill_known(&mut buffers.short, 1);
        fill_known(&mut buffers.halves, 2);
        buffers
    }
}

impl Buffers {
    /// Short copies between the same buffers, one call each.
    fn copy_short(&mut self, size: usize) -> u64 {
        let (from, to) = self.short.split_at_mut(APART);
        for _ in 0..STEP {
            // The compiler must not know the size: it would copy without a call.
            let size = black_box(size);
            ffi::memcpy(&mut to[..size], &from[..size]);
        }
        STEP
    }

    /// A long copy within cached memory.
    fn copy_hot(&mut self) -> u64 {
        ffi::memmove_within(&mut self.halves, 0, LONG, LONG);
        1
    }

    /// Computes with this many of the words that it copies then: a program that makes data before it copies it.
    fn read_and_copy_hot(&mut self, words: usize) -> u64 {
        let words = self.halves[..8 * words]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let sum = words.fold(0_u64, |sum, word| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.halves[..8].copy_from_slice(&sum.to_le_bytes());
        self.copy_hot()
    }

    /// Rounds of one copy of data in memory and [`HOT_COPIES`] of cached data. The two kinds have call sites of their
    /// own, because they call different functions.
    fn mixed(&mut self, rounds: u64) -> io::Result<()> {
        // Source and destination together are larger than the caches.
        let bytes = usize::try_from(Machine::read().cold_bytes() / 2).unwrap_or(usize::MAX);
        let mut arena = Arena::new(bytes).map_err(|error| io::Error::other(telpher_os::chain(&error)))?;
        let mut places = arena.places(LONG, LONG, Temperature::Cold);
        for _ in 0..rounds {
            let (from, to) = arena.next(&mut places);
            ffi::memcpy(to, from);
            (0..HOT_COPIES).for_each(|_| {
                self.copy_hot();
            });
        }
        Ok(())
    }
}
