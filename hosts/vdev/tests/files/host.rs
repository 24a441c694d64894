//! A host for one test: a shadow tree, and attributes that store the text written to them.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use telpher_vdev_wire::VERSION;
use telpher_vdev_wire::message::{Kind, MAX_PAYLOAD, Reply, Request};
use telpher_vdev_wire::settings::{RUN, SHADOW, SOCKET, Settings, View};
use zerocopy::{FromBytes, IntoBytes};

/// The path of the device's own directory.
const DEVICE: &str = "/sys/devices/pci0000:6a/0000:6a:01.0/dsa0";
/// Directories that every machine has and in which the driver adds entries.
const MERGED: [&str; 9] = [
    "/sys",
    "/sys/bus",
    "/sys/bus/pci",
    "/sys/bus/pci/devices",
    "/sys/devices",
    "/sys/module",
    "/dev",
    "/dev/char",
    "/proc",
];

/// Texts of the attributes by path; reading one without a text is refused.
type Texts = Arc<Mutex<BTreeMap<String, Option<String>>>>;

/// A run directory with a host.
pub(crate) struct Host {
    directory: PathBuf,
    texts: Texts,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Host {
    /// One device with two queues, one of which has a node.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("guest-files-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let host = Host { directory, texts: Texts::default() };
        host.make_tree();
        host.listen();
        host
    }

    fn place(&self, path: &str) -> PathBuf {
        let place = self.directory.join(SHADOW).join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        place
    }

    fn link(&self, path: &str, text: &str) {
        symlink(text, self.place(path)).unwrap();
    }

    fn attribute(&self, path: &str, mode: u32, text: Option<&str>) {
        fs::write(self.place(path), [0; 4096]).unwrap();
        fs::set_permissions(self.place(path), fs::Permissions::from_mode(mode)).unwrap();
        self.texts.lock().unwrap().insert(path.to_owned(), text.map(str::to_owned));
    }

    fn make_tree(&self) {
        for path in MERGED {
            fs::create_dir_all(self.place(path)).unwrap();
            fs::write(self.place(path).join(".telpher-merged"), "").unwrap();
        }
        self.attribute(&format!("{DEVICE}/state"), 0o444, Some("disabled\n"));
        for wq in ["wq0.0", "wq0.1"] {
            self.attribute(&format!("{DEVICE}/{wq}/size"), 0o644, Some("0\n"));
            self.attribute(&format!("{DEVICE}/{wq}/state"), 0o444, Some("disabled\n"));
            self.attribute(&format!("{DEVICE}/{wq}/occupancy"), 0o444, None);
            self.link(&format!("{DEVICE}/{wq}/subsystem"), "../../../../../bus/dsa");
            let device = "../../../devices/pci0000:6a/0000:6a:01.0/dsa0";
            self.link(&format!("/sys/bus/dsa/devices/{wq}"), &format!("{device}/{wq}"));
        }
        self.link("/sys/bus/dsa/devices/dsa0", "../../../devices/pci0000:6a/0000:6a:01.0/dsa0");
        self.link("/sys/devices/pci0000:6a/0000:6a:01.0/subsystem", "../../../bus/pci");
        self.link("/sys/bus/pci/devices/0000:6a:01.0", "../../../devices/pci0000:6a/0000:6a:01.0");
        self.attribute("/sys/bus/dsa/drivers/idxd/bind", 0o200, Some(""));
        fs::write(self.place("/dev/dsa/wq0.0"), "240:0").unwrap();
        self.link("/dev/char/240:0", "../dsa/wq0.0");
        fs::write(self.place("/proc/cpuinfo"), "flags\t\t: fpu movdir64b enqcmd waitpkg\n").unwrap();
    }

    fn listen(&self) {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(self.directory.join(SOCKET)).unwrap()).unwrap();
        rustix::net::listen(&socket, 64).unwrap();
        let texts = Arc::clone(&self.texts);
        // The thread lives as long as the test program.
        std::thread::spawn(move || {
            while let Ok(connection) = rustix::net::accept_with(&socket, SocketFlags::CLOEXEC) {
                serve(&connection, &texts);
            }
        });
    }

    /// A command in this run.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let directory = self.directory.as_os_str().as_encoded_bytes();
        let settings = Settings { view: View::Preload, rewrite: false, follow: false, windows: false, directory };
        let mut command = Command::new(program);
        command.env(RUN, String::from_utf8(settings.to_value()).unwrap()).env("LD_PRELOAD", guest()).env("LC_ALL", "C");
        command
    }

    /// The output of a script: standard output, then standard error.
    pub(crate) fn says(&self, shell: &str, script: &str) -> String {
        let Output { stdout, stderr, .. } = self.command(shell).arg("-c").arg(script).output().unwrap();
        String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap()
    }

    /// An attribute's text.
    pub(crate) fn text(&self, path: &str) -> String {
        self.texts.lock().unwrap()[path].clone().unwrap_or_default()
    }
}

/// The library under test, as embedded in the binary.
fn guest() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("files-guest.so");
        fs::write(&library, telpher_launch::libraries::VDEV.bytes()).unwrap();
        library
    })
}

/// Compiles a C program.
pub(crate) fn compiled(source: &Path, name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status =
        Command::new(compiler).args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).status();
    assert!(status.expect("a C compiler").success());
    program
}

fn serve(connection: &OwnedFd, texts: &Texts) {
    let mut packet = [0; size_of::<Request>() + MAX_PAYLOAD];
    let Ok((len, _)) = rustix::net::recv(connection, &mut packet, RecvFlags::empty()) else { return };
    let (request, rest) = Request::read_from_prefix(&packet[..len]).unwrap();
    let (path, data) = rest.split_at(request.path_len as usize);
    let (path, data) = (std::str::from_utf8(path).unwrap(), std::str::from_utf8(data).unwrap());
    let mut texts = texts.lock().unwrap();
    let answer = match (Kind::from_code(request.kind), texts.get_mut(path)) {
        (Some(Kind::Show), Some(Some(text))) => Ok((0, text.clone())),
        (Some(Kind::Show), Some(None)) => Err(libc::EOPNOTSUPP),
        (Some(Kind::Store), Some(_)) if data.trim() == "bad" => Err(libc::EINVAL),
        (Some(Kind::Store), Some(text)) => {
            *text = Some(format!("{}\n", data.trim()));
            Ok((data.len() as u64, String::new()))
        }
        (Some(Kind::Open), _) => Err(libc::ENXIO),
        _ => Err(libc::ENOENT),
    };
    let (errno, value, text) = match answer {
        Ok((value, text)) => (0, value, text),
        Err(errno) => (errno, 0, String::new()),
    };
    let data_len = u32::try_from(text.len()).unwrap();
    let reply = Reply { version: VERSION, errno, value, data_len, reserved: 0 };
    let packet = [reply.as_bytes(), text.as_bytes()].concat();
    let _ = rustix::net::send(connection, &packet, SendFlags::NOSIGNAL);
}
