//! Charts as SVG fragments that follow the page's light or dark colours.
//!
//! plotters draws with placeholder colours; afterwards each is replaced by a variable of the page's style sheet. Both
//! axes are mapped by hand (powers of two for sizes, powers of ten for values), so that every tick has the expected
//! label: `64 B`, `4 KiB`, not `10^3`. A browser shows the value of a point or a bar under the pointer.

use crate::hover::{self, Hover};
use crate::units;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use std::ops::Range;

/// Number of line styles the style sheet knows.
pub const STYLES: usize = 12;

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name that is shown with its values.
    pub name: String,
    /// Colour number, as in the legend.
    pub style: usize,
    /// A dashed line belongs to the solid line of the same colour.
    pub dashed: bool,
    /// Transfer size in bytes, value.
    pub points: Vec<(u64, f64)>,
}

/// The horizontal axis of most charts.
pub const TRANSFER: &str = "transfer size";

/// How values map to height.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Powers of ten.
    Log,
    /// From zero.
    Linear,
    /// Powers of ten if the values span decades, otherwise from zero.
    Fitting,
}

/// Values that differ by more than this factor span decades: on an axis from zero, the smallest would be at the zero.
/// Source: chosen.
const DECADES: f64 = 30.0;

/// Returns whether values span decades; without a positive value, or with another one, they do not.
fn span_decades(values: &[f64]) -> bool {
    let (low, high) = values.iter().fold((f64::MAX, 0.0), |(low, high), v| (v.min(low), v.max(high)));
    low > 0.0 && high > DECADES * low
}

/// A stacked bar: its size, and its parts from the bottom, each a style and a value.
pub type Bar = (u64, Vec<(usize, f64)>);

/// Pixels of a chart; it scales with the page.
const SIZE: (u32, u32) = (560, 330);

/// A drawing area of an SVG.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Cartesian<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// A linear axis with given ticks.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The range.
    pub range: Range<f64>,
    /// The ticks with a label.
    pub ticks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        from + whole(part * f64::from(to - from))
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// Returns the placeholder of style `n`: an otherwise unused colour.
pub fn placeholder(n: usize) -> RGBColor {
    RGBColor(1, 2, 100 + u8::try_from(n % STYLES).expect("fewer than 256 styles"))
}
/// The placeholder of axes and texts.
pub const INK: RGBColor = RGBColor(1, 2, 3);
/// The placeholder of grid lines.
pub const GRID: RGBColor = RGBColor(1, 2, 4);

/// Draws lines over sizes. The labels name the quantity and its unit, after a comma.
pub fn lines(series: &[Series], y_label: &str, x_label: &str, scale: Scale, tick: fn(f64) -> String) -> String {
    let all: Vec<(u64, f64)> = series.iter().flat_map(|s| &s.points).copied().filter(|p| p.1.is_finite()).collect();
    let scale = match scale {
        Scale::Fitting if span_decades(&all.iter().map(|p| p.1).collect::<Vec<_>>()) => Scale::Log,
        Scale::Fitting => Scale::Linear,
        scale => scale,
    };
    let finite = || all.iter().filter(|p| p.1 > 0.0 || scale == Scale::Linear);
    let mut sizes: Vec<u64> = finite().map(|p| p.0).collect();
    let values: Vec<f64> = finite().map(|p| p.1).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let size_of = |at: f64| name_of(&sizes, at);
    draw(&sizes, &values, [x_label, y_label], scale, tick, |chart| {
        let mut hovers = Vec::new();
        for s in series {
            let mut points: Vec<(f64, f64)> =
                s.points.iter().filter(|p| p.1.is_finite()).map(|&(x, y)| (log2(x), y)).collect();
            if scale == Scale::Log {
                points.retain(|p| p.1 > 0.0);
                points.iter_mut().for_each(|p| p.1 = p.1.log10());
            }
            let colour = placeholder(s.style);
            hovers.extend(points.iter().map(|point| {
                let value = if scale == Scale::Log { 10f64.powf(point.1) } else { point.1 };
                let text = hover::text(&s.name, &size_of(point.0), y_label, &tick(value));
                Hover::point(chart.backend_coord(point), text)
            }));
            if s.dashed {
                let _ = chart.draw_series(DashedLineSeries::new(points, 4, 4, colour.stroke_width(1)));
            } else {
                let _ = chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)));
                let _ = chart.draw_series(points.into_iter().map(|p| Circle::new(p, 3, colour.filled())));
            }
        }
        hovers
    })
}

/// Draws stacked bars over transfer sizes. `names` has the name of each style, as a legend does. If the sums of the
/// bars span decades, each bar is drawn as the shares of its sum: its parts cannot be stacked on a logarithmic axis.
pub fn bars(bars: &[Bar], names: &[(usize, &str)], y_label: &str, tick: fn(f64) -> String) -> String {
    let mut sizes: Vec<u64> = bars.iter().map(|b| b.0).collect();
    sizes.sort_unstable();
    let sums: Vec<f64> = bars.iter().map(|b| b.1.iter().map(|p| p.1).sum()).collect();
    let step = sizes.windows(2).map(|w| log2(w[1]) - log2(w[0])).fold(2.0, f64::min);
    let as_shares = span_decades(&sums);
    let share_label = format!("share of the {y_label}, %");
    let (heights, label, y_tick): (Vec<f64>, &str, fn(f64) -> String) =
        if as_shares { (vec![100.0], &share_label, units::trimmed) } else { (sums.clone(), y_label, tick) };
    draw(&sizes, &heights, [TRANSFER, label], Scale::Linear, y_tick, |chart| {
        let mut hovers = Vec::new();
        for ((size, parts), sum) in bars.iter().zip(&sums) {
            let (left, right) = (log2(*size) - 0.32 * step, log2(*size) + 0.32 * step);
            let mut bottom = 0.0;
            for (style, value) in parts {
                let height = if as_shares { 100.0 * value / sum } else { *value };
                let corners = [(left, bottom), (right, bottom + height)];
                let _ = chart.draw_series([Rectangle::new(corners, placeholder(*style).filled())]);
                bottom += height;
                let name = names.iter().find(|(of, _)| of == style).map_or("", |(_, name)| name);
                let text = hover::text(name, &name_of(&sizes, log2(*size)), y_label, &tick(*value));
                hovers.push(Hover::area(corners.map(|corner| chart.backend_coord(&corner)), text));
            }
        }
        hovers
    })
}

fn log2(size: u64) -> f64 {
    (size as f64).log2()
}

/// Pixels and decades: small numbers.
#[allow(clippy::cast_possible_truncation, reason = "a float as an integer saturates; charts are a few hundred pixels")]
pub fn whole(value: f64) -> i32 {
    value.round() as i32
}

/// Formats the size at a tick of the horizontal axis: in bytes if any size is not a multiple of a quarter of a larger
/// unit, as packet lengths are.
fn name_of(sizes: &[u64], tick: f64) -> String {
    let name = if sizes.iter().all(|&s| s < 1024 || s % 256 == 0) { units::size } else { |s| format!("{s} B") };
    sizes.iter().find(|s| (log2(**s) - tick).abs() < 1e-9).map_or(String::new(), |s| name(*s))
}

/// Returns the ticks of the horizontal axis, starting from the largest: every size that has room, without overlaps.
fn ticks_of(sizes: &[u64]) -> Vec<f64> {
    let every = sizes.len().div_ceil(7);
    let span = sizes.last().map_or(0.0, |s| log2(*s)) - sizes.first().map_or(0.0, |s| log2(*s)) + 2.0 * MARGIN;
    let mut ticks: Vec<f64> = Vec::new();
    for tick in sizes.iter().rev().step_by(every).map(|&s| log2(s)) {
        if ticks.last().is_none_or(|last| last - tick > span / 9.0) {
            ticks.push(tick);
        }
    }
    ticks
}

/// Margin of the horizontal axis before its first size and after its last, in powers of two.
const MARGIN: f64 = 0.8;

/// Draws axes, grid and labels; `inner` draws the data. Drawing into a string cannot fail, so results are ignored.
fn draw(
    sizes: &[u64],
    values: &[f64],
    labels: [&str; 2],
    scale: Scale,
    tick: fn(f64) -> String,
    inner: impl FnOnce(&mut Cartesian<'_, '_>) -> Vec<Hover>,
) -> String {
    let (Some(&first), Some(&last)) = (sizes.first(), sizes.last()) else { return String::new() };
    let y_axis = match scale {
        Scale::Log => log_axis(values),
        Scale::Linear | Scale::Fitting => linear_axis(values),
    };
    let x_axis = Axis { range: log2(first) - MARGIN..log2(last) + MARGIN, ticks: ticks_of(sizes) };
    let upward = |y: f64| tick(if scale == Scale::Log { 10f64.powf(y) } else { y });
    draw_on(x_axis, y_axis, labels, &|x| name_of(sizes, x), &upward, inner)
}

/// A line over seconds: its colour, its name and its points.
pub type TimeLine<'a> = (usize, &'a str, Vec<(f64, f64)>);

/// Draws lines over seconds, both axes from zero, which only the vertical one names. The label names the quantity and
/// its unit.
pub fn over_time(series: &[TimeLine<'_>], y_label: &str, tick: fn(f64) -> String) -> String {
    let points = || series.iter().flat_map(|(_, _, points)| points);
    if points().next().is_none() {
        return String::new();
    }
    let [times, values] =
        [|p: &(f64, f64)| p.0, |p: &(f64, f64)| p.1].map(|side| points().map(side).collect::<Vec<f64>>());
    let mut x_axis = linear_axis(&times);
    x_axis.ticks.retain(|tick| *tick > 0.0);
    draw_on(x_axis, linear_axis(&values), ["seconds", y_label], &units::trimmed, &tick, |chart| {
        let mut hovers = Vec::new();
        for (style, name, points) in series {
            let _ = chart.draw_series(LineSeries::new(points.iter().copied(), placeholder(*style).stroke_width(2)));
            hovers.extend(points.iter().map(|point| {
                let text = hover::text(name, &format!("{} s", units::trimmed(point.0)), y_label, &tick(point.1));
                Hover::point(chart.backend_coord(point), text)
            }));
        }
        hovers
    })
}

/// Draws given axes with tick labels, grid and labels; `inner` draws the data.
fn draw_on(
    x_axis: Axis,
    y_axis: Axis,
    [x_label, y_label]: [&str; 2],
    along: &dyn Fn(f64) -> String,
    upward: &dyn Fn(f64) -> String,
    inner: impl FnOnce(&mut Cartesian<'_, '_>) -> Vec<Hover>,
) -> String {
    let (mut svg, mut hovers) = (String::new(), Vec::new());
    {
        let root: Area<'_> = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let built = ChartBuilder::on(&root)
            .margin(8)
            .x_label_area_size(50)
            .y_label_area_size(72)
            .build_cartesian_2d(x_axis, y_axis);
        if let Ok(mut chart) = built {
            let text = ("sans-serif", 15).into_font().color(&INK);
            let _ = chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(GRID.stroke_width(1))
                .axis_style(INK.stroke_width(1))
                .x_desc(x_label)
                .y_desc(y_label)
                .axis_desc_style(text.clone())
                .label_style(text)
                .x_label_formatter(&|x| along(*x))
                .y_label_formatter(&|y| upward(*y))
                .draw();
            hovers = inner(&mut chart);
        }
        let _ = root.present();
    }
    hover::add(&recolour(svg), &hovers)
}

/// Returns decades around the values, with 2 and 5 between them if there are few.
pub fn log_axis(values: &[f64]) -> Axis {
    let logs = values.iter().map(|v| v.log10());
    let (low, high) = logs.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
    let (low, high) = (low - 0.08 * (high - low).max(0.5), high + 0.08 * (high - low).max(0.5));
    let steps: &[f64] = match high - low {
        d if d < 1.2 => &[1.0, 2.0, 3.0, 5.0, 7.0],
        d if d < 3.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let decades = whole(low.floor())..=whole(high.ceil());
    let ticks = decades.flat_map(|d| steps.iter().map(move |s| f64::from(d) + s.log10()));
    Axis { range: low..high, ticks: ticks.filter(|k| (low..=high).contains(k)).collect() }
}

/// Returns the range from zero to a round number above the values.
pub fn linear_axis(values: &[f64]) -> Axis {
    let high = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    let raw = high / 5.0;
    let decade = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|s| s * decade).find(|s| *s >= raw).unwrap_or(raw);
    Axis { range: 0.0..high, ticks: (0..=5).map(|i| f64::from(i) * step).filter(|k| *k <= high).collect() }
}

/// Replaces placeholders by variables of the page.
pub fn recolour(svg: String) -> String {
    let styles = (0..STYLES).map(|n| (placeholder(n), format!("var(--s{n})")));
    let fixed = [(INK, "var(--ink)".to_owned()), (GRID, "var(--grid)".to_owned())];
    styles.chain(fixed).fold(svg, |svg, (RGBColor(r, g, b), variable)| {
        let hex = format!("#{r:02X}{g:02X}{b:02X}");
        svg.replace(&format!("stroke=\"{hex}\""), &format!("style=\"stroke:{variable}\""))
            .replace(&format!("fill=\"{hex}\""), &format!("style=\"fill:{variable}\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<Series> {
        vec![Series {
            name: "CPU & co".into(),
            style: 0,
            dashed: false,
            points: vec![(64, 0.5), (4096, 5.0), (1 << 26, 12.0)],
        }]
    }

    #[test]
    fn axes_carry_sizes_and_the_unit() {
        let svg = lines(&sample(), "throughput, GB/s", TRANSFER, Scale::Log, units::trimmed);
        for label in ["64 B", "4 KiB", "64 MiB", "transfer size", "throughput, GB/s"] {
            assert!(svg.contains(label), "{label} is missing in {svg}");
        }
    }

    #[test]
    fn labels_of_packet_lengths_are_in_bytes_and_do_not_overlap() {
        let sizes = [64, 128, 256, 512, 1024, 1280, 1518];
        let names: Vec<String> = ticks_of(&sizes).into_iter().map(|tick| name_of(&sizes, tick)).collect();
        assert_eq!(names, ["1518 B", "512 B", "256 B", "128 B", "64 B"]);
        let powers = [64, 256, 1024, 4096, 16 << 10, 64 << 10, 256 << 10];
        assert_eq!(ticks_of(&powers).len(), powers.len());
        assert_eq!(name_of(&powers, 12.0), "4 KiB");
    }

    #[test]
    fn every_colour_is_a_variable_of_the_page() {
        for svg in [
            lines(&sample(), "y", TRANSFER, Scale::Linear, units::trimmed),
            bars(&[(64, vec![(0, 1.0), (1, 2.0)]), (256, vec![(0, 2.0)])], &[], "y", units::trimmed),
        ] {
            assert!(svg.contains("var(--s0)"), "{svg}");
            assert!(!svg.contains("#0102"), "{svg}");
        }
    }

    #[test]
    fn time_goes_from_zero_in_round_steps() {
        let svg = over_time(&[(0, "promoted", vec![(0.5, 1.0), (9.3, 4.0)])], "pages", units::trimmed);
        let words = svg.replace(['\n', ' '], "");
        for label in ["seconds", "pages", ">8<", "<title>promoted,9.3s:pages4<"] {
            assert!(words.contains(label), "{label} is missing in {svg}");
        }
        assert_eq!(words.matches(">0<").count(), 1, "the zero is repeated: {svg}");
        assert!(svg.contains("var(--s0)") && !svg.contains("#0102"), "{svg}");
    }

    #[test]
    fn no_data_yields_an_empty_string() {
        assert_eq!(over_time(&[(0, "", Vec::new())], "y", units::trimmed), "");
        assert_eq!(lines(&[], "y", TRANSFER, Scale::Log, units::trimmed), "");
    }

    #[test]
    fn values_that_cannot_be_drawn_are_omitted() {
        let points = vec![(64, f64::NAN), (256, 0.0), (1024, 3.0), (4096, 2.0)];
        let series = [Series { name: String::new(), style: 1, dashed: true, points }];
        assert!(lines(&series, "y", TRANSFER, Scale::Log, units::trimmed).contains("4 KiB"));
    }

    #[test]
    fn every_point_and_every_bar_has_its_value() {
        let svg = lines(&sample(), "throughput, GB/s", TRANSFER, Scale::Log, units::trimmed);
        assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
        assert!(svg.contains("<title>CPU &amp; co, 4 KiB: throughput 5 GB/s</title>"), "{svg}");
        let names = [(0, "submit"), (1, "wait")];
        let svg = bars(&[(64, vec![(0, 1.0), (1, 2.0)]), (256, vec![(0, 2.0)])], &names, "time", units::time);
        assert!(svg.contains("<title>wait, 64 B: time 2.00 ns</title>") && svg.contains("time"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
    }

    #[test]
    fn values_that_span_decades_are_logarithmic_or_shares() {
        let series = |high| {
            let points = vec![(64, 1.0), (4096, high)];
            [Series { name: String::new(), style: 1, dashed: false, points }]
        };
        let has_tick = |svg: &str, tick: &str| svg.split('\n').any(|line| line.trim() == tick);
        let drawn = |high| lines(&series(high), "y", TRANSFER, Scale::Fitting, units::trimmed);
        assert!(has_tick(&drawn(10.0), "0") && !has_tick(&drawn(1000.0), "0"), "{}", drawn(1000.0));
        let far_apart = [(64, vec![(0, 1.0), (1, 3.0)]), (4096, vec![(0, 1000.0)])];
        let svg = bars(&far_apart, &[(0, "submit"), (1, "wait")], "time", units::time);
        assert!(svg.contains("share of the time, %") && has_tick(&svg, "100"), "{svg}");
        assert!(svg.contains("<title>wait, 64 B: time 3.00 ns</title>"), "{svg}");
    }

    #[test]
    fn linear_axes_have_round_steps() {
        assert_eq!(linear_axis(&[9.3]).ticks, [0.0, 2.0, 4.0, 6.0, 8.0]);
    }
}
