//! The data of a chart with axes of any meaning: simulated series, and published numbers beside them.

/// One chart.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// The name that distinguishes it from the figure's other charts; empty if there is only one.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// How its series are drawn.
    pub shape: Shape,
    /// The series.
    pub series: Vec<Series>,
    /// Published numbers.
    pub marks: Vec<Mark>,
}

/// What an axis means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Its quantity.
    pub label: String,
    /// Its unit; empty for names and plain ratios.
    pub unit: &'static str,
    /// Its scale.
    pub scale: Scale,
}

/// The scale of an axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic, by powers of ten.
    Log,
    /// Logarithmic, by powers of two: for sizes and counts.
    Binary,
    /// One position for each name; values are their numbers.
    Names(Vec<String>),
}

/// How the series of a chart are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A line for each.
    Lines,
    /// Grouped bars.
    Bars,
    /// Stacked bars: the series are parts of a whole.
    Stacks,
}

/// A series of points.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// The source of its numbers.
    pub origin: Origin,
    /// Horizontal and vertical values.
    pub points: Vec<(f64, f64)>,
}

/// The source of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The simulator.
    Simulated,
    /// The document.
    Published,
}

/// A published number in a chart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mark {
    /// Its claim.
    pub claim: &'static str,
    /// Its position.
    pub at: At,
}

/// The position of a published number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum At {
    /// A vertical value.
    Level(f64),
    /// A horizontal value.
    Place(f64),
    /// A range of vertical values.
    Levels(f64, f64),
    /// A range of horizontal values.
    Places(f64, f64),
}

impl Series {
    /// The vertical value of a series at a point, if it has one.
    #[must_use]
    pub fn at(&self, x: f64) -> Option<f64> {
        self.points.iter().find(|point| (point.0 - x).abs() < 1e-9).map(|point| point.1)
    }
}
