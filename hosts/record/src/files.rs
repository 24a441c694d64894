//! Reads recordings from folders and files, and joins them in one file.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use telpher_recording::{MergeError, ReadError, Recording, compact, lengths};

/// Why recordings cannot be read or joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file is no recording that this program can read.
    #[error("cannot read the recording {}", path.display())]
    Recording {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        source: ReadError,
    },
    /// A file is longer than recordings are.
    #[error("{} is too long for recordings", .0.display())]
    TooLong(PathBuf),
    /// A folder has no recordings.
    #[error("{} has no recordings (files whose names end in .recording)", .0.display())]
    Empty(PathBuf),
    /// The recordings do not belong together.
    #[error("cannot join the recordings")]
    Merge(#[from] MergeError),
    /// The file cannot be written.
    #[error("cannot write {}; name another file", path.display())]
    Write {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The ending of the names of recordings in a folder.
const ENDING: &str = "recording";

/// Bytes of the longest file that is read. Source: chosen; a process has 36 MiB.
const MOST_BYTES: u64 = 16 << 30;

/// Reads the recordings of files, and of all files in folders whose names end in `.recording`, as one.
///
/// # Errors
/// If one of them cannot be read, or they are of different machines.
pub fn read<P: AsRef<Path>>(paths: &[P]) -> Result<Recording, FileError> {
    let mut recordings = Vec::new();
    for path in files(paths)? {
        let bytes = bytes(&path)?;
        match Recording::read_all(&bytes) {
            Ok(found) => recordings.extend(found),
            Err(error) if has_not_begun(&error, &path, paths) => {}
            Err(source) => return Err(FileError::Recording { path, source }),
        }
    }
    Ok(Recording::merge(recordings)?)
}

/// Writes the recordings of files and folders into one file, without the unused parts of their tables. Returns how many
/// there are.
///
/// # Errors
/// If one of them cannot be read, if they are of different machines, or if the file cannot be written.
pub fn merge<P: AsRef<Path>>(paths: &[P], output: &Path) -> Result<usize, FileError> {
    // Checks that they are of one machine.
    read(paths)?;
    let mut joined = Vec::new();
    let mut count = 0;
    for path in files(paths)? {
        let failed = |source| FileError::Recording { path: path.clone(), source };
        let bytes = bytes(&path)?;
        let lengths = match lengths(&bytes) {
            Err(error) if has_not_begun(&error, &path, paths) => continue,
            lengths => lengths.map_err(failed)?,
        };
        let mut rest = &bytes[..];
        for length in lengths {
            let (one, others) = rest.split_at(length);
            rest = others;
            joined.extend(compact(one).map_err(failed)?);
            count += 1;
        }
    }
    telpher_os::write_file(output, &joined).map_err(|source| FileError::Write { path: output.to_owned(), source })?;
    Ok(count)
}

/// Returns whether a file of a folder is that of a process that was killed while it began. A file that the caller named
/// is not.
fn has_not_begun<P: AsRef<Path>>(error: &ReadError, path: &Path, paths: &[P]) -> bool {
    *error == ReadError::NotBegun && paths.iter().all(|given| given.as_ref() != path)
}

/// Returns how many recordings there are, as files.
///
/// # Errors
/// If a folder cannot be read.
pub fn count<P: AsRef<Path>>(paths: &[P]) -> Result<usize, FileError> {
    files(paths).map(|files| files.len())
}

/// Returns the files that are meant by files and folders, those of a folder by name.
fn files<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<PathBuf>, FileError> {
    let mut files = Vec::new();
    for path in paths.iter().map(AsRef::as_ref) {
        let failed = |source| FileError::Read { path: path.to_owned(), source };
        if !path.is_dir() {
            files.push(path.to_owned());
            continue;
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file.extension().is_some_and(|extension| extension == ENDING) {
                found.push(file);
            }
        }
        if found.is_empty() {
            return Err(FileError::Empty(path.to_owned()));
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

/// Reads a file. Its holes, which are most of a recording, are not read.
fn bytes(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    // The file of a running process changes while it is read; entries that do are counted as torn.
    let file = File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    if len > MOST_BYTES {
        return Err(FileError::TooLong(path.to_owned()));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let mut at = 0;
    while at < len {
        let start = seek(&file, SeekFrom::Data(at)).unwrap_or_else(|error| if error == Errno::NXIO { len } else { at });
        let end = seek(&file, SeekFrom::Hole(start)).unwrap_or(len).min(len);
        let Some(part) = usize::try_from(start)
            .ok()
            .zip(usize::try_from(end).ok())
            .and_then(|(start, end)| bytes.get_mut(start..end))
        else {
            break;
        };
        file.read_exact_at(part, start).map_err(failed)?;
        at = end.max(start + 1);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use telpher_recording::{Limits, Operation, Start, Writer, bytes_needed};

    /// The bytes of a recording with one call.
    fn recording(pid: u32) -> Vec<u8> {
        let limits = Limits { threads: 4, sites: 8, modules: 2, trace_blocks: 4 };
        let words: Vec<AtomicU64> = (0..bytes_needed(limits).unwrap() / 8).map(|_| AtomicU64::new(0)).collect();
        let writer = Writer::over(&words, &Start { limits, pid, tsc_hz: 1_000_000, ..Start::default() }).unwrap();
        let _ = writer.thread(pid).count(Operation::Memcpy, 100);
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    #[test]
    fn folders_and_files_are_read_as_one_and_joined_in_one() {
        let folder = std::env::temp_dir().join(format!("telpher-record-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert!(matches!(read(&[&folder]), Err(FileError::Empty(_))));
        for pid in [1, 2] {
            std::fs::write(folder.join(format!("{pid}.recording")), recording(pid)).unwrap();
        }
        std::fs::write(folder.join("notes.txt"), "no recording").unwrap();
        let both = read(&[&folder]).unwrap();
        assert_eq!((both.processes.len(), both.summary().calls), (2, 2));
        let joined = folder.join("joined");
        assert_eq!(merge(&[&folder], &joined).unwrap(), 2);
        assert_eq!(read(&[&joined]).unwrap(), both);
        assert_eq!(read(&[&folder.join("1.recording"), &joined]).unwrap().summary().calls, 3);
        let error = read(&[&folder.join("notes.txt")]).unwrap_err();
        assert!(telpher_os::chain(&error).ends_with("the file is no recording"), "{error:?}");
        // A process that was killed before it wrote the header.
        std::fs::write(folder.join("3.recording"), [0; 8192]).unwrap();
        assert_eq!(read(&[&folder]).unwrap(), both);
        assert_eq!(merge(&[&folder], &joined).unwrap(), 2);
        assert!(read(&[&folder.join("3.recording")]).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
