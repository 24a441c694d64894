//! Texts that a browser shows for parts of a chart, while the pointer is over them.

use std::fmt::Write as _;

/// Escapes text for HTML and SVG.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A rectangle of a chart, in pixels, with a text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Hover {
    left: i32,
    top: i32,
    width: i32,
    height: i32,
    text: String,
}

/// Pixels around a point in which its text is shown.
const REACH: i32 = 7;

impl Hover {
    /// The surroundings of a point.
    pub(crate) fn point((x, y): (i32, i32), text: String) -> Self {
        Hover { left: x - REACH, top: y - REACH, width: 2 * REACH, height: 2 * REACH, text }
    }

    /// The rectangle between two corners; a flat one is as high as a line.
    pub(crate) fn area([one, other]: [(i32, i32); 2], text: String) -> Self {
        let (width, height) = ((one.0 - other.0).abs(), (one.1 - other.1).abs());
        Hover { left: one.0.min(other.0), top: one.1.min(other.1), width: width.max(1), height: height.max(1), text }
    }
}

/// Returns the text of a value. A label names a quantity, and its unit after a comma.
pub(crate) fn text(series: &str, place: &str, label: &str, value: &str) -> String {
    let value = match label.rsplit_once(", ") {
        Some((quantity, unit)) => format!("{quantity} {value} {unit}"),
        None => format!("{label} {value}"),
    };
    let names: Vec<&str> = [series, place].into_iter().filter(|name| !name.is_empty()).collect();
    format!("{}: {value}", names.join(", "))
}

/// Adds the texts to a drawing, above its shapes.
pub(crate) fn add(svg: &str, hovers: &[Hover]) -> String {
    let Some(drawing) = svg.trim_end().strip_suffix("</svg>") else { return svg.to_owned() };
    let mut out = drawing.to_owned();
    for Hover { left, top, width, height, text } in hovers {
        let _ = writeln!(
            out,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" \
             fill-opacity=\"0\"><title>{}</title></rect>",
            escape(text)
        );
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_stand_inside_the_drawing() {
        let hovers = [Hover::point((10, 20), "a < b".into()), Hover::area([(5, 9), (1, 9)], "flat".into())];
        let svg = add("<svg>\n</svg>\n", &hovers);
        assert!(svg.starts_with("<svg>\n<rect x=\"3\" y=\"13\" width=\"14\" height=\"14\""), "{svg}");
        assert!(svg.contains("<title>a &lt; b</title>") && svg.contains("width=\"4\" height=\"1\""), "{svg}");
        assert!(svg.ends_with("</rect>\n</svg>\n"), "{svg}");
        assert_eq!(add("", &hovers), "");
    }

    #[test]
    fn a_unit_follows_its_value() {
        assert_eq!(text("CPU", "4 KiB", "throughput, GB/s", "5"), "CPU, 4 KiB: throughput 5 GB/s");
        assert_eq!(text("", "4 KiB", "latency", "1 µs"), "4 KiB: latency 1 µs");
    }
}
