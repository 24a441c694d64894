//! `telpher tier run`.

use super::image;
use super::nodes::{self, TiersError};
use crate::args::{MechanismArg, SourceArg, TierRun};
use crate::report::tier as report;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use telpher_device::{DeviceName, NameError, OpenError, OpenOptions, open};
use telpher_tier::{Heap, HeapOptions, Manager, ManagerOptions, Mechanism, SourceKind, TierId, TierOptions};
use telpher_tier_wire::{Settings, StateFolder, VARIABLE};
use telpher_vdev::launch::{Image, LaunchError, Preloaded, RunDirectory, RunKind, UserDirectory};

/// Why a program was not run, or its report not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TierError {
    /// The tiers are invalid.
    #[error(transparent)]
    Tiers(#[from] TiersError),
    /// The device's name is invalid.
    #[error(transparent)]
    Device(#[from] NameError),
    /// It gives no queues.
    #[error("cannot copy by {name}")]
    Open {
        /// The file.
        name: String,
        /// Why.
        #[source]
        source: Box<OpenError>,
    },
    /// Memory cannot be managed on this machine or by this user.
    #[error("cannot manage a program's memory")]
    Heap(#[from] telpher_tier::TierError),
    /// The processes' reports cannot be read.
    #[error("cannot read the reports of this run's processes")]
    States(#[source] io::Error),
    /// The program cannot be run.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A file cannot be written.
    #[error("cannot write {}; name another file", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl TierError {
    /// The shell's codes for errors of the program; 125 for all others.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            TierError::Launch(error) => error.exit_code(),
            _ => 125,
        }
    }
}

/// Runs the program to its end, and prints the report; the exit code is the program's own.
///
/// # Errors
/// If it cannot be run, or a report cannot be written.
pub(crate) fn run(args: &TierRun) -> Result<ExitCode, TierError> {
    let (tiers, home) = nodes::tiers(&args.tier, args.home.as_deref())?;
    let device: DeviceName = args.device.parse()?;
    for path in [&args.html, &args.json].into_iter().flatten() {
        writable(path)?;
    }
    let user = UserDirectory::open()?;
    let folder = RunDirectory::create(&user, RunKind::Tier)?;
    let states = StateFolder::open(folder.path()).map_err(TierError::States)?;
    let mut settings = Settings::new(folder.path(), tiers, home);
    settings.device = args.device.clone();
    settings.mechanism = args.mechanism.map(|mechanism| match mechanism {
        MechanismArg::Exchange => "exchange".into(),
        MechanismArg::MovePages => "move-pages".into(),
    });
    let source = match args.source {
        SourceArg::Auto => None,
        SourceArg::Damon => Some(SourceKind::Damon),
        SourceArg::Traps => Some(SourceKind::Traps),
        SourceArg::Perf => Some(SourceKind::Perf),
        SourceArg::Windows => Some(SourceKind::Windows),
    };
    settings.source = source.map(|source| source.name().into());
    settings.limit = args.limit;
    settings.shuffle = args.shuffle;
    settings.follow = !args.no_follow;
    settings.least = args.least;
    try_here(&settings, &device, source)?;
    let (program, rest) = args.program.split_first().expect("the parser asks for a program");
    let preloaded = Preloaded {
        program: program.clone(),
        args: rest.to_vec(),
        image: Image { name: "telpher-tier", bytes: image::GUEST },
        variable: (VARIABLE, settings.to_value().into()),
        grace: Duration::from_secs_f64(args.grace),
    };
    let code = preloaded.run(&user)?;
    let states = states.read_all().map_err(TierError::States)?;
    if !args.quiet {
        eprint!("{}", report::text(&states));
    }
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&states).expect("states are plain data");
        write(path, &text)?;
    }
    if let Some(path) = &args.html {
        write(path, &report::html(&states))?;
    }
    Ok(ExitCode::from(code))
}

fn write(path: &Path, text: &str) -> Result<(), TierError> {
    telpher_mem::write_file(path, text.as_bytes()).map_err(|source| TierError::Report { path: path.into(), source })
}

/// Checks before the program runs that its report can be written.
fn writable(path: &Path) -> Result<(), TierError> {
    telpher_mem::check_writable(path).map_err(|source| TierError::Report { path: path.into(), source })
}

/// Tries the set-up of each process here and drops it again, to report errors before the program starts.
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
    // Without a name, whoever is not to be had is not taken.
    let Some(source) = source else { return Ok(()) };
    let mut options = ManagerOptions::new(&heap);
    (options.sources, options.moves) = (Some(vec![source]), false);
    drop(Manager::start(&heap, options)?);
    Ok(())
}
