//! One table of a profile, read key by key: each key must be present, possible and known.

use super::ProfileError;
use crate::picos::Picos;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The text of a profile and its name in errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    /// The line, from 1, in which `span` begins.
    pub(crate) fn line(&self, span: &Range<usize>) -> usize {
        let end = span.start.min(self.text.len());
        self.text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

/// One layer's share of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer<'a> {
    source: Source<'a>,
    /// Line in which it begins.
    line: usize,
    table: &'a DeTable<'a>,
}

impl<'a> Layer<'a> {
    /// The layer of a whole text.
    pub(crate) fn new(source: Source<'a>, document: &'a Spanned<DeTable<'a>>) -> Self {
        Layer { source, line: 1, table: document.get_ref() }
    }
}

/// A table and the keys that were read from it. Missing keys of a layer are taken from the next one: a profile, its
/// base, the base's base. Tables are merged over all layers; a list is that of the first layer that has it.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    /// Name in errors: `device` or `op.fill`; empty for the file.
    name: String,
    /// At least one layer.
    layers: Vec<Layer<'a>>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Section<'a> {
    pub(crate) fn new(name: String, layers: Vec<Layer<'a>>) -> Self {
        Section { name, layers, asked: RefCell::default() }
    }

    /// The key with the name of its table.
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    /// The value of a key, and its layer.
    fn entry(&self, key: &str) -> Option<(&Layer<'a>, &'a Spanned<DeValue<'a>>)> {
        self.layers.iter().find_map(|layer| Some((layer, layer.table.get(key)?)))
    }

    fn find(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.entry(key).map(|(_, value)| value)
    }

    fn missing(&self, key: &str, expected: &str) -> ProfileError {
        // The last layer: no other layer can supply the key.
        let layer = self.layers[self.layers.len() - 1];
        ProfileError::Missing {
            file: layer.source.file.to_owned(),
            line: layer.line,
            key: self.path(key),
            expected: expected.to_owned(),
        }
    }

    /// An error about the value of a key.
    pub(crate) fn wrong(&self, key: &str, what: impl Into<String>) -> ProfileError {
        let (source, line) = match self.entry(key) {
            Some((layer, value)) => (layer.source, layer.source.line(&value.span())),
            None => (self.layers[0].source, self.layers[0].line),
        };
        ProfileError::Impossible { file: source.file.to_owned(), line, key: self.path(key), what: what.into() }
    }

    /// Reads a number within a range.
    pub(crate) fn number(&self, key: &str, possible: RangeInclusive<f64>, unit: &str) -> Result<f64, ProfileError> {
        let expected = || format!("a number from {} to {} {unit}", possible.start(), possible.end());
        let value = self.find(key).ok_or_else(|| self.missing(key, &expected()))?;
        let text = match value.get_ref() {
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str(),
            DeValue::Float(float) => float.as_str(),
            other => return Err(self.wrong(key, format!("is {}, not {}", other.type_str(), expected()))),
        };
        match text.replace('_', "").parse::<f64>() {
            Ok(number) if possible.contains(&number) => Ok(number),
            _ => Err(self.wrong(key, format!("is {text}, not {}", expected()))),
        }
    }

    /// Reads a time, in nanoseconds.
    pub(crate) fn nanos(&self, key: &str) -> Result<Picos, ProfileError> {
        self.number(key, 0.0..=1e8, "ns").map(Picos::from_nanos_f64)
    }

    /// Reads a rate, in gigabytes (1e9 bytes) per second.
    pub(crate) fn rate(&self, key: &str) -> Result<u64, ProfileError> {
        let rate = self.number(key, 0.001..=100_000.0, "GB/s")?;
        // Cannot lose anything: between 1e6 and 1e14.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range, see above")]
        Ok((rate * 1e9).round() as u64)
    }

    /// Reads an optional rate.
    pub(super) fn rate_if_there(&self, key: &str) -> Result<Option<u64>, ProfileError> {
        if self.has(key) { self.rate(key).map(Some) } else { Ok(None) }
    }

    /// Reads a whole number.
    pub(crate) fn count(&self, key: &str, possible: RangeInclusive<u32>, unit: &str) -> Result<u64, ProfileError> {
        let number = self.number(key, f64::from(*possible.start())..=f64::from(*possible.end()), unit)?;
        if number.fract() != 0.0 {
            return Err(self.wrong(key, format!("is {number}, not a whole number of {unit}")));
        }
        // Cannot lose anything: whole, and within a u32's range.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range, see above")]
        Ok(number as u64)
    }

    /// True if the key has a value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Reads an optional whole number.
    pub(crate) fn count_if_there(
        &self,
        key: &str,
        possible: RangeInclusive<u32>,
        unit: &str,
    ) -> Result<Option<u32>, ProfileError> {
        if self.find(key).is_none() {
            return Ok(None);
        }
        // Cannot fail: within a u32's range.
        self.count(key, possible, unit).map(|count| u32::try_from(count).ok())
    }

    /// Reads an optional boolean.
    pub(crate) fn flag_if_there(&self, key: &str) -> Result<Option<bool>, ProfileError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        value.get_ref().as_bool().map(Some).ok_or_else(|| self.wrong(key, "is neither true nor false"))
    }

    /// Reads a number of bytes, optionally with the suffix k, m or g.
    pub(crate) fn bytes(&self, key: &str, possible: RangeInclusive<u64>) -> Result<u64, ProfileError> {
        let expected = || format!("bytes from {} to {}, such as 4096 or \"4k\"", possible.start(), possible.end());
        let value = self.find(key).ok_or_else(|| self.missing(key, &expected()))?;
        let text = match value.get_ref() {
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().replace('_', ""),
            DeValue::String(text) => text.to_ascii_lowercase(),
            other => return Err(self.wrong(key, format!("is {}, not {}", other.type_str(), expected()))),
        };
        let digits = text.trim_end_matches(['k', 'm', 'g']);
        let shift = match &text[digits.len()..] {
            "" => Some(0),
            "k" => Some(10),
            "m" => Some(20),
            "g" => Some(30),
            _ => None,
        };
        let bytes = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
        bytes
            .filter(|bytes| possible.contains(bytes))
            .ok_or_else(|| self.wrong(key, format!("is {text}, not {}", expected())))
    }

    /// Reads an optional number of bytes.
    pub(crate) fn bytes_if_there(&self, key: &str, possible: RangeInclusive<u64>) -> Result<Option<u64>, ProfileError> {
        if self.find(key).is_none() { Ok(None) } else { self.bytes(key, possible).map(Some) }
    }

    /// Reads an optional list of texts with at least one element.
    pub(crate) fn texts_if_there(&self, key: &str) -> Result<Option<Vec<&'a str>>, ProfileError> {
        let Some(value) = self.find(key) else { return Ok(None) };
        let texts =
            value.get_ref().as_array().and_then(|list| list.iter().map(|item| item.get_ref().as_str()).collect());
        match texts {
            Some(texts) if !Vec::is_empty(&texts) => Ok(Some(texts)),
            _ => Err(self.wrong(key, "is not a list of texts")),
        }
    }

    /// Reads a text.
    pub(crate) fn text(&self, key: &str) -> Result<&'a str, ProfileError> {
        let value = self.find(key).ok_or_else(|| self.missing(key, "a text"))?;
        value.get_ref().as_str().ok_or_else(|| self.wrong(key, "is not a text"))
    }

    /// Reads an optional text.
    pub(crate) fn text_if_there(&self, key: &str) -> Result<Option<&'a str>, ProfileError> {
        if self.find(key).is_none() { Ok(None) } else { self.text(key).map(Some) }
    }

    /// Reads a list of whole numbers below `below`, with at least one element.
    pub(crate) fn indices(&self, key: &str, below: usize, of: &str) -> Result<Vec<usize>, ProfileError> {
        let value = self.find(key).ok_or_else(|| self.missing(key, &format!("a list of {of}, such as [0]")))?;
        let list = value.get_ref().as_array().ok_or_else(|| self.wrong(key, format!("is not a list of {of}")))?;
        let index = |item: &Spanned<DeValue<'_>>| {
            item.get_ref().as_integer().and_then(|integer| integer.as_str().parse().ok()).filter(|index| *index < below)
        };
        let indices: Option<Vec<usize>> = list.iter().map(index).collect();
        indices
            .filter(|indices| !indices.is_empty())
            .ok_or_else(|| self.wrong(key, format!("is not a list of {of}, each below {below}")))
    }

    /// Reads a table within this table.
    pub(crate) fn section(&self, key: &str) -> Result<Section<'a>, ProfileError> {
        self.section_if_there(key)?.ok_or_else(|| self.missing(key, "a table"))
    }

    /// Reads an optional table within this table.
    pub(crate) fn section_if_there(&self, key: &str) -> Result<Option<Section<'a>>, ProfileError> {
        self.asked.borrow_mut().insert(key.to_owned());
        let mut layers = Vec::new();
        for Layer { source, table, .. } in &self.layers {
            let Some(value) = table.get(key) else { continue };
            let table = value.get_ref().as_table().ok_or_else(|| self.wrong(key, "is not a table"))?;
            layers.push(Layer { source: *source, line: source.line(&value.span()), table });
        }
        Ok((!layers.is_empty()).then(|| Section::new(self.path(key), layers)))
    }

    /// All tables within this table, by name.
    pub(crate) fn sections(&self) -> Result<Vec<(&'a str, Section<'a>)>, ProfileError> {
        let keys: BTreeSet<&'a str> =
            self.layers.iter().flat_map(|layer| layer.table.keys()).map(|key| key.get_ref().as_ref()).collect();
        keys.into_iter().map(|key| Ok((key, self.section(key)?))).collect()
    }

    /// The tables of an array, at least one.
    pub(crate) fn list(&self, key: &str) -> Result<Vec<Section<'a>>, ProfileError> {
        self.asked.borrow_mut().insert(key.to_owned());
        let (layer, value) = self.entry(key).ok_or_else(|| self.missing(key, &format!("at least one [[{key}]]")))?;
        let not_tables = || self.wrong(key, "is not a list of tables");
        let list = value.get_ref().as_array().ok_or_else(not_tables)?;
        if list.is_empty() {
            return Err(self.wrong(key, "is empty"));
        }
        let item = |(index, item): (usize, &'a Spanned<DeValue<'a>>)| {
            let table = item.get_ref().as_table().ok_or_else(not_tables)?;
            let layer = Layer { source: layer.source, line: layer.source.line(&item.span()), table };
            Ok(Section::new(format!("{}[{index}]", self.path(key)), vec![layer]))
        };
        list.iter().enumerate().map(item).collect()
    }

    /// Returns an error for keys that were never read.
    pub(crate) fn end(self) -> Result<(), ProfileError> {
        let asked = self.asked.borrow();
        for Layer { source, table, .. } in &self.layers {
            if let Some(key) = table.keys().find(|key| !asked.contains(key.get_ref().as_ref())) {
                return Err(ProfileError::Unknown {
                    file: source.file.to_owned(),
                    line: source.line(&key.span()),
                    key: self.path(key.get_ref()),
                    known: asked.iter().cloned().collect::<Vec<_>>().join(", "),
                });
            }
        }
        Ok(())
    }
}
