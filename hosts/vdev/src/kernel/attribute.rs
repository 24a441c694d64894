//! One attribute is one row of a table: its name, the first kernel version that has it, how its text is generated,
//! which checks a write must pass, and what the write sets. The tables are in `rows`.
//!
//! ```text
//! write ─► text ─► Checks that need no value ─► value ─► other Checks ─► set
//! ```

use super::{Abi, Kernel};
use crate::tree::Errno;
use telpher_model::Capabilities;

/// The object of an attribute: the index of the device, and of its queue, group, engine, driver or open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Id {
    pub(crate) device: usize,
    pub(crate) index: usize,
}

/// One row of an attribute table.
#[derive(Debug)]
pub(crate) struct Attribute {
    pub(crate) name: &'static str,
    pub(crate) mode: u16,
    /// First kernel version that has the attribute.
    pub(crate) since: Abi,
    /// Devices that have the attribute.
    pub(crate) visible: fn(&Capabilities) -> bool,
    show: Option<Show>,
    store: Option<Store>,
}

/// Generates an attribute's text.
pub(crate) type Show = fn(&Kernel, Id) -> Result<String, Errno>;

/// The effect of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Store {
    /// Parses a value, checks it and sets it.
    Value {
        /// How the text is parsed.
        kind: ValueFormat,
        /// Checks before the text is parsed.
        before: &'static [Check],
        /// Checks that use the value.
        after: &'static [Check],
        set: fn(&mut Kernel, Id, &Input<'_>),
    },
    /// Performs the action that the text names.
    Act(fn(&mut Kernel, Id, &str) -> Result<(), Errno>),
}

/// The format of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ValueFormat {
    /// Decimal, not negative.
    Decimal,
    /// Not negative: 0x hexadecimal, 0 octal, or decimal.
    AnyBase,
    /// Decimal, may be negative.
    Signed,
    /// y, n, 1, 0, on, off…
    Flag,
    /// Any text.
    Text,
}

/// A parsed value: its number (a flag is 0 or 1, a text 0) and its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) number: i128,
    pub(crate) text: &'a str,
}

/// A condition for a write, and the errno if it does not hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    pub(crate) holds: fn(&Kernel, Id, &Input<'_>) -> bool,
    pub(crate) errno: Errno,
}

/// Creates a check for a row.
pub(crate) const fn check(errno: Errno, holds: fn(&Kernel, Id, &Input<'_>) -> bool) -> Check {
    Check { holds, errno }
}

/// Creates the row of a read-only attribute.
pub(crate) const fn read_only(name: &'static str, show: Show) -> Attribute {
    Attribute { name, mode: 0o444, since: Abi::V5_15, visible: |_| true, show: Some(show), store: None }
}

/// Creates the row of an attribute that can be read and written.
pub(crate) const fn read_write(name: &'static str, show: Show, store: Store) -> Attribute {
    Attribute { mode: 0o644, store: Some(store), ..read_only(name, show) }
}

/// Creates the row of a write-only attribute.
pub(crate) const fn write_only(name: &'static str, act: fn(&mut Kernel, Id, &str) -> Result<(), Errno>) -> Attribute {
    Attribute { name, mode: 0o200, since: Abi::V5_15, visible: |_| true, show: None, store: Some(Store::Act(act)) }
}

impl Attribute {
    /// Restricts the row to this kernel version and later ones.
    pub(crate) const fn since(self, abi: Abi) -> Self {
        Attribute { since: abi, ..self }
    }

    /// Restricts the row to some devices.
    pub(crate) const fn visible(self, visible: fn(&Capabilities) -> bool) -> Self {
        Attribute { visible, ..self }
    }

    pub(crate) fn show(&self, kernel: &Kernel, id: Id) -> Result<String, Errno> {
        // Without a read method, opening for reading fails, also for root. Source: K612 `fs/kernfs/file.c`.
        self.show.ok_or(Errno::ACCESS)?(kernel, id)
    }

    pub(crate) fn store(&self, kernel: &mut Kernel, id: Id, data: &[u8]) -> Result<(), Errno> {
        let store = self.store.ok_or(Errno::ACCESS)?;
        // The driver receives a C string.
        let data = data.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(data);
        match store {
            // Blanks around a value are ignored: some clients end the text with a newline, some do not (observed
            // clients).
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
    /// A value with all checks after parsing.
    pub(crate) const fn value(
        kind: ValueFormat,
        after: &'static [Check],
        set: fn(&mut Kernel, Id, &Input<'_>),
    ) -> Self {
        Store::Value { kind, before: &[], after, set }
    }

    /// A value with some checks before parsing.
    pub(crate) const fn guarded(
        kind: ValueFormat,
        before: &'static [Check],
        after: &'static [Check],
        set: fn(&mut Kernel, Id, &Input<'_>),
    ) -> Self {
        Store::Value { kind, before, after, set }
    }
}

impl ValueFormat {
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
            ValueFormat::Text => Ok(0),
            ValueFormat::Decimal => number(unsigned, 10),
            ValueFormat::Signed => {
                text.strip_prefix('-').map_or_else(|| number(unsigned, 10), |rest| Ok(-number(rest, 10)?))
            }
            ValueFormat::AnyBase => {
                if let Some(digits) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
                    number(digits, 16)
                } else if unsigned.len() > 1 && unsigned.starts_with('0') {
                    number(&unsigned[1..], 8)
                } else {
                    number(unsigned, 10)
                }
            }
            // Source: K612 `lib/kstrtox.c`, kstrtobool: the first letters decide.
            ValueFormat::Flag => match text.as_bytes() {
                [b'y' | b'Y' | b't' | b'T' | b'1', ..] | [b'o' | b'O', b'n' | b'N', ..] => Ok(1),
                [b'n' | b'N' | b'f' | b'F' | b'0', ..] | [b'o' | b'O', b'f' | b'F', ..] => Ok(0),
                _ => Err(Errno::INVAL),
            },
        }
    }
}

/// The text of an attribute: the value and a newline.
pub(crate) fn line(value: impl std::fmt::Display) -> Result<String, Errno> {
    Ok(format!("{value}\n"))
}

/// 256 bits as eight hexadecimal words, most significant first.
pub(crate) fn bitmap(words: &[u64; 4]) -> String {
    let halves = words.iter().rev().flat_map(|word| [word >> 32, word & 0xffff_ffff]);
    halves.map(|half| format!("{half:08x}")).collect::<Vec<_>>().join(",")
}

/// Parses the output of [`bitmap`]; leading words may be missing. Source: K612 `lib/bitmap-str.c`.
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
        let cases: &[(ValueFormat, &str, Result<i128, Errno>)] = &[
            (ValueFormat::Decimal, "16", Ok(16)),
            (ValueFormat::Decimal, "+16", Ok(16)),
            (ValueFormat::Decimal, "-1", Err(Errno::INVAL)),
            (ValueFormat::Decimal, "0x10", Err(Errno::INVAL)),
            (ValueFormat::Decimal, "", Err(Errno::INVAL)),
            (ValueFormat::Decimal, "1 2", Err(Errno::INVAL)),
            (ValueFormat::Decimal, "++1", Err(Errno::INVAL)),
            (ValueFormat::Decimal, "18446744073709551616", Err(Errno::INVAL)),
            (ValueFormat::AnyBase, "0x10", Ok(16)),
            (ValueFormat::AnyBase, "0X1f", Ok(31)),
            (ValueFormat::AnyBase, "010", Ok(8)),
            (ValueFormat::AnyBase, "0", Ok(0)),
            (ValueFormat::AnyBase, "0x", Err(Errno::INVAL)),
            (ValueFormat::AnyBase, "08", Err(Errno::INVAL)),
            (ValueFormat::Signed, "-1", Ok(-1)),
            (ValueFormat::Signed, "3", Ok(3)),
            (ValueFormat::Signed, "-", Err(Errno::INVAL)),
            (ValueFormat::Signed, "--1", Err(Errno::INVAL)),
            (ValueFormat::Flag, "1", Ok(1)),
            (ValueFormat::Flag, "on", Ok(1)),
            (ValueFormat::Flag, "off", Ok(0)),
            (ValueFormat::Flag, "No", Ok(0)),
            (ValueFormat::Flag, "2", Err(Errno::INVAL)),
            (ValueFormat::Flag, "", Err(Errno::INVAL)),
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
