//! Runs one program to its end.

use crate::nodes::{self, TierChoice, TiersError};
use std::ffi::OsString;
use std::io;
use std::time::Duration;
use telpher_device::{DeviceName, NameError, OpenError, OpenOptions, open};
use telpher_launch::{LaunchError, PreloadedProgram, RunDirectory, RunKind, UserDirectory, libraries};
use telpher_tier::{Heap, HeapOptions, Manager, ManagerOptions, Mechanism, SourceKind, TierId, TierOptions};
use telpher_tier_wire::{Settings, State, StateFolder, VARIABLE};

/// Why a program cannot be run, or its report cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// The tiers are invalid.
    #[error(transparent)]
    Tiers(#[from] TiersError),
    /// The device's name is unknown.
    #[error(transparent)]
    Device(#[from] NameError),
    /// The device offers no queues.
    #[error("cannot copy by {name}")]
    Open {
        /// The device's name.
        name: String,
        /// Why the device cannot be opened.
        #[source]
        source: Box<OpenError>,
    },
    /// This system does not support managed memory.
    #[error("cannot manage a program's memory")]
    Heap(#[from] telpher_tier::TierError),
    /// The files with the states of the processes cannot be read.
    #[error("cannot read the states that the processes of this run have written")]
    States(#[source] io::Error),
    /// The program cannot be run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl TierError {
    /// As of a shell where the program is meant; 125 for all else.
    pub fn exit_code(&self) -> u8 {
        match self {
            TierError::Launch(error) => error.exit_code(),
            _ => 125,
        }
    }
}

/// What to run, and how its memory is managed.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The program, searched in PATH, and its arguments.
    pub program: Vec<OsString>,
    /// The tiers, the fastest first. Without any, every NUMA node that has memory.
    pub tiers: Vec<TierChoice>,
    /// Name of the tier whose memory pages have when they are touched first.
    pub home: Option<String>,
    /// Name of the device that copies.
    pub device: String,
    /// How pages move; the best one that the kernel has unless given.
    pub mechanism: Option<Mechanism>,
    /// How hot pages are found; the best source that is available unless given.
    pub source: Option<SourceKind>,
    /// Bytes a second that are moved at most, in each process.
    pub limit: Option<u64>,
    /// Move all memory to and fro all the time.
    pub shuffle: bool,
    /// Programs that are executed belong to the run, whatever environment they are given.
    pub follow: bool,
    /// Smaller mappings are left alone; bytes.
    pub least: u64,
    /// How long to wait after the first SIGTERM.
    pub grace: Duration,
}

/// Runs the program to its end. Returns its exit code (128 + N if signal N ended it) and the state of each process at
/// its end.
///
/// # Errors
/// If it cannot be run so, or the states cannot be read.
pub fn run(run: &RunOptions) -> Result<(u8, Vec<State>), TierError> {
    let (tiers, home) = nodes::tiers(&run.tiers, run.home.as_deref())?;
    let device: DeviceName = run.device.parse()?;
    let user = UserDirectory::open()?;
    let folder = RunDirectory::create(&user, RunKind::Tier)?;
    let states = StateFolder::open(folder.path()).map_err(TierError::States)?;
    let mut settings = Settings::new(folder.path(), tiers, home);
    settings.device = run.device.clone();
    settings.mechanism = run.mechanism.map(|mechanism| match mechanism {
        Mechanism::Exchange => "exchange".into(),
        _ => "move-pages".into(),
    });
    settings.source = run.source.map(|source| source.name().into());
    settings.limit = run.limit;
    settings.shuffle = run.shuffle;
    settings.follow = run.follow;
    settings.least = run.least;
    try_here(&settings, &device, run.source)?;
    let (program, rest) = run.program.split_first().expect("the caller names a program");
    let preloaded = PreloadedProgram {
        program: program.clone(),
        args: rest.to_vec(),
        image: libraries::TIER,
        variable: (VARIABLE, settings.to_value().into()),
        // The library does not see Go's own system calls, so its memory cannot be managed.
        go_notice: None,
        grace: run.grace,
    };
    let code = preloaded.run(&user)?;
    Ok((code, states.read_all().map_err(TierError::States)?))
}

/// Sets up here what each process will set up, to tell now why it cannot be, and lets it go again.
fn try_here(settings: &Settings, device: &DeviceName, source: Option<SourceKind>) -> Result<(), TierError> {
    let opened = open(device, OpenOptions::default())
        .map_err(|source| TierError::Open { name: device.to_string(), source: Box::new(source) })?;
    drop(opened);
    let tier =
        |tier: &telpher_tier_wire::Tier| TierOptions { name: tier.name.clone(), node: tier.node, bytes: tier.bytes };
    let mut options = HeapOptions::new(settings.tiers.iter().map(tier).collect());
    options.home = TierId(settings.home);
    options.mechanism = settings.mechanism.as_deref().map(|mechanism| match mechanism {
        "exchange" => Mechanism::Exchange,
        _ => Mechanism::MovePages,
    });
    let heap = Heap::new(options)?;
    // Without a requested source, the manager uses only sources that are available, so there is nothing to check.
    let Some(source) = source else { return Ok(()) };
    let mut options = ManagerOptions::new(&heap);
    (options.sources, options.moves) = (Some(vec![source]), false);
    drop(Manager::start(&heap, options)?);
    Ok(())
}
