//! Servers of the tests, each on its own thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::server::{Handle, SocketEngine};
use telpher_nvmf::storage::Storage;
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::{CpuEngine, Limits, Server, Target};

/// The subsystem of all tests.
pub(crate) const NQN: &str = "nqn.2026-01.org.example:disk";

/// A server on its own thread. Dropping it closes all its connections.
#[derive(Debug)]
pub(crate) struct Serving {
    pub(crate) target: Arc<Target>,
    pub(crate) address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Serves a target at a free port.
    pub(crate) fn start(target: &Arc<Target>) -> Serving {
        Serving::at(target, "127.0.0.1:0".parse().expect("an address"))
    }

    /// Serves a target at this address.
    pub(crate) fn at(target: &Arc<Target>, address: SocketAddr) -> Serving {
        Serving::with(target, address, SocketEngine::Auto)
    }

    /// Serves a target at this address, with this engine of sockets.
    pub(crate) fn with(target: &Arc<Target>, address: SocketAddr, engine: SocketEngine) -> Serving {
        let mut server = Server::bind(target, &[address], 256, Box::<CpuEngine>::default()).expect("a free port");
        server.use_sockets(engine).expect("the kernel permits it");
        let (address, handle) = (server.addresses().expect("an address")[0], server.handle());
        let thread = std::thread::spawn(move || server.run().expect("epoll works"));
        Serving { target: Arc::clone(target), address, handle, thread: Some(thread) }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.handle.stop();
        let result = self.thread.take().expect("it is taken once").join();
        assert!(result.is_ok() || std::thread::panicking(), "the server's thread panicked");
    }
}

/// A target with one subsystem and these storages as its namespaces 1, 2, and so on. Their identifiers depend on
/// the number only, so that a host sees the same namespaces after a restart.
pub(crate) fn target(limits: Limits, storages: &[Arc<dyn Storage>]) -> Arc<Target> {
    let target = Target::new(limits).expect("valid limits");
    let options = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "test".into(), hosts: None };
    target.add_subsystem(options).expect("valid options");
    for (nsid, storage) in (1..).zip(storages) {
        target.add_namespace(NQN, namespace(nsid, Arc::clone(storage))).expect("valid options");
    }
    target
}

/// A namespace with blocks of 4096 bytes.
pub(crate) fn namespace(nsid: u8, storage: Arc<dyn Storage>) -> NamespaceOptions {
    let (uuid, nguid) = ([nsid; 16], [0xa0 | nsid; 16]);
    NamespaceOptions {
        nsid: nsid.into(),
        block_bytes: 4096,
        uuid,
        nguid,
        is_read_only: false,
        protection: None,
        storage,
    }
}
