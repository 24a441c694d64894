//! Open files of queues' nodes: the files behind the program's descriptors and mappings.
//!
//! ```text
//! descriptor ─┐
//! descriptor ─┼─► file ─► replica
//! portal page ┘    └──► guard: keeps the host's file open while only pages are left
//! ```
//!
//! A file is released with its last descriptor and page, after its work has ended. A forked child has its parent's
//! descriptors but nothing else: there every file is *foreign*, as for the kernel, which compares address spaces. A
//! child of a bare clone(2) runs no fork handler, so its files look like its parent's; but its parent's replicas are
//! not used there.

use crate::control;
use crate::files::table;
use crate::guard;
use crate::portal::{PORTALS, Portal};
use crate::replica::Replica;
use crate::run;
use crate::sync::{AtomicU16, Ordering};
use crate::sys::{self, Errno};
use crate::user_count::{Gate, Inside};
use std::os::fd::RawFd;
use telpher_interpose::preload::{Held, Lock};
use telpher_vdev_wire::name::NodeName;
use telpher_vdev_wire::settings::View;

pub(crate) mod name;
mod replica_access;

/// Descriptor numbers below this can be nodes; higher numbers are refused. Source: chosen.
const MAX_DESCRIPTORS: usize = 1 << 16;
/// Most files that a process can have open at once. Source: chosen; a queue has as many occupancy slots.
const MAX_FILES: usize = 1008;

/// Number of the file behind each descriptor plus one; 0 for descriptors that are not nodes.
static DESCRIPTORS: [AtomicU16; MAX_DESCRIPTORS] = [const { AtomicU16::new(0) }; MAX_DESCRIPTORS];
/// The replicas, by file number.
static REPLICAS: [Gate<Replica>; MAX_FILES] = [const { Gate::new() }; MAX_FILES];
/// All other data about files.
static FILES: Lock<[File; MAX_FILES]> = Lock::new([const { File::FREE }; MAX_FILES]);

/// One open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct File {
    stage: Stage,
    /// Number of descriptors of this process.
    descriptors: u32,
    /// Number of portal pages of this process.
    pages: u32,
    /// The guarded duplicate while there are pages; -1 if none.
    guard: RawFd,
    /// The access that open(2) requested.
    may_read: bool,
    may_write: bool,
    /// Number of the open file in the run, and its queue.
    open: u64,
    device: u32,
    wq: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Unused.
    Free,
    /// Being set up or released, by the thread that set this stage.
    Changing,
    /// Opened by this address space.
    Own,
    /// Opened by another address space: before a fork or an exec.
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

/// Opens a node, `/dev/dsa/wqM.N`, with open(2)'s flags; returns the lowest free descriptor.
///
/// # Errors
/// The driver's (EBUSY, ENXIO, …), or the system's if descriptors or memory are lacking.
pub(crate) fn open(path: &[u8], flags: u32) -> Result<RawFd, Errno> {
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

/// Starts the replica of an opened node, and gives its file the lowest free descriptor.
fn install(number: u16, opening: &control::Opening, flags: u32) -> Result<RawFd, Errno> {
    let replica = Box::new(Replica::start(opening, move || send_reports(number))?);
    // The file's number is the first free one after the connection's; the connection's number is free again now.
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
    if let Some(entry) = entry_of(fd) {
        // Relaxed: a program that uses a descriptor while another thread opens or closes it has no ordering anyway.
        entry.store(value, Ordering::Relaxed);
    }
}

#[inline]
fn entry_of(fd: RawFd) -> Option<&'static AtomicU16> {
    DESCRIPTORS.get(usize::try_from(fd).ok()?)
}

/// Number of the file behind a descriptor.
#[inline]
fn number_of(fd: RawFd) -> Option<u16> {
    entry_of(fd)?.load(Ordering::Relaxed).checked_sub(1)
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

/// True if a descriptor that was a node still is: its number may have been closed without being seen, and reused. Then
/// it is forgotten. In the namespace view [`join`] does this check.
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

/// Recognises a node among descriptors that the program did not open (kept across exec, received); true if it is one.
/// It belongs to another address space: it can be closed, duplicated and asked for its queue; everything else is EPERM.
pub(crate) fn adopt(fd: RawFd) -> bool {
    let Some(NodeName { open, device, wq }) = name::of_socket(fd) else { return false };
    forget(fd);
    let mut files = FILES.hold();
    let known = files.iter().position(|file| file.stage == Stage::Foreign && file.open == open);
    let Some(index) = known.or_else(|| files.iter().position(|file| file.stage == Stage::Free)) else { return false };
    let before = if known.is_some() { files[index].descriptors } else { 0 };
    // A socket does not tell open(2)'s mode; for a foreign file every operation that depends on it is refused anyway.
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

/// Attaches to a node of the namespace view, which was opened without this library: true if the descriptor is a node
/// now. Called before every mapping, since descriptors are opened and closed there without being seen.
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

/// Creates the file, still without descriptors, for a node that was opened through the file system as `fd`.
fn attach(fd: RawFd, open: u64) -> Result<u16, Errno> {
    let mode = i32::try_from(sys::fcntl(fd, libc::F_GETFL, 0)?).unwrap_or(libc::O_RDWR) & libc::O_ACCMODE;
    let number = take_number()?;
    let started = control::attach(open).and_then(|opening| {
        let opened = opening.opened;
        let replica = Box::new(Replica::start(&opening, move || send_reports(number))?);
        REPLICAS[usize::from(number)].put_in(Box::into_raw(replica));
        Ok(File { stage: Stage::Own, device: opened.device, wq: opened.wq, ..File::FREE })
    });
    let file = match started {
        Ok(file) => file,
        // Opened by another address space.
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

/// Closes a descriptor that is a node, and releases the file with its last descriptor and mapping, once its work has
/// ended.
///
/// # Errors
/// EBADF.
pub(crate) fn close(fd: RawFd) -> Result<(), Errno> {
    forget(fd);
    sys::close(fd)
}

/// Records that `new` has become a duplicate of the node `old` (dup, dup2, dup3, fcntl). [`forget`] must be called
/// first for the former file of `new`.
pub(crate) fn duplicated(old: RawFd, new: RawFd) {
    let Some(number) = number_of(old) else { return };
    if old != new && entry_of(new).is_some() {
        FILES.hold()[usize::from(number)].descriptors += 1;
        set_descriptor(new, number + 1);
    }
}

/// Forgets a descriptor, without closing it, that is about to be closed or replaced by other means (dup2 onto it,
/// close_range).
pub(crate) fn forget(fd: RawFd) {
    let Some(entry) = entry_of(fd) else { return };
    // Of several threads that close the same number, one gets it.
    let Some(number) = entry.swap(0, Ordering::Relaxed).checked_sub(1) else { return };
    let mut files = FILES.hold();
    files[usize::from(number)].descriptors -= 1;
    release_if_unused(files, number);
}

/// The queue of a node: device and number, `wqM.N`.
pub(crate) fn queue(fd: RawFd) -> Option<(u32, u32)> {
    file_of(fd).map(|(_, file)| (file.device, file.wq))
}

/// The properties of a node that a mapping or a write needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    /// Number of the file.
    pub(crate) number: u16,
    /// open(2) requested reading.
    pub(crate) may_read: bool,
    /// open(2) requested writing.
    pub(crate) may_write: bool,
    /// This address space opened it.
    pub(crate) own: bool,
}

/// The permitted accesses of a node.
pub(crate) fn access(fd: RawFd) -> Option<Access> {
    let (number, file) = file_of(fd)?;
    let own = file.stage == Stage::Own;
    Some(Access { number, may_read: file.may_read, may_write: file.may_write, own })
}

/// The replica of a file of this address space; it stays alive until the result is dropped.
#[inline]
pub(crate) fn enter(number: u16) -> Option<Inside<'static, Replica>> {
    REPLICAS.get(usize::from(number))?.enter().filter(|inside| replica(inside).is_of_this_process())
}

/// Lets the replica of a file send its reports to the driver, if the file still has one.
fn send_reports(number: u16) {
    if let Some(inside) = enter(number) {
        replica(&inside).report();
    }
}

/// Calls `act` with every replica.
pub(crate) fn each(mut act: impl FnMut(&Replica)) {
    for inside in REPLICAS.iter().filter_map(Gate::enter) {
        let replica = replica(&inside);
        if replica.is_of_this_process() {
            act(replica);
        }
    }
}

/// The replica behind an entered gate.
#[inline]
pub(crate) fn replica<'a>(inside: &'a Inside<'static, Replica>) -> &'a Replica {
    replica_access::inside(inside)
}

/// Records that a page of a file was mapped through a descriptor: the page keeps the file open like a descriptor.
///
/// # Errors
/// EBADF if the descriptor is closed meanwhile, EMFILE, ENOMEM.
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

/// Records a change of a portal page: its permissions, or with `to` its address.
pub(crate) fn page_changed(portal: Portal, to: Option<u64>) {
    let _files = FILES.hold();
    match to {
        None => PORTALS.update(portal),
        Some(address) => {
            PORTALS.remove(&portal);
            // Cannot fail: a portal was just removed.
            PORTALS.insert(Portal { address, ..portal });
        }
    }
}

/// Records that a portal page was unmapped.
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
    // The host's file is closed only now, after its work.
    guard::close(guard);
}

/// Records the new number of a guard.
pub(crate) fn guard_moved(old: RawFd, new: RawFd) {
    for file in FILES.hold().iter_mut().filter(|file| file.guard == old && old >= 0) {
        file.guard = new;
    }
}

/// Releases a file that has neither descriptors nor pages left.
fn release_if_unused(mut files: Held<'_, [File; MAX_FILES]>, number: u16) {
    let file = &mut files[usize::from(number)];
    if file.descriptors != 0 || file.pages != 0 {
        return;
    }
    file.stage = Stage::Changing;
    // Without the lock: this may take long, and another thread may wait for the work.
    drop(files);
    let _deferred = telpher_interpose::signals::defer();
    let gate = &REPLICAS[usize::from(number)];
    let is_inherited = gate.enter().is_some_and(|inside| !replica(&inside).is_of_this_process());
    if is_inherited {
        // Its users may be threads that do not exist here.
        gate.forget();
    } else {
        replica_access::end(gate.take_out(sys::yield_now));
    }
    FILES.hold()[usize::from(number)] = File::FREE;
}

/// Takes the lock, for a fork.
pub(crate) fn before_fork() {
    FILES.take();
}

/// Releases it in the parent.
pub(crate) fn after_fork() {
    FILES.give();
}

/// Releases the lock in the child, and makes every file foreign. The replicas stay in memory, unused: their threads and
/// the host's pages do not exist in the child.
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
            // Kept by pages only, or being changed by a thread that does not exist here.
            Stage::Own | Stage::Changing => *file = File::FREE,
            Stage::Foreign | Stage::Free => {}
        }
    }
}
