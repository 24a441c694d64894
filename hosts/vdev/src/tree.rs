//! The entries of the driver's file tree: the types shared by the driver and the views that present its files.

/// One entry of the tree that the driver adds to the machine's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A directory; [`Host::list`](crate::host::Host::list) returns its children.
    Directory,
    /// A symbolic link with this target text.
    Link(String),
    /// A text file of at most a page, generated at each open; its mode (0444, 0644, 0200) says whether it can be
    /// written.
    Attribute {
        /// Permission bits.
        mode: u16,
    },
    /// A binary file with a fixed size, read and written at offsets: PCI configuration space.
    Binary {
        /// Permission bits.
        mode: u16,
        /// Size in bytes.
        size: u64,
    },
    /// A queue's character device.
    Node {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// An errno, as returned by system calls.
pub type Errno = rustix::io::Errno;

/// The process in the run that makes a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Process number (thread group).
    pub process: u32,
    /// The random number of its address space, from the guest; 0 if the process has no guest. Then the process number
    /// and its memory map identify it.
    pub space: u64,
}
