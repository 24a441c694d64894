//! The mappings of this process, as the kernel tells them.

#[path = "../../../../ci/skip.rs"]
mod skip;

use super::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

const LEN: usize = 3 * 4096;

/// Pages that are mapped until the drop.
struct Pages(*mut std::ffi::c_void);

impl Pages {
    fn of(file: Option<&OwnedFd>, flags: MapFlags, offset: u64) -> Pages {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses unused addresses.
        Pages(unsafe {
            match file {
                Some(file) => mmap(std::ptr::null_mut(), LEN, protection, flags, file, offset),
                None => mmap_anonymous(std::ptr::null_mut(), LEN, protection, flags),
            }
            .unwrap()
        })
    }

    fn address(&self) -> u64 {
        self.0.expose_provenance() as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: pages of this value, which nothing uses after it.
        unsafe { munmap(self.0, LEN).unwrap() };
    }
}

fn memory_file(name: &str) -> OwnedFd {
    let file = memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 1 << 20).unwrap();
    file
}

fn files(test: &str) -> Option<SharedFiles> {
    match SharedFiles::open() {
        Ok(files) => Some(files),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            skip::skip(test, "this kernel has no PROCMAP_QUERY (Linux 6.11)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_shared_mapping_of_a_memory_file_is_found_with_its_file() {
    let Some(files) = files("a_shared_mapping_of_a_memory_file_is_found_with_its_file") else { return };
    let file = memory_file("telpher os test");
    let pages = Pages::of(Some(&file), MapFlags::SHARED, 8192);
    let found = files.at(pages.address() + 5000).unwrap();
    assert_eq!((found.start, found.end, found.offset), (pages.address(), pages.address() + LEN as u64, 8192));
    assert_eq!(Some(found.file), identity(&file));
    let opened = files.open_file(&found).unwrap();
    assert_eq!(identity(&opened), identity(&file));
    assert!(rustix::io::write(&opened, b"x").is_err(), "it is open for reading only");
    drop(pages);
    assert_ne!(files.at(found.start).map(|now| now.file), Some(found.file));
    assert!(files.open_file(&found).is_none(), "the mapping is gone");
}

#[test]
fn private_memory_and_the_program_itself_are_not_found() {
    let Some(files) = files("private_memory_and_the_program_itself_are_not_found") else { return };
    let file = memory_file("telpher os test");
    let copied = Pages::of(Some(&file), MapFlags::PRIVATE, 0);
    let anonymous = Pages::of(None, MapFlags::PRIVATE, 0);
    let function = memory_file as fn(&str) -> OwnedFd as usize as u64;
    for address in [copied.address(), anonymous.address(), function, 0, 4096, u64::MAX] {
        assert_eq!(files.at(address), None, "{address:#x}");
    }
}

#[test]
fn a_file_on_a_disk_is_not_opened() {
    let Some(files) = files("a_file_on_a_disk_is_not_opened") else { return };
    let folder = std::env::current_exe().unwrap();
    let file: OwnedFd = std::fs::File::open(&folder).unwrap().into();
    if is_memory(&file) {
        skip::skip("a_file_on_a_disk_is_not_opened", "this test program is on a file system in memory");
        return;
    }
    // SAFETY: the system chooses unused addresses.
    let pages = unsafe { mmap(std::ptr::null_mut(), LEN, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap() };
    let pages = Pages(pages);
    let found = files.at(pages.address()).unwrap();
    assert!(files.open_file(&found).is_none());
}
