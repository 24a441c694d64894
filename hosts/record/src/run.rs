//! Runs one program to its end, recorded.

use crate::calibration::Calibration;
use crate::machine::machine;
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use telpher_launch::{LaunchError, PreloadedProgram, UserDirectory, libraries};
use telpher_offload_wire::{RECORD_VARIABLE, RecordSettings};

/// Why a program cannot be recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The folder has recordings already.
    #[error("{} already has recordings: remove it, or name another folder with --folder", .0.display())]
    Exists(PathBuf),
    /// The folder cannot be created.
    #[error("cannot create the folder {} for the recordings", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program cannot be run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl RecordError {
    /// As of a shell where the program is meant; 125 for all else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            RecordError::Launch(error) => error.exit_code(),
            _ => 125,
        }
    }
}

/// What to record.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The program, searched in PATH, and its arguments.
    pub program: Vec<OsString>,
    /// The folder for the recordings. It must not exist, or be empty.
    pub folder: PathBuf,
    /// Whether programs that the program executes are recorded as well, whatever environment they get.
    pub follow: bool,
    /// How long to wait after the first SIGTERM.
    pub grace: Duration,
}

/// Runs the program to its end. Returns its exit code (128 + N if signal N ended it).
///
/// # Errors
/// If it cannot be run so, or the folder cannot be created.
pub fn run(run: &RunOptions) -> Result<u8, RecordError> {
    let user = UserDirectory::open()?;
    let folder = create_folder(&run.folder)?;
    let Calibration { curves, tsc_hz, timer_ticks } = Calibration::measure();
    let settings =
        RecordSettings { follow: run.follow, ..RecordSettings::new(folder, machine(tsc_hz), timer_ticks, curves) };
    let (program, rest) = run.program.split_first().expect("the caller names a program");
    let preloaded = PreloadedProgram {
        program: program.clone(),
        args: rest.to_vec(),
        image: libraries::OFFLOAD,
        variable: (RECORD_VARIABLE, settings.to_value().into()),
        go_notice: Some("Go copies with functions of its own, which are not recorded; only calls of its C code are"),
        grace: run.grace,
    };
    Ok(preloaded.run(&user)?)
}

/// Creates the folder, for this user alone, and returns its absolute path.
fn create_folder(folder: &Path) -> Result<PathBuf, RecordError> {
    let failed = |source| RecordError::Folder { folder: folder.to_owned(), source };
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if std::fs::read_dir(folder).map_err(failed)?.next().is_some() {
                return Err(RecordError::Exists(folder.to_owned()));
            }
        }
        created => created.map_err(failed)?,
    }
    folder.canonicalize().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_files_is_not_used_again() {
        let folder = std::env::temp_dir().join(format!("telpher-record-folder-{}", std::process::id()));
        assert!(create_folder(&folder).unwrap().is_absolute());
        create_folder(&folder).expect("it is empty");
        std::fs::write(folder.join("1.recording"), "").unwrap();
        let error = create_folder(&folder).unwrap_err();
        assert!(matches!(error, RecordError::Exists(_)), "{error:?}");
        assert!(create_folder(&folder.join("1.recording").join("below")).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
