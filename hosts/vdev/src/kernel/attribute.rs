//! One attribute is one row of a table: its name, since when there is one, how it shows, what a write must satisfy, what it
//! sets. The tables stand in `rows`.
//!
//! ```text
//! write ─► text ─► Check… (those that ask for no value) ─► value ─► Check… ─► set
//! ```

use super::{Abi, Kernel};
use crate::tree::Errno;
use telpher_model::Capabilities;

/// Which object's attribute: index of the device, and of the queue, group, engine, driver or open file in question.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Id {
    pub(crate) device: usize,
    pub(crate) index: usize,
}

/// A row.
#[derive(Debug)]
pub(crate) struct Attribute {
    pub(crate) name: &'static str,
    pub(crate) mode: u16,
    /// First flavour that has it.
    pub(crate) since: Abi,
    /// Devices that have it.
    pub(crate) visible: fn(&Capabilities) -> bool,
    show: Option<Show>,
    store: Option<Store>,
}

/// Makes an attribute's text.
pub(crate) type Show = fn(&Kernel, Id) -> Result<String, Errno>;

/// What a write does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Store {
    /// Reads a value, checks it, sets it.
    Value {
        /// How the text is read.
        kind: Kind,
        /// Looked at before the text is.
        before: &'static [Check],
        /// Looked at with the value.
        after: &'static [Check],
        set: fn(&mut Kernel, Id, &Input<'_>),
    },
    /// Does what the text says.
    Act(fn(&mut Kernel, Id, &str) -> Result<(), Errno>),
}

/// How a value is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Decimal, not negative.
    Decimal,
    /// Not negative: 0x hexadecimal, 0 octal, or decimal.
    AnyBase,
    /// Decimal, may be negative.
    Signed,
    /// y, n, 1, 0, on, off…
    Flag,
    /// As it stands.
    Text,
}

/// A value as written: its number (a flag is 0 or 1, a text 0) and its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) number: i128,
    pub(crate) text: &'a str,
}

/// A condition of a write, and the errno without it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    pub(crate) holds: fn(&Kernel, Id, &Input<'_>) -> bool,
    pub(crate) errno: Errno,
}

/// A condition that a row needs.
pub(crate) const fn check(errno: Errno, holds: fn(&Kernel, Id, &Input<'_>) -> bool) -> Check {
    Check { holds, errno }
}

/// A row of an attribute that is only read.
pub(crate) const fn read_only(name: &'static str, show: Show) -> Attribute {
    Attribute { name, mode: 0o444, since: Abi::V5_15, visible: |_| true, show: Some(show), store: None }
}

/// A row of an attribute that is read and written.
pub(crate) const fn read_write(name: &'static str, show: Show, store: Store) -> Attribute {
    Attribute { mode: 0o644, store: Some(store), ..read_only(name, show) }
}

/// A row of an attribute that is only written.
pub(crate) const fn write_only(name: &'static str, act: fn(&mut Kernel, Id, &str) -> Result<(), Errno>) -> Attribute {
    Attribute { name, mode: 0o200, since: Abi::V5_15, visible: |_| true, show: None, store: Some(Store::Act(act)) }
}

impl Attribute {
    /// The same, in later flavours only.
    pub(crate) const fn since(self, abi: Abi) -> Self {
        Attribute { since: abi, ..self }
    }

    /// The same, on some devices only.
    pub(crate) const fn visible(self, visible: fn(&Capabilities) -> bool) -> Self {
        Attribute { visible, ..self }
    }

    pub(crate) fn show(&self, kernel: &Kernel, id: Id) -> Result<String, Errno> {
        // Without a read method opening for reading fails, for root too. Source: K612 `fs/kernfs/file.c`.
        self.show.ok_or(Errno::ACCESS)?(kernel, id)
    }

    pub(crate) fn store(&self, kernel: &mut Kernel, id: Id, data: &[u8]) -> Result<(), Errno> {
        let store = self.store.ok_or(Errno::ACCESS)?;
        // The driver sees a C string.
        let data = data.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(data);
        match store {
            // Blanks around a value do not count: some writers end a line, some do not (observed clients).
            Store::Act(act) => act(kernel, id, text.trim()),
            Store::Value { kind, before, after, set } => {
                let pass = |checks: &[Check], kernel: &Kernel, input: &Input<'_>| {
                    checks
                        .iter()
                        .find(|check| !(check.holds)(kernel, id, input))
                        .map_or(Ok(()), |check| Err(check.errno))
                };
                pass(before, kernel, &Input { number: 0, text: &text })?;
                let input = Input { number: kind.read(text.trim())?, text: &text };
                pass(after, kernel, &input)?;
                set(kernel, id, &input);
                Ok(())
            }
        }
    }
}

impl Store {
    /// A value all of whose conditions are looked at after it was read.
    pub(crate) const fn value(kind: Kind, after: &'static [Check], set: fn(&mut Kernel, Id, &Input<'_>)) -> Self {
        Store::Value { kind, before: &[], after, set }
    }

    /// A value some of whose conditions are looked at before it is read.
    pub(crate) const fn guarded(
        kind: Kind,
        before: &'static [Check],
        after: &'static [Check],
        set: fn(&mut Kernel, Id, &Input<'_>),
    ) -> Self {
        Store::Value { kind, before, after, set }
    }
}

impl Kind {
    fn read(self, text: &str) -> Result<i128, Errno> {
        let number = |digits: &str, radix| {
            let well_formed = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if !well_formed {
                return Err(Errno::INVAL);
            }
            u64::from_str_radix(digits, radix).map(i128::from).map_err(|_| Errno::INVAL)
        };
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        match self {
            Kind::Text => Ok(0),
            Kind::Decimal => number(unsigned, 10),
            Kind::Signed => text.strip_prefix('-').map_or_else(|| number(unsigned, 10), |rest| Ok(-number(rest, 10)?)),
            Kind::AnyBase => {
                if let Some(digits) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
                    number(digits, 16)
                } else if unsigned.len() > 1 && unsigned.starts_with('0') {
                    number(&unsigned[1..], 8)
                } else {
                    number(unsigned, 10)
                }
            }
            // Source: K612 `lib/kstrtox.c`, kstrtobool: the first letters decide.
            Kind::Flag => match text.as_bytes() {
                [b'y' | b'Y' | b't' | b'T' | b'1', ..] | [b'o' | b'O', b'n' | b'N', ..] => Ok(1),
                [b'n' | b'N' | b'f' | b'F' | b'0', ..] | [b'o' | b'O', b'f' | b'F', ..] => Ok(0),
                _ => Err(Errno::INVAL),
            },
        }
    }
}

/// The text of an attribute: what it shows, and a newline.
pub(crate) fn line(value: impl std::fmt::Display) -> Result<String, Errno> {
    Ok(format!("{value}\n"))
}

/// 256 bits as eight hexadecimal words, most significant first.
pub(crate) fn bitmap(words: &[u64; 4]) -> String {
    let halves = words.iter().rev().flat_map(|word| [word >> 32, word & 0xffff_ffff]);
    halves.map(|half| format!("{half:08x}")).collect::<Vec<_>>().join(",")
}

/// Reads what [`bitmap`] prints; leading words may be missing. Source: K612 `lib/bitmap-str.c`.
pub(crate) fn parse_bitmap(text: &str) -> Result<[u64; 4], Errno> {
    let mut words = [0_u64; 4];
    for (at, part) in text.trim().rsplit(',').enumerate() {
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Errno::INVAL);
        }
        let value = u32::from_str_radix(part, 16).map_err(|_| Errno::OVERFLOW)?;
        match words.get_mut(at / 2) {
            Some(word) => *word |= u64::from(value) << (32 * (at % 2)),
            None if value == 0 => {}
            None => return Err(Errno::OVERFLOW),
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_the_kernel_reads_them() {
        let cases: &[(Kind, &str, Result<i128, Errno>)] = &[
            (Kind::Decimal, "16", Ok(16)),
            (Kind::Decimal, "+16", Ok(16)),
            (Kind::Decimal, "-1", Err(Errno::INVAL)),
            (Kind::Decimal, "0x10", Err(Errno::INVAL)),
            (Kind::Decimal, "", Err(Errno::INVAL)),
            (Kind::Decimal, "1 2", Err(Errno::INVAL)),
            (Kind::Decimal, "++1", Err(Errno::INVAL)),
            (Kind::Decimal, "18446744073709551616", Err(Errno::INVAL)),
            (Kind::AnyBase, "0x10", Ok(16)),
            (Kind::AnyBase, "0X1f", Ok(31)),
            (Kind::AnyBase, "010", Ok(8)),
            (Kind::AnyBase, "0", Ok(0)),
            (Kind::AnyBase, "0x", Err(Errno::INVAL)),
            (Kind::AnyBase, "08", Err(Errno::INVAL)),
            (Kind::Signed, "-1", Ok(-1)),
            (Kind::Signed, "3", Ok(3)),
            (Kind::Signed, "-", Err(Errno::INVAL)),
            (Kind::Signed, "--1", Err(Errno::INVAL)),
            (Kind::Flag, "1", Ok(1)),
            (Kind::Flag, "on", Ok(1)),
            (Kind::Flag, "off", Ok(0)),
            (Kind::Flag, "No", Ok(0)),
            (Kind::Flag, "2", Err(Errno::INVAL)),
            (Kind::Flag, "", Err(Errno::INVAL)),
        ];
        for (kind, text, value) in cases {
            assert_eq!(kind.read(text), *value, "{kind:?} {text:?}");
        }
    }

    #[test]
    fn a_bitmap_reads_back_as_it_was_printed() {
        for words in [[0; 4], [0x1_003f_03ff, 0, 0, 0], [1, 2, 3, 1 << 63], [u64::MAX; 4]] {
            assert_eq!(parse_bitmap(&bitmap(&words)), Ok(words));
        }
        assert_eq!(bitmap(&[0x1_003f_03ff, 0, 0, 0]).len(), 8 * 8 + 7);
        assert_eq!(parse_bitmap("3f"), Ok([0x3f, 0, 0, 0]));
        assert_eq!(parse_bitmap("1,00000000"), Ok([1 << 32, 0, 0, 0]));
        for (text, errno) in
            [("", Errno::INVAL), ("xy", Errno::INVAL), ("1,,2", Errno::INVAL), ("123456789", Errno::OVERFLOW)]
        {
            assert_eq!(parse_bitmap(text), Err(errno), "{text}");
        }
        assert_eq!(parse_bitmap(&format!("1,{}", bitmap(&[0; 4]))), Err(Errno::OVERFLOW));
    }
}
