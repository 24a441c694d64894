//! What moves the bytes of a loop's sockets: what was chosen, and what is used.

use std::fmt;
use std::io;

/// Which calls move bytes through sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SocketEngine {
    /// An io_uring for each loop, unless the kernel refuses it; then epoll.
    #[default]
    Auto,
    /// One io_uring for each loop.
    Uring,
    /// Epoll, and a call for each receive and send.
    Epoll,
}

/// What moves the bytes of a loop.
#[derive(Debug)]
#[non_exhaustive]
pub enum SocketsInUse {
    /// An io_uring.
    Uring,
    /// Epoll.
    Epoll {
        /// Why there is no io_uring; `None` if the options choose epoll.
        refusal: Option<io::Error>,
    },
}

impl fmt::Display for SocketsInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SocketsInUse::Uring => write!(f, "io_uring moves the bytes of sockets"),
            SocketsInUse::Epoll { refusal } => {
                if let Some(refusal) = refusal {
                    write!(f, "io_uring is refused: {refusal}; ")?;
                }
                write!(f, "epoll, recv and writev move the bytes of sockets")
            }
        }
    }
}
