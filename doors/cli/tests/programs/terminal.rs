//! A program in a pseudo terminal: its keys, its screen's bytes, and the terminal's mode.

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Maximum time for anything that a test waits for; far longer than any needs.
const LIMIT: Duration = Duration::from_secs(60);

/// A pseudo terminal and the program in it, which is killed on drop.
pub(crate) struct Terminal {
    keyboard: File,
    /// The program's side. While it is open, the terminal keeps its mode.
    program_side: File,
    child: Child,
    screen: Receiver<Vec<u8>>,
    /// What the program has written so far.
    pub(crate) written: String,
}

impl Terminal {
    /// Starts a command as the leader of a session in a new terminal of this size.
    pub(crate) fn start(command: &Command, columns: u16, rows: u16) -> Terminal {
        let (keyboard, program_side) = pair();
        let side = || program_side.try_clone().expect("a descriptor");
        // setsid makes the terminal the program's own, so that the program gets signals about its size.
        let mut of_session = of_session(command, &["--ctty"]);
        of_session.stdin(side()).stdout(side()).stderr(side());
        resize(&program_side, columns, rows);
        let child = of_session.spawn().expect("setsid starts");
        let (sender, screen) = channel();
        let mut from = keyboard.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = from.read(&mut bytes) {
                if sender.send(bytes[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal { keyboard, program_side, child, screen, written: String::new() }
    }

    /// Waits until the program has written a text since `from` bytes of what it wrote.
    pub(crate) fn wait_for(&mut self, text: &str, from: usize) {
        let end = Instant::now() + LIMIT;
        while !self.written[from..].contains(text) {
            let left = end.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.written.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("no {text:?} in {:?}", &self.written[from..]),
            }
        }
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Changes the size, which the kernel tells the program.
    pub(crate) fn resize(&self, columns: u16, rows: u16) {
        resize(&self.program_side, columns, rows);
    }

    /// The number of the program.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The terminal's mode, for comparison.
    pub(crate) fn mode(&self) -> String {
        let Termios { input_modes, output_modes, control_modes, local_modes, .. } =
            tcgetattr(&self.program_side).expect("a terminal");
        format!("{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?}")
    }

    /// Waits for the end of the program; returns its status.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(Instant::now() < end, "the program has not ended: {:?}", self.written);
            if let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(10)) {
                self.written.push_str(&String::from_utf8_lossy(&bytes));
            }
        };
        // What was written before the end may arrive after it.
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(200)) {
            self.written.push_str(&String::from_utf8_lossy(&bytes));
        }
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("a terminal has a size");
}

/// Opens a pseudo terminal: the side of the keyboard and the screen, and the program's.
fn pair() -> (File, File) {
    let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pseudo terminal");
    grantpt(&keyboard).expect("granted");
    unlockpt(&keyboard).expect("unlocked");
    let path = ptsname(&keyboard, Vec::new()).expect("a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let program_side = File::from(rustix::fs::open(path.as_c_str(), flags, Mode::empty()).expect("the other side"));
    (File::from(keyboard), program_side)
}

/// Returns the command as the leader of a new session.
fn of_session(command: &Command, options: &[&str]) -> Command {
    let mut of_session = Command::new("setsid");
    of_session.args(options).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            of_session.env(name, value);
        }
    }
    of_session.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    of_session
}

/// Starts a command in a terminal, waits until it has written a text, and closes the terminal as a window that is
/// closed does. Returns how the command ended. If the terminal is `owned` by the command's session, the kernel also
/// sends SIGHUP.
pub(crate) fn hang_up(command: &Command, text: &str, owned: bool) -> ExitStatus {
    let (mut keyboard, program_side) = pair();
    resize(&program_side, 80, 24);
    let side = || program_side.try_clone().expect("a descriptor");
    let mut of_session = of_session(command, if owned { &["--ctty"] } else { &[] });
    let mut child = of_session.stdin(side()).stdout(side()).stderr(side()).spawn().expect("setsid starts");
    // The command keeps descriptors of the terminal.
    drop((of_session, program_side));
    let (mut written, mut bytes) = (String::new(), [0; 4096]);
    while !written.contains(text) {
        match keyboard.read(&mut bytes) {
            Ok(len @ 1..) => written.push_str(&String::from_utf8_lossy(&bytes[..len])),
            end => panic!("{end:?} before {text:?} in {written:?}"),
        }
    }
    drop(keyboard);
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("the program has not noticed the end of its terminal");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
