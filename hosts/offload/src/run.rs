//! Runs one program to its end.

use crate::processes::{Process, ProcessStatistics, processes, statistics};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use telpher_device::{DeviceName, NameError, OpenError, OpenOptions, open};
use telpher_launch::{LaunchError, PreloadedProgram, RunDirectory, RunKind, UserDirectory, libraries};
use telpher_offload_wire::{Settings, VARIABLE};

/// Why a program cannot be run, or its counters cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The device's name is unknown.
    #[error(transparent)]
    Device(#[from] NameError),
    /// The device offers no queues.
    #[error("cannot offload to {name}")]
    Open {
        /// The device's name.
        name: String,
        /// Why the device cannot be opened.
        #[source]
        source: Box<OpenError>,
    },
    /// The counters of the processes cannot be read.
    #[error("cannot read what the processes of this run have counted")]
    Counters(#[source] io::Error),
    /// No library can be preloaded into the program.
    #[error(
        "the copies of {} cannot be seen, because it {why}: offload needs a dynamically linked program, and Go copies \
         with functions of its own",
        program.display()
    )]
    Unseen {
        /// The program.
        program: PathBuf,
        /// The reason, as a verb phrase.
        why: &'static str,
    },
    /// The library cannot get a name of Intel's DTO.
    #[error("cannot make the link {}", path.display())]
    Link {
        /// The name.
        path: PathBuf,
        /// The system's error; another file may have this name.
        #[source]
        source: io::Error,
    },
    /// The program cannot be run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl OffloadError {
    /// As of a shell where the program is meant; 125 for all else.
    pub fn exit_code(&self) -> u8 {
        match self {
            OffloadError::Launch(error) => error.exit_code(),
            OffloadError::Unseen { .. } => 126,
            _ => 125,
        }
    }
}

/// What to run, and which calls go to the device.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The program, searched in PATH, and its arguments.
    pub program: Vec<OsString>,
    /// The device, the functions and the threshold. The folder is set by [`run`].
    pub settings: Settings,
    /// How long to wait after the first SIGTERM.
    pub grace: Duration,
}

/// A run that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The program's exit code; 128 + N if signal N ended it.
    pub code: u8,
    /// What each process has counted.
    pub processes: Vec<Process>,
    /// The calls of each process by their size, if the settings ask for them.
    pub statistics: Vec<ProcessStatistics>,
}

/// Runs the program to its end, with a remark before if no device will be used.
///
/// # Errors
/// If it cannot be run so, or the counters cannot be read.
pub fn run(run: &RunOptions, remark: impl FnOnce(&str)) -> Result<Finished, OffloadError> {
    if !check_devices(&run.settings)? {
        remark("this user can use no hardware queue, so the CPU executes everything; `telpher list` says why");
    }
    let user = UserDirectory::open()?;
    let folder = RunDirectory::create(&user, RunKind::Offload)?;
    let settings = Settings { folder: Some(folder.path().into()), ..run.settings.clone() };
    let (program, rest) = run.program.split_first().expect("the caller names a program");
    let preloaded = PreloadedProgram {
        program: program.clone(),
        args: rest.to_vec(),
        image: libraries::OFFLOAD,
        variable: (VARIABLE, settings.to_value().into()),
        go_notice: Some("Go copies with functions of its own, which stay with the CPU; only its C code is offloaded"),
        grace: run.grace,
    };
    let code = preloaded.run(&user).map_err(|error| match error {
        LaunchError::Unpreloadable { program, why } => OffloadError::Unseen { program, why },
        error => error.into(),
    })?;
    let counted = || Ok((processes(folder.path())?, statistics(folder.path())?));
    let (processes, statistics) = counted().map_err(OffloadError::Counters)?;
    Ok(Finished { code, processes, statistics })
}

/// Opens the devices to learn now why they cannot be opened, and closes them again: each process opens them for itself.
/// Returns false if they have no queue, although the user wants one.
fn check_devices(settings: &Settings) -> Result<bool, OffloadError> {
    let (mut queues, mut is_wanted) = (0, false);
    for name in &settings.devices {
        let device: DeviceName = name.parse()?;
        let opened = open(&device, OpenOptions::default())
            .map_err(|source| OffloadError::Open { name: device.to_string(), source: Box::new(source) })?;
        queues += opened.portals.len();
        is_wanted |= device != DeviceName::Cpu;
    }
    Ok(queues > 0 || !is_wanted)
}
