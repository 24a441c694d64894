//! Published results: claims by document, and raw series; numbers as printed, each with its source.

use serde::Deserialize;
use std::sync::LazyLock;

/// The use of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// A parameter was set from it: it proves nothing.
    Calibrate,
    /// Held out: no parameter was set from it.
    Validate,
    /// A measurement method.
    Setup,
    /// Not about the device.
    Context,
}

/// The subject of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum About {
    /// The device itself: throughput, latency, scaling, waiting for it.
    Device,
    /// Cores and caches besides the device.
    Host,
    /// A program that uses the device.
    Application,
}

/// How a claim can be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A number was printed.
    Number,
    /// A size from which one alternative is better than another.
    Crossover,
    /// An order or a shape; no number was printed.
    Shape,
}

/// The printed value.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// No number.
    #[default]
    None,
    /// One number.
    One(f64),
    /// Several numbers, or a range.
    Many(Vec<f64>),
}

/// A statement of a document that can be compared with a simulation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Its name: a letter for the document, and a number.
    pub id: String,
    /// Short name of the document.
    #[serde(skip)]
    pub document: String,
    /// Its position in the document.
    #[serde(rename = "where")]
    pub place: String,
    /// The statement in our words.
    pub says: String,
    /// Its subject.
    pub about: About,
    /// Its use.
    #[serde(rename = "use")]
    pub usage: Use,
    /// How it can be checked.
    pub kind: Kind,
    /// Relation of the number: `about`, `above`, `up to` …; empty for equality.
    #[serde(default)]
    pub relation: String,
    /// The number.
    #[serde(default)]
    pub value: Value,
    /// Its unit.
    #[serde(default)]
    pub unit: String,
    /// Bounds within which a simulated number holds, if not the number ± tolerance.
    pub accept: Option<(f64, f64)>,
    /// The tolerance in per cent.
    #[serde(default = "ten")]
    pub tolerance: f64,
    /// A break-even size from a sweep whose sizes double: the true size lies up to one step beside the printed one.
    #[serde(default)]
    pub doubles: bool,
    /// The comparison of its experiment.
    #[serde(default)]
    pub check: String,
    /// The number was computed from printed numbers.
    #[serde(default)]
    pub derived: bool,
    /// Notes.
    #[serde(default)]
    pub notes: String,
    /// The choices that were made with knowledge of a held-out claim; empty if none.
    #[serde(default)]
    pub seen: String,
}

fn ten() -> f64 {
    10.0
}

impl Claim {
    /// True if it is held out and influenced no choice.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.usage == Use::Validate && self.seen.is_empty()
    }

    /// Bounds within which a simulated number holds. A size from a sweep that doubles has one step of tolerance.
    #[must_use]
    pub fn bounds(&self) -> (f64, f64) {
        let (least, most) = self.bounds_without_step();
        match (self.doubles, &self.value) {
            (true, Value::One(value)) => (least.min(value / 2.0), most.max(value * 2.0)),
            (true, Value::Many(values)) => {
                let ends =
                    values.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), it| (low.min(*it), high.max(*it)));
                (least.min(ends.0 / 2.0), most.max(ends.1 * 2.0))
            }
            _ => (least, most),
        }
    }

    /// The same without the step of a sweep.
    #[must_use]
    pub fn bounds_without_step(&self) -> (f64, f64) {
        if let Some(bounds) = self.accept {
            return bounds;
        }
        let (least, most) = match &self.value {
            Value::None => return (f64::NEG_INFINITY, f64::INFINITY),
            Value::One(value) => (*value, *value),
            Value::Many(values) => {
                (values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(0.0, f64::max))
            }
        };
        let part = self.tolerance / 100.0;
        match self.relation.as_str() {
            "above" | "at least" => (least, f64::INFINITY),
            "below" | "far below" => (0.0, most),
            "just below" => (least * (1.0 - part), most),
            _ => (least * (1.0 - part), most * (1.0 + part)),
        }
    }

    /// True if the printed number is only a bound of the measured one.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        matches!(self.relation.as_str(), "above" | "at least" | "below" | "far below" | "just above")
    }

    /// Deviation of a simulated number from the printed one, as a share of that; `None` if only a bound or no number
    /// was printed. Inside a printed range it is 0.
    #[must_use]
    pub fn deviation(&self, simulated: f64) -> Option<f64> {
        if self.is_bound() {
            return None;
        }
        match &self.value {
            Value::One(value) if *value != 0.0 => Some(simulated / value - 1.0),
            Value::Many(values) if values.len() == 2 => Some(if simulated < values[0] {
                simulated / values[0] - 1.0
            } else if simulated > values[1] {
                simulated / values[1] - 1.0
            } else {
                0.0
            }),
            _ => None,
        }
    }
}

/// What executes the operations of a series.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutedBy {
    /// A device.
    Device,
    /// A core.
    Cpu,
}

/// Raw numbers by size.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Its name.
    pub id: String,
    /// How it was measured.
    pub says: String,
    /// What executes the operations.
    pub by: ExecutedBy,
    /// Its use.
    #[serde(rename = "use")]
    pub usage: Use,
    /// Engines of the device.
    pub engines: u32,
    /// Operation, by its name in the specification.
    pub op: String,
    /// Bytes of an operation.
    pub size: Vec<u32>,
    /// Microseconds of one operation, rounded to hundredths.
    #[serde(default)]
    pub time_us: Vec<f64>,
    /// MiB a second.
    pub mib_per_s: Vec<f64>,
    /// The rate of a core, if measured in addition.
    #[serde(default)]
    pub cpu_mib_per_s: Vec<f64>,
    /// The rate of the device with the library's optimisations.
    #[serde(default)]
    pub optimised_mib_per_s: Vec<f64>,
    /// What the simulator lacks where it is far off this series, in a few words; empty elsewhere.
    #[serde(default)]
    pub lacks: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(rename = "document")]
    _title: String,
    #[serde(default)]
    short: String,
    #[serde(default)]
    claim: Vec<Claim>,
    #[serde(default)]
    series: Vec<Series>,
}

const DOCUMENTS: [&str; 6] = [
    include_str!("../data/kuper.toml"),
    include_str!("../data/thesis.toml"),
    include_str!("../data/vhost.toml"),
    include_str!("../data/migration.toml"),
    include_str!("../data/abstract.toml"),
    include_str!("../data/lightdsa.toml"),
];

static ALL: LazyLock<(Vec<Claim>, Vec<Series>)> = LazyLock::new(|| {
    let mut all = (Vec::new(), Vec::new());
    for text in DOCUMENTS {
        let document: Document = toml::from_str(text).expect("built in, and read by a test");
        let short = document.short;
        all.0.extend(document.claim.into_iter().map(|claim| Claim { document: short.clone(), ..claim }));
        all.1.extend(document.series);
    }
    all
});

/// All claims, by document and number.
#[must_use]
pub fn claims() -> &'static [Claim] {
    &ALL.0
}

/// All raw series.
#[must_use]
pub fn series() -> &'static [Series] {
    &ALL.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_claim_is_unique_and_has_a_source() {
        let ids: BTreeSet<&str> = claims().iter().map(|claim| claim.id.as_str()).collect();
        assert_eq!((claims().len(), ids.len()), (171, 171));
        for claim in claims() {
            assert!(!claim.place.is_empty() && !claim.document.is_empty() && claim.says.len() > 8, "{}", claim.id);
            let (least, most) = claim.bounds();
            assert!(least <= most, "{}: {least} to {most}", claim.id);
        }
    }

    #[test]
    fn every_checkable_claim_has_a_comparison() {
        for claim in claims().iter().filter(|claim| matches!(claim.usage, Use::Calibrate | Use::Validate)) {
            match claim.kind {
                Kind::Shape => assert!(!claim.check.is_empty(), "{}", claim.id),
                Kind::Number | Kind::Crossover => assert_ne!(claim.value, Value::None, "{}", claim.id),
            }
        }
    }

    #[test]
    fn seen_claims_are_held_out_and_describe_the_choice() {
        for claim in claims().iter().filter(|claim| !claim.seen.is_empty()) {
            assert!(claim.usage == Use::Validate && claim.seen.split_whitespace().count() > 8, "{}", claim.id);
        }
        assert!(claims().iter().any(Claim::is_untouched) && claims().iter().any(|claim| !claim.seen.is_empty()));
    }

    #[test]
    fn one_step_of_a_sweep_is_allowed_where_sizes_double() {
        let stepped = claims().iter().filter(|claim| claim.doubles);
        let ids: Vec<&str> = stepped.clone().map(|claim| claim.id.as_str()).collect();
        assert_eq!(ids, ["K-021", "K-022", "K-035", "K-062", "K-064", "K-065", "K-080", "K-091"]);
        assert!(stepped.clone().all(|claim| claim.kind == Kind::Crossover && claim.unit == "bytes"));
        let claim = |id| claims().iter().find(|claim| claim.id == id).unwrap();
        assert_eq!(claim("K-035").bounds(), (2048.0, 20480.0));
        assert_eq!(claim("K-035").bounds_without_step(), (4096.0, 10240.0));
        assert_eq!(claim("K-080").bounds(), (16384.0, 65536.0));
        assert_eq!(claim("T-010").bounds(), claim("T-010").bounds_without_step());
    }

    /// A printed range is widened only by its rounding; a bound is not changed.
    #[test]
    fn a_printed_range_is_the_accepted_range() {
        for claim in claims().iter().filter(|claim| claim.usage == Use::Validate) {
            let (Value::Many(range), true) = (&claim.value, claim.kind != Kind::Shape) else { continue };
            let (least, most) = claim.bounds_without_step();
            assert!(
                range[0] - least <= 0.005 && most - range[range.len() - 1] <= 0.005,
                "{}: {least} to {most} for {range:?}",
                claim.id
            );
        }
    }

    #[test]
    fn a_number_holds_within_its_tolerance_and_a_bound_beyond_it() {
        let claim = |text: &str| -> Claim {
            let rest = "id = 'X'\nwhere = 'x'\nsays = 'x'\nabout = 'device'\nuse = 'validate'\nkind = 'number'\n";
            toml::from_str(&format!("{rest}{text}")).unwrap()
        };
        assert_eq!(claim("value = 100").bounds(), (90.0, 110.00000000000001));
        assert_eq!(claim("value = 100\ntolerance = 5").bounds().0, 95.0);
        assert_eq!(claim("value = 8\nrelation = 'above'").bounds(), (8.0, f64::INFINITY));
        assert_eq!(claim("value = [4, 8]\naccept = [4, 8]").bounds(), (4.0, 8.0));
        assert_eq!(claim("value = 100").deviation(103.0).map(|part| (part * 1e3).round()), Some(30.0));
        assert_eq!(claim("value = [4, 8]").deviation(6.0), Some(0.0));
        assert_eq!(claim("value = 8\nrelation = 'above'").deviation(9.0), None);
    }

    #[test]
    fn every_series_has_a_number_for_every_size() {
        assert_eq!(series().len(), 21);
        for series in series() {
            assert_eq!(series.size.len(), series.mib_per_s.len(), "{}", series.id);
            for others in [&series.time_us, &series.cpu_mib_per_s, &series.optimised_mib_per_s] {
                assert!(others.is_empty() || others.len() == series.size.len(), "{}", series.id);
            }
        }
    }
}
