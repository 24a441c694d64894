//! Tests that run once with each engine of sockets.

use crate::skip;
use std::cell::Cell;
use std::sync::OnceLock;
use telpher_nvmf::server::{Server, SocketEngine, SocketsInUse};
use telpher_nvmf::{CpuEngine, Limits, Target};

thread_local! {
    /// The engine of the servers that this thread starts.
    static ENGINE: Cell<SocketEngine> = const { Cell::new(SocketEngine::Auto) };
}

/// The engine for a server of the running test.
pub(crate) fn engine() -> SocketEngine {
    ENGINE.get()
}

/// Runs a test with servers that use this engine. A test with an io_uring that the kernel refuses is skipped.
pub(crate) fn run_with(engine: SocketEngine, test: fn()) {
    static REFUSED: OnceLock<bool> = OnceLock::new();
    let is_refused = || {
        let target = Target::new(Limits::default()).expect("valid limits");
        let mut server =
            Server::new(&target, Vec::new(), 1, Box::<CpuEngine>::default()).expect("descriptors are free");
        let in_use = server.use_sockets(SocketEngine::Auto).expect("epoll works everywhere");
        let is_refused = matches!(in_use, SocketsInUse::Epoll { refusal: Some(_) });
        if is_refused {
            skip::skip("sockets_by_io_uring", &in_use.to_string());
        }
        is_refused
    };
    if engine == SocketEngine::Uring && *REFUSED.get_or_init(is_refused) {
        return;
    }
    ENGINE.set(engine);
    test();
}

#[allow(unused_macros, reason = "the test of hostile hosts is one test")]
/// Declares a test for each of these functions and each engine.
macro_rules! with_each_engine {
    ($($test:ident)*) => {
        mod with_epoll {
            $(#[test]
            fn $test() {
                crate::engines::run_with(telpher_nvmf::server::SocketEngine::Epoll, super::$test);
            })*
        }
        mod with_io_uring {
            $(#[test]
            fn $test() {
                crate::engines::run_with(telpher_nvmf::server::SocketEngine::Uring, super::$test);
            })*
        }
    };
}
#[allow(unused_imports, reason = "the test of hostile hosts is one test")]
pub(crate) use with_each_engine;
