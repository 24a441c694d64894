//! A panic while the live view has the terminal: this test program starts itself in a pseudo terminal.

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::tcgetattr;
use std::fs::File;
use std::io::Read as _;
use std::process::Command;
use std::time::Duration;
use telpher_telemetry::live::show;
use telpher_telemetry::view::View;
use telpher_telemetry::{Snapshot, sysfs};

/// Set for the program that panics.
const PANICS: &str = "TELPHER_TEST_PANICS";

/// The program inside of the terminal.
#[test]
fn the_program_that_panics() {
    if std::env::var_os(PANICS).is_some() {
        let view = View::new(sysfs::read(std::path::Path::new("/nothing")), None, true);
        let read = || -> Snapshot { panic!("a reading failed") };
        let _ = show(view, Duration::ZERO, read);
    }
}

#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let path = ptsname(&screen, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inside = File::from(rustix::fs::open(path.as_c_str(), flags, Mode::empty()).unwrap());
    let mode = |of: &File| tcgetattr(of).unwrap().local_modes;
    let before = mode(&inside);
    let side = || inside.try_clone().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_program_that_panics", "--nocapture"]).env(PANICS, "1");
    let mut child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    // The command keeps descriptors of the terminal, whose last one ends the reader below.
    drop(command);
    let mut from = File::from(screen);
    let reader = std::thread::spawn(move || {
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        // EIO: no process has the other side open any more.
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            text.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
        text
    });
    assert!(!child.wait().unwrap().success());
    assert_eq!(mode(&inside), before);
    drop(inside);
    let text = reader.join().unwrap();
    let (entered, left) = (text.find("\x1b[?1049h"), text.rfind("\x1b[?1049l"));
    let message = text.find("a reading failed");
    assert!(entered.is_some() && entered < message, "{text:?}");
    assert!(text.find("\x1b[?1049l") < message, "the message is on the first screen: {text:?}");
    assert!(left > entered && text.contains("\x1b[?25h"), "{text:?}");
}
