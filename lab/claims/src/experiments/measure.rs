//! Measurements of experiments: rates, times, sizes at which two curves cross.

use crate::lab::Lab;
use crate::setups::{alone, by_core};
use telpher_abi::Opcode;
use telpher_sim::{AccessPattern, BufferPlacement, Scenario, ScenarioError, Stream};

/// Powers of two from 64 bytes to a mebibyte.
pub const SIZES: [u32; 15] =
    [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144, 524_288, 1_048_576];

/// Gigabytes a second of all loads together.
///
/// # Errors
/// The machine lacks something, or a device refuses something.
pub fn gigabytes(lab: &Lab, scenario: &Scenario) -> Result<f64, ScenarioError> {
    Ok(lab.run(scenario)?.loads.iter().map(|load| load.gigabytes_per_second()).sum())
}

/// Nanoseconds from the begin of a submission until its completion is seen, without preparation: the method of Kuper et
/// al. (§4.1, §4.2).
///
/// # Errors
/// The machine lacks something, or a device refuses something.
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub fn submit_and_wait(lab: &Lab, scenario: &Scenario) -> Result<f64, ScenarioError> {
    let outcome = lab.run(scenario)?;
    let timeline = &outcome.loads[0].timeline;
    Ok(timeline.latency().since(timeline.prepare).as_nanos_f64() / timeline.completed.max(1) as f64)
}

/// Gigabytes a second of operations one at a time, without preparation.
///
/// # Errors
/// The machine lacks something, or a device refuses something.
pub fn one_by_one_gigabytes(lab: &Lab, setup: Scenario, stream: Stream) -> Result<f64, ScenarioError> {
    let nanos = submit_and_wait(lab, &alone(setup, stream))?;
    Ok(f64::from(stream.size) * f64::from(stream.batch.max(1)) / nanos)
}

/// Nanoseconds of a single operation by a core, from and to these places.
///
/// # Errors
/// The machine lacks something.
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub fn core_alone(
    lab: &Lab,
    setup: Scenario,
    op: Opcode,
    size: u32,
    src: BufferPlacement,
    dst: BufferPlacement,
) -> Result<f64, ScenarioError> {
    let outcome = lab.run(&alone(setup, Stream { src, dst, ..by_core(op, size) }))?;
    Ok(outcome.took.as_nanos_f64() / outcome.loads[0].operations.max(1) as f64)
}

/// Nanoseconds of one of several consecutive operations by a core with this access pattern.
///
/// # Errors
/// The machine lacks something.
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub fn core_walks(
    lab: &Lab,
    setup: Scenario,
    op: Opcode,
    size: u32,
    walk: AccessPattern,
) -> Result<f64, ScenarioError> {
    let outcome = lab.run(&alone(setup, Stream { walk, ..by_core(op, size) }))?;
    Ok(outcome.took.as_nanos_f64() / outcome.loads[0].operations.max(1) as f64)
}

/// The size from which `gain` is 1 or more, interpolated logarithmically between two of `sizes`. Infinite if it never
/// is; the first of `sizes` if it always is.
///
/// # Errors
/// The errors of `gain`.
pub fn crossover(sizes: &[u32], mut gain: impl FnMut(u32) -> Result<f64, ScenarioError>) -> Result<f64, ScenarioError> {
    let mut before: Option<(f64, f64)> = None;
    for &size in sizes {
        let here = (f64::from(size), gain(size)?);
        if here.1 >= 1.0 {
            return Ok(match before {
                None => here.0,
                Some((size, gain)) => {
                    let part = -gain.ln() / (here.1.ln() - gain.ln());
                    (size.ln() + part * (here.0.ln() - size.ln())).exp()
                }
            });
        }
        before = Some(here);
    }
    Ok(f64::INFINITY)
}

/// True if no value is lower than the previous one by more than `slack` (a share).
#[must_use]
pub fn never_falls(values: &[f64], slack: f64) -> bool {
    values.windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - slack))
}

/// Values as text: `0.91 · 1.20 · 1.33`.
#[must_use]
pub fn listed(values: &[f64]) -> String {
    values.iter().map(|value| three(*value)).collect::<Vec<_>>().join(" · ")
}

/// Three digits.
#[must_use]
pub fn three(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "never".into(),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        // Zero gets no minus sign.
        v if v < 0.005 => "0".into(),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crossover_lies_logarithmically_between_two_sizes() {
        let gains = |gains: [f64; 3]| {
            let mut gains = gains.into_iter();
            crossover(&[1024, 2048, 4096], |_| Ok(gains.next().unwrap())).unwrap()
        };
        assert!((gains([0.25, 0.5, 2.0]) - 2896.3).abs() < 0.1);
        assert_eq!(gains([1.0, 2.0, 3.0]), 1024.0);
        assert_eq!(gains([0.1, 0.2, 0.3]), f64::INFINITY);
    }

    #[test]
    fn a_fall_is_one_beyond_the_slack() {
        assert!(never_falls(&[1.0, 0.995, 2.0], 0.01));
        assert!(!never_falls(&[1.0, 0.98, 2.0], 0.01));
    }
}
