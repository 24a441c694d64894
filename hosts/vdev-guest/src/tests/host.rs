//! A test host with one queue: answers requests to open, records reports, detects closed files.

use crate::sys::{Errno, call, word};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use telpher_abi::WindowFlags;
use telpher_abi::registers::{GenCfg, GrpCfg, WqCfg};
use telpher_model::Preset;
use telpher_vdev_wire::VERSION;
use telpher_vdev_wire::file_memory::FileMemory;
use telpher_vdev_wire::message::{Kind, Opened, Reply, Report, Request, WINDOW_OWN, WINDOW_SECRET, WindowEntry};
use telpher_vdev_wire::name::{NodeName, WindowName};
use telpher_vdev_wire::queue_state::{ENABLED, OccupancySlots, QueueState};
use zerocopy::{FromBytes, IntoBytes};

/// The host's state.
#[derive(Debug, Default)]
struct Known {
    reports: Vec<Report>,
    /// The host's ends of the files, by number from 1.
    ends: Vec<UnixStream>,
    /// The address spaces that sent requests.
    spaces: Vec<u64>,
    windows: Windows,
}

/// How requests about windows are answered.
#[derive(Default)]
struct Windows {
    update_errno: i32,
    settle_errno: i32,
    /// Numbers of windows of which a descriptor was closed.
    closed: Vec<u64>,
    settles: u32,
    /// The host's ends of the windows.
    ends: Vec<UnixStream>,
    before_create: Option<Box<dyn FnOnce() + Send>>,
}

impl std::fmt::Debug for Windows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Windows")
    }
}

/// The host, on a thread of the test's process.
#[derive(Debug)]
pub(crate) struct Host {
    known: Arc<Mutex<Known>>,
    board: File,
    rows: File,
    lease: File,
}

impl Host {
    pub(super) fn listen(adapt: impl FnOnce(&mut Opened)) -> Host {
        let mut opened = usual();
        adapt(&mut opened);
        let host = Host {
            known: Arc::default(),
            board: memory(size_of::<QueueState>()),
            rows: memory(size_of::<OccupancySlots>()),
            lease: memory(size_of::<FileMemory>()),
        };
        host.set_enabled(true);
        // SAFETY: plain socket calls with structures that outlive them.
        let listener = unsafe {
            let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
            let listener = call(libc::SYS_socket, [word(libc::AF_UNIX), word(kind), 0, 0, 0, 0]).unwrap();
            let (address, len) = crate::run::socket_address().unwrap();
            call(libc::SYS_bind, [listener, std::ptr::from_ref(address).addr(), len, 0, 0, 0]).unwrap();
            call(libc::SYS_listen, [listener, 16, 0, 0, 0, 0]).unwrap();
            listener
        };
        let known = Arc::clone(&host.known);
        let shared = [&host.lease, &host.board, &host.rows].map(File::as_raw_fd);
        std::thread::spawn(move || {
            loop {
                // A blocking accept would have reserved its descriptor number already.
                let mut ready =
                    libc::pollfd { fd: RawFd::try_from(listener).unwrap(), events: libc::POLLIN, revents: 0 };
                // SAFETY: plain socket calls; the structure outlives its call, the descriptor is owned by the File.
                let connection: File = unsafe {
                    while call(libc::SYS_poll, [(&raw mut ready).addr(), 1, usize::MAX, 0, 0, 0]) == Err(Errno::INTR) {}
                    let connection = call(libc::SYS_accept, [listener, 0, 0, 0, 0, 0]).unwrap();
                    aside(OwnedFd::from_raw_fd(RawFd::try_from(connection).unwrap()))
                };
                answer(&connection, &known, &opened, shared);
            }
        });
        host
    }

    pub(super) fn set_enabled(&self, enabled: bool) {
        let shared = crate::shared::Shared::<QueueState>::map(self.board.as_raw_fd()).unwrap();
        shared.as_ref().state.store(if enabled { ENABLED } else { 0 }, std::sync::atomic::Ordering::SeqCst);
    }

    /// The queue state, as the host writes it.
    pub(super) fn board(&self) -> crate::shared::Shared<QueueState> {
        crate::shared::Shared::map(self.board.as_raw_fd()).unwrap()
    }

    /// The occupancy slots, as other processes write them.
    pub(super) fn rows(&self) -> crate::shared::Shared<OccupancySlots> {
        crate::shared::Shared::map(self.rows.as_raw_fd()).unwrap()
    }

    pub(super) fn reports(&self) -> Vec<Report> {
        self.known.lock().unwrap().reports.clone()
    }

    /// True if no process has file `number` open any more.
    pub(crate) fn is_gone(&self, number: usize) -> bool {
        let known = self.known.lock().unwrap();
        let mut poll = libc::pollfd { fd: known.ends[number - 1].as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one structure that outlives the call.
        unsafe { call(libc::SYS_poll, [(&raw mut poll).addr(), 1, 0, 0, 0, 0]) }.unwrap();
        poll.revents & libc::POLLHUP != 0
    }

    /// Answers the updates of windows with this error from now on; 0 for success.
    pub(crate) fn answer_updates(&self, errno: i32) {
        self.known.lock().unwrap().windows.update_errno = errno;
    }

    /// Answers requests to wait for closed windows with this error from now on.
    pub(crate) fn answer_settles(&self, errno: i32) {
        self.known.lock().unwrap().windows.settle_errno = errno;
    }

    /// Number of requests to wait for closed windows.
    pub(crate) fn settles(&self) -> u32 {
        self.known.lock().unwrap().windows.settles
    }

    /// Numbers of the windows of which a descriptor was closed, in order.
    pub(crate) fn closed_windows(&self) -> Vec<u64> {
        self.known.lock().unwrap().windows.closed.clone()
    }

    /// Calls a function before the next window is made.
    pub(crate) fn before_create(&self, act: impl FnOnce() + Send + 'static) {
        self.known.lock().unwrap().windows.before_create = Some(Box::new(act));
    }

    pub(super) fn spaces(&self) -> Vec<u64> {
        self.known.lock().unwrap().spaces.clone()
    }
}

/// Moves a file to a high number. Tests check which number is the lowest free one, and this thread may close its
/// descriptors at any time.
fn aside<T: From<OwnedFd>>(file: impl Into<OwnedFd>) -> T {
    let low = file.into();
    let high = crate::sys::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 512).unwrap();
    // SAFETY: new, and owned from here on.
    unsafe { OwnedFd::from_raw_fd(crate::sys::descriptor(high)) }.into()
}

fn memory(len: usize) -> File {
    // SAFETY: the name is a C string; the File owns the descriptor.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"telpher-test".as_ptr(), libc::MFD_CLOEXEC)) };
    file.set_len(len as u64).unwrap();
    file
}

fn answer(connection: &File, known: &Mutex<Known>, opened: &Opened, shared: [RawFd; 3]) {
    let mut packet = [0_u8; 10_000];
    // SAFETY: the buffer outlives the call.
    let received = unsafe {
        let arguments = [word(connection.as_raw_fd()), packet.as_mut_ptr().addr(), packet.len(), 0, 0, 0];
        call(libc::SYS_read, arguments).unwrap()
    };
    let (request, rest) = Request::read_from_prefix(&packet[..received]).unwrap();
    assert_eq!((request.version, rest.len()), (VERSION, (request.path_len + request.data_len) as usize));
    let (path, data) = rest.split_at(request.path_len as usize);
    let mut known = known.lock().unwrap();
    known.spaces.push(request.space);
    let mut reply = Reply { version: VERSION, ..Reply::default() };
    let (mut text, mut descriptors, mut kept) = (Vec::new(), Vec::new(), None);
    match Kind::from_code(request.kind).unwrap() {
        Kind::Show => text = [b"text of ", path, b"\n"].concat(),
        Kind::Store => reply.value = data.len() as u64,
        Kind::Open if path == super::NODE => {
            let (theirs, ours) = UnixStream::pair().unwrap();
            let (theirs, ours) = (aside::<UnixStream>(theirs), aside(ours));
            known.ends.push(ours);
            name(theirs.as_raw_fd(), known.ends.len() as u64);
            text = Opened { open: known.ends.len() as u64, ..*opened }.as_bytes().to_vec();
            descriptors = [&[theirs.as_raw_fd()], &shared[..]].concat();
            kept = Some(theirs);
        }
        Kind::Open => reply.errno = libc::ENXIO,
        Kind::Attach => reply.errno = libc::EPERM,
        Kind::Report => known.reports.push(Report::read_from_bytes(data).unwrap()),
        Kind::PerfOpen | Kind::PerfRead | Kind::PerfControl => reply.errno = libc::ENOENT,
        Kind::WindowCreate if opened.id_cap != 0 => {
            if let Some(act) = known.windows.before_create.take() {
                act();
            }
            let (theirs, mut ours) = UnixStream::pair().unwrap();
            ours.write_all(&[7; WINDOW_SECRET]).unwrap();
            let (theirs, ours) = (aside::<UnixStream>(theirs), aside(ours));
            known.windows.ends.push(ours);
            let number = known.windows.ends.len() as u64;
            bind(theirs.as_raw_fd(), &WindowName(number).to_text(&run_name(), 5));
            descriptors = vec![theirs.as_raw_fd()];
            kept = Some(theirs);
        }
        Kind::Windows if opened.id_cap != 0 => {
            let flags = (WindowFlags::READ | WindowFlags::ENABLE).bits();
            let entry =
                WindowEntry { base: 0x1000, size: 0x1000, generation: 1 << 32, flags, ..WindowEntry::default() };
            text = WindowEntry { relation: WINDOW_OWN, ..entry }.as_bytes().to_vec();
        }
        Kind::WindowUpdate if opened.id_cap != 0 => reply.errno = known.windows.update_errno,
        Kind::WindowClose if opened.id_cap != 0 => known.windows.closed.push(request.argument),
        Kind::WindowSettle if opened.id_cap != 0 => {
            known.windows.settles += 1;
            reply.errno = known.windows.settle_errno;
        }
        // Requests about windows of a device without any.
        _ => reply.errno = libc::ENOTTY,
    }
    reply.data_len = u32::try_from(text.len()).unwrap();
    send(connection, &[reply.as_bytes(), &text].concat(), &descriptors);
    drop(kept);
}

/// Names a file's socket, as the real host does.
fn name(fd: RawFd, open: u64) {
    bind(fd, &NodeName { open, device: 0, wq: 0 }.to_text(&run_name(), 5));
}

fn run_name() -> String {
    let directory = String::from_utf8(crate::run::directory().to_vec()).unwrap();
    directory.rsplit('/').next().unwrap().to_owned()
}

/// Gives a socket a name in the abstract namespace.
fn bind(fd: RawFd, text: &str) {
    // AF_UNIX is 1.
    let mut address = libc::sockaddr_un { sun_family: 1, sun_path: [0; 108] };
    for (target, byte) in address.sun_path[1..].iter_mut().zip(text.bytes()) {
        *target = byte.cast_signed();
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + text.len();
    // SAFETY: the address outlives the call.
    unsafe { call(libc::SYS_bind, [word(fd), (&raw const address).addr(), len, 0, 0, 0]) }.unwrap();
}

fn send(connection: &File, packet: &[u8], descriptors: &[RawFd]) {
    #[repr(C, align(8))]
    struct ControlBuffer([u8; 64]);
    let mut buffer = ControlBuffer([0; 64]);
    let part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    // SAFETY: an all-zero header is a valid value; the control message is within its buffer, and everything outlives
    // the call.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = (&raw const part).cast_mut();
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            let bytes = u32::try_from(size_of_val(descriptors)).unwrap();
            message.msg_control = buffer.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            libc::CMSG_DATA(header).cast::<RawFd>().copy_from(descriptors.as_ptr(), descriptors.len());
        }
        call(libc::SYS_sendmsg, [word(connection.as_raw_fd()), (&raw const message).addr(), 0, 0, 0, 0]).unwrap();
    }
}

/// A shared queue of the device with all capabilities: 16 entries, threshold 12.
fn usual() -> Opened {
    let capabilities = Preset::Full.capabilities();
    let wq_cfg = WqCfg::default()
        .with_size(16)
        .with_threshold(12)
        .with_priority(10)
        .with_pasid_enable(true)
        .with_block_on_fault(true)
        .with_max_batch_shift(5)
        .with_max_transfer_shift(21)
        .with_op_config(capabilities.op_cap);
    let grp_cfg = GrpCfg::default().with_wqs(1).with_engines(1).with_tc_a(1).with_tc_b(1).with_read_buffers_allowed(96);
    Opened {
        pasid: 7,
        row: 3,
        enqcmds_retries: 4,
        version: capabilities.version,
        page_request_capacity: capabilities.page_request_capacity,
        msix_entries: capabilities.msix_entries.into(),
        counters: capabilities.counters.into(),
        traffic_classes: capabilities.traffic_classes.into(),
        gen_cap: capabilities.gen_cap.0[0],
        wq_cap: capabilities.wq_cap.0[0],
        grp_cap: capabilities.grp_cap.0[0],
        eng_cap: capabilities.eng_cap.0[0],
        cmd_cap: capabilities.cmd_cap,
        op_cap: capabilities.op_cap.0,
        gen_cfg: GenCfg::default().with_global_read_buffer_limit(96).0[0],
        grp_cfg: grp_cfg.0,
        wq_cfg: wq_cfg.0,
        ..Opened::default()
    }
}
