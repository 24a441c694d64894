//! The file `PID.sites`: what a process has learned about its call sites, and their calls.
//!
//! ```text
//! header    8 words: a magic number, the version, whether the process learns
//! modules   MODULES entries: the files that the process executes code of, each with its path and build-id
//! rows      SITES entries of one cache line: a call site, its verdict, and its calls
//! ```
//!
//! The process writes it without locks and without allocation. Each word is valid by itself, so that others may read
//! the file at any time, also after the process was killed. Sites and modules beyond the table are not in the file.

use crate::verdicts::SiteVerdict;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of call sites. Source: chosen; programs with thousands of sites that copy long ranges were not seen.
pub const SITES: usize = 4096;
/// Number of modules. Source: chosen; large programs load some hundred libraries, and few of them make long calls.
pub const MODULES: usize = 256;

const MAGIC: u64 = u64::from_ne_bytes(*b"telphsit");
const VERSION: u64 = 1;
const HEADER: usize = 8;
/// Words of a build-id. Source: chosen; the linkers write 16 or 20 bytes, and a recording keeps 32.
const ID_WORDS: usize = 4;
/// Words of a path. Source: chosen. A longer path is kept in part.
const PATH_WORDS: usize = 128;
/// Words of a module: its state, first address, length of the build-id, length of the path, build-id, path.
const MODULE: usize = 4 + ID_WORDS + PATH_WORDS;
/// Words of a row: a cache line.
const ROW: usize = 8;
/// Words of the file.
pub const WORDS: usize = HEADER + MODULES * MODULE + SITES * ROW;

/// States of a module.
const WRITING: u64 = 1;
const READY: u64 = 2;

/// [`SiteRow::score`] from which a site's data is in memory, and up to which it is in the caches. A new site begins
/// at 0.
pub const COLD: i64 = 2;
/// See [`COLD`].
pub const HOT: i64 = -COLD;
/// Scores that do not change: the library of the site is denied.
pub const DENIED: i64 = i64::MIN;
/// The user's file gives the site to the CPU.
pub const GIVEN_CPU: i64 = i64::MIN + 1;
/// The user's file gives the site to the device.
pub const GIVEN_DEVICE: i64 = i64::MAX;
/// [`SiteRow::absence`] from which the site's pages count as absent.
pub const ABSENT: u64 = 40;

/// The verdict of a call site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// The CPU copies and its time is measured; there were too few samples.
    Learning,
    /// The device executes the calls, because the process learns nothing: wherever their data is.
    Always,
    /// The device executes the calls: their data is in memory.
    Device,
    /// The CPU executes the calls: their data is in the caches.
    Cached,
    /// The CPU executes the calls: their pages are absent, so that the device stops at them.
    Absent,
    /// The CPU executes the calls: the library is on the deny-list, or the code belongs to no file.
    Denied,
    /// The device executes the calls: the user's file says so.
    GivenDevice,
    /// The CPU executes the calls: the user's file says so.
    GivenCpu,
}

impl Verdict {
    /// Returns what executes the calls of a site, and why.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Learning => "learning",
            Verdict::Always => "device: always",
            Verdict::Device => "device",
            Verdict::Cached => "CPU: data cached",
            Verdict::Absent => "CPU: pages absent",
            Verdict::Denied => "CPU: denied",
            Verdict::GivenDevice => "device: given",
            Verdict::GivenCpu => "CPU: given",
        }
    }

    /// Returns the verdict of a site with this score and this absence.
    #[inline]
    #[must_use]
    pub fn of(score: i64, absence: u64) -> Verdict {
        match score {
            DENIED => Verdict::Denied,
            GIVEN_CPU => Verdict::GivenCpu,
            GIVEN_DEVICE => Verdict::GivenDevice,
            score if score <= HOT => Verdict::Cached,
            score if score < COLD => Verdict::Learning,
            _ if absence >= ABSENT => Verdict::Absent,
            _ => Verdict::Device,
        }
    }

    /// Returns the executor that a file of verdicts should name. `None` if the process has not learned it, and for a
    /// denied site, whose verdict does not come from its calls.
    #[must_use]
    pub fn by_device(self) -> Option<bool> {
        match self {
            Verdict::Learning | Verdict::Always | Verdict::Denied => None,
            Verdict::Device | Verdict::GivenDevice => Some(true),
            Verdict::Cached | Verdict::Absent | Verdict::GivenCpu => Some(false),
        }
    }
}

/// The table, for the process that writes it.
#[derive(Clone, Copy, Debug)]
pub struct SiteTable<'a> {
    modules: &'a [AtomicU64],
    rows: &'a [[AtomicU64; ROW]],
}

impl<'a> SiteTable<'a> {
    /// Begins a table in [`WORDS`] words that are zero. `None` if there are fewer. `learns` says whether the process
    /// learns where the data of its sites is.
    #[must_use]
    pub fn begin(words: &'a [AtomicU64], learns: bool) -> Option<SiteTable<'a>> {
        let (header, rest) = words.get(..WORDS)?.split_at(HEADER);
        let (modules, rows) = rest.split_at(MODULES * MODULE);
        // Relaxed: published by the magic number.
        header[1].store(VERSION, Ordering::Relaxed);
        header[2].store(learns.into(), Ordering::Relaxed);
        // Release: a reader that sees it sees the header.
        header[0].store(MAGIC, Ordering::Release);
        Some(SiteTable { modules, rows: rows.as_chunks().0 })
    }

    /// Returns the row at a place, which must be below [`SITES`].
    #[inline]
    #[must_use]
    pub fn row(&self, at: usize) -> SiteRow<'a> {
        SiteRow(&self.rows[at])
    }

    /// Returns the place of a module; adds it if it is not there. `None` if the table has no room.
    pub fn module(&self, start: usize, path: &[u8], build_id: &[u8]) -> Option<usize> {
        for (at, module) in self.modules.chunks_exact(MODULE).enumerate() {
            let [state, first, id_len, path_len] = [0, 1, 2, 3].map(|word| &module[word]);
            let (id_words, path_words) = module[4..].split_at(ID_WORDS);
            match state.compare_exchange(0, WRITING, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => {
                    // Relaxed: published by the state.
                    first.store(start as u64, Ordering::Relaxed);
                    let id_bytes = put(id_words, build_id);
                    id_len.store(id_bytes as u64, Ordering::Relaxed);
                    put(path_words, path);
                    path_len.store(path.len() as u64, Ordering::Relaxed);
                    // Release: a reader that sees the state sees the module.
                    state.store(READY, Ordering::Release);
                    return Some(at);
                }
                // Two threads that add a module at once may both have an entry for it.
                Err(READY) => {
                    let values = [first, path_len].map(|word| word.load(Ordering::Relaxed));
                    if values == [start as u64, path.len() as u64] && is(path_words, path) {
                        return Some(at);
                    }
                }
                Err(_) => {}
            }
        }
        None
    }

    /// Takes over what another table knows about sites, without their calls: for a forked child.
    pub fn inherit(&self, other: SiteTable<'_>) {
        // The parent goes on using its table. The rows come first: the module that a row names is complete when the row
        // names it, so it is copied too. Relaxed, except for that: no other thread uses this table yet.
        for (own, inherited) in self.rows.iter().zip(other.rows) {
            let [own, inherited] = [SiteRow(own), SiteRow(inherited)];
            // A site that is not judged yet begins anew. Acquire: pairs with the Release of the row's module.
            if inherited.module().load(Ordering::Acquire) != 0 {
                for word in [SiteRow::address, SiteRow::module, SiteRow::score_word, SiteRow::absence] {
                    word(&own).store(word(&inherited).load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
        for (own, inherited) in self.modules.chunks_exact(MODULE).zip(other.modules.chunks_exact(MODULE)) {
            // Acquire: pairs with the Release in `module`. Entries that are not complete stay free.
            if inherited[0].load(Ordering::Acquire) == READY {
                for (own, inherited) in own.iter().zip(inherited) {
                    own.store(inherited.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
    }
}

/// Stores bytes in words; those that do not fit are left out. Returns how many were stored.
fn put(words: &[AtomicU64], bytes: &[u8]) -> usize {
    for (word, part) in words.iter().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..part.len()].copy_from_slice(part);
        word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
    }
    bytes.len().min(8 * words.len())
}

/// Returns whether words begin with these bytes, as far as they fit.
fn is(words: &[AtomicU64], bytes: &[u8]) -> bool {
    words.iter().zip(bytes.chunks(8)).all(|(word, part)| word.load(Ordering::Relaxed).to_ne_bytes().starts_with(part))
}

/// The words of one call site.
#[derive(Clone, Copy, Debug)]
pub struct SiteRow<'a>(&'a [AtomicU64; ROW]);

impl<'a> SiteRow<'a> {
    /// The return address; 0 if the row is free.
    #[inline]
    #[must_use]
    pub fn address(&self) -> &'a AtomicU64 {
        &self.0[0]
    }

    /// 0 until the site is judged; then 1, or two more than the place of its module.
    #[inline]
    #[must_use]
    pub fn module(&self) -> &'a AtomicU64 {
        &self.0[1]
    }

    /// The score, an `i64`: positive if the samples were cold.
    #[inline]
    #[must_use]
    pub fn score_word(&self) -> &'a AtomicU64 {
        &self.0[2]
    }

    /// Returns the score.
    #[inline]
    #[must_use]
    pub fn score(&self) -> i64 {
        // Relaxed: the word stands alone.
        self.score_word().load(Ordering::Relaxed).cast_signed()
    }

    /// How often the device stopped at absent pages lately.
    #[inline]
    #[must_use]
    pub fn absence(&self) -> &'a AtomicU64 {
        &self.0[3]
    }

    /// Calls.
    #[inline]
    #[must_use]
    pub fn calls(&self) -> &'a AtomicU64 {
        &self.0[4]
    }

    /// Calls that the device executed, at least in part.
    #[inline]
    #[must_use]
    pub fn device_calls(&self) -> &'a AtomicU64 {
        &self.0[5]
    }

    /// Bytes that the device executed.
    #[inline]
    #[must_use]
    pub fn device_bytes(&self) -> &'a AtomicU64 {
        &self.0[6]
    }

    /// Bytes that the CPU executed.
    #[inline]
    #[must_use]
    pub fn cpu_bytes(&self) -> &'a AtomicU64 {
        &self.0[7]
    }
}

/// A call site, as another process reads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteSnapshot {
    /// The return address, relative to the first address of its file; the address itself if it belongs to no file.
    pub offset: u64,
    /// The file, if it is known.
    pub file: Option<SiteFile>,
    /// What is known about the site.
    pub verdict: Verdict,
    /// Its calls.
    pub calls: u64,
    /// Calls that the device executed, at least in part.
    pub device_calls: u64,
    /// Bytes that the device executed.
    pub device_bytes: u64,
    /// Bytes that the CPU executed.
    pub cpu_bytes: u64,
}

/// The file of a call site.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SiteFile {
    /// Its path, as the process had it mapped.
    pub path: String,
    /// Its build-id in hexadecimal digits; empty if it has none.
    pub build_id: String,
}

impl SiteSnapshot {
    /// Reads words that any process may have written; nothing if they are no table of this version.
    #[must_use]
    pub fn read(words: &[u64]) -> Vec<SiteSnapshot> {
        if words.len() < WORDS || words[0] != MAGIC || words[1] != VERSION {
            return Vec::new();
        }
        let (modules, rows) = words[HEADER..WORDS].split_at(MODULES * MODULE);
        let modules: Vec<Option<(u64, SiteFile)>> = modules.chunks_exact(MODULE).map(read_module).collect();
        let rows = rows.as_chunks::<ROW>().0.iter().filter(|row| row[0] != 0);
        rows.map(|&[address, module, score, absence, calls, device_calls, device_bytes, cpu_bytes]| {
            let place = module.checked_sub(2).and_then(|place| usize::try_from(place).ok());
            let module = place.and_then(|place| modules.get(place)?.as_ref());
            SiteSnapshot {
                offset: address.wrapping_sub(module.map_or(0, |(start, _)| *start)),
                file: module.map(|(_, file)| file.clone()),
                verdict: match Verdict::of(score.cast_signed(), absence) {
                    Verdict::Learning | Verdict::Device | Verdict::Cached | Verdict::Absent if words[2] == 0 => {
                        Verdict::Always
                    }
                    verdict => verdict,
                },
                calls,
                device_calls,
                device_bytes,
                cpu_bytes,
            }
        })
        .collect()
    }

    /// Returns the site's verdict for a file of verdicts, if it has one and its file is known.
    #[must_use]
    pub fn to_verdict(&self) -> Option<SiteVerdict> {
        let SiteFile { path, build_id } = self.file.clone()?;
        self.verdict.by_device().map(|by_device| SiteVerdict { by_device, build_id, offset: self.offset, path })
    }
}

/// Reads a module: its first address and its file. `None` if it is not written, or its path did not fit.
fn read_module(words: &[u64]) -> Option<(u64, SiteFile)> {
    let bytes = |words: &[u64], len: u64| -> Option<Vec<u8>> {
        let len = usize::try_from(len).ok().filter(|len| *len <= 8 * words.len())?;
        Some(words.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect())
    };
    let (id, path) = words[4..].split_at(ID_WORDS);
    let (id, path) = (bytes(id, words[2])?, bytes(path, words[3])?);
    let build_id = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = SiteFile { path: String::from_utf8(path).ok()?, build_id };
    (words[0] == READY).then_some((words[1], file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn read(words: &[AtomicU64]) -> Vec<SiteSnapshot> {
        SiteSnapshot::read(&words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>())
    }

    fn set(row: SiteRow<'_>, values: [u64; ROW]) {
        row.0.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
    }

    #[test]
    fn sites_are_read_with_their_file_and_their_calls() {
        let words = words();
        assert_eq!(read(&words), []);
        let table = SiteTable::begin(&words, true).unwrap();
        let redis = table.module(0x5000, b"/usr/bin/redis-server", &[0x0a, 0xff]).unwrap();
        let other = table.module(0x9000, b"/opt/without-id", &[]).unwrap();
        assert_eq!(table.module(0x5000, b"/usr/bin/redis-server", &[0x0a, 0xff]), Some(redis));
        assert_ne!(redis, other);
        set(table.row(7), [0x5123, redis as u64 + 2, COLD.cast_unsigned(), 0, 10, 8, 80, 20]);
        set(table.row(SITES - 1), [0x9001, other as u64 + 2, HOT.cast_unsigned(), 0, 1, 0, 0, 5]);
        set(table.row(8), [0x77, 1, DENIED.cast_unsigned(), 0, 2, 0, 0, 6]);
        let [first, second, third] = &read(&words)[..] else { panic!() };
        let file = SiteFile { path: "/usr/bin/redis-server".into(), build_id: "0aff".into() };
        assert_eq!((first.offset, &first.file, first.verdict), (0x123, &Some(file), Verdict::Device));
        assert_eq!((first.calls, first.device_calls, first.device_bytes, first.cpu_bytes), (10, 8, 80, 20));
        assert_eq!((second.offset, &second.file, second.verdict), (0x77, &None, Verdict::Denied));
        assert_eq!((third.offset, third.verdict, third.to_verdict().unwrap().by_device), (1, Verdict::Cached, false));
        assert_eq!(second.to_verdict(), None);
        assert_eq!(first.to_verdict().unwrap().build_id, "0aff");
    }

    #[test]
    fn a_forked_child_inherits_what_is_known_and_no_calls() {
        let (of_parent, of_child) = (words(), words());
        let parent = SiteTable::begin(&of_parent, true).unwrap();
        let module = parent.module(0x5000, b"/usr/bin/redis-server", &[1]).unwrap() as u64 + 2;
        set(parent.row(1), [0x5001, module, COLD.cast_unsigned(), ABSENT, 10, 8, 80, 20]);
        set(parent.row(2), [0x5002, 0, 0, 0, 1, 0, 0, 20]);
        SiteTable::begin(&of_child, true).unwrap().inherit(parent);
        let [one] = &read(&of_child)[..] else { panic!() };
        assert_eq!((one.offset, one.verdict, one.calls, one.device_bytes), (1, Verdict::Absent, 0, 0));
    }

    #[test]
    fn verdicts_are_those_of_score_and_absence() {
        let of = |score, absence| Verdict::of(score, absence);
        assert_eq!(
            [of(0, 0), of(1, 99), of(COLD, ABSENT - 1)],
            [Verdict::Learning, Verdict::Learning, Verdict::Device]
        );
        assert_eq!(
            [of(6, ABSENT), of(HOT, ABSENT), of(DENIED, 0)],
            [Verdict::Absent, Verdict::Cached, Verdict::Denied]
        );
        assert_eq!([of(GIVEN_CPU, 0), of(GIVEN_DEVICE, 99)], [Verdict::GivenCpu, Verdict::GivenDevice]);
    }

    #[test]
    fn a_full_table_has_no_more_modules_and_damaged_words_have_no_sites() {
        let words = words();
        let table = SiteTable::begin(&words, true).unwrap();
        let long = vec![b'x'; 8 * PATH_WORDS + 1];
        let cut = table.module(1, &long, &[]).unwrap();
        assert!((1..MODULES).all(|at| table.module(at + 1, b"/lib", &[]).is_some()));
        assert_eq!(table.module(MODULES + 1, b"/lib", &[]), None);
        set(table.row(0), [0x11, cut as u64 + 2, 0, 0, 1, 0, 0, 0]);
        set(table.row(1), [0x12, u64::MAX, 0, 0, 1, 0, 0, 0]);
        assert!(read(&words).iter().all(|site| site.file.is_none()), "a path in part, and a module that is not there");
        words[HEADER + 2].store(u64::MAX, Ordering::Relaxed);
        assert_eq!(read(&words).len(), 2);
        SiteTable::begin(&words, false).unwrap();
        assert!(read(&words).iter().all(|site| site.verdict == Verdict::Always));
        assert_eq!(read(&words[1..]), []);
        assert!(SiteTable::begin(&words[1..], true).is_none());
    }
}
