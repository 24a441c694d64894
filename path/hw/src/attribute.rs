//! Attributes of the driver: files with one value each, and the parsing of their texts.

use crate::files::Files;
use crate::machine::{QueueType, State, UnreadableAttribute};
use std::path::{Path, PathBuf};
use telpher_abi::registers::{DsaCap0, DsaCap1, DsaCap2, GenCap, OpCap};
use telpher_portal::QueueMode;

/// Errors by which the driver reports that there is no value now: no such attribute on this kernel, not for this kind
/// of queue, no node yet. Source: K612 `sysfs.c`.
const NO_VALUE: [i32; 4] = [libc::ENOENT, libc::EOPNOTSUPP, libc::ENXIO, libc::ENODEV];

/// The attributes in one directory.
#[derive(Debug)]
pub(crate) struct Folder<'a> {
    pub(crate) files: &'a dyn Files,
    pub(crate) path: PathBuf,
    /// Collects unreadable attributes.
    pub(crate) oddities: &'a mut Vec<UnreadableAttribute>,
}

impl Folder<'_> {
    /// Reads the text of an attribute, without its line end.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let path = self.path.join(name);
        match self.files.read(&path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(error) if error.raw_os_error().is_some_and(|errno| NO_VALUE.contains(&errno)) => None,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                self.oddities.push(UnreadableAttribute { path, why: error.to_string() });
                None
            }
        }
    }

    /// Reads the value of an attribute under the first of its names that exists: newer kernels renamed some.
    pub(crate) fn value<T: Value>(&mut self, names: &[&str]) -> Option<T> {
        let (name, text) = names.iter().find_map(|name| self.text(name).map(|text| (name, text)))?;
        let value = T::parse(&text);
        if value.is_none() && !T::is_absent(&text) {
            self.oddities
                .push(UnreadableAttribute { path: self.path.join(name), why: format!("not understood: '{text}'") });
        }
        value
    }

    /// Reads the names in an attribute that contains a list.
    pub(crate) fn names(&mut self, name: &str) -> Vec<String> {
        self.text(name).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the last component of a link's target, for example the name of the driver.
    pub(crate) fn link(&mut self, name: &str) -> Option<String> {
        let target = self.files.link(&self.path.join(name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

/// Returns the address of a device's PCI function: the directory above its own. The bus shows devices as links.
pub(crate) fn pci_address(files: &dyn Files, device: &Path) -> Option<String> {
    let target = files.link(device).ok()?;
    let function = target.parent()?.file_name()?.to_str()?;
    let is_address = function.split(':').count() == 3 && function.contains('.');
    is_address.then(|| function.to_owned())
}

/// A type that an attribute's text can be parsed into.
pub(crate) trait Value: Sized {
    /// Parses the text; `None` if it is invalid.
    fn parse(text: &str) -> Option<Self>;

    /// True for texts by which the driver reports that there is no value.
    fn is_absent(text: &str) -> bool {
        text.is_empty()
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl Value for u64 {
    fn parse(text: &str) -> Option<Self> {
        number(text)
    }
}

impl Value for u32 {
    fn parse(text: &str) -> Option<Self> {
        number(text)?.try_into().ok()
    }

    /// -1: no group, no node.
    fn is_absent(text: &str) -> bool {
        text.is_empty() || text == "-1"
    }
}

impl Value for bool {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
}

impl Value for String {
    fn parse(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| text.to_owned())
    }
}

impl Value for State {
    fn parse(text: &str) -> Option<Self> {
        [State::Disabled, State::Enabled, State::Halted].into_iter().find(|state| state.to_string() == text)
    }
}

impl Value for QueueMode {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "dedicated" => Some(QueueMode::Dedicated),
            "shared" => Some(QueueMode::Shared),
            _ => None,
        }
    }
}

impl Value for QueueType {
    fn parse(text: &str) -> Option<Self> {
        [QueueType::None, QueueType::Kernel, QueueType::User].into_iter().find(|kind| kind.to_string() == text)
    }
}

impl Value for GenCap {
    fn parse(text: &str) -> Option<Self> {
        number(text).map(|word| GenCap([word]))
    }
}

impl Value for OpCap {
    fn parse(text: &str) -> Option<Self> {
        bits(text).map(OpCap)
    }
}

/// Three numbers, the last register first. Source: Linux 7.0 `sysfs.c`, dsacaps_show; the example in its documentation
/// has another order.
impl Value for (DsaCap0, DsaCap1, DsaCap2) {
    fn parse(text: &str) -> Option<Self> {
        let words: Option<Vec<u64>> = text.split(',').map(|word| u64::from_str_radix(word, 16).ok()).collect();
        let [third, second, first] = words?.try_into().ok()?;
        Some((DsaCap0([first]), DsaCap1([second]), DsaCap2([third])))
    }
}

impl Value for [u64; 4] {
    fn parse(text: &str) -> Option<Self> {
        bits(text)
    }
}

/// Parses 256 bits: a bitmap of 32-bit words separated by commas, most significant first. Kernels before 6.0 (`errors`:
/// 6.4) print four 64-bit words separated by blanks, least significant first. Source: K612 `sysfs.c`; the older form is
/// that of Linux 5.15 and 6.1.
fn bits(text: &str) -> Option<[u64; 4]> {
    let mut words = [0; 4];
    if text.contains(' ') {
        let parts: Vec<&str> = text.split_whitespace().collect();
        if parts.len() != 4 {
            return None;
        }
        for (word, part) in words.iter_mut().zip(parts) {
            *word = u64::from_str_radix(part.strip_prefix("0x").unwrap_or(part), 16).ok()?;
        }
        return Some(words);
    }
    let halves: Vec<&str> = text.split(',').collect();
    if halves.len() > 8 {
        return None;
    }
    for (index, half) in halves.iter().rev().enumerate() {
        let half = u32::from_str_radix(half.strip_prefix("0x").unwrap_or(half), 16).ok()?;
        words[index / 2] |= u64::from(half) << (index % 2 * 32);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_256_bits_are_read() {
        let expected = [0x0000_0001_003f_027f, 0, 0, 0x8000_0000_0000_0000];
        let new = "80000000,00000000,00000000,00000000,00000000,00000000,00000001,003f027f";
        let old = "0x1003f027f 0 0 0x8000000000000000";
        assert_eq!((bits(new), bits(old)), (Some(expected), Some(expected)));
        // The bitmap's printer may omit leading zero words.
        assert_eq!(bits("1,003f027f"), Some([0x1_003f_027f, 0, 0, 0]));
    }

    #[test]
    fn the_capabilities_of_3_0_are_read_from_the_last_register_to_the_first() {
        let text = "000000000000f18d,00fa01ff01ff03ff,0014000e000007aa";
        let (first, second, third) = <(DsaCap0, DsaCap1, DsaCap2)>::parse(text).unwrap();
        assert_eq!((first.max_sgl_shift(), first.sgl_formats()), (10, 0b1110));
        assert_eq!((second.data_types(), third.0[0]), (0x3ff, 0xf18d));
        assert!(<(DsaCap0, DsaCap1, DsaCap2)>::parse("1,2").is_none());
    }

    #[test]
    fn invalid_text_is_no_value() {
        for text in ["", "x", "1,2,3,4,5,6,7,8,9", "0x1 0 0", "1 2 3 4 5", "123456789", ",", "-1"] {
            assert_eq!(bits(text), None, "{text}");
        }
        for text in ["", "0x", "-1", "99999999999999999999", "1 2", "0x1g"] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(u32::parse("4294967296"), None);
        assert_eq!(bool::parse("2"), None);
        assert_eq!(State::parse("Enabled"), None);
    }
}
