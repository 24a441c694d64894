//! The idxd driver as a program sees it: attributes, binding, open files. No I/O of its own.

mod abi;

pub use abi::Abi;

use crate::hardware::{Hardware, HardwareError};
use crate::tree::{Caller, Entry, Errno};
use telpher_vdev_wire::message::{Opened, Report};

/// The driver with all its devices.
#[derive(Debug)]
pub struct Kernel {
    cpuinfo: String,
}

impl Kernel {
    /// The driver just loaded on this hardware, which is configured and enabled if it says how.
    ///
    /// `rawio`: programs count as having CAP_SYS_RAWIO.
    ///
    /// # Errors
    /// If the driver or the device refuses the configuration.
    pub fn new(_hardware: &Hardware, _abi: Abi, _rawio: bool) -> Result<Kernel, HardwareError> {
        Ok(Kernel { cpuinfo: String::new() })
    }

    /// The machine's own /proc/cpuinfo, to which the emulated instructions are added.
    pub fn set_cpuinfo(&mut self, text: &str) {
        self.cpuinfo = text.into();
    }

    /// What stands at a physical path (no link is followed).
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn entry(&self, _path: &str) -> Result<Entry, Errno> {
        Err(Errno::NOENT)
    }

    /// What a directory holds of ours, sorted by name.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn list(&self, _path: &str) -> Result<Vec<(String, Entry)>, Errno> {
        Err(Errno::NOENT)
    }

    /// The topmost paths that are ours: everything at or below them is, nothing else is.
    #[must_use]
    pub fn roots(&self) -> Vec<String> {
        Vec::new()
    }

    /// The machine's own directories that gain entries. Some may not exist.
    #[must_use]
    pub fn merged(&self) -> Vec<String> {
        Vec::new()
    }

    /// Changes whenever an answer of [`entry`](Kernel::entry) or [`list`](Kernel::list) does.
    #[must_use]
    pub fn structure(&self) -> u64 {
        0
    }

    /// Directories whose own entries have changed since this was last asked, sorted; directories that are gone among them.
    pub fn changed(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The text of an attribute.
    ///
    /// # Errors
    /// What read() of it answers; EACCES if it cannot be read at all, EISDIR for a directory.
    pub fn show(&mut self, _path: &str) -> Result<Vec<u8>, Errno> {
        Err(Errno::NOENT)
    }

    /// Writes an attribute and says how many bytes were taken.
    ///
    /// # Errors
    /// What write() to it answers; EACCES if it cannot be written at all, EISDIR for a directory.
    pub fn store(&mut self, _path: &str, _data: &[u8]) -> Result<usize, Errno> {
        Err(Errno::NOENT)
    }

    /// Bytes of a [`Entry::Binary`] from an offset on, at most `len`; fewer at its end.
    ///
    /// # Errors
    /// As for [`show`](Kernel::show).
    pub fn read_at(&mut self, _path: &str, _offset: u64, _len: usize) -> Result<Vec<u8>, Errno> {
        Err(Errno::NOENT)
    }

    /// Writes bytes of a [`Entry::Binary`] at an offset.
    ///
    /// # Errors
    /// As for [`store`](Kernel::store); EFBIG beyond its end.
    pub fn write_at(&mut self, _path: &str, _offset: u64, _data: &[u8]) -> Result<usize, Errno> {
        Err(Errno::NOENT)
    }

    /// Opens a queue's node (`/dev/dsa/wqM.N` or `/dev/char/MAJ:MIN`). Row, injection and the flags that are not the
    /// driver's are left zero.
    ///
    /// # Errors
    /// ENOENT; ENXIO if the path is no node; EBUSY for a dedicated queue that is open.
    pub fn open(&mut self, _path: &str, _caller: Caller) -> Result<Opened, Errno> {
        Err(Errno::NOENT)
    }

    /// Joins an open file: what mmap() of it does. The first to join a file that was opened without an address space's
    /// number gives it one.
    ///
    /// # Errors
    /// EBADF without such a file; EPERM from another address space than the opener's.
    pub fn attach(&mut self, _open: u64, _caller: Caller) -> Result<Opened, Errno> {
        Err(Errno::BADF)
    }

    /// The last reference of an open file is gone.
    pub fn release(&mut self, _open: u64) {}

    /// Whether write() of a descriptor, a Batch or another, would be let through.
    ///
    /// # Errors
    /// EBADF without such a file; EINVAL on kernels without write() and for a Batch; EPERM from another address space.
    pub fn may_write(&self, _open: u64, _caller: Caller, _batch: bool) -> Result<(), Errno> {
        Err(Errno::BADF)
    }

    /// What the device tells the driver by an interrupt.
    ///
    /// # Errors
    /// EBADF without such a file; EINVAL for a report of no kind.
    pub fn report(&mut self, _open: u64, _report: &Report) -> Result<(), Errno> {
        Err(Errno::BADF)
    }

    /// Descriptors in a queue, told before its `occupancy` is shown. `device` is the number of `dsaN`.
    pub fn set_occupancy(&mut self, _device: u32, _wq: u32, _waiting: u32) {}

    /// Whether poll() of a node of this device answers POLLIN: an error has been latched.
    #[must_use]
    pub fn poll_ready(&self, _device: u32) -> bool {
        false
    }

    /// Every queue: number of its device, its own, whether it takes descriptors.
    #[must_use]
    pub fn queues(&self) -> Vec<(u32, u32, bool)> {
        Vec::new()
    }
}
