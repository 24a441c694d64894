//! What a call costs on the CPU: by the recording's calibration curves, and scaled to the machine of the profile.

use telpher_abi::Opcode;
use telpher_recording::{Access, Calibration, CurvePoint, Operation, Temperature};
use telpher_sim::{DataState, Machine};

/// Bounds of a scale. Source: chosen; no two machines differ more, and a damaged curve may have any numbers.
const SCALES: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// Fresh data that is not slower than cold data by this factor was not measured well. Source: chosen; a page fault
/// takes longer than reading its page.
const APART: f64 = 1.2;

/// Costs of calls on the recorded machine and on that of the profile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs<'a> {
    calibration: &'a Calibration,
    /// The profile's machine; `None` if the recorded times hold for it.
    machine: Option<&'a Machine>,
}

impl<'a> Costs<'a> {
    pub(super) fn new(calibration: &'a Calibration, machine: Option<&'a Machine>) -> Self {
        Costs { calibration, machine }
    }

    fn curve(&self, operation: Operation) -> &'a [CurvePoint] {
        match operation.access() {
            Access::Copy => &self.calibration.copy,
            Access::Fill => &self.calibration.fill,
            Access::Compare => &self.calibration.compare,
        }
    }

    /// The time of a call by the calibration curve, in nanoseconds; `None` without such a value.
    pub(super) fn by_curve(&self, operation: Operation, bytes: u64, temperature: Temperature) -> Option<f64> {
        let of = |point: &CurvePoint| {
            let ps = match temperature {
                Temperature::Hot => point.hot_ps,
                Temperature::Cold => point.cold_ps,
                Temperature::Fresh => point.fresh_ps,
            };
            (ps > 0 && point.len > 0).then(|| (log2(point.len), f64::from(ps)))
        };
        let points = self.curve(operation).iter().filter_map(of);
        let at = log2(bytes.max(1));
        // The neighbours at or below and above, whatever the order of the points.
        let below = points.clone().filter(|point| point.0 <= at).max_by(|a, b| a.0.total_cmp(&b.0));
        let above = points.filter(|point| point.0 > at).min_by(|a, b| a.0.total_cmp(&b.0));
        let ps = match (below, above) {
            (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (at - x0) / (x1 - x0),
            (Some((_, only)), None) | (None, Some((_, only))) => only,
            (None, None) => return None,
        };
        Some(ps * float(bytes) / 1e3)
    }

    /// A judged temperature, or cold instead of fresh where the calibration cannot tell them apart.
    pub(super) fn usable(&self, operation: Operation, bytes: u64, temperature: Temperature) -> Temperature {
        let [cold, fresh] =
            [Temperature::Cold, Temperature::Fresh].map(|temperature| self.by_curve(operation, bytes, temperature));
        let are_apart = cold.zip(fresh).is_none_or(|(cold, fresh)| fresh > cold * APART);
        if temperature == Temperature::Fresh && !are_apart { Temperature::Cold } else { temperature }
    }

    /// The time of the slowest data by the curves.
    pub(super) fn slowest(&self, operation: Operation, bytes: u64) -> Option<f64> {
        let times = Temperature::ALL.iter().filter_map(|temperature| self.by_curve(operation, bytes, *temperature));
        times.max_by(f64::total_cmp)
    }

    /// The temperature whose curve is nearest to a time, for calls that were not judged one by one.
    pub(super) fn judge(&self, operation: Operation, bytes: u64, ns: f64) -> Option<Temperature> {
        let distance = |temperature: &Temperature| {
            let curve = self.by_curve(operation, bytes, *temperature)?;
            let ratio = (ns / curve).ln().abs();
            ratio.is_finite().then_some((ratio, *temperature))
        };
        Temperature::ALL.iter().filter_map(distance).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, nearest)| nearest)
    }

    /// The factor from a call's time on the recorded machine to its time on the profile's.
    pub(super) fn scale(&self, operation: Operation, bytes: u64, temperature: Option<Temperature>) -> f64 {
        let Some((machine, temperature)) = self.machine.zip(temperature) else { return 1.0 };
        let Some(recorded) = self.by_curve(operation, bytes, temperature) else { return 1.0 };
        let state = match temperature {
            Temperature::Hot => DataState::Cached,
            Temperature::Cold => DataState::InMemory,
            Temperature::Fresh => DataState::Unmapped,
        };
        // Larger calls cost the same for each byte.
        let bytes_there = bytes.min(LARGEST);
        let there = machine.core_time(opcode(operation), bytes_there, state).as_nanos_f64();
        let scale = there / float(bytes_there.max(1)) / (recorded / float(bytes.max(1)));
        if scale.is_finite() && scale > 0.0 { scale.clamp(*SCALES.start(), *SCALES.end()) } else { 1.0 }
    }
}

/// Beyond this size, a call costs the same for each byte. Source: chosen; far beyond all caches.
const LARGEST: u64 = 1 << 34;

/// The device's operation for a call.
pub(super) fn opcode(operation: Operation) -> Opcode {
    match operation.access() {
        Access::Copy => Opcode::MemoryMove,
        Access::Fill => Opcode::Fill,
        Access::Compare => Opcode::Compare,
    }
}

/// A count of calls or bytes, or nanoseconds, as a number for ratios.
#[allow(clippy::cast_precision_loss, reason = "16 digits are enough for ratios")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

fn log2(bytes: u64) -> f64 {
    float(bytes).log2()
}

/// `part / whole`, if that is a number.
pub(super) fn ratio(part: f64, whole: f64) -> Option<f64> {
    // The sum of no numbers is minus zero; plus zero it is zero.
    Some(part / whole + 0.0).filter(|ratio| ratio.is_finite() && whole > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calibration(copy: Vec<CurvePoint>) -> Calibration {
        Calibration { copy, fill: Vec::new(), compare: Vec::new(), timer_ns: 0.0 }
    }

    fn points() -> Vec<CurvePoint> {
        vec![
            CurvePoint { len: 4096, hot_ps: 20, cold_ps: 100, fresh_ps: 0 },
            CurvePoint { len: 65536, hot_ps: 40, cold_ps: 80, fresh_ps: 400 },
        ]
    }

    #[test]
    fn a_curve_is_interpolated_between_its_points_and_constant_beyond() {
        let calibration = calibration(points());
        let costs = Costs::new(&calibration, None);
        let of = |bytes, temperature| costs.by_curve(Operation::Memcpy, bytes, temperature);
        assert_eq!(of(2048, Temperature::Hot), Some(2048.0 * 0.020));
        assert_eq!(of(16384, Temperature::Hot), Some(16384.0 * 0.030));
        assert_eq!(of(1 << 20, Temperature::Cold), Some(1_048_576.0 * 0.080));
        // The only measured value.
        assert_eq!(of(4096, Temperature::Fresh), Some(4096.0 * 0.400));
        assert_eq!(costs.by_curve(Operation::Memset, 4096, Temperature::Hot), None);
        assert_eq!(of(0, Temperature::Hot), Some(0.0));
    }

    #[test]
    fn a_time_is_judged_by_the_nearest_curve() {
        let calibration = calibration(points());
        let costs = Costs::new(&calibration, None);
        let of = |ns| costs.judge(Operation::Memcpy, 4096, ns);
        assert_eq!([of(90.0), of(390.0)], [Some(Temperature::Hot), Some(Temperature::Cold)]);
        assert_eq!((of(f64::NAN), of(0.0)), (None, None));
    }

    #[test]
    fn fresh_data_that_is_as_fast_as_cold_data_counts_as_cold() {
        let poor = CurvePoint { len: 65536, hot_ps: 20, cold_ps: 150, fresh_ps: 100 };
        for (curve, expected) in [(vec![poor], Temperature::Cold), (points(), Temperature::Fresh)] {
            let calibration = calibration(curve);
            let costs = Costs::new(&calibration, None);
            assert_eq!(costs.usable(Operation::Memcpy, 65536, Temperature::Fresh), expected);
            assert_eq!(costs.usable(Operation::Memcpy, 65536, Temperature::Hot), Temperature::Hot);
        }
    }

    #[test]
    fn a_scale_makes_a_calibrated_call_as_fast_as_the_profile_s_core() {
        let (calibration, machine) = (calibration(points()), Machine::built_in("spr-asplos").unwrap());
        let costs = Costs::new(&calibration, Some(&machine));
        for (bytes, temperature, state) in [
            (65536, Temperature::Cold, DataState::InMemory),
            (16384, Temperature::Hot, DataState::Cached),
            (65536, Temperature::Fresh, DataState::Unmapped),
        ] {
            let recorded = costs.by_curve(Operation::Memcpy, bytes, temperature).unwrap();
            let scaled = recorded * costs.scale(Operation::Memcpy, bytes, Some(temperature));
            let there = machine.core_time(Opcode::MemoryMove, bytes, state).as_nanos_f64();
            assert!((scaled / there - 1.0).abs() < 1e-9, "{scaled} {there}");
        }
        assert_eq!(costs.scale(Operation::Memcpy, 65536, None), 1.0);
        assert_eq!(costs.scale(Operation::Memset, 65536, Some(Temperature::Cold)), 1.0);
        assert_eq!(Costs::new(&calibration, None).scale(Operation::Memcpy, 65536, Some(Temperature::Cold)), 1.0);
    }
}
