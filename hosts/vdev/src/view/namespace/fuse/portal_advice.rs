//! Programs that open a queue in order to map its portal, which is impossible here.
//!
//! The kernel answers mmap(2) of a FUSE file with ENODEV and does not ask the file system (K612 `fs/fuse/file.c`,
//! fuse_file_mmap(): FOPEN_DIRECT_IO). A portal would not help such a program either: nothing emulates the submission
//! instructions in it. This module can only observe that a program without the guest had a queue open for reading and
//! writing, as mmap requires, and submitted nothing until the file was released. Then it prints what to do.

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
    /// One of its processes has called write(2) for some queue, with any result: it knows how to submit.
    has_written: AtomicBool,
    /// The message has been printed.
    was_advised: AtomicBool,
}

/// The programs of this kind that have had a queue open.
#[derive(Debug, Default)]
pub(super) struct Programs(Mutex<HashMap<PathBuf, Arc<Program>>>);

impl Programs {
    /// Records that a thread has opened a queue's file; `None` if its program can have the guest, or cannot be
    /// examined.
    pub(super) fn opened_by(&self, thread: u32, node: &Arc<str>) -> Option<PortalAdvice> {
        let obstacle = obstacle(thread)?;
        let path = std::fs::read_link(program_link(thread)).ok()?;
        let new = || Program {
            path: path.clone(),
            obstacle,
            has_written: AtomicBool::new(false),
            was_advised: AtomicBool::new(false),
        };
        let mut programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let program = Arc::clone(programs.entry(path.clone()).or_insert_with(|| Arc::new(new())));
        Some(PortalAdvice { program, node: Arc::clone(node) })
    }
}

fn program_link(thread: u32) -> String {
    format!("/proc/{thread}/exe")
}

/// Why nothing can be preloaded into a thread's program; `None` if it can have the guest, or cannot be examined.
pub(super) fn obstacle(thread: u32) -> Option<Obstacle> {
    let file = File::open(program_link(thread)).ok()?;
    // A read error counts as the end of the file.
    let read = |offset, into: &mut [u8]| file.read_at(into, offset).unwrap_or(0);
    match examine(&read, &mut [0; HEAD_BYTES]) {
        Form::Elf { obstacle, .. } => obstacle,
        _ => None,
    }
}

/// An open file of a queue in such a program.
#[derive(Debug)]
pub(super) struct PortalAdvice {
    program: Arc<Program>,
    /// The queue's node.
    node: Arc<str>,
}

impl PortalAdvice {
    /// Records that the program submits by write(2).
    pub(super) fn has_written(&self) {
        // Relaxed, here and below: the flag is read when the file is released, which the kernel sends after the last
        // write has been answered.
        self.program.has_written.store(true, Ordering::Relaxed);
    }

    /// The message for the user now that the file is released: once per program, and none if the program has called
    /// write(2).
    pub(super) fn message(&self) -> Option<String> {
        let Program { path, obstacle, has_written, was_advised } = &*self.program;
        if has_written.load(Ordering::Relaxed) || was_advised.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(format!(
            "{} {}, and had {} open without submitting anything: it cannot map a portal (mmap answers ENODEV); \
             let it submit by write(), or link it dynamically",
            path.display(),
            obstacle.phrase(),
            self.node
        ))
    }
}
