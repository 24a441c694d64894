//! Copies to files whose bytes survive.

use crate::api::error::JobError;
use crate::api::mover::Mover;
use crate::api::outcome::{Outcome, Via};
use telpher_mem::{DurableFile, DurableFileError, Persistence};

/// Why bytes are not known to be durable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The bytes do not fit into the file; nothing was written.
    #[error("{len} bytes at offset {at} do not lie in the file of {file} bytes")]
    Outside {
        /// The offset in the file.
        at: u64,
        /// The length.
        len: u64,
        /// Bytes of the file.
        file: u64,
    },
    /// The copy failed; the content of the file's bytes is not known.
    #[error("the copy to the file failed")]
    Copy(#[source] JobError),
    /// The system did not write the bytes.
    #[error("the copy was made, and is not known to be durable")]
    Persist(#[source] DurableFileError),
}

impl Mover {
    /// Copies `src` to the bytes of a durable file from `at` on, and returns when they survive the end of this process
    /// and, as far as the system and the CPU promise it, a loss of power (which no test of this project has tried).
    ///
    /// In persistent memory that the system maps directly ([`Persistence::Lines`]), this is
    /// [`copy_durable`](Mover::copy_durable). In any other file it is a copy and msync(2).
    ///
    /// ```
    /// use telpher_mover::{DurableFile, Mover};
    ///
    /// let path = std::env::temp_dir().join(format!("telpher-store-{}", std::process::id()));
    /// if let Ok(mut file) = DurableFile::create(&path, 8192) {
    ///     Mover::cpu().store(b"survives", &mut file, 4096)?;
    ///     assert_eq!(&file.bytes()[4096..4104], b"survives");
    ///     # std::fs::remove_file(&path).ok();
    /// } // else the temporary folder is in memory
    /// # Ok::<(), telpher_mover::StoreError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn store(&self, src: &[u8], file: &mut DurableFile, at: u64) -> Result<Via, StoreError> {
        let (len, size) = (<[u8]>::len(src), file.len());
        let range = usize::try_from(at).ok().and_then(|at| Some(at..at.checked_add(len).filter(|&end| end <= size)?));
        let Some(range) = range else {
            return Err(StoreError::Outside { at, len: len as u64, file: size as u64 });
        };
        let is_direct = file.persistence() == Persistence::Lines;
        let dst = &mut file.bytes_mut()[range.clone()];
        let done = self
            .scope(|scope| if is_direct { scope.copy_durable(src, dst).wait() } else { scope.copy(src, dst).wait() });
        done.result.map_err(StoreError::Copy).map(|outcome| debug_assert_eq!(outcome, Outcome::Done))?;
        file.persist(range).map_err(StoreError::Persist)?;
        Ok(done.via)
    }
}
