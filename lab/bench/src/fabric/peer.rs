//! The peers: which programs stand beside each other, how they are started, and how they copy.

use super::pair::{Pair, Rendezvous, Start};
use super::programs::{Mpi, Programs};
use serde::{Serialize, Serializer};
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::Command;

/// A pair of processes that exchange messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// libfabric with telpher's provider.
    Telpher,
    /// The same, and the provider's helper thread moves messages on, too.
    TelpherHelper,
    /// libfabric with telpher's provider, and buffers in a file in memory that the receiver can map, too.
    TelpherMapped,
    /// The library telpher-fabric, without libfabric.
    Library,
    /// libfabric's shm provider, which reads the other process's memory if the kernel lets it.
    ShmCma,
    /// libfabric's shm provider without that: it copies through shared memory.
    ShmSar,
    /// Open MPI's own shared memory transport, vader, which reads the other process's memory.
    Vader,
    /// vader without that.
    VaderNoCma,
    /// MPICH over UCX.
    Ucx,
    /// Open MPI over libfabric with telpher's provider.
    OpenMpi,
    /// MPICH over libfabric with telpher's provider.
    Mpich,
    /// Open MPI over libfabric with its shm provider.
    OpenMpiShm,
    /// MPICH over libfabric with its shm provider.
    MpichShm,
    /// Open MPI over vader, with telpher's collective operations.
    OpenMpiCollectives,
    /// MPICH over UCX, with telpher's collective operations.
    MpichCollectives,
}

/// All peers, in the order of tables and legends.
pub const ALL: [Peer; 15] = [
    Peer::Telpher,
    Peer::TelpherHelper,
    Peer::TelpherMapped,
    Peer::Library,
    Peer::ShmCma,
    Peer::ShmSar,
    Peer::Vader,
    Peer::VaderNoCma,
    Peer::Ucx,
    Peer::OpenMpi,
    Peer::Mpich,
    Peer::OpenMpiShm,
    Peer::MpichShm,
    Peer::OpenMpiCollectives,
    Peer::MpichCollectives,
];

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Peer {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Telpher => "telpher",
            Peer::TelpherHelper => "telpher with its helper thread",
            Peer::TelpherMapped => "telpher from shared buffers",
            Peer::Library => "telpher-fabric",
            Peer::ShmCma => "shm",
            Peer::ShmSar => "shm without CMA",
            Peer::Vader => "vader",
            Peer::VaderNoCma => "vader without CMA",
            Peer::Ucx => "MPICH over UCX",
            Peer::OpenMpi => "Open MPI over telpher",
            Peer::Mpich => "MPICH over telpher",
            Peer::OpenMpiShm => "Open MPI over shm",
            Peer::MpichShm => "MPICH over shm",
            Peer::OpenMpiCollectives => "Open MPI with telpher's collectives",
            Peer::MpichCollectives => "MPICH with telpher's collectives",
        }
    }

    /// Returns how long messages travel, and how often each byte is copied on its way.
    pub fn engine(self) -> (&'static str, u32) {
        match self {
            Peer::Telpher | Peer::TelpherHelper | Peer::OpenMpi | Peer::Mpich => {
                ("slots of shared memory, sender and receiver at the same time; TELPHER_FABRIC_DEVICE or the CPU", 2)
            }
            Peer::TelpherMapped => {
                ("the sender's file, which the receiver maps, where that takes less time than slots", 1)
            }
            Peer::Library => ("slots of shared memory, sender and receiver at the same time; the CPU", 2),
            Peer::ShmCma | Peer::Vader | Peer::OpenMpiShm | Peer::MpichShm => {
                ("process_vm_readv of the receiver above 4 KiB, if the kernel permits it", 1)
            }
            Peer::ShmSar => ("buffers of shared memory, filled and emptied in turn; the CPU", 2),
            Peer::VaderNoCma => ("fragments in shared memory; the CPU", 2),
            Peer::OpenMpiCollectives | Peer::MpichCollectives => ("sums in memory that all ranks share; the CPU", 2),
            Peer::Ucx => ("as UCX chooses: shared memory, process_vm_readv for long messages", 1),
        }
    }

    /// Returns why it cannot run here, or `None`.
    pub(super) fn missing(self, programs: &Programs) -> Option<String> {
        let of_provider = || programs.provider.as_ref().err();
        let of_collectives = || programs.collectives.as_ref().err();
        let of_client = || programs.libfabric.as_ref().err();
        match self {
            Peer::Library => programs.telpher.as_ref().err().cloned(),
            Peer::Telpher | Peer::TelpherHelper | Peer::TelpherMapped => of_provider().or_else(of_client).cloned(),
            Peer::ShmCma | Peer::ShmSar => of_client().cloned(),
            Peer::Vader | Peer::VaderNoCma => programs.open_mpi.as_ref().err().cloned(),
            Peer::OpenMpi => of_provider().or(programs.open_mpi.as_ref().err()).cloned(),
            Peer::OpenMpiCollectives => of_collectives().or(programs.open_mpi.as_ref().err()).cloned(),
            Peer::MpichCollectives => of_collectives().or(programs.mpich_ucx.as_ref().err()).cloned(),
            Peer::Ucx => programs.mpich_ucx.as_ref().err().cloned(),
            Peer::Mpich => of_provider().or(programs.mpich_ofi.as_ref().err()).cloned(),
            Peer::OpenMpiShm => programs.open_mpi.as_ref().err().or(programs.without_comm.as_ref().err()).cloned(),
            Peer::MpichShm => programs.mpich_ofi.as_ref().err().cloned(),
        }
    }

    /// Starts it on two cores.
    ///
    /// # Errors
    /// It is missing, does not start, or does not say hello.
    pub(super) fn start(self, programs: &Programs, folder: &Path, cpus: [usize; 2]) -> io::Result<Pair> {
        let there = |missing: &String| io::Error::other(missing.clone());
        let place = Rendezvous::new(folder)?;
        let mut starts = Vec::new();
        match self {
            Peer::Library => {
                let telpher = programs.telpher.as_ref().map_err(there)?;
                for (rank, cpu) in cpus.into_iter().enumerate() {
                    let mut command = Command::new(telpher);
                    command.args(["bench", "fabric", "--program"]).arg(place.socket());
                    command.args([rank.to_string(), cpu.to_string()]);
                    starts.push(command);
                }
            }
            Peer::Telpher | Peer::TelpherHelper | Peer::TelpherMapped | Peer::ShmCma | Peer::ShmSar => {
                let client = programs.libfabric.as_ref().map_err(there)?;
                let provider = if self.is_telpher() { "telpher" } else { "shm" };
                let progress = if self == Peer::TelpherHelper { "auto" } else { "manual" };
                let buffers = if self == Peer::TelpherMapped { "shared" } else { "private" };
                for (rank, cpu) in cpus.into_iter().enumerate() {
                    let mut command = Command::new(client);
                    command.arg(place.socket()).args([rank.to_string(), cpu.to_string()]);
                    command.args([provider, progress, buffers]);
                    starts.push(command);
                }
            }
            Peer::Vader | Peer::VaderNoCma | Peer::OpenMpi | Peer::OpenMpiShm | Peer::OpenMpiCollectives => {
                starts.push(mpirun(self, programs.open_mpi.as_ref().map_err(there)?, &place, cpus));
            }
            Peer::Ucx | Peer::MpichCollectives => {
                starts.push(mpiexec(programs.mpich_ucx.as_ref().map_err(there)?, &place, cpus))
            }
            Peer::Mpich | Peer::MpichShm => {
                starts.push(mpiexec(programs.mpich_ofi.as_ref().map_err(there)?, &place, cpus))
            }
        }
        let variables = match self {
            Peer::OpenMpiCollectives | Peer::MpichCollectives => programs.collectives.as_deref().map_err(there)?,
            _ if self.is_telpher() => programs.provider.as_deref().map_err(there)?,
            _ => &[],
        };
        for command in &mut starts {
            environment(self, command, variables);
            if self == Peer::OpenMpiShm {
                command.env("LD_PRELOAD", programs.without_comm.as_ref().map_err(there)?);
            }
        }
        Pair::start(Start { name: self.name(), expected: self.label(), commands: starts, place })
    }

    /// Returns true if libfabric must find telpher's provider.
    fn is_telpher(self) -> bool {
        matches!(self, Peer::Telpher | Peer::TelpherHelper | Peer::TelpherMapped | Peer::OpenMpi | Peer::Mpich)
    }

    /// Returns the beginning of the name that the program gives itself. Debian's `mpicc` may belong to either MPI.
    fn label(self) -> &'static str {
        match self {
            Peer::Library => "telpher-fabric",
            Peer::Telpher | Peer::TelpherHelper | Peer::TelpherMapped | Peer::ShmCma | Peer::ShmSar => "libfabric",
            Peer::Vader | Peer::VaderNoCma | Peer::OpenMpi | Peer::OpenMpiShm | Peer::OpenMpiCollectives => "Open MPI",
            Peer::Ucx | Peer::Mpich | Peer::MpichShm | Peer::MpichCollectives => "MPICH",
        }
    }
}

/// Variables of the caller that would change which way messages go.
const REMOVED: [&str; 10] = [
    "LD_PRELOAD",
    "FI_PROVIDER",
    "FI_PROVIDER_PATH",
    "FI_SHM_DISABLE_CMA",
    "OMPI_MCA_pml",
    "OMPI_MCA_mtl",
    "OMPI_MCA_btl",
    "OMPI_MCA_mtl_ofi_provider_include",
    "MPICH_CH4_NETMOD",
    "MPIR_CVAR_NOLOCAL",
];

fn environment(peer: Peer, command: &mut Command, variables: &[(String, OsString)]) {
    for name in REMOVED {
        command.env_remove(name);
    }
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    // The ranks have a CPU each, so they need not give it up while they wait, whatever Open MPI takes for a core.
    command.env("OMPI_MCA_mpi_yield_when_idle", "0").env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    match peer {
        Peer::ShmCma => command.env("FI_SHM_DISABLE_CMA", "0"),
        Peer::ShmSar => command.env("FI_SHM_DISABLE_CMA", "1"),
        Peer::Vader | Peer::OpenMpiCollectives => command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "cma"),
        Peer::VaderNoCma => command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
        _ => command,
    };
    if matches!(peer, Peer::Vader | Peer::VaderNoCma | Peer::OpenMpiCollectives) {
        command.env("OMPI_MCA_pml", "ob1").env("OMPI_MCA_btl", "self,vader");
    }
    // As `telpher fabric env` selects telpher's provider.
    if peer == Peer::OpenMpiShm {
        command.env("FI_PROVIDER", "shm").env("OMPI_MCA_pml", "cm").env("OMPI_MCA_mtl", "ofi");
        command.env("OMPI_MCA_mtl_ofi_provider_include", "shm");
    }
    if peer == Peer::MpichShm {
        command.env("FI_PROVIDER", "shm").env("MPICH_CH4_NETMOD", "ofi").env("MPIR_CVAR_NOLOCAL", "1");
    }
}

/// Returns the command of Open MPI. The ranks choose their CPUs themselves, so that their helper threads may run on
/// others.
fn mpirun(peer: Peer, mpi: &Mpi, place: &Rendezvous, cpus: [usize; 2]) -> Command {
    debug_assert_eq!(peer.label(), "Open MPI");
    let mut command = Command::new(&mpi.launcher);
    command.args(["-np", "2", "--bind-to", "none"]).arg(&mpi.program).arg(place.socket());
    command.args(cpus.map(|cpu| cpu.to_string()));
    command
}

/// Returns the command of MPICH.
fn mpiexec(mpi: &Mpi, place: &Rendezvous, cpus: [usize; 2]) -> Command {
    let mut command = Command::new(&mpi.launcher);
    command.args(["-n", "2"]).arg(&mpi.program).arg(place.socket()).args(cpus.map(|cpu| cpu.to_string()));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_variables_of_the_caller_do_not_reach_a_peer() {
        for (at, peer) in ALL.iter().enumerate() {
            assert!(ALL[..at].iter().all(|other| other.name() != peer.name()));
            let mut command = Command::new("true");
            environment(*peer, &mut command, &[]);
            // Some peers set a variable of their own in its place.
            let replaced = |name: &str| command.get_envs().any(|(key, _)| key == name);
            assert!(REMOVED.into_iter().all(replaced) && replaced("FI_PROVIDER_PATH"));
        }
    }

    #[test]
    fn only_one_of_the_shm_peers_may_read_the_other_process() {
        let without_cma = |peer| {
            let mut command = Command::new("true");
            environment(peer, &mut command, &[]);
            command
                .get_envs()
                .find_map(|(key, value)| (key == "FI_SHM_DISABLE_CMA").then(|| value.map(OsString::from)).flatten())
        };
        assert_eq!([Peer::ShmSar, Peer::ShmCma].map(without_cma), [Some("1".into()), Some("0".into())]);
        assert_eq!(without_cma(Peer::Telpher), None);
    }
}
