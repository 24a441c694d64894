//! Runs a program on the virtual device: `telpher run -- PROGRAM`.
//!
//! ```text
//! program ─► directory, sweeper ─► signals ─► kernel ─► Host, Server ─► view ─► spawn ─► wait ─► clean up
//! ```
//!
//! The program is examined before anything is created. The sweeper is forked while the process has one thread. Dropping
//! the values undoes everything; if this process is killed, the sweeper does.

mod options;
mod spawn;

pub use crate::trace::TraceFormat;
pub use options::{RunError, RunOptions, ViewChoice};

use crate::host::{Behaviour, Host};
use crate::kernel::Kernel;
use crate::trace::Reporter;
use crate::view::namespace::{self, Nodes};
use crate::view::shadow::Shadow;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{Residency, Runner};
use telpher_launch::libraries::VDEV;
use telpher_launch::{
    Ended, ProcessTree, Program, RunDirectory, RunKind, Signals, UserDirectory, adopt_orphans, leave_closed,
    spawn as start,
};
use telpher_vdev_wire::settings::{SHADOW, SOCKET, View};

/// Longest wait for the kernel to release the last files of the namespace after the last process has ended. Source:
/// chosen; it takes milliseconds, unless an outside process has entered the namespace.
const LAST_RELEASES: Duration = Duration::from_secs(5);

/// Runs the program to its end and returns its exit code; 128 + N if signal N ended it.
///
/// Call this from a process with one thread and no other children. While the program runs, signals to this process are
/// forwarded to it. Orphaned descendants of the program become children of this process, which waits for them.
///
/// # Errors
/// If the program cannot be run on the virtual device.
pub fn run(options: &RunOptions) -> Result<u8, RunError> {
    let program = Program::find(&options.program, std::env::var_os("PATH").as_deref())?;
    let view = choose_view(options.view, &program)?;
    let mut hardware = options.hardware.clone();
    hardware.avoid(|root| Path::new("/sys/devices").join(root).exists());
    let mut kernel = Kernel::new(&hardware, options.abi, options.rawio)?;
    if let Ok(cpuinfo) = std::fs::read_to_string("/proc/cpuinfo") {
        kernel.set_cpuinfo(&cpuinfo);
    }
    let user = UserDirectory::open()?;
    let image = VDEV.place(&user)?;
    let directory = RunDirectory::create(&user, RunKind::Device)?;
    let signals = Signals::take().map_err(RunError::system("receive signals"))?;
    // The reporter has threads, so it is created after the sweeper was forked and with the signals blocked.
    let reporter = Arc::new(Reporter::new(options.trace.as_deref(), options.trace_format)?);
    // The guest recognises the files of queues by this name.
    let host = Host::new(kernel, behaviour(options), reporter.clone(), directory.name())
        .map_err(RunError::system("create the host"))?;
    let limits = spawn::raise_file_limit();
    host.publish(directory.path()).map_err(RunError::system("publish the devices for telpher top"))?;
    let server = host.serve(&directory.path().join(SOCKET)).map_err(RunError::system("listen for guests"))?;
    let mut command = Command::new(&program.path);
    spawn::prepare(&mut command, &program, options, view, directory.path(), &image);
    signals.restore_in(&mut command, limits);
    leave_closed(&mut command);
    adopt_orphans();
    let (child, files) = match view {
        View::Preload => {
            let shadow = Shadow::create(&directory.path().join(SHADOW), &host)
                .map_err(RunError::system("create the tree of the device's files"))?;
            host.watch(Box::new(shadow));
            (start(command, &program)?, None)
        }
        View::Namespace => {
            let nodes = if options.view == ViewChoice::Devices { Nodes::Findable } else { Nodes::Writable };
            let (child, files) = spawn::spawn_in_namespace(command, &program, &host, nodes)?;
            (child, Some(files))
        }
    };
    let mut family = ProcessTree::new(child, &signals, options.grace);
    let ended = family.wait();
    if let Some(ended) = ended {
        explain(ended, &program);
    }
    family.wait_for_others(|left| {
        let path = program.path.display();
        say(format_args!(
            "{path} has ended; processes it started still have the device: {left}; press ^C to remove the device"
        ));
    });
    let running = family.running();
    if family.is_over() && !running.is_empty() {
        let grace = options.grace.as_secs_f64();
        say(format_args!("{grace} s after SIGTERM these processes still run, now without the device: {running}"));
    }
    // Waits for the last processes' files, so that the trace and the summary include them.
    if let Some(files) = files.filter(|_| !family.has_others()) {
        files.wait(LAST_RELEASES);
    }
    drop(server);
    host.release_all();
    // The exit code is the program's; an incomplete trace only causes a message.
    if let Err(error) = reporter.finish() {
        say(format_args!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default()));
    }
    if options.summary {
        let _ = write!(std::io::stderr(), "{}", reporter.summary());
    }
    Ok(ended.map_or(Ended::STILL_RUNNING, Ended::code))
}

/// Returns the view for a program.
fn choose_view(choice: ViewChoice, program: &Program) -> Result<View, RunError> {
    match (choice, program.unpreloadable) {
        (ViewChoice::Preload, Some(why)) => Err(RunError::NotPreloadable { program: program.path.clone(), why }),
        (ViewChoice::Preload, None) | (ViewChoice::Auto, None) => Ok(View::Preload),
        (ViewChoice::Namespace | ViewChoice::Devices, _) => Ok(View::Namespace),
        (ViewChoice::Auto, Some(_)) => match namespace::available() {
            Ok(()) => Ok(View::Namespace),
            Err(reason) => Err(RunError::Namespace { program: program.path.clone(), source: Box::new(reason) }),
        },
    }
}

fn behaviour(options: &RunOptions) -> Behaviour {
    Behaviour {
        strict: options.residency == Residency::Strict,
        threaded: options.runner == Runner::Threaded,
        trace: options.trace.is_some(),
        check: options.check,
        inject: options.inject.unwrap_or_default(),
        idpt: options.idpt,
    }
}

/// Explains a SIGILL or SIGSEGV of a program without a guest: it may have used instructions that are emulated only with
/// one.
fn explain(ended: Ended, program: &Program) {
    let by = match ended {
        Ended::Signal(libc::SIGILL) => "was ended by an instruction that this CPU lacks (SIGILL)",
        // A CPU that supports ENQCMD raises SIGSEGV in a process to which no device has given a PASID.
        Ended::Signal(libc::SIGSEGV) => "was ended by SIGSEGV, as by ENQCMD on a CPU that has it and no PASID",
        _ => return,
    };
    if let Some(why) = program.unpreloadable {
        say(format_args!(
            "{} {why}, and {by}: MOVDIR64B, ENQCMD and UMWAIT are emulated in dynamically linked programs only; \
             let it submit by write(), or link it dynamically",
            program.binary.display()
        ));
    }
}

/// Prints a message for the user on standard error; if that is closed, the message is lost.
fn say(sentence: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "telpher run: {sentence}");
}
