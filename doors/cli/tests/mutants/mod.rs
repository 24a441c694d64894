//! Creates damaged files: text by tokens, Arrow and Parquet by lengths, offsets and counts.

use telpher_os::Random;

/// A deterministic random generator with ranges and choices.
pub(crate) struct Chance(pub(crate) Random);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).expect("below a usize")
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// The structure of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    /// Words, numbers, quoted texts and punctuation: JSON, TOML, traces.
    Text,
    /// Little-endian words at multiples of four bytes: flatbuffers, and bodies that begin with a length.
    Words,
    /// A footer of variable-length numbers, its length and a mark at the end.
    Parquet,
}

/// Returns the file with one to four changes.
pub(crate) fn mutant(whole: &[u8], shape: Shape, chance: &mut Chance) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..=chance.below(4) {
        bytes = match shape {
            Shape::Text => text(&bytes, chance),
            Shape::Words => words(bytes, chance),
            Shape::Parquet => parquet(bytes, chance),
        };
    }
    bytes
}

/// Unusual numbers and texts.
const TOKENS: &[&str] = &[
    "0",
    "1",
    "-1",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "0.0",
    "1e308",
    "1e-308",
    "1e999",
    "nan",
    "0x10",
    "null",
    "true",
    "\"\"",
    "\"\\u0000\"",
    "\"..\"",
    "\"/\"",
    "\"-1\"",
    "\"1e30\"",
    "[]",
    "{}",
    "[[",
    "]",
    "}",
    ",",
    ":",
    "=",
    "\n",
    "#",
    "\u{feff}",
    "\u{202e}",
];

/// Returns the ranges of tokens: runs of letters and digits, quoted texts, single other characters.
fn tokens(bytes: &[u8]) -> Vec<(usize, usize)> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte) || byte >= 0x80;
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let len = match rest[0] {
            b'"' => rest[1..].iter().position(|byte| *byte == b'"').map_or(1, |end| end + 2),
            first if is_word(first) => rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len()),
            _ => 1,
        };
        if !rest[0].is_ascii_whitespace() {
            tokens.push((at, at + len));
        }
        at += len;
    }
    tokens
}

fn text(bytes: &[u8], chance: &mut Chance) -> Vec<u8> {
    let tokens = tokens(bytes);
    if tokens.is_empty() {
        return b"[".to_vec();
    }
    let token = |chance: &mut Chance| chance.one_of(&tokens);
    let (from, to) = token(chance);
    let replaced = |with: &[u8]| [&bytes[..from], with, &bytes[to..]].concat();
    match chance.below(12) {
        0..=4 => replaced(chance.one_of(TOKENS).as_bytes()),
        // Another token of the same file.
        5 | 6 => {
            let (other, end) = token(chance);
            replaced(&bytes[other..end])
        }
        7 => replaced(b""),
        // From one token to another, twice or not at all.
        8 => {
            let (_, end) = token(chance);
            let end = end.max(to);
            [&bytes[..end], &bytes[from..end], &bytes[end..]].concat()
        }
        9 => {
            let (_, end) = token(chance);
            [&bytes[..from], &bytes[end.max(to)..]].concat()
        }
        10 => match chance.below(4) {
            // Deeply nested, long, not UTF-8, or unterminated.
            0 => replaced(&[b"[{".as_slice(), b"["][chance.below(2)].repeat(20_000)),
            1 => replaced(&b"9".repeat(100_000)),
            2 => replaced(&[0xff, 0xfe, 0x00]),
            _ => replaced(b"\"a"),
        },
        _ => bytes[..to].to_vec(),
    }
}

/// Unusual lengths, offsets and counts.
const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    7,
    255,
    1 << 16,
    1 << 24,
    i32::MAX as i64,
    1 << 31,
    1 << 32,
    1 << 40,
    6_000_000_000_000_000_000,
    i64::MAX,
    i64::MIN,
];

fn words(mut bytes: Vec<u8>, chance: &mut Chance) -> Vec<u8> {
    // Metadata is at both ends; the first word of every buffer is a length.
    let near = 1200.min(bytes.len());
    let at = match chance.below(4) {
        0 => chance.below(near),
        1 | 2 => bytes.len() - 1 - chance.below(near.max(2) - 1),
        _ => chance.below(bytes.len()),
    };
    let width = chance.one_of(&[4, 8, 8]);
    let at = at & !(width - 1);
    match chance.below(10) {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << chance.below(8),
        2 => drop(bytes.splice(at..at, [0xff; 8])),
        _ => {
            let Some(word) = bytes.get_mut(at..at + width) else { return bytes };
            let mut old = [0; 8];
            old[..width].copy_from_slice(word);
            let old = i64::from_le_bytes(old);
            let number = chance.one_of(NUMBERS);
            let new =
                chance.one_of(&[number, number, old.wrapping_add(1), old.wrapping_mul(255), old.wrapping_mul(30_000)]);
            word.copy_from_slice(&new.to_le_bytes()[..width]);
        }
    }
    if bytes.is_empty() { vec![0] } else { bytes }
}

fn parquet(mut bytes: Vec<u8>, chance: &mut Chance) -> Vec<u8> {
    let len = bytes.len();
    let footer = len.checked_sub(8).and_then(|at| {
        let word = u32::from_le_bytes(bytes[at..at + 4].try_into().ok()?);
        Some((at.checked_sub(usize::try_from(word).ok()?)?, at))
    });
    let Some((begin, end)) = footer.filter(|(begin, end)| begin < end) else { return words(bytes, chance) };
    // Page headers are numbers of the same kind, at the begin of each page.
    let at = if chance.below(3) == 0 { 4 + chance.below(60.min(begin - 4)) } else { begin + chance.below(end - begin) };
    match chance.below(8) {
        0 => bytes[at] ^= 1 << chance.below(8),
        // A one-byte number becomes a longer one; the footer keeps its position.
        1..=5 => {
            let long = &[0xff; 9][..chance.below(10)];
            let number = [long, &[chance.one_of(&[0x00, 0x01, 0x07, 0x0f, 0x7f])]].concat();
            let grown = number.len() - 1;
            bytes.splice(at..=at, number);
            if at >= begin {
                let word = u32::try_from(end - begin + grown).expect("a small file");
                let at = end + grown;
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
        }
        6 => bytes[at] = 0xff,
        _ => bytes = words(bytes, chance),
    }
    bytes
}
