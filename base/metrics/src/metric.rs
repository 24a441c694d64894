//! The description of a value: name, kind, unit, help.

/// How a value changes over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// It only grows. The difference of two snapshots is what happened between them.
    Counter,
    /// It grows and shrinks.
    Gauge,
}

/// The unit of a value. Except for [`Unit::Count`], the metric's name ends in the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Unit {
    /// A number of things that the name names: packets, jobs, pages of 4 KiB.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds in the cells and in [`Record::words`](crate::Record::words). Exporters divide by 10⁹, because names
    /// in Prometheus have base units.
    Seconds,
    /// Ticks of the processor's time stamp counter.
    Ticks,
}

/// The description of one value. The macro [`metrics!`](crate::metrics!) writes it, and checks it when it is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name in Prometheus, such as `telpher_cache_hits_total`.
    pub name: &'static str,
    /// The name of the field in its struct.
    pub field: &'static str,
    /// A label and its value. Metrics with the same name differ in the label's value.
    pub label: Option<(&'static str, &'static str)>,
    /// How it changes over time.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// What it counts, in a sentence.
    pub help: &'static str,
}

impl Kind {
    /// Returns the word for it in Prometheus' text format.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<Kind> {
        [Kind::Counter, Kind::Gauge].into_iter().find(|kind| kind.word() == word)
    }
}

impl Unit {
    /// All units.
    pub const ALL: [Unit; 4] = [Unit::Count, Unit::Bytes, Unit::Seconds, Unit::Ticks];

    /// Returns the end of the names of metrics with this unit; empty for a count.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Unit::Count => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
            Unit::Ticks => "_ticks",
        }
    }

    /// Returns the word for it in OpenMetrics; empty for a count.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.suffix().trim_start_matches('_')
    }

    pub(crate) fn from_word(word: &str) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.word() == word)
    }
}

impl Metric {
    /// Returns the rule that the description breaks; `None` if it breaks none.
    ///
    /// Names consist of lower-case letters, digits and single underscores, and begin with `telpher_`. Then follow the
    /// unit, and `_total` for counters. Help and labels need no escape in Prometheus' text format.
    #[must_use]
    pub const fn broken_rule(&self) -> Option<&'static str> {
        broken_rule(self.name, self.kind, self.unit, self.label, self.help)
    }
}

/// Returns the rule that a description breaks, see [`Metric::broken_rule`].
pub(crate) const fn broken_rule(
    name: &str,
    kind: Kind,
    unit: Unit,
    label: Option<(&str, &str)>,
    help: &str,
) -> Option<&'static str> {
    let name = name.as_bytes();
    if !begins_with(name, b"telpher_") {
        return Some("the name does not begin with telpher_");
    }
    if !is_word(name) {
        return Some("the name has other characters than lower-case letters, digits and single underscores");
    }
    let stem = match (kind, ends_with(name, b"_total")) {
        (Kind::Counter, true) => name.split_at(name.len() - "_total".len()).0,
        (Kind::Counter, false) => return Some("the name of a counter does not end in _total"),
        (Kind::Gauge, true) => return Some("the name of a gauge ends in _total"),
        (Kind::Gauge, false) => name,
    };
    let mut at = 0;
    while at < Unit::ALL.len() {
        let other = Unit::ALL[at];
        let named = !other.suffix().is_empty() && ends_with(stem, other.suffix().as_bytes());
        if named != (other as u8 == unit as u8 && !matches!(unit, Unit::Count)) {
            return Some("the name and the unit differ");
        }
        at += 1;
    }
    if let Some((key, value)) = label {
        if !is_word(key.as_bytes()) {
            return Some("the label's name is no word");
        }
        if value.is_empty() || !is_plain(value.as_bytes()) {
            return Some("the label's value is empty or has a quote, a backslash or a control character");
        }
    }
    let help = help.as_bytes();
    if !ends_with(help, b".") || !is_plain(help) {
        return Some("the help is no sentence, or has a quote, a backslash or a control character");
    }
    None
}

const fn begins_with(text: &[u8], start: &[u8]) -> bool {
    text.len() >= start.len() && equals(text.split_at(start.len()).0, start)
}

const fn ends_with(text: &[u8], end: &[u8]) -> bool {
    text.len() >= end.len() && equals(text.split_at(text.len() - end.len()).1, end)
}

const fn equals(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Returns whether the text is lower-case letters, digits and single underscores, from a letter to a letter or digit.
const fn is_word(text: &[u8]) -> bool {
    let mut before = b'_';
    let mut at = 0;
    while at < text.len() {
        let fits = match text[at] {
            b'a'..=b'z' => true,
            b'0'..=b'9' => at > 0,
            b'_' => before != b'_',
            _ => false,
        };
        if !fits {
            return false;
        }
        before = text[at];
        at += 1;
    }
    before != b'_'
}

/// Returns whether the text has no quote, backslash or control character.
const fn is_plain(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        if matches!(text[at], b'"' | b'\\' | 0..=31 | 127) {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const GOOD: Metric = Metric {
        name: "telpher_cache_copied_bytes_total",
        field: "bytes_copied",
        label: None,
        kind: Kind::Counter,
        unit: Unit::Bytes,
        help: "Bytes of copies.",
    };

    #[test]
    fn a_good_description_breaks_no_rule() {
        assert_eq!(GOOD.broken_rule(), None);
        let gauge = Metric { name: "telpher_cache_entries", kind: Kind::Gauge, unit: Unit::Count, ..GOOD };
        assert_eq!(gauge.broken_rule(), None);
        assert_eq!(Metric { label: Some(("reason", "a chain's end")), ..GOOD }.broken_rule(), None);
    }

    #[test]
    fn every_rule_is_checked() {
        let named = |name| Metric { name, ..GOOD };
        let bad = [
            named("cache_copied_bytes_total"),
            named("telpher_"),
            named("telpher_cache__bytes_total"),
            named("telpher_Cache_bytes_total"),
            named("telpher_cache-bytes_total"),
            named("telpher_cache_copied_bytes"),
            named("telpher_cache_copied_total"),
            named("telpher_cache_copied_seconds_total"),
            Metric { unit: Unit::Count, ..GOOD },
            Metric { unit: Unit::Ticks, ..GOOD },
            Metric { kind: Kind::Gauge, ..GOOD },
            Metric { label: Some(("Reason", "a")), ..GOOD },
            Metric { label: Some(("reason", "")), ..GOOD },
            Metric { label: Some(("reason", "a\"b")), ..GOOD },
            Metric { help: "Bytes", ..GOOD },
            Metric { help: "A\nB.", ..GOOD },
        ];
        for metric in bad {
            assert!(metric.broken_rule().is_some(), "{metric:?}");
        }
    }

    #[test]
    fn words_of_kinds_and_units_are_read_as_they_are_written() {
        for kind in [Kind::Counter, Kind::Gauge] {
            assert_eq!(Kind::from_word(kind.word()), Some(kind));
        }
        for unit in Unit::ALL {
            assert_eq!(Unit::from_word(unit.word()), Some(unit));
        }
        assert_eq!((Kind::from_word("histogram"), Unit::from_word("miles")), (None, None));
    }
}
