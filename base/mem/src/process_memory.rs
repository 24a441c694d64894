//! The memory of an address space by its file, `/proc/PID/mem`.
//!
//! The kernel binds the file to the address space in which it was opened: neither a process that gets the same number
//! later nor a program that the process executes later is ever reached. It checks when the file is opened, and not
//! again, that the opener may trace the process.
//!
//! **Deviation from a device.** With usual settings of the kernel, a write reaches private memory that its process may
//! only read, as a debugger's write does.

use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The memory of an address space: this process's, or another's.
///
/// Code that only receives such files never gets a right that their openers lack.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens this process's memory, for writing too if `writable`.
    ///
    /// # Errors
    /// The system's; /proc must be mounted.
    pub(crate) fn own(writable: bool) -> io::Result<ProcessMemory> {
        Self::open("/proc/self/mem", writable)
    }

    /// Opens the memory of another process, which this process must be allowed to trace.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn of(process: u32, writable: bool) -> io::Result<ProcessMemory> {
        Self::open(&format!("/proc/{process}/mem"), writable)
    }

    fn open(path: &str, writable: bool) -> io::Result<ProcessMemory> {
        File::options().read(true).write(writable).open(path).map(ProcessMemory)
    }

    /// Takes a file that another process has opened and handed over: then this process needs no right to trace. As with
    /// every such file in Rust, whether writes keep a process sound is up to that process: its own memory is not to be
    /// handed to itself.
    ///
    /// # Errors
    /// `InvalidInput` if it is not the memory of an address space.
    pub fn received(file: OwnedFd) -> io::Result<ProcessMemory> {
        // In another mount namespace the path may begin elsewhere; its last part is the file's own name.
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let is_memory =
            fstatfs(&file)?.f_type == PROC_SUPER_MAGIC && path.file_name().is_some_and(|name| name == "mem");
        if is_memory { Ok(ProcessMemory(file.into())) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// True if this is the memory file that the process with this number has now. The process may have executed another
    /// program since it was opened: then no access succeeds.
    #[must_use]
    pub fn is_of(&self, process: u32) -> bool {
        let now = rustix::fs::stat(format!("/proc/{process}/mem"));
        // A process with the same number that comes later has another file there.
        let same =
            |now: rustix::fs::Stat, this: rustix::fs::Stat| (now.st_dev, now.st_ino) == (this.st_dev, this.st_ino);
        now.is_ok_and(|now| rustix::fs::fstat(&self.0).is_ok_and(|this| same(now, this)))
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// The number of bytes before the first that cannot be read: it is not mapped, or the address space is gone.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), u64> {
        let mut done = 0;
        while done < into.len() {
            match self.0.read_at(&mut into[done..], address.wrapping_add(done as u64)) {
                Ok(read) if read > 0 => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(done as u64),
            }
        }
        Ok(())
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// The number of bytes before the first that cannot be written, as for [`read`](ProcessMemory::read).
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), u64> {
        let mut done = 0;
        while done < from.len() {
            match self.0.write_at(&from[done..], address.wrapping_add(done as u64)) {
                Ok(written) if written > 0 => done += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(done as u64),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn own_memory_is_read_and_written_up_to_the_first_absent_byte() {
        let mut bytes = vec![7_u8; 100];
        let address = black_box(bytes.as_mut_ptr()).expose_provenance() as u64;
        let memory = ProcessMemory::own(true).unwrap();
        assert_eq!(memory.write(address + 1, b"abc"), Ok(()));
        let mut read = [0; 5];
        assert_eq!(memory.read(address, &mut read), Ok(()));
        assert_eq!(&read, b"\x07abc\x07");
        assert_eq!(black_box(&bytes)[..5], read);
        assert_eq!(memory.read(0, &mut read), Err(0));
        assert_eq!(ProcessMemory::own(false).unwrap().write(address, b"x"), Err(0));
    }

    #[test]
    fn a_file_of_memory_is_of_its_living_process_only() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let own = ProcessMemory::own(false).unwrap();
        let childs = ProcessMemory::of(child.id(), false).unwrap();
        assert!(own.is_of(std::process::id()) && !own.is_of(child.id()));
        assert!(childs.is_of(child.id()) && !childs.is_of(std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!childs.is_of(child.id()));
    }

    #[test]
    fn only_the_memory_of_an_address_space_is_received() {
        let open = |path: &str| OwnedFd::from(File::open(path).unwrap());
        assert!(ProcessMemory::received(open("/proc/self/mem")).is_ok());
        for path in ["/proc/self/maps", "/proc/self/stat", "/dev/null", "/proc"] {
            assert!(ProcessMemory::received(open(path)).is_err(), "{path}");
        }
        let folder = std::env::temp_dir().join(format!("test-telpher-memory-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("mem"), b"bytes").unwrap();
        let plain = File::open(folder.join("mem")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(ProcessMemory::received(plain.into()).is_err(), "a plain file with that name");
    }
}
