//! Families of samples, and their text in the formats of Prometheus and of OpenMetrics.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as PrometheusUnit};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use telpher_metrics::Unit;

/// What a family's samples are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FamilyKind {
    /// Totals that only grow.
    Counter,
    /// Values that grow and shrink.
    Gauge,
    /// Numbers by range of a value.
    Histogram,
    /// Labels without a value.
    Info,
}

impl FamilyKind {
    /// Returns the word for it in Prometheus' text format, which has no infos.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge | FamilyKind::Info => "gauge",
            FamilyKind::Histogram => "histogram",
        }
    }
}

/// The description of a family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Definition {
    /// Its name without unit and without `_total` and `_info`.
    pub stem: Cow<'static, str>,
    /// Its kind.
    pub kind: FamilyKind,
    /// Its unit.
    pub unit: Unit,
    /// A sentence.
    pub help: Cow<'static, str>,
}

impl Definition {
    /// Describes a family of this program.
    #[must_use]
    pub const fn new(stem: &'static str, kind: FamilyKind, unit: Unit, help: &'static str) -> Definition {
        Definition { stem: Cow::Borrowed(stem), kind, unit, help: Cow::Borrowed(help) }
    }

    /// Returns the name of its samples; those of a histogram have one more suffix.
    #[must_use]
    pub fn name(&self) -> String {
        let end = match self.kind {
            FamilyKind::Counter => "_total",
            FamilyKind::Info => "_info",
            FamilyKind::Gauge | FamilyKind::Histogram => "",
        };
        format!("{}{}{end}", self.stem, self.unit.suffix())
    }
}

/// Labels: names and values.
pub type Labels = Vec<(Cow<'static, str>, String)>;

/// The value of a sample.
#[derive(Clone, PartialEq, Debug)]
pub enum Sample {
    /// A whole number.
    Whole(u64),
    /// Another number.
    Real(f64),
    /// Labels without a value.
    Info,
    /// Numbers by range.
    Histogram {
        /// The sum of all values.
        sum: f64,
        /// For each range its upper limit and its number.
        buckets: Vec<(f64, u64)>,
    },
}

/// Families by name, each with its samples by labels.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Families(BTreeMap<String, (Definition, BTreeMap<Labels, Sample>)>);

impl Families {
    /// Adds a sample. A family never has two samples with the same labels: numbers are added up, and of others the last
    /// one stays. Returns false if the name has another definition; the sample is left out.
    pub fn add(&mut self, definition: &Definition, labels: Labels, sample: Sample) -> bool {
        let family = self.0.entry(definition.name()).or_insert_with(|| (definition.clone(), BTreeMap::new()));
        if family.0 != *definition {
            return false;
        }
        match (family.1.get_mut(&labels), sample) {
            (Some(Sample::Whole(sum)), Sample::Whole(more)) => *sum = sum.saturating_add(more),
            (Some(Sample::Real(sum)), Sample::Real(more)) => *sum += more,
            (_, sample) => drop(family.1.insert(labels, sample)),
        }
        true
    }

    /// The number of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.0.values().map(|(_, samples)| samples.len()).sum()
    }

    /// Returns the text in a format.
    #[must_use]
    pub fn text(self, format: TextFormat) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        let written = match format {
            TextFormat::Prometheus => prometheus_text::encode(&mut text, &registry),
            TextFormat::OpenMetrics => text::encode(&mut text, &registry),
        };
        written.expect("a string grows");
        text
    }
}

/// The formats of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextFormat {
    /// Prometheus' own, version 0.0.4.
    Prometheus,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
}

impl TextFormat {
    /// Returns the value of the header `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            TextFormat::Prometheus => prometheus_text::CONTENT_TYPE,
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (definition, samples) in self.0.values() {
            let unit = match definition.unit {
                Unit::Count => None,
                Unit::Bytes => Some(PrometheusUnit::Bytes),
                Unit::Seconds => Some(PrometheusUnit::Seconds),
                Unit::Ticks => Some(PrometheusUnit::Other("ticks".into())),
            };
            let kind = match definition.kind {
                FamilyKind::Counter => MetricType::Counter,
                FamilyKind::Gauge => MetricType::Gauge,
                FamilyKind::Histogram => MetricType::Histogram,
                FamilyKind::Info => MetricType::Info,
            };
            let mut family = encoder.encode_descriptor(&definition.stem, &definition.help, unit.as_ref(), kind)?;
            for (labels, sample) in samples {
                if *sample == Sample::Info {
                    family.encode_info(labels)?;
                    continue;
                }
                let mut metric = family.encode_family(labels)?;
                match (definition.kind, sample) {
                    (FamilyKind::Counter, Sample::Whole(value)) => {
                        metric.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                    }
                    (FamilyKind::Counter, Sample::Real(value)) => {
                        metric.encode_counter::<NoLabelSet, _, u64>(value, None)?;
                    }
                    (_, Sample::Whole(value)) => metric.encode_gauge(value)?,
                    (_, Sample::Real(value)) => metric.encode_gauge(value)?,
                    (_, Sample::Histogram { sum, buckets }) => {
                        let count = buckets.iter().fold(0, |sum: u64, (_, number)| sum.saturating_add(*number));
                        metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)?;
                    }
                    (_, Sample::Info) => {}
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Families {
        let mut families = Families::default();
        let labels = |value: &str| vec![(Cow::Borrowed("wq"), value.to_owned())];
        let bytes = Definition::new("dsa_wq_read", FamilyKind::Counter, Unit::Bytes, "Bytes read.");
        assert!(families.add(&bytes, labels("wq0.0"), Sample::Whole(3)));
        assert!(families.add(&bytes, labels("wq0.0"), Sample::Whole(u64::MAX)));
        assert!(families.add(&bytes, labels("a\"b\\c\nd"), Sample::Whole(1)));
        let other = Definition { help: "Other.".into(), ..bytes };
        assert!(!families.add(&other, labels("wq0.1"), Sample::Whole(1)), "one family has one description");
        let info = Definition::new("dsa_device", FamilyKind::Info, Unit::Count, "A device.");
        assert!(families.add(&info, labels("wq0.0"), Sample::Info));
        let times = Definition::new("dsa_execution", FamilyKind::Histogram, Unit::Seconds, "Times.");
        let buckets = vec![(1e-9, 2), (f64::INFINITY, 1)];
        assert!(families.add(&times, labels("wq0.0"), Sample::Histogram { sum: 0.5, buckets }));
        families
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let prometheus = families().text(TextFormat::Prometheus);
        let expected = "\
# HELP dsa_device_info A device.
# TYPE dsa_device_info gauge
dsa_device_info{wq=\"wq0.0\"} 1
# HELP dsa_execution_seconds Times.
# TYPE dsa_execution_seconds histogram
dsa_execution_seconds_bucket{wq=\"wq0.0\",le=\"1e-09\"} 2
dsa_execution_seconds_bucket{wq=\"wq0.0\",le=\"+Inf\"} 3
dsa_execution_seconds_sum{wq=\"wq0.0\"} 0.5
dsa_execution_seconds_count{wq=\"wq0.0\"} 3
# HELP dsa_wq_read_bytes_total Bytes read.
# TYPE dsa_wq_read_bytes_total counter
dsa_wq_read_bytes_total{wq=\"a\\\"b\\\\c\\nd\"} 1
dsa_wq_read_bytes_total{wq=\"wq0.0\"} 18446744073709551615
";
        assert_eq!(prometheus, expected);
        let open = families().text(TextFormat::OpenMetrics);
        assert!(open.ends_with("# EOF\n") && open.contains("# UNIT dsa_wq_read_bytes bytes\n"), "{open}");
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples(&open), samples(&prometheus));
    }
}
