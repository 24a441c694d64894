//! How messages between processes travel, as far as a tuning file says it. `telpher-fabric` sends them.

use serde::Deserialize;
use std::fmt::Write as _;

/// Lengths from which messages travel in another way. What is `None` keeps the default of the endpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MessageTuning {
    /// Messages up to this length travel inside the ring.
    pub eager_bytes: Option<u32>,
    /// Pieces of at least this length may be filled by non-temporal stores; `u64::MAX` for none.
    pub streaming_bytes: Option<u64>,
    /// Messages of at least this length may be read from the sender's memory; `u64::MAX` for none.
    pub pull_bytes: Option<u64>,
}

/// The shortest limit of messages in the ring: atomic operations and injected messages rely on it.
const LEAST_EAGER: u64 = 8 << 10;
/// The longest one. Source: chosen; a connection has room for sixteen such messages.
const MOST_EAGER: u64 = 64 << 10;

/// A length in the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Length {
    Bytes(u64),
    Word(String),
}

/// The section of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Section {
    eager_bytes: Option<Length>,
    streaming_bytes: Option<Length>,
    pull_bytes: Option<Length>,
}

impl Section {
    /// Checks the values. The error names the key and what is wrong.
    pub(super) fn check(self) -> Result<MessageTuning, (&'static str, String)> {
        let length = |name, length: Option<Length>| match length {
            None => Ok(None),
            Some(Length::Bytes(bytes)) => Ok(Some(bytes)),
            Some(Length::Word(word)) if word == "off" => Ok(Some(u64::MAX)),
            Some(Length::Word(word)) => Err((name, format!("'{word}' is neither a number of bytes nor \"off\""))),
        };
        let eager_bytes = length("eager-bytes", self.eager_bytes)?;
        if let Some(bytes) = eager_bytes.filter(|bytes| !(LEAST_EAGER..=MOST_EAGER).contains(bytes)) {
            let what = format!("{bytes} bytes; it is from {LEAST_EAGER} to {MOST_EAGER} bytes");
            return Err(("eager-bytes", what));
        }
        Ok(MessageTuning {
            eager_bytes: eager_bytes.and_then(|bytes| u32::try_from(bytes).ok()),
            streaming_bytes: length("streaming-bytes", self.streaming_bytes)?,
            pull_bytes: length("pull-bytes", self.pull_bytes)?,
        })
    }
}

impl MessageTuning {
    /// Writes the section, if it says anything.
    pub(super) fn write(&self, text: &mut String) {
        if *self == MessageTuning::default() {
            return;
        }
        text.push_str(
            "\n# Messages between processes (the provider for libfabric), in bytes, or \"off\". Those up to\n\
             # eager-bytes travel inside the ring. Pieces of streaming-bytes and more are filled by non-temporal\n\
             # stores, and messages of pull-bytes and more are read from the sender's memory, where that is\n\
             # measured to be faster.\n[messages]\n",
        );
        let lengths = [
            ("eager-bytes", self.eager_bytes.map(u64::from)),
            ("streaming-bytes", self.streaming_bytes),
            ("pull-bytes", self.pull_bytes),
        ];
        for (name, length) in lengths {
            // Writing to a string does not fail.
            let _ = match length {
                Some(u64::MAX) => writeln!(text, "{name} = \"off\""),
                Some(bytes) => writeln!(text, "{name} = {bytes}"),
                None => Ok(()),
            };
        }
    }
}
