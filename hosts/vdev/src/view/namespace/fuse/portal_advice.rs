//! Programs that open a queue to map its portal, and cannot.
//!
//! The kernel answers mmap(2) of a file of ours with ENODEV and asks nothing (K612 `fs/fuse/file.c`, fuse_file_mmap(): FOPEN_DIRECT_IO), and a portal
//! would be of no use to such a program: nothing emulates the submission instructions in it. What can be seen is that a program into which
//! nothing can be preloaded has had a queue open for reading and writing, as mmap wants it, and has submitted nothing when
//! the file is gone: when the program has closed it or has ended. Then it is told what to do.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use telpher_interpose::exec::{Form, HEAD_BYTES, Obstacle, examine};

/// A program into which nothing can be preloaded.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    /// Why nothing can be preloaded into it.
    obstacle: Obstacle,
    /// One of its processes has called write(2) for some queue, whatever came of it: it knows how to submit.
    has_written: AtomicBool,
    /// The user has been told.
    is_told: AtomicBool,
}

/// The programs of this kind that have had a queue open.
#[derive(Debug, Default)]
pub(super) struct Programs(Mutex<HashMap<PathBuf, Arc<Program>>>);

impl Programs {
    /// A queue's file that a thread has opened; none if its program has the preloaded part, or cannot be looked at.
    pub(super) fn opened_by(&self, thread: u32, node: &Arc<str>) -> Option<PortalAdvice> {
        let link = format!("/proc/{thread}/exe");
        let file = File::open(&link).ok()?;
        // What cannot be read is not there.
        let read = |offset, into: &mut [u8]| file.read_at(into, offset).unwrap_or(0);
        let Form::Elf { obstacle: Some(obstacle), .. } = examine(&read, &mut [0; HEAD_BYTES]) else { return None };
        let path = std::fs::read_link(link).ok()?;
        let new = || Program {
            path: path.clone(),
            obstacle,
            has_written: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
        };
        let mut programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let program = Arc::clone(programs.entry(path.clone()).or_insert_with(|| Arc::new(new())));
        Some(PortalAdvice { program, node: Arc::clone(node) })
    }
}

/// A queue's file, open in such a program.
#[derive(Debug)]
pub(super) struct PortalAdvice {
    program: Arc<Program>,
    /// The queue's node.
    node: Arc<str>,
}

impl PortalAdvice {
    /// The program submits by write(2).
    pub(super) fn has_written(&self) {
        // Relaxed, here and below: looked at when a file is gone, which the kernel tells after the last write has been answered.
        self.program.has_written.store(true, Ordering::Relaxed);
    }

    /// What the user is told now that the file is gone: once a program, and nothing if the program has written.
    pub(super) fn sentence(&self) -> Option<String> {
        let Program { path, obstacle, has_written, is_told } = &*self.program;
        if has_written.load(Ordering::Relaxed) || is_told.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(format!(
            "{} {}, and had {} open without submitting anything: it cannot map a portal (mmap answers ENODEV); let it submit by write(), or \
             link it dynamically",
            path.display(),
            obstacle.phrase(),
            self.node
        ))
    }
}
