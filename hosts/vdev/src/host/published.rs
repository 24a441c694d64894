//! The index of the run's devices and open files, which readers in other processes find in the run's directory.

use super::files::OpenFile;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat, renameat};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use telpher_device::published::{INDEX, INDEX_VERSION, PublishedDevice, PublishedFile, RunIndex, SharedFile};

/// The name of the index while it is written.
const PART: &str = "devices.part";

/// Writes the index.
#[derive(Debug)]
pub(super) struct Publisher {
    directory: OwnedFd,
    index: RunIndex,
    /// The user was told that the index cannot be written.
    has_warned: bool,
}

impl Publisher {
    /// Publishes devices without open files in a directory.
    pub(super) fn start(directory: &Path, devices: Vec<PublishedDevice>) -> io::Result<Publisher> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(CWD, directory, flags, Mode::empty())?;
        let index = RunIndex { version: INDEX_VERSION, host: std::process::id(), devices, ..RunIndex::default() };
        let publisher = Publisher { directory, index, has_warned: false };
        publisher.write()?;
        Ok(publisher)
    }

    /// Adds an open file.
    pub(super) fn opened(&mut self, file: &OpenFile) {
        let (memory, slots) = match (shared(file.lease.file()), shared(file.board.rows().file())) {
            (Ok(memory), Ok(slots)) => (memory, slots),
            (Err(error), _) | (_, Err(error)) => return self.warn(&error),
        };
        self.index.files.push(PublishedFile {
            open: file.info.open,
            device: file.info.device,
            wq: file.info.wq,
            process: file.info.process,
            pasid: file.info.pasid,
            memory,
            slots,
            slot: file.opened.row,
        });
        self.replace();
    }

    /// Moves the totals of a file, which no process has open any more, to those of the closed ones.
    pub(super) fn released(&mut self, file: &OpenFile) {
        self.index.depart(file.info.open, &file.lease.counts.totals());
        self.replace();
    }

    /// Replaces the description of the devices.
    pub(super) fn changed(&mut self, devices: Vec<PublishedDevice>) {
        if self.index.devices != devices {
            self.index.devices = devices;
            self.replace();
        }
    }

    fn replace(&mut self) {
        self.index.generation += 1;
        // A run goes on without its readers.
        if let Err(error) = self.write() {
            self.warn(&error);
        }
    }

    /// Says once that readers miss something.
    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_warned, true) {
            let _ = writeln!(
                io::stderr(),
                "telpher run: cannot publish what the devices do: {error}; `telpher top` shows old numbers of this run"
            );
        }
    }

    fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.index)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, PART, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(&text)?;
        Ok(renameat(&self.directory, PART, &self.directory, INDEX)?)
    }
}

fn shared(file: BorrowedFd<'_>) -> io::Result<SharedFile> {
    Ok(SharedFile { descriptor: file.as_raw_fd(), inode: fstat(file)?.st_ino })
}
