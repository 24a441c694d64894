//! The measured target: a server on a thread of its own.

use crate::BenchError;
use crate::ffi::ThreadClock;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use telpher_nvmf::engine::{CpuEngine, DigestEngine, FinishedJob, Job, Segment};
use telpher_nvmf::load::{self, End, LoadOptions, Pattern};
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::server::{Handle, Server, SocketEngine};
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::{Limits, MemoryStorage, Target};

/// The subsystem.
pub(super) const NQN: &str = "nqn.2026-01.org.telpher:bench";
/// Bytes of the namespace: more than the second-level cache of most cores holds.
pub(super) const NAMESPACE_BYTES: u64 = 32 << 20;
/// Bytes of a block.
pub(super) const BLOCK_BYTES: u32 = 4096;

/// One digest in this many is timed, so that the clock costs little.
const TIMED: u64 = 16;

/// Computes digests by the CPU, and keeps how long some of them took.
#[derive(Debug, Default)]
struct TimedEngine {
    engine: CpuEngine,
    computed: u64,
    /// In ticks of the time stamp counter.
    ticks: Arc<Mutex<Vec<u64>>>,
}

impl TimedEngine {
    /// Computes one digest, and keeps how long it took if it is one of those that are timed.
    fn timed<T>(&mut self, compute: impl FnOnce(&mut CpuEngine) -> T) -> T {
        self.computed += 1;
        if !self.computed.is_multiple_of(TIMED) {
            return compute(&mut self.engine);
        }
        let begin = telpher_os::ticks();
        let computed = compute(&mut self.engine);
        let taken = telpher_os::ticks() - begin;
        self.ticks.lock().unwrap_or_else(PoisonError::into_inner).push(taken);
        computed
    }
}

impl DigestEngine for TimedEngine {
    fn prepare(&mut self, job: Job) {
        self.timed(|engine| engine.prepare(job));
    }

    fn is_immediate(&self, bytes: usize) -> bool {
        self.engine.is_immediate(bytes)
    }

    fn digest_now(&mut self, segments: &[Segment]) -> u32 {
        self.timed(|engine| engine.digest_now(segments))
    }

    fn submit(&mut self) {
        self.engine.submit();
    }

    fn completed(&mut self, done: &mut Vec<FinishedJob>) {
        self.engine.completed(done);
    }

    fn pending(&self) -> usize {
        self.engine.pending()
    }
}

/// A target with one namespace in memory, served by one loop.
#[derive(Debug)]
pub(super) struct RunningTarget {
    pub(super) address: SocketAddr,
    pub(super) clock: ThreadClock,
    ticks: Arc<Mutex<Vec<u64>>>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl RunningTarget {
    /// Starts a target whose loop runs on `cpu`.
    pub(super) fn start(cpu: usize) -> Result<RunningTarget, BenchError> {
        RunningTarget::start_with(cpu, SocketEngine::Auto)
    }

    /// Starts a target whose loop runs on `cpu` and uses its sockets in this way.
    pub(super) fn start_with(cpu: usize, sockets: SocketEngine) -> Result<RunningTarget, BenchError> {
        let (target, address) = target()?;
        let engine = TimedEngine::default();
        let ticks = Arc::clone(&engine.ticks);
        let most_connections = 1024;
        let mut server =
            Server::bind(&target, &[address], most_connections, Box::new(engine)).map_err(failed("the target"))?;
        server.use_sockets(sockets).map_err(failed("the target"))?;
        let address = server.addresses().map_err(failed("the target"))?[0];
        let handle = server.handle();
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let _ = telpher_os::run_on(&[cpu]);
            let _ = sender.send(ThreadClock::of_this_thread());
            // If epoll fails, the connections close, and the measurement ends with that error.
            let _ = server.run();
        });
        let clock = receiver.recv().expect("the thread sends its clock").map_err(failed("the clock of a thread"))?;
        Ok(RunningTarget { address, clock, ticks, handle, thread: Some(thread) })
    }

    /// Writes every block, so that each has a stamp.
    pub(super) fn fill(&self) -> Result<(), BenchError> {
        let options = LoadOptions {
            fill: true,
            end: End::Commands(1),
            ..LoadOptions::new(self.address, NQN, Pattern::SeqRead128k)
        };
        finished(&options)
    }

    /// The CPU time that the loop has used.
    pub(super) fn cpu(&self) -> Duration {
        self.clock.read().unwrap_or_default()
    }

    /// The ticks of each timed digest since the last call.
    pub(super) fn take_digest_ticks(&self) -> Vec<u64> {
        std::mem::take(&mut *self.ticks.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for RunningTarget {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A target with a namespace in memory, and an address at which it can listen.
pub(super) fn target() -> Result<(Arc<Target>, SocketAddr), BenchError> {
    let target = Target::new(Limits::default()).expect("the default limits are valid");
    let options = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "telpher".into(), hosts: None };
    target.add_subsystem(options).expect("the first subsystem");
    let storage = Arc::new(MemoryStorage::new(NAMESPACE_BYTES));
    let (uuid, nguid) = ([1; 16], [2; 16]);
    let options = NamespaceOptions {
        nsid: 1,
        block_bytes: BLOCK_BYTES,
        uuid,
        nguid,
        is_read_only: false,
        protection: None,
        storage,
    };
    target.add_namespace(NQN, options).expect("the first namespace");
    Ok((target, SocketAddr::from(([127, 0, 0, 1], 0))))
}

/// Runs a load that must end without errors.
fn finished(options: &LoadOptions) -> Result<(), BenchError> {
    match load::run(options)?.errors.pop() {
        Some(error) => Err(error.source.into()),
        None => Ok(()),
    }
}

/// The error of a step that failed.
pub(super) fn failed(what: &'static str) -> impl Fn(io::Error) -> BenchError {
    move |source| BenchError::Program { what: what.into(), source }
}
