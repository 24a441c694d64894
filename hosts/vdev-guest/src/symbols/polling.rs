//! Waiting for descriptors. A queue's node becomes readable when its device has latched an error, and is never
//! writable. The host makes the socket that stands for it readable at the same time, but the socket is always writable.
//! Source: K612 drivers/dma/idxd/cdev.c, idxd_cdev_poll.
#![allow(unsafe_code, reason = "replaces functions of the C library")]

use super::served::is_node;
use crate::files::table;
use crate::node;
use libc::{c_short, epoll_event, fd_set, nfds_t, pollfd, timeval};
use std::ffi::c_int;
use telpher_interpose::interpose;

/// The events of a node.
const READABLE: c_short = libc::POLLIN | libc::POLLRDNORM;
/// Nodes that one call handles; a program that polls more sees the others as writable. Source: chosen.
const MAX_NODES: usize = 64;

/// poll and its variants. `next` waits; with `false` it returns at once.
pub(super) unsafe fn poll_by(entries: *mut pollfd, count: nfds_t, next: impl FnOnce(bool) -> c_int) -> c_int {
    let Ok(count) = isize::try_from(count).map(isize::unsigned_abs) else { return next(true) };
    if table::highest() < 0 || entries.is_null() {
        return next(true);
    }
    // SAFETY: the number of entries that the program passes, as poll() requires.
    let entries = unsafe { std::slice::from_raw_parts_mut(entries, count) };
    let mut nodes = [(0, 0); MAX_NODES];
    let mut found = 0;
    let mut foreign = false;
    for (index, entry) in entries.iter_mut().enumerate() {
        if found < MAX_NODES && is_node(entry.fd) {
            nodes[found] = (index, entry.events);
            found += 1;
            foreign |= is_foreign(entry.fd);
            entry.events &= READABLE;
        }
    }
    let mut answered = next(!foreign);
    for (index, events) in &nodes[..found] {
        let entry = &mut entries[*index];
        entry.events = *events;
        if answered >= 0 && is_foreign(entry.fd) {
            answered += c_int::from(entry.revents == 0);
            entry.revents = libc::POLLNVAL;
        }
    }
    answered
}

/// True for a node that another address space has opened.
fn is_foreign(fd: c_int) -> bool {
    node::access(fd).is_some_and(|access| !access.own)
}

/// Removes nodes from the set of descriptors that select() checks for writing.
pub(super) unsafe fn never_writable(count: c_int, set: *mut fd_set) {
    if set.is_null() {
        return;
    }
    for fd in 0..count.min(table::highest().saturating_add(1)).min(1024) {
        // SAFETY: a set has 1024 bits.
        unsafe {
            if libc::FD_ISSET(fd, set) && is_node(fd) {
                libc::FD_CLR(fd, set);
            }
        }
    }
}

interpose! {
    fn poll(entries: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int { |next|
        poll_by(entries, count, |waits| next(entries, count, if waits { timeout } else { 0 }))
    }
    fn __poll_chk(entries: *mut pollfd, count: nfds_t, timeout: c_int, room: usize) -> c_int { |next|
        poll_by(entries, count, |waits| next(entries, count, if waits { timeout } else { 0 }, room))
    }
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int { |next| {
        never_writable(count, write);
        next(count, read, write, except, timeout)
    } }
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int { |next|
        if event.is_null() || !is_node(fd) {
            next(epoll, operation, fd, event)
        } else {
            let mut readable = event.read();
            readable.events &= !(libc::EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND).cast_unsigned();
            next(epoll, operation, fd, &raw mut readable)
        }
    }
}
