//! What messages and receives are matched by.

use crate::request::TagMatch;

/// Numbers the sources of messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Source(pub(crate) u32);

/// What a message is matched by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageKey {
    pub(crate) source: Source,
    /// The tag, or `None` for an untagged message.
    pub(crate) tag: Option<u64>,
}

/// The messages that a receive takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Selector {
    /// The source, or `None` for any.
    pub(crate) from: Option<Source>,
    /// The tags, or `None` for untagged messages.
    pub(crate) tag: Option<TagMatch>,
}

/// The selectors that differ only in the values that they compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class {
    names_source: bool,
    is_tagged: bool,
    ignore: u64,
}

/// The values that the selectors of one class compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Compared {
    source: u32,
    tag: u64,
}

/// The source of a selector that takes any. No source has this number, since sources are counted.
const ANY: u32 = u32::MAX;

impl Selector {
    /// True if the receive takes the message.
    pub(crate) fn matches(&self, key: &MessageKey) -> bool {
        let tags = match (self.tag, key.tag) {
            (Some(wanted), Some(tag)) => (wanted.tag ^ tag) & !wanted.ignore == 0,
            (None, None) => true,
            _ => false,
        };
        tags && self.from.is_none_or(|from| from == key.source)
    }

    pub(super) fn class(&self) -> Class {
        Class {
            names_source: self.from.is_some(),
            is_tagged: self.tag.is_some(),
            ignore: self.tag.map_or(0, |tag| tag.ignore),
        }
    }

    pub(super) fn compared(&self) -> Compared {
        let source = self.from.map_or(ANY, |source| source.0);
        Compared { source, tag: self.tag.map_or(0, |tag| tag.tag & !tag.ignore) }
    }
}

impl Class {
    /// What the selectors of this class compare of a message; `None` if no selector of this class can match it.
    pub(super) fn compared(&self, key: &MessageKey) -> Option<Compared> {
        let source = if self.names_source { key.source.0 } else { ANY };
        let tag = key.tag.map_or(0, |tag| tag & !self.ignore);
        (self.is_tagged == key.tag.is_some()).then_some(Compared { source, tag })
    }
}
