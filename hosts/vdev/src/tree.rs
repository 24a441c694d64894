//! What stands at a path: the words between the driver and those who show its files.

/// One entry of the tree the driver adds to the machine's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A directory; its children are listed.
    Directory,
    /// A symbolic link with this text.
    Link(String),
    /// A file of at most a page whose text is made at each opening, and which may take text: mode bits 0444, 0644, 0200.
    Attribute {
        /// Permission bits.
        mode: u16,
    },
    /// A file of bytes with a fixed size, read and written at offsets: PCI configuration space.
    Binary {
        /// Permission bits.
        mode: u16,
        /// Bytes.
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

/// An errno, as system calls answer it.
pub type Errno = rustix::io::Errno;

/// Who asks: a process in the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Process (thread group).
    pub process: u32,
    /// Number of its address space, from the guest; 0 if it has no guest (then process and its start time stand for it).
    pub space: u64,
}
