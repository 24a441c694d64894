//! The syntax of `--inject`: which faults, how often, and for which operations.

use crate::trace::names;
use std::fmt;
use telpher_abi::{Opcode, Status};
pub use telpher_vdev_wire::message::Inject;

/// The syntax, for the command's help.
pub const LANGUAGE: &str = "\
words with commas, such as fault=1%,retry=10%/burst:5,seed=42
  fault=RATE             a page that a descriptor accesses is absent
  page=ADDR[-ADDR]       these pages are always absent (addresses in hexadecimal)
  retry=RATE[/burst:N]   a deferrable submission is answered by Retry, N times in a row
  delay=TIME[:RATE]      a completion is late by this time (ns, us, ms, s)
  reorder=RATE           a completion waits until a later one is written
  status=STATUS[@OP][:RATE]  a descriptor ends with this status (0x13, transfer-size-range)
  lose=RATE              a completion record is never written
  halt=N                 the device halts at the N-th submission to an open queue
  op=OP[,OP...]          only these operations (memory-move, fill, ..., or 0x03)
  seed=N                 selects other faults at the same rates; the same seed gives the same faults
RATE is a percentage (1%, 0.1%) or a part of 1 (0.01); an optional rate defaults to 100%.";

/// Why a specification is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{word}' is not {expected}")]
pub struct InjectError {
    /// The invalid text.
    word: String,
    /// What is valid in its place.
    expected: String,
}

fn error(word: &str, expected: impl fmt::Display) -> InjectError {
    InjectError { word: word.to_owned(), expected: expected.to_string() }
}

const RATE: &str = "a rate: a percentage such as 1% or 0.1%, or a part of 1 such as 0.01";
const KEYS: &str =
    "something to inject: fault, page, retry, delay, reorder, status, lose, halt, op or seed, each with '='";

/// Parses a specification; see [`LANGUAGE`].
///
/// # Errors
/// If a word is invalid; the error says what is valid in its place.
pub fn parse(text: &str) -> Result<Inject, InjectError> {
    let mut inject = Inject::default();
    let mut in_operations = false;
    for word in text.split(',').map(str::trim) {
        let Some((key, value)) = word.split_once('=') else {
            if !in_operations {
                return Err(error(word, KEYS));
            }
            inject.operations |= operation(word)?;
            continue;
        };
        in_operations = key == "op";
        match key {
            "fault" => inject.fault_rate = rate(value)?,
            "page" => (inject.absent_first, inject.absent_end) = pages(value)?,
            "retry" => {
                let (often, burst) = match value.split_once('/') {
                    Some((often, burst)) => {
                        (often, count(burst.strip_prefix("burst:"), burst, "a burst such as burst:5")?)
                    }
                    None => (value, 1),
                };
                inject.retry_rate = rate(often)?;
                inject.retry_burst = u32::try_from(burst).map_err(|_| error(value, "a burst below 2^32"))?;
            }
            "delay" => {
                let (how_long, often) = optional_rate(value)?;
                inject.delay_ns = nanoseconds(how_long)?;
                inject.delay_rate = often;
            }
            "reorder" => inject.reorder_rate = rate(value)?,
            "status" => {
                let (what, often) = optional_rate(value)?;
                let (what, whose) = what.split_once('@').map_or((what, None), |(what, whose)| (what, Some(whose)));
                inject.status = status(what)?;
                inject.status_rate = often;
                inject.status_operations = whose.map_or(Ok(0), operation)?;
            }
            "lose" => inject.lose_rate = rate(value)?,
            "halt" => inject.halt_at = count(Some(value), value, "the number of a submission, from 1")?,
            "op" => inject.operations |= operation(value)?,
            "seed" => inject.seed = number(value).ok_or_else(|| error(value, "a seed: a number below 2^64"))?,
            _ => return Err(error(word, KEYS)),
        }
    }
    Ok(inject)
}

/// Parses a decimal number, or a hexadecimal one with `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a number other than 0.
fn count(text: Option<&str>, word: &str, expected: &str) -> Result<u64, InjectError> {
    text.and_then(number).filter(|number| *number > 0).ok_or_else(|| error(word, expected))
}

/// Parses a rate into parts of 2^32.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 2^32; the cast saturates to the range of a rate"
)]
fn rate(text: &str) -> Result<u32, InjectError> {
    let (digits, whole) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 100.0));
    let part = digits.parse::<f64>().map_err(|_| error(text, RATE))? / whole;
    if !(0.0..=1.0).contains(&part) || !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(error(text, RATE));
    }
    let parts = (part * 4_294_967_296.0).round() as u32;
    // A rate above zero stays above zero.
    Ok(if part > 0.0 { parts.max(1) } else { 0 })
}

/// Parses `what:RATE`; `what` alone means always.
fn optional_rate(text: &str) -> Result<(&str, u32), InjectError> {
    match text.split_once(':') {
        Some((what, often)) => Ok((what, rate(often)?)),
        None => Ok((text, u32::MAX)),
    }
}

fn nanoseconds(text: &str) -> Result<u64, InjectError> {
    names::nanoseconds(text).ok_or_else(|| error(text, "a time such as 500ns, 200us, 5ms or 1s"))
}

/// Parses a range of addresses into page numbers: the first, and one past the last.
fn pages(text: &str) -> Result<(u64, u64), InjectError> {
    let wrong = || error(text, "an address or a range of them such as 0x7f0000000000-0x7f0000001000");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).map_err(|_| wrong());
    let (first, last) = (hex(first)?, hex(last)?);
    // The end address is not part of the range, except in a range of one address.
    let end = if last > first { last.div_ceil(4096) } else { last / 4096 + 1 };
    if last < first { Err(wrong()) } else { Ok((first / 4096, end)) }
}

fn status(text: &str) -> Result<u32, InjectError> {
    let named = Status::ALL.iter().find(|known| names::status(**known) == text);
    let code = named.map(|known| u64::from(known.code())).or_else(|| number(text));
    let code = code.filter(|code| (1..0x40).contains(code)).and_then(|code| u32::try_from(code).ok());
    code.ok_or_else(|| error(text, "a status: a code from 0x01 to 0x3f, or a name such as hardware-read-error"))
}

/// The bit of an operation, given its name, short name or code.
fn operation(text: &str) -> Result<u64, InjectError> {
    let code = names::opcode(text).map(|known| u64::from(known.code())).filter(|code| *code < 64);
    let names = || Opcode::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
    code.map(|code| 1 << code).ok_or_else(|| error(text, format!("an operation: {}", names())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_language_has_its_effect() {
        let text = "fault=1%,retry=10%/burst:5,delay=200us:50%,status=0x13@copy:0.1%,lose=0.5,halt=1000,\
                    page=0x7000-0x9001,seed=42,reorder=100%,op=move,fill";
        let wanted = Inject {
            seed: 42,
            fault_rate: 42_949_673,
            retry_rate: 429_496_730,
            retry_burst: 5,
            delay_rate: 1 << 31,
            delay_ns: 200_000,
            reorder_rate: u32::MAX,
            status_rate: 4_294_967,
            status: 0x13,
            lose_rate: 1 << 31,
            halt_at: 1000,
            absent_first: 7,
            absent_end: 10,
            operations: 1 << 3 | 1 << 4,
            status_operations: 1 << 3,
        };
        assert_eq!(parse(text), Ok(wanted));
        assert_eq!(parse("op=crc,0x20,nop,seed=0x10").unwrap().operations, 1 << 0x10 | 1 << 0x20 | 1);
    }

    #[test]
    fn defaults_are_always_and_once() {
        assert_eq!(parse("delay=1ms").unwrap().delay_rate, u32::MAX);
        assert_eq!(parse("status=hardware-read-error").unwrap().status, 0x20);
        assert_eq!(parse("retry=1").unwrap().retry_burst, 1);
        assert_eq!(parse("page=7fff0010").map(|i| (i.absent_first, i.absent_end)), Ok((0x7_fff0, 0x7_fff1)));
        assert_eq!(parse("page=0x1000-0x3000").map(|i| (i.absent_first, i.absent_end)), Ok((1, 3)));
        assert_eq!(parse("fault=0.0000000001").unwrap().fault_rate, 1);
        assert_eq!(parse("fault=0").unwrap().fault_rate, 0);
    }

    #[test]
    fn errors_name_the_valid_values() {
        for (text, expected) in [
            ("", "something to inject: fault, page"),
            ("fault", "each with '='"),
            ("faults=1%", "something to inject"),
            ("fault=1%,fill", "something to inject"),
            ("fault=150%", "a rate: a percentage"),
            ("fault=2", "a rate"),
            ("fault=-1%", "a rate"),
            ("fault=nan", "a rate"),
            ("fault=inf", "a rate"),
            ("retry=1%/5", "a burst such as burst:5"),
            ("retry=1%/burst:0", "a burst such as burst:5"),
            ("delay=5", "a time such as 500ns"),
            ("delay=99999999999s", "a time such as"),
            ("status=0", "a status: a code from 0x01"),
            ("status=0x40", "a status"),
            ("status=oops", "a name such as hardware-read-error"),
            ("status=0x13@oops", "an operation: nop, batch"),
            ("halt=0", "the number of a submission"),
            ("page=0x2000-0x1000", "a range of them"),
            ("page=zz", "an address"),
            ("op=move,shuffle", "an operation: nop"),
            ("op=0x40", "an operation"),
            ("seed=x", "a seed"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
        assert_eq!(parse("fault=150%").unwrap_err().to_string(), format!("'150%' is not {RATE}"));
    }

    #[test]
    fn the_help_names_every_key() {
        for key in ["fault=", "page=", "retry=", "delay=", "reorder=", "status=", "lose=", "halt=", "op=", "seed="] {
            assert!(LANGUAGE.contains(&format!("\n  {key}")), "{key}");
        }
    }
}
