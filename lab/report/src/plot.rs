//! Charts of figures as SVG fragments: lines, bars and stacks over sizes, counts or names, with published numbers as
//! marks.
//!
//! Drawn with placeholder colours like [`chart`](crate::chart), which become variables of the page's style sheet.

use crate::chart::{Area, Axis, GRID, INK, STYLES, linear_axis, log_axis, placeholder, recolour, whole};
use crate::hover::{self, Hover};
use crate::panel::{At, Axis as Meaning, Origin, Panel, Scale, Series, Shape};
use crate::units;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Pixels of a chart; it scales with the page.
const SIZE: (u32, u32) = (560, 340);

type Cartesian<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// Returns the colour of each series' name: a published series has the colour of the simulated series with which it is
/// compared.
#[must_use]
pub fn colours(panel: &Panel) -> Vec<(usize, &str)> {
    let mut names: Vec<&str> = Vec::new();
    for series in &panel.series {
        if !names.contains(&series.name.as_str()) {
            names.push(&series.name);
        }
    }
    // Colour 0 is for axes and marks.
    names.into_iter().enumerate().map(|(number, name)| (1 + number % (STYLES - 1), name)).collect()
}

fn colour(panel: &Panel, name: &str) -> RGBColor {
    placeholder(colours(panel).into_iter().find(|it| it.1 == name).map_or(1, |it| it.0))
}

/// Maps a value to a position on an axis of this kind.
fn place(value: f64, scale: &Scale) -> f64 {
    match scale {
        Scale::Linear | Scale::Names(_) => value,
        Scale::Log => value.log10(),
        Scale::Binary => value.log2(),
    }
}

fn label(axis: &Meaning) -> String {
    // Ticks of sizes carry their units.
    let unit = if axis.scale == Scale::Binary { "" } else { axis.unit };
    if unit.is_empty() { axis.label.clone() } else { format!("{}, {unit}", axis.label) }
}

/// Returns the chart; empty if there is nothing to draw.
#[must_use]
pub fn svg(panel: &Panel) -> String {
    let points = || panel.series.iter().flat_map(|series| &series.points);
    if points().next().is_none() {
        return String::new();
    }
    let (mut svg, mut hovers) = (String::new(), Vec::new());
    {
        let root: Area<'_> = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let (along, upward) = (along(panel), upward(panel));
        let built = ChartBuilder::on(&root)
            .margin(8)
            .x_label_area_size(50)
            .y_label_area_size(72)
            .build_cartesian_2d(along.clone(), upward.clone());
        if let Ok(mut chart) = built {
            let text = ("sans-serif", 15).into_font().color(&INK);
            let tick = |value: f64| tick(value, &panel.y);
            let _ = chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(GRID.stroke_width(1))
                .axis_style(INK.stroke_width(1))
                .x_desc(label(&panel.x))
                .y_desc(label(&panel.y))
                .axis_desc_style(text.clone())
                .label_style(text)
                .x_label_formatter(&|x| name(*x, &panel.x))
                .y_label_formatter(&|y| tick(*y))
                .draw();
            ranges(&mut chart, panel, &along.range, &upward.range);
            hovers = match panel.shape {
                Shape::Lines => lines(&mut chart, panel),
                Shape::Bars => bars(&mut chart, panel, false),
                Shape::Stacks => bars(&mut chart, panel, true),
            };
            marks(&mut chart, panel, &along.range, &upward.range);
        }
        let _ = root.present();
    }
    hover::add(&recolour(svg), &hovers)
}

/// Returns the text of a point or a bar.
fn text(panel: &Panel, series: &Series, (x, y): (f64, f64)) -> String {
    let published = if series.origin == Origin::Published { " (published)" } else { "" };
    let x = name(place(x, &panel.x.scale), &panel.x);
    let x_unit = if matches!(panel.x.scale, Scale::Linear | Scale::Log) { panel.x.unit } else { "" };
    let x = if x_unit.is_empty() { x } else { format!("{x} {x_unit}") };
    let y = place(y, &panel.y.scale);
    hover::text(&format!("{}{published}", series.name), &x, &label(&panel.y), &tick(y, &panel.y))
}

/// Returns the label of a vertical tick.
fn tick(at: f64, axis: &Meaning) -> String {
    match axis.scale {
        Scale::Linear | Scale::Names(_) => units::trimmed(at),
        Scale::Log => units::trimmed(10f64.powf(at)),
        Scale::Binary => counted(2f64.powf(at), axis),
    }
}

/// Returns the label of a horizontal tick.
fn name(at: f64, axis: &Meaning) -> String {
    match &axis.scale {
        Scale::Linear => units::trimmed(at),
        Scale::Log => units::trimmed(10f64.powf(at)),
        Scale::Binary => counted(2f64.powf(at), axis),
        Scale::Names(names) => {
            usize::try_from(whole(at)).ok().and_then(|at| names.get(at)).cloned().unwrap_or_default()
        }
    }
}

/// Formats a power of two: a size with its unit, or a count.
#[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a size or a count")]
fn counted(value: f64, axis: &Meaning) -> String {
    if axis.unit == "B" { units::size(value.round() as u64) } else { units::trimmed(value.round()) }
}

/// Returns the horizontal axis: a tick for every position while there is room, otherwise fewer, starting from the last.
fn along(panel: &Panel) -> Axis {
    let scale = &panel.x.scale;
    let mut places: Vec<f64> =
        panel.series.iter().flat_map(|series| &series.points).map(|point| place(point.0, scale)).collect();
    places.sort_unstable_by(f64::total_cmp);
    places.dedup();
    let (first, last) = (places.first().copied().unwrap_or(0.0), places.last().copied().unwrap_or(1.0));
    let room = match scale {
        Scale::Names(_) => 0.6,
        _ => ((last - first) * 0.06).max(0.05),
    };
    let most = if matches!(scale, Scale::Names(_)) { 12 } else { 8 };
    let every = places.len().div_ceil(most);
    let ticks = places.iter().rev().step_by(every.max(1)).copied().collect();
    Axis { range: first - room..last + room, ticks }
}

/// Returns the values that must be visible.
fn heights(panel: &Panel) -> Vec<f64> {
    let levels = panel.marks.iter().flat_map(|mark| match mark.at {
        At::Level(level) => vec![level],
        At::Levels(low, high) => vec![low, high],
        At::Place(_) | At::Places(..) => Vec::new(),
    });
    let mut heights: Vec<f64> = match panel.shape {
        Shape::Stacks => {
            let mut sums: Vec<(f64, f64)> = Vec::new();
            for (x, y) in panel.series.iter().flat_map(|series| &series.points) {
                match sums.iter_mut().find(|sum| (sum.0 - x).abs() < 1e-9) {
                    Some(sum) => sum.1 += y,
                    None => sums.push((*x, *y)),
                }
            }
            sums.into_iter().map(|sum| sum.1).collect()
        }
        Shape::Lines | Shape::Bars => panel.series.iter().flat_map(|s| &s.points).map(|point| point.1).collect(),
    };
    heights.extend(levels);
    if panel.marks.iter().any(|mark| matches!(mark.at, At::Place(_) | At::Places(..))) {
        // Room for their names.
        let highest = heights.iter().copied().fold(0.0, f64::max);
        heights.push(highest * 1.06);
    }
    heights
}

fn upward(panel: &Panel) -> Axis {
    let heights = heights(panel);
    match panel.y.scale {
        Scale::Log => log_axis(&heights.into_iter().filter(|height| *height > 0.0).collect::<Vec<_>>()),
        _ => linear_axis(&heights),
    }
}

/// Draws a line's points. Where lines coincide, the marks of all are visible: those of later lines are larger, and not
/// filled.
fn points(chart: &mut Cartesian<'_, '_>, points: Vec<(f64, f64)>, number: usize, colour: RGBColor) {
    let thin = colour.stroke_width(1);
    let _ = match number % MARKS {
        0 => chart.draw_series(points.into_iter().map(|at| Circle::new(at, 3, colour.filled()))).map(drop),
        1 => {
            let square = |at| EmptyElement::at(at) + Rectangle::new([(-4, -4), (4, 4)], thin);
            chart.draw_series(points.into_iter().map(square)).map(drop)
        }
        2 => chart.draw_series(points.into_iter().map(|at| TriangleMarker::new(at, 7, thin))).map(drop),
        3 => chart.draw_series(points.into_iter().map(|at| Cross::new(at, 5, thin))).map(drop),
        _ => {
            let diamond = |at| EmptyElement::at(at) + PathElement::new(DIAMOND.to_vec(), thin);
            chart.draw_series(points.into_iter().map(diamond)).map(drop)
        }
    };
}

/// Different marks of lines. Published points have another one, an open circle.
const MARKS: usize = 5;

const DIAMOND: [(i32, i32); 5] = [(0, -8), (8, 0), (0, 8), (-8, 0), (0, -8)];

/// Pixels of a bar whose value is zero.
const FLAT: u32 = 3;

/// Drawing into a string cannot fail, so results are ignored.
fn lines(chart: &mut Cartesian<'_, '_>, panel: &Panel) -> Vec<Hover> {
    let (mut simulated, mut hovers) = (0, Vec::new());
    for series in &panel.series {
        for &(x, y) in &series.points {
            let at = (place(x, &panel.x.scale), place(y, &panel.y.scale));
            if at.1.is_finite() {
                hovers.push(Hover::point(chart.backend_coord(&at), text(panel, series, (x, y))));
            }
        }
        let placed = series.points.iter().map(|(x, y)| (place(*x, &panel.x.scale), place(*y, &panel.y.scale)));
        let placed: Vec<(f64, f64)> = placed.filter(|point| point.1.is_finite()).collect();
        let colour = colour(panel, &series.name);
        match series.origin {
            Origin::Simulated => {
                let _ = chart.draw_series(LineSeries::new(placed.clone(), colour.stroke_width(2)));
                points(chart, placed, simulated, colour);
                simulated += 1;
            }
            Origin::Published => {
                let _ =
                    chart.draw_series(placed.into_iter().map(|point| Circle::new(point, 6, colour.stroke_width(1))));
            }
        }
    }
    hovers
}

/// Draws the bars at each position, side by side or stacked. Published ones are outlines.
fn bars(chart: &mut Cartesian<'_, '_>, panel: &Panel, stacked: bool) -> Vec<Hover> {
    let beside = if stacked { 1 } else { panel.series.len().max(1) };
    #[allow(clippy::cast_precision_loss, reason = "a few bars")]
    let width = 0.76 / beside as f64;
    let (mut bottoms, mut hovers): (Vec<(f64, f64)>, Vec<Hover>) = (Vec::new(), Vec::new());
    for (number, series) in panel.series.iter().enumerate() {
        let colour = colour(panel, &series.name);
        for (x, y) in &series.points {
            #[allow(clippy::cast_precision_loss, reason = "a few bars")]
            let left = x - 0.38 + if stacked { 0.0 } else { width * number as f64 };
            let found = bottoms.iter().position(|bottom| (bottom.0 - x).abs() < 1e-9);
            let bottom = found.filter(|_| stacked).map_or(0.0, |at| bottoms[at].1);
            let right = left + width * 0.94;
            if !stacked && *y == 0.0 {
                let _ = chart.draw_series([PathElement::new([(left, 0.0), (right, 0.0)], colour.stroke_width(FLAT))]);
            }
            let corners = [(left, bottom), (right, bottom + y)];
            let style = if series.origin == Origin::Published { colour.stroke_width(2) } else { colour.filled() };
            let _ = chart.draw_series([Rectangle::new(corners, style)]);
            let corners = corners.map(|corner| chart.backend_coord(&corner));
            hovers.push(Hover::area(corners, text(panel, series, (*x, *y))));
            match found {
                Some(at) => bottoms[at].1 += y,
                None => bottoms.push((*x, *y)),
            }
        }
    }
    hovers
}

/// Draws published ranges behind the data.
fn ranges(chart: &mut Cartesian<'_, '_>, panel: &Panel, x: &std::ops::Range<f64>, y: &std::ops::Range<f64>) {
    for mark in &panel.marks {
        let corners = match mark.at {
            At::Levels(low, high) => {
                [(x.start, place(low, &panel.y.scale)), (x.end, place(high, &panel.y.scale).min(y.end))]
            }
            At::Places(from, to) => [(place(from, &panel.x.scale), y.start), (place(to, &panel.x.scale), y.end)],
            At::Level(_) | At::Place(_) => continue,
        };
        let _ = chart.draw_series([Rectangle::new(corners, INK.mix(0.12).filled())]);
    }
}

/// Draws published numbers as dashed lines with their claims.
fn marks(chart: &mut Cartesian<'_, '_>, panel: &Panel, x: &std::ops::Range<f64>, y: &std::ops::Range<f64>) {
    let mut drawn = Vec::new();
    for mark in &panel.marks {
        let (line, at) = match mark.at {
            At::Level(level) => {
                let level = place(level, &panel.y.scale);
                (Some(vec![(x.start, level), (x.end, level)]), (x.start, level))
            }
            At::Place(at) => {
                let at = place(at, &panel.x.scale);
                (Some(vec![(at, y.start), (at, y.end)]), (at, y.end))
            }
            At::Levels(low, high) => {
                (None, (x.start, f64::midpoint(place(low, &panel.y.scale), place(high, &panel.y.scale).min(y.end))))
            }
            At::Places(from, to) => {
                (None, (f64::midpoint(place(from, &panel.x.scale), place(to, &panel.x.scale)), y.end))
            }
        };
        if let Some(line) = line {
            let _ = chart.draw_series(DashedLineSeries::new(line, 5, 4, INK.stroke_width(1)));
        }
        drawn.push((mark.claim, at, matches!(mark.at, At::Level(_) | At::Levels(..))));
    }
    for (claim, at, level) in drawn {
        // Above a horizontal line at the left, or next to a vertical one at the top.
        let (anchor, shift) = if level {
            (Pos::new(HPos::Left, VPos::Bottom), (4, -2))
        } else {
            (Pos::new(HPos::Left, VPos::Top), (4, 2))
        };
        let style = ("sans-serif", 13).into_font().color(&INK).pos(anchor);
        let _ = chart.draw_series([EmptyElement::at(at) + Text::new(claim, shift, style)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel::Mark;

    fn panel(shape: Shape, scale: Scale) -> Panel {
        let series =
            |name: &str, origin, points: &[(f64, f64)]| Series { name: name.into(), origin, points: points.into() };
        let x = Meaning { label: "transfer size".into(), unit: "B", scale };
        Panel {
            title: "one".into(),
            x,
            y: Meaning { label: "throughput".into(), unit: "GB/s", scale: Scale::Linear },
            shape,
            series: vec![
                series("copy", Origin::Simulated, &[(1.0, 3.0), (2.0, 9.0)]),
                series("fill", Origin::Simulated, &[(1.0, 4.0), (2.0, 8.0)]),
                series("copy", Origin::Published, &[(1.0, 3.1), (2.0, 9.5)]),
            ],
            marks: vec![Mark { claim: "K-1", at: At::Level(12.0) }, Mark { claim: "K-2", at: At::Places(1.0, 2.0) }],
        }
    }

    #[test]
    fn every_chart_has_axes_with_units_and_the_page_s_colours() {
        let names = Scale::Names(vec!["none".into(), "core".into(), "device".into()]);
        for (shape, scale, tick) in [
            (Shape::Lines, Scale::Binary, "2 B"),
            (Shape::Bars, names.clone(), "device"),
            (Shape::Stacks, names, "core"),
        ] {
            let svg = svg(&panel(shape, scale));
            for word in ["throughput, GB/s", "transfer size", tick, "var(--s1)", "var(--s2)"] {
                assert!(svg.contains(word), "{shape:?}: {word} is missing in {svg}");
            }
            assert!(!svg.contains("#0102") && !svg.contains("NaN"), "{svg}");
            assert_eq!(svg.matches("<title>").count(), 6, "{svg}");
            assert!(svg.contains("copy (published), ") && svg.contains(": throughput 3.1 GB/s<"), "{svg}");
        }
    }

    #[test]
    fn lines_that_coincide_have_different_marks() {
        let mut panel = panel(Shape::Lines, Scale::Binary);
        panel.marks.clear();
        let one = panel.series[0].clone();
        let of = |count: usize| (0..count).map(|number| Series { name: number.to_string(), ..one.clone() }).collect();
        let mut seen = Vec::new();
        for count in 1..=MARKS + 1 {
            panel.series = of(count);
            let svg = svg(&panel);
            seen.push(["<circle", "<rect", "<polygon", "<polyline"].map(|shape| svg.matches(shape).count()));
        }
        // Each of the first five adds a shape of its own to its line; the sixth begins again.
        let added: Vec<Vec<usize>> =
            seen.windows(2).map(|two| two[1].iter().zip(two[0]).map(|(now, before)| now - before).collect()).collect();
        assert_eq!(added.last().unwrap()[0], 2, "{added:?}");
        assert!(added[..MARKS - 1].iter().all(|shapes| shapes[0] == 0), "{added:?}");
    }

    #[test]
    fn a_bar_of_zero_is_visible() {
        let mut panel = panel(Shape::Bars, Scale::Names(vec!["none".into(), "core".into(), "device".into()]));
        panel.marks.clear();
        let flat = |svg: String| svg.matches("stroke-width=\"3\"").count();
        assert_eq!(flat(svg(&panel)), 0);
        panel.series[0].points[0].1 = 0.0;
        assert_eq!(flat(svg(&panel)), 1);
    }

    #[test]
    fn published_points_have_the_colour_of_their_simulated_series() {
        assert_eq!(colours(&panel(Shape::Lines, Scale::Binary)), [(1, "copy"), (2, "fill")]);
    }

    #[test]
    fn a_published_level_is_drawn_with_its_claim() {
        let svg = svg(&panel(Shape::Lines, Scale::Binary));
        assert!(svg.contains(">\nK-1\n<") && svg.contains(">\nK-2\n<"), "{svg}");
        assert!(svg.contains(">\n10\n<"), "the axis ends below the level: {svg}");
    }

    #[test]
    fn an_empty_chart_is_an_empty_string() {
        let mut panel = panel(Shape::Lines, Scale::Binary);
        panel.series.clear();
        assert_eq!(svg(&panel), "");
    }
}
