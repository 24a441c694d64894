//! Options of `telpher fabric`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Send the messages of MPI programs, and of others that use libfabric, through telpher.
///
/// telpher has a provider for libfabric, named "telpher": the processes of one user on one machine send messages
/// through shared memory. Programs and MPIs stay unchanged; they select the provider by environment variables. Another
/// library does the AllReduce, Reduce, Bcast and Allgather of MPI programs in memory that all ranks share.
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  telpher fabric env                               the variables to set
  telpher fabric env --collectives                 the same for collective operations
  telpher fabric install --folder /opt/telpher/lib"
)]
pub(crate) struct Fabric {
    #[command(subcommand)]
    pub(crate) kind: FabricKind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FabricKind {
    Env(FabricEnv),
    Install(FabricInstall),
}

/// Install a library, and print the variables with which Open MPI, MPICH and other programs select it.
///
/// The provider is written to a folder, without --folder to one of the user's cache directory. Each line of the output
/// is NAME=VALUE. The variables of Open MPI and MPICH do not disturb each other. TELPHER_LOG=info lets the provider
/// say on standard error why a program did not select it. --collectives is for the library with collective operations,
/// which works with the provider and without it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher fabric env
  telpher fabric env --folder /opt/telpher/lib
  env $(telpher fabric env) mpirun -np 2 ./program
  env $(telpher fabric env --collectives) mpirun -np 2 ./program
  env $(telpher fabric env) fi_info -p telpher
  env $(telpher fabric env) TELPHER_LOG=info mpirun -np 2 ./program   why it is not selected")]
pub(crate) struct FabricEnv {
    /// Folder of the provider; it must exist [default: a folder in the user's cache directory].
    #[arg(long, help_heading = "Output", value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,

    /// Print the variable that preloads the collective operations, instead of those for messages.
    #[arg(long)]
    pub(crate) collectives: bool,
}

/// Install the provider for programs that find it by FI_PROVIDER_PATH, and the library with collective operations.
///
/// Writes libtelpher-fi.so and libtelpher-coll.so to a folder, and prints their paths. The second one is for
/// LD_PRELOAD.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher fabric install --folder /opt/telpher/lib
  FI_PROVIDER_PATH=/opt/telpher/lib fi_info -p telpher")]
pub(crate) struct FabricInstall {
    /// Folder of the provider; it must exist.
    #[arg(long, help_heading = "Output", value_name = "DIR")]
    pub(crate) folder: PathBuf,
}
