//! Open files of queues' nodes: what the program's descriptors and mappings stand for.
//!
//! ```text
//! descriptor ─┐
//! descriptor ─┼─► file ─► replica
//! portal page ┘    └──► guard: keeps the host's file while only pages are left
//! ```
//!
//! A file goes with its last descriptor and page, after its work is done. A forked child has its parent's descriptors but none
//! of the rest: there every file is *foreign*, as for the kernel, which compares address spaces.

use crate::control;
use crate::files::table;
use crate::gate::{Gate, Inside};
use crate::guard;
use crate::lock::{Held, Lock};
use crate::portal::{PORTALS, Portal};
use crate::replica::Replica;
use crate::run;
use crate::sync::{AtomicU16, Ordering};
use crate::sys::{self, Errno};
use std::os::fd::RawFd;
use telpher_vdev_wire::name::NodeName;
use telpher_vdev_wire::settings::View;

mod name;
mod taken;

pub(crate) use crate::submit::write;

/// Descriptors that can be nodes: higher numbers are refused. Source: chosen.
const MAX_DESCRIPTORS: usize = 1 << 16;
/// Files a process can have open at once. Source: chosen; a queue's board has as many rows.
const MAX_FILES: usize = 1008;

/// Number of the file behind each descriptor plus one; 0 for those that are no nodes.
static DESCRIPTORS: [AtomicU16; MAX_DESCRIPTORS] = [const { AtomicU16::new(0) }; MAX_DESCRIPTORS];
/// The replicas, by number of the file.
static REPLICAS: [Gate<Replica>; MAX_FILES] = [const { Gate::new() }; MAX_FILES];
/// Everything else about files.
static FILES: Lock<[File; MAX_FILES]> = Lock::new([const { File::FREE }; MAX_FILES]);

/// One open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct File {
    stage: Stage,
    /// Descriptors of this process.
    descriptors: u32,
    /// Portal pages of this process.
    pages: u32,
    /// The guarded duplicate while there are pages; -1 if none.
    guard: RawFd,
    /// What open(2) was asked for.
    may_read: bool,
    may_write: bool,
    /// Its number in the run, and its queue.
    open: u64,
    device: u32,
    wq: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nobody's.
    Free,
    /// Being set up or taken down, by whoever said so.
    Changing,
    /// Opened by this address space.
    Own,
    /// Opened by another: before a fork or an exec.
    Foreign,
}

impl File {
    const FREE: File = File {
        stage: Stage::Free,
        descriptors: 0,
        pages: 0,
        guard: -1,
        may_read: false,
        may_write: false,
        open: 0,
        device: 0,
        wq: 0,
    };
}

/// Opens a node, `/dev/dsa/wqM.N`, with open(2)'s flags; the answer is the lowest free descriptor.
///
/// # Errors
/// The driver's answer (EBUSY, ENXIO, …), or the system's for want of descriptors or memory.
pub(crate) fn open(path: &[u8], flags: u32) -> Result<RawFd, Errno> {
    crate::start::start();
    let opening = control::open(path, flags)?;
    let opened = opening.opened;
    let mode = flags.cast_signed() & libc::O_ACCMODE;
    let file = File {
        stage: Stage::Own,
        may_read: mode != libc::O_WRONLY,
        may_write: mode != libc::O_RDONLY,
        open: opened.open,
        device: opened.device,
        wq: opened.wq,
        ..File::FREE
    };
    let number = take_number()?;
    match install(number, &opening, flags) {
        Ok(fd) => {
            forget(fd);
            let mut files = FILES.hold();
            files[usize::from(number)] = File { descriptors: 1, ..file };
            set_descriptor(fd, number + 1);
            Ok(fd)
        }
        Err(error) => {
            FILES.hold()[usize::from(number)] = File::FREE;
            Err(error)
        }
    }
}

/// Starts the replica of an opening, and gives its file the lowest free descriptor.
fn install(number: u16, opening: &control::Opening, flags: u32) -> Result<RawFd, Errno> {
    let replica = Box::new(Replica::start(opening, number)?);
    // The file came with the first free number after the connection's; now that one is free again.
    let cloexec = flags.cast_signed() & libc::O_CLOEXEC != 0;
    let command = if cloexec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let fd = sys::fcntl(opening.file.number(), command, 0).map(sys::descriptor)?;
    if usize::try_from(fd).map_or(true, |index| index >= MAX_DESCRIPTORS) {
        let _ = sys::close(fd);
        return Err(Errno::MFILE);
    }
    REPLICAS[usize::from(number)].put_in(Box::into_raw(replica));
    Ok(fd)
}

fn take_number() -> Result<u16, Errno> {
    let mut files = FILES.hold();
    let free = files.iter().position(|file| file.stage == Stage::Free).ok_or(Errno::MFILE)?;
    files[free].stage = Stage::Changing;
    // Cannot lose bits: below MAX_FILES.
    Ok(u16::try_from(free).unwrap_or_default())
}

fn set_descriptor(fd: RawFd, value: u16) {
    if let Some(place) = place_of(fd) {
        // Relaxed: who uses a descriptor while another thread opens or closes it has no order to rely on.
        place.store(value, Ordering::Relaxed);
    }
}

#[inline]
fn place_of(fd: RawFd) -> Option<&'static AtomicU16> {
    DESCRIPTORS.get(usize::try_from(fd).ok()?)
}

/// Number of the file behind a descriptor.
#[inline]
fn number_of(fd: RawFd) -> Option<u16> {
    place_of(fd)?.load(Ordering::Relaxed).checked_sub(1)
}

/// The file behind a descriptor.
fn file_of(fd: RawFd) -> Option<(u16, File)> {
    let number = number_of(fd)?;
    Some((number, FILES.hold()[usize::from(number)]))
}

/// True if a descriptor of the program is an open node. Costs one load.
#[inline]
pub(crate) fn is_node(fd: RawFd) -> bool {
    number_of(fd).is_some()
}

/// True if a descriptor that was a node is one still: its number may have been closed where nobody saw it, and be something else's.
/// Then it is forgotten. In the file-system view [`join`] finds that out.
pub(crate) fn is_still(fd: RawFd) -> bool {
    if run::view() != Some(View::Preload) {
        return is_node(fd);
    }
    let Some((_, file)) = file_of(fd) else { return false };
    let still = name::of_socket(fd).is_some_and(|name| name.open == file.open);
    if !still && table::belongs_here() {
        forget(fd);
    }
    still
}

/// Recognises a node among the descriptors a program got by other ways (kept across exec, received); true if it is one. It
/// belongs to another address space: it can be closed, duplicated and asked for its queue, and everything else is EPERM.
pub(crate) fn adopt(fd: RawFd) -> bool {
    let Some(NodeName { open, device, wq }) = name::of_socket(fd) else { return false };
    forget(fd);
    let mut files = FILES.hold();
    let known = files.iter().position(|file| file.stage == Stage::Foreign && file.open == open);
    let Some(index) = known.or_else(|| files.iter().position(|file| file.stage == Stage::Free)) else { return false };
    let before = if known.is_some() { files[index].descriptors } else { 0 };
    // A socket says nothing of open(2)'s mode; what could tell them apart is refused for a foreign file anyway.
    files[index] = File {
        stage: Stage::Foreign,
        descriptors: before + 1,
        may_read: true,
        may_write: true,
        open,
        device,
        wq,
        ..File::FREE
    };
    set_descriptor(fd, u16::try_from(index + 1).unwrap_or_default());
    true
}

/// Joins a node of the file-system view, which was opened without this library: true if the descriptor is one now. Asked before
/// every mapping, since descriptors come and go there unseen.
pub(crate) fn join(fd: RawFd) -> bool {
    if run::view() != Some(View::Namespace) {
        return is_node(fd);
    }
    let Some(open) = name::of_file_system(fd) else {
        forget(fd);
        return false;
    };
    if file_of(fd).is_some_and(|(_, file)| file.open == open) {
        return true;
    }
    forget(fd);
    let known =
        FILES.hold().iter().position(|file| matches!(file.stage, Stage::Own | Stage::Foreign) && file.open == open);
    let number = match known {
        Some(known) => Ok(u16::try_from(known).unwrap_or_default()),
        None => attach(fd, open),
    };
    let Ok(number) = number else { return false };
    FILES.hold()[usize::from(number)].descriptors += 1;
    set_descriptor(fd, number + 1);
    true
}

/// Makes a file, without descriptors yet, of one that was opened through the file system and is behind `fd`.
fn attach(fd: RawFd, open: u64) -> Result<u16, Errno> {
    let mode = i32::try_from(sys::fcntl(fd, libc::F_GETFL, 0)?).unwrap_or(libc::O_RDWR) & libc::O_ACCMODE;
    let number = take_number()?;
    let started = control::attach(open).and_then(|opening| {
        let opened = opening.opened;
        let replica = Box::new(Replica::start(&opening, number)?);
        REPLICAS[usize::from(number)].put_in(Box::into_raw(replica));
        Ok(File { stage: Stage::Own, device: opened.device, wq: opened.wq, ..File::FREE })
    });
    let file = match started {
        Ok(file) => file,
        // Another address space's.
        Err(Errno::PERM) => File { stage: Stage::Foreign, ..File::FREE },
        Err(error) => {
            FILES.hold()[usize::from(number)] = File::FREE;
            return Err(error);
        }
    };
    let (may_read, may_write) = (mode != libc::O_WRONLY, mode != libc::O_RDONLY);
    FILES.hold()[usize::from(number)] = File { may_read, may_write, open, ..file };
    Ok(number)
}

/// Closes a descriptor that is a node, and the file with its last descriptor and mapping, once its work is done.
///
/// # Errors
/// EBADF.
pub(crate) fn close(fd: RawFd) -> Result<(), Errno> {
    forget(fd);
    sys::close(fd)
}

/// Says that `new` has become a duplicate of the node `old` (dup, dup2, dup3, fcntl); what `new` was before is forgotten by
/// [`forget`] first.
pub(crate) fn duplicated(old: RawFd, new: RawFd) {
    let Some(number) = number_of(old) else { return };
    if old != new && place_of(new).is_some() {
        FILES.hold()[usize::from(number)].descriptors += 1;
        set_descriptor(new, number + 1);
    }
}

/// Says that a descriptor is about to be closed or replaced by other means (dup2 onto it, close_range): forgets it, without
/// closing it.
pub(crate) fn forget(fd: RawFd) {
    let Some(place) = place_of(fd) else { return };
    // One of several threads that close the same number gets it.
    let Some(number) = place.swap(0, Ordering::Relaxed).checked_sub(1) else { return };
    let mut files = FILES.hold();
    files[usize::from(number)].descriptors -= 1;
    release_if_unused(files, number);
}

/// Which queue a node is: device and number, `wqM.N`.
pub(crate) fn queue(fd: RawFd) -> Option<(u32, u32)> {
    file_of(fd).map(|(_, file)| (file.device, file.wq))
}

/// What a mapping or a write needs to know of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    /// Number of the file.
    pub(crate) number: u16,
    /// open(2) asked for reading.
    pub(crate) may_read: bool,
    /// open(2) asked for writing.
    pub(crate) may_write: bool,
    /// This address space opened it.
    pub(crate) own: bool,
}

/// What may be done with a node.
pub(crate) fn access(fd: RawFd) -> Option<Access> {
    let (number, file) = file_of(fd)?;
    let own = file.stage == Stage::Own;
    Some(Access { number, may_read: file.may_read, may_write: file.may_write, own })
}

/// The replica of a file of this address space, kept until the answer is dropped.
#[inline]
pub(crate) fn enter(number: u16) -> Option<Inside<'static, Replica>> {
    REPLICAS.get(usize::from(number))?.enter()
}

/// Runs something with every replica there is.
pub(crate) fn each(mut act: impl FnMut(&Replica)) {
    for gate in &REPLICAS {
        if let Some(inside) = gate.enter() {
            act(taken::inside(&inside));
        }
    }
}

/// The replica behind an entered gate.
#[inline]
pub(crate) fn replica<'a>(inside: &'a Inside<'static, Replica>) -> &'a Replica {
    taken::inside(inside)
}

/// A page of a file was mapped through a descriptor: it holds the file as the descriptor does.
///
/// # Errors
/// EBADF if the descriptor has gone meanwhile, EMFILE, ENOMEM.
pub(crate) fn page_mapped(fd: RawFd, portal: Portal) -> Result<(), Errno> {
    let mut files = FILES.hold();
    let file = &mut files[usize::from(portal.file)];
    if number_of(fd) != Some(portal.file) || file.stage != Stage::Own {
        return Err(Errno::BADF);
    }
    if file.pages == 0 {
        file.guard = guard::duplicate(fd)?;
    }
    if !PORTALS.insert(portal) {
        if file.pages == 0 {
            guard::close(std::mem::replace(&mut file.guard, -1));
        }
        return Err(Errno::NOMEM);
    }
    file.pages += 1;
    Ok(())
}

/// A portal page changes: its permissions, or with `to` its place.
pub(crate) fn page_changed(portal: Portal, to: Option<u64>) {
    let _files = FILES.hold();
    match to {
        None => PORTALS.update(portal),
        Some(address) => {
            PORTALS.remove(&portal);
            // There is room: one was just taken away.
            PORTALS.insert(Portal { address, ..portal });
        }
    }
}

/// A portal page is no more.
pub(crate) fn page_unmapped(portal: Portal) {
    let mut files = FILES.hold();
    if PORTALS.find(portal.address).is_none_or(|now| now.file != portal.file) {
        return;
    }
    PORTALS.remove(&portal);
    let file = &mut files[usize::from(portal.file)];
    file.pages -= 1;
    if file.pages != 0 {
        return;
    }
    let guard = std::mem::replace(&mut file.guard, -1);
    release_if_unused(files, portal.file);
    // The host's file goes only now, after its work.
    guard::close(guard);
}

/// A guard has got another number.
pub(crate) fn guard_moved(old: RawFd, new: RawFd) {
    for file in FILES.hold().iter_mut().filter(|file| file.guard == old && old >= 0) {
        file.guard = new;
    }
}

/// Ends a file that has neither descriptors nor pages left.
fn release_if_unused(mut files: Held<'_, [File; MAX_FILES]>, number: u16) {
    let file = &mut files[usize::from(number)];
    if file.descriptors != 0 || file.pages != 0 {
        return;
    }
    file.stage = Stage::Changing;
    // Not with the lock: this may take long, and the work may be a device's that another thread waits for.
    drop(files);
    let _put_off = telpher_interpose::signals::defer();
    taken::end(REPLICAS[usize::from(number)].take_out(sys::yield_now));
    FILES.hold()[usize::from(number)] = File::FREE;
}

/// Takes the locks, for a fork.
pub(crate) fn before_fork() {
    FILES.take();
}

/// Gives them back, in the parent.
pub(crate) fn after_fork() {
    FILES.give();
}

/// In the child: gives the locks back, and makes every file foreign. The replicas stay behind in memory that nobody uses any
/// more: their threads and their host's pages are not here.
pub(crate) fn after_fork_child() {
    FILES.give();
    for gate in &REPLICAS {
        gate.forget();
    }
    PORTALS.clear();
    for file in FILES.hold().iter_mut() {
        file.pages = 0;
        file.guard = -1;
        match file.stage {
            Stage::Own if file.descriptors != 0 => file.stage = Stage::Foreign,
            // Held by pages only, or in the hands of a thread that is not here.
            Stage::Own | Stage::Changing => *file = File::FREE,
            Stage::Foreign | Stage::Free => {}
        }
    }
}
