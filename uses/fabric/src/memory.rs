//! The memory of a connection: an unnamed file that both processes map.
//!
//! The sender creates it and seals its size, so that no process can take pages away from the other. The receiver checks
//! the seals and the size before it maps the file.

use crate::error::MemoryError;
use crate::layout::Sizes;
use rustix::fs::{FileType, MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use telpher_mem::{SharedMapping, SharedWords64};

/// The name of the file in `/proc/PID/maps`.
const NAME: &str = "telpher-fabric";

fn failed(action: &'static str) -> impl Fn(rustix::io::Errno) -> MemoryError {
    move |error| MemoryError::System { action, source: error.into() }
}

/// Creates an unnamed file of zeros that cannot change its size.
pub(crate) fn create_file(len: u64) -> Result<OwnedFd, MemoryError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(NAME, flags).map_err(failed("create"))?;
    fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed("restrict the access to"))?;
    ftruncate(&file, len).map_err(failed("size"))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(failed("seal"))?;
    Ok(file)
}

/// Checks that a file of a peer has this length and cannot change it.
pub(crate) fn check_file(file: BorrowedFd<'_>, expected: u64) -> Result<(), MemoryError> {
    // Only files in memory have seals.
    let seals = fcntl_get_seals(file).map_err(|_| MemoryError::WrongSeals)?;
    let writable = !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) || !writable {
        return Err(MemoryError::WrongSeals);
    }
    let stat = fstat(file).map_err(failed("examine"))?;
    let len = stat.st_size.cast_unsigned();
    if len != expected || !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(MemoryError::WrongLength { len, expected });
    }
    Ok(())
}

/// Mapped memory with a layout.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    mapping: Arc<SharedMapping>,
    sizes: Sizes,
}

impl Memory {
    /// Creates the file, zeroed, and maps it. No page is present until it is touched.
    pub(crate) fn create(sizes: Sizes) -> Result<(Memory, OwnedFd), MemoryError> {
        let file = create_file(sizes.total())?;
        Ok((Memory::map(file.as_fd(), sizes)?, file))
    }

    /// Maps the file of a peer after checking it.
    pub(crate) fn open(file: BorrowedFd<'_>, sizes: Sizes) -> Result<Memory, MemoryError> {
        check_file(file, sizes.total())?;
        Memory::map(file, sizes)
    }

    fn map(file: BorrowedFd<'_>, sizes: Sizes) -> Result<Memory, MemoryError> {
        let mapping = SharedMapping::map(file, 0, sizes.total())?;
        mapping.keep_from_children()?;
        Ok(Memory { mapping: Arc::new(mapping), sizes })
    }

    pub(crate) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    pub(crate) fn mapping(&self) -> &Arc<SharedMapping> {
        &self.mapping
    }

    /// Returns the address of byte `at`.
    #[inline]
    pub(crate) fn address(&self, at: u64) -> u64 {
        self.mapping.address() + at
    }

    /// Returns words at a position of the layout.
    pub(crate) fn words(&self, at: u64, count: usize) -> SharedWords64 {
        let at = usize::try_from(at).expect("x86-64: a usize has 64 bits");
        SharedWords64::new(&self.mapping, at, count).expect("the mapping is as long as its layout")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn sizes() -> Sizes {
        Sizes::of(&Config::default()).unwrap()
    }

    /// Returns a memory file with a length and seals.
    fn file(len: u64, seals: SealFlags) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, len).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn a_created_file_is_private_and_keeps_its_size() {
        let (memory, file) = Memory::create(sizes()).unwrap();
        assert_eq!(fstat(&file).unwrap().st_mode & 0o777, 0o600);
        for len in [0, memory.sizes().total() - 4096, memory.sizes().total() + 4096] {
            ftruncate(&file, len).unwrap_err();
        }
        assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err());
        Memory::open(file.as_fd(), sizes()).unwrap();
    }

    #[test]
    fn a_file_whose_size_can_change_is_refused() {
        let total = sizes().total();
        let good = SealFlags::SHRINK | SealFlags::GROW;
        assert!(Memory::open(file(total, good).as_fd(), sizes()).is_ok());
        for seals in [SealFlags::empty(), SealFlags::SHRINK, SealFlags::GROW, good | SealFlags::WRITE] {
            let error = Memory::open(file(total, seals).as_fd(), sizes()).unwrap_err();
            assert!(matches!(error, MemoryError::WrongSeals), "{error}");
        }
        let error = Memory::open(std::fs::File::open("/dev/zero").unwrap().as_fd(), sizes()).unwrap_err();
        assert!(matches!(error, MemoryError::WrongSeals), "{error}");
    }

    #[test]
    fn a_file_of_another_size_is_refused() {
        let total = sizes().total();
        for len in [0, 4096, total - 1, total + 1, 2 * total] {
            let error = Memory::open(file(len, SealFlags::SHRINK | SealFlags::GROW).as_fd(), sizes()).unwrap_err();
            assert!(matches!(error, MemoryError::WrongLength { len: seen, .. } if seen == len), "{error}");
        }
    }
}
