//! Every published figure about the device, drawn anew in simulated time.
//!
//! ```text
//! Sheet (id, title) ──draw──► Figure { panels: axes, series, marks · facts: what the prose says, what was simulated }
//!                      │ Pen: Scenario ──simulate──► Outcome ──► points
//! ```
//!
//! The documents' plots are pictures; what they showed is known only from their prose. Each figure says what that is, where it
//! stands, and whether what is drawn here agrees.

mod asplos;
mod pen;

use std::sync::Mutex;
use telpher_sim::ScenarioError;

/// What stands under every chart whose plot was not printed as numbers.
pub const FROM_PROSE: &str = "What the plot showed is known only from the prose.";

/// A figure that can be drawn.
#[derive(Clone, Copy, Debug)]
pub struct Sheet {
    /// What commands and files call it: `asplos-3`.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The document and its own name of the figure.
    pub source: &'static str,
    draw: fn(&mut pen::Pen) -> Result<Drawing, ScenarioError>,
}

/// What a sheet's own code gives: the rest is the same for all.
#[derive(Debug)]
struct Drawing {
    how: &'static str,
    panels: Vec<Panel>,
    facts: Vec<Fact>,
}

/// A figure with its data. Series are simulated, but those that say that they were published.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// What commands and files call it.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The document and its own name of the figure.
    pub source: &'static str,
    /// What was simulated.
    pub how: &'static str,
    /// Which machines, by name and hash, in the order of their names.
    pub profiles: Vec<Profile>,
    /// Its charts.
    pub panels: Vec<Panel>,
    /// What was published about it.
    pub facts: Vec<Fact>,
}

/// A machine whose numbers were used.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// Which parameters these were.
    pub hash: u64,
}

/// One chart.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    /// What is told apart from the figure's other charts; empty where there is one.
    pub title: String,
    /// Along.
    pub x: Axis,
    /// Upward.
    pub y: Axis,
    /// How its series are drawn.
    pub shape: Shape,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Published numbers.
    pub marks: Vec<Mark>,
}

/// What an axis means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// What.
    pub label: String,
    /// In what; empty for names and plain ratios.
    pub unit: &'static str,
    /// How values map to places.
    pub scale: Scale,
}

/// How values map to places on an axis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scale {
    /// From zero.
    Linear,
    /// By powers of ten.
    Log,
    /// By powers of two: sizes and counts.
    Binary,
    /// One place for each name; values are their numbers.
    Names(Vec<String>),
}

/// How the series of a chart are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Each a line.
    Lines,
    /// Bars beside each other.
    Bars,
    /// Bars above each other: the series are parts of a whole.
    Stacks,
}

/// Points that belong together.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// What it is.
    pub name: String,
    /// Where its numbers are from.
    pub origin: Origin,
    /// Along and upward.
    pub points: Vec<(f64, f64)>,
}

/// Where numbers are from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// From the simulator.
    Simulated,
    /// From the document.
    Published,
}

/// A published number in a chart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Mark {
    /// Which of the figure's facts it is, from 0.
    pub fact: usize,
    /// Where.
    pub at: At,
}

/// Where a published number is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum At {
    /// At this height.
    Level(f64),
    /// At this place of the horizontal axis.
    Place(f64),
    /// Between two heights.
    Levels(f64, f64),
    /// Between two places.
    Places(f64, f64),
}

/// What was published, and what came of it here.
#[derive(Clone, PartialEq, Debug)]
pub struct Fact {
    /// Where it stands: `§4.2`.
    pub place: &'static str,
    /// What it says, in other words.
    pub says: &'static str,
    /// What is seen here.
    pub simulated: String,
    /// Whether that agrees; `None` where there is nothing to compare.
    pub agrees: Option<bool>,
}

impl Figure {
    /// Facts that what was simulated disagrees with.
    pub fn remarks(&self) -> impl Iterator<Item = &Fact> {
        self.facts.iter().filter(|fact| fact.agrees == Some(false))
    }
}

impl Fact {
    /// The letter that marks it in charts.
    #[must_use]
    pub fn letter(number: usize) -> char {
        u8::try_from(number).ok().and_then(|number| b'a'.checked_add(number)).map_or('?', char::from)
    }
}

impl Series {
    /// Its height where it has a point.
    #[must_use]
    pub fn at(&self, x: f64) -> Option<f64> {
        self.points.iter().find(|point| (point.0 - x).abs() < 1e-9).map(|point| point.1)
    }

    /// Its highest point.
    #[must_use]
    pub fn peak(&self) -> f64 {
        self.points.iter().map(|point| point.1).fold(0.0, f64::max)
    }

    /// From where on it stays at or above a height, between the points by the logarithm of the place; `None` if it ends below.
    #[must_use]
    pub fn reaches(&self, height: f64) -> Option<f64> {
        let last_below = self.points.iter().rposition(|point| point.1 < height);
        let Some(below) = last_below else { return self.points.first().map(|point| point.0) };
        let ((x0, y0), (x1, y1)) = (self.points[below], *self.points.get(below + 1)?);
        Some(x0 * (x1 / x0).powf((height - y0) / (y1 - y0)))
    }
}

/// Every figure that can be drawn, in the order of the documents.
pub fn sheets() -> impl Iterator<Item = &'static Sheet> {
    [asplos::SHEETS].into_iter().flatten()
}

/// Draws figures on so many threads; the same figures for any number of them.
///
/// # Errors
/// What the simulator says of a scenario.
pub fn draw(sheets: &[&Sheet], threads: usize) -> Result<Vec<Figure>, ScenarioError> {
    let next = Mutex::new(sheets.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let take = || next.lock().expect("nobody panics with the list").next();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, sheets.len().max(1)) {
            scope.spawn(|| {
                while let Some((number, sheet)) = take() {
                    let figure = sheet.figure();
                    done.lock().expect("nobody panics with the figures").push((number, figure));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("nobody panics with the figures");
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, figure)| figure).collect()
}

impl Sheet {
    /// Draws it.
    ///
    /// # Errors
    /// What the simulator says of a scenario.
    pub fn figure(&self) -> Result<Figure, ScenarioError> {
        let mut pen = pen::Pen::default();
        let Drawing { how, panels, facts } = (self.draw)(&mut pen)?;
        let profiles = pen.profiles();
        Ok(Figure { id: self.id, title: self.title, source: self.source, how, profiles, panels, facts })
    }
}

#[cfg(test)]
mod tests;
