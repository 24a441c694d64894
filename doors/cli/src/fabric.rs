//! `telpher fabric`: installs libfabric's provider and the library for collective operations, and prints how programs
//! select them.

use crate::args::{FabricEnv, FabricInstall};
use crate::exit::Usage;
use std::io;
use std::path::{Path, PathBuf};
use telpher_launch::libraries::{COLLECTIVES, FABRIC};
use telpher_launch::{LaunchError, UserDirectory};
use telpher_report::deliver::{DeliverError, write_result};

/// The name of the file: libfabric loads all files of a folder that end so.
const FILE: &str = "libtelpher-fi.so";

/// The name of the library for collective operations. libfabric leaves it alone.
const COLLECTIVES_FILE: &str = "libtelpher-coll.so";

/// The variable of the dynamic linker.
const PRELOAD: &str = "LD_PRELOAD";

/// What programs need to select the provider, besides its folder.
const VARIABLES: [(&str, &str); 6] = [
    // Any program with libfabric.
    ("FI_PROVIDER", "telpher"),
    // Open MPI: its layer for libraries that match messages themselves.
    ("OMPI_MCA_pml", "cm"),
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_mtl_ofi_provider_include", "telpher"),
    // MPICH: libfabric, also for ranks of one machine.
    ("MPICH_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
];

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FabricError {
    /// The provider cannot be written.
    #[error(transparent)]
    Install(#[from] LaunchError),
    /// The folder in the cache directory cannot be created.
    #[error("cannot create {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The result cannot be printed.
    #[error(transparent)]
    Write(#[from] DeliverError),
}

impl Usage for FabricError {}

/// Installs both libraries, and prints their paths.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn install(args: &FabricInstall) -> Result<(), FabricError> {
    let messages = FABRIC.write_to(&args.folder.join(FILE))?;
    let collectives = COLLECTIVES.write_to(&args.folder.join(COLLECTIVES_FILE))?;
    Ok(write_result(None, format!("{}\n{}\n", messages.display(), collectives.display()))?)
}

/// Installs a library, and prints the variables with which programs select it.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn env(args: &FabricEnv) -> Result<(), FabricError> {
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => default_folder()?,
    };
    if args.collectives {
        let path = COLLECTIVES.write_to(&folder.join(COLLECTIVES_FILE))?;
        let others = std::env::var(PRELOAD).ok().filter(|others| !others.is_empty());
        let others = others.map_or(String::new(), |others| format!(":{others}"));
        return Ok(write_result(None, format!("{PRELOAD}={}{others}\n", path.display()))?);
    }
    let path = FABRIC.write_to(&folder.join(FILE))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut lines = format!("FI_PROVIDER_PATH={}\n", folder.display());
    for (name, value) in VARIABLES {
        lines += &format!("{name}={value}\n");
    }
    Ok(write_result(None, lines)?)
}

/// Returns a folder that has nothing but the two libraries.
fn default_folder() -> Result<PathBuf, FabricError> {
    let path = UserDirectory::lasting()?.path().join("fabric");
    std::fs::create_dir_all(&path).map_err(|source| FabricError::Folder { path: path.clone(), source })?;
    Ok(path)
}
