//! The servers of several virtual machines, from start to end.

use crate::function::Function;
use crate::remarks::Remarks;
use crate::server::{Server, ServerOptions};
use crate::turns::{Allowance, EnginePool};
use crate::{Machine, RunOptions, VfioRunError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_model::Capabilities;
use telpher_os::Termination;
use telpher_vhost::SocketListener;

/// Largest transfer of a machine that shares its engines, as a power of two. A longer one would keep the others
/// waiting: 16 MiB take some milliseconds. Source: chosen; Linux configures queues for 2 MiB.
const SHARED_TRANSFER_SHIFT: u8 = 24;

/// What a machine's device has done since the start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MachineTotals {
    /// The socket.
    pub path: PathBuf,
    /// Descriptors that ended, members of batches included.
    pub descriptors: u64,
    /// Bytes read by operations.
    pub read: u64,
    /// Bytes written by operations.
    pub written: u64,
    /// Page faults: addresses that the guest's memory does not have.
    pub faults: u64,
    /// Submissions that no queue took.
    pub lost: u64,
    /// Interrupts signalled to the machine.
    pub interrupts: u64,
}

/// Servers that run until they are dropped.
#[derive(Debug)]
pub struct VfioRun {
    endings: Termination,
    seconds: Option<f64>,
    servers: Vec<(PathBuf, Server)>,
}

impl VfioRun {
    /// Creates the sockets and starts to serve. `report` gets a sentence about each client that comes or goes, and
    /// about what it does wrong; it is called by several threads.
    ///
    /// # Errors
    /// If a socket cannot be created, or the system refuses a thread.
    pub fn start(options: &RunOptions, report: impl Fn(&str) + Send + Sync + 'static) -> Result<VfioRun, VfioRunError> {
        if options.machines.is_empty() {
            return Err(VfioRunError::NoMachine);
        }
        // Before any thread starts, so that none of them ends the process on a signal.
        let endings = Termination::listen().map_err(VfioRunError::Start)?;
        let report = Arc::new(report);
        let shared: Vec<&Machine> = options.machines.iter().filter(|machine| !machine.own_engines).collect();
        let allowances: Vec<Allowance> = shared.iter().map(|machine| machine.allowance()).collect();
        let pool = Arc::new(EnginePool::new(options.engines, &allowances));
        let mut next = 0..;
        let mut servers = Vec::new();
        for (number, machine) in options.machines.iter().enumerate() {
            let path = machine.path.clone();
            let refused = |source| VfioRunError::Socket { path: path.clone(), source };
            let (pool, member) = if machine.own_engines {
                (Arc::new(EnginePool::new(1, &[machine.allowance()])), 0)
            } else {
                (Arc::clone(&pool), next.next().unwrap_or_default())
            };
            let report = Arc::clone(&report);
            let server = ServerOptions {
                listener: SocketListener::bind(&path).map_err(refused)?,
                pool,
                member,
                number,
                uses_messages: options.uses_messages,
                remarks: Remarks::new(Arc::new(move |remark: &str| report(&format!("machine {number}: {remark}")))),
            };
            let function = Function::new(capabilities(options, machine))?;
            servers.push((path, Server::start(function, server).map_err(VfioRunError::Start)?));
        }
        Ok(VfioRun { endings, seconds: options.seconds, servers })
    }

    /// Waits until the time is over, or Ctrl-C or SIGTERM arrives.
    pub fn wait(&self) {
        let end = self.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        let left = || end.map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()));
        while !left().is_zero() && !self.endings.wait(left()) {}
    }

    /// Returns what each machine's device has done.
    #[must_use]
    pub fn totals(&self) -> Vec<MachineTotals> {
        let totals = |(path, server): &(PathBuf, Server)| {
            let all = server.function.totals().all();
            MachineTotals {
                path: path.clone(),
                descriptors: all.descriptors + all.members,
                read: all.read_bytes,
                written: all.written_bytes,
                faults: all.faults,
                lost: server.function.lost(),
                interrupts: server.function.vectors.delivered(),
            }
        };
        self.servers.iter().map(totals).collect()
    }
}

/// The device that a machine sees: within the machine's limits, and without interrupt message storage, whose messages
/// vfio-user cannot carry.
fn capabilities(options: &RunOptions, machine: &Machine) -> Capabilities {
    let caps = options.preset.capabilities();
    let longest = caps.gen_cap.max_transfer_shift();
    let longest = if machine.own_engines { longest } else { longest.min(SHARED_TRANSFER_SHIFT) };
    let longest = machine.transfer_shift.map_or(longest, |shift| longest.min(shift));
    let entries = caps.wq_cap.total_entries();
    let entries = machine.in_progress.map_or(entries, |most| entries.min(most));
    Capabilities {
        gen_cap: caps.gen_cap.with_ims_size(0).with_max_transfer_shift(longest),
        wq_cap: caps.wq_cap.with_total_entries(entries),
        ..caps
    }
}
