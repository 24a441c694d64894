//! Runs a program on the virtual device: `telpher run -- PROGRAM`.
//!
//! ```text
//! program ─► directory, sweeper ─► signals ─► kernel ─► Host, Server ─► view ─► spawn ─► wait ─► all undone
//! ```
//!
//! The program is looked at before anything is made; the sweeper is forked while there is one thread; everything made is undone by
//! dropping it, and by the sweeper if this process is killed.

mod options;
mod spawn;

pub use options::{RunError, RunOptions, TraceFormat, ViewChoice};

use crate::host::{Behaviour, Host};
use crate::kernel::Kernel;
use crate::trace::Reporter;
use crate::view::namespace;
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
    Ended, Family, Program, RunDirectory, RunKind, Signals, UserDirectory, adopt_orphans, leave_closed, spawn as start,
};
use telpher_vdev_wire::settings::{SHADOW, SOCKET, View};

/// Time within which the kernel takes the file system away when its last process has gone. Source: chosen; it takes milliseconds, unless a
/// process that is none of the program's has entered the namespace.
const LAST_RELEASES: Duration = Duration::from_secs(5);

/// Runs the program to its end and returns its exit code; 128 + N if signal N ended it.
///
/// To be called by a process with one thread and no other children: signals to the process are handed on to the program while it
/// runs, and whatever its descendants orphan becomes a child of this process and is waited for.
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
    let signals = Signals::take().map_err(RunError::system("take signals"))?;
    // It has threads: after the sweeper was forked, and with the signals taken.
    let reporter = Arc::new(Reporter::new(options.trace.as_deref(), options.trace_format)?);
    // The preloaded part knows queues' files by this name.
    let host = Host::new(kernel, behaviour(options), reporter.clone(), directory.name())
        .map_err(RunError::system("make a host"))?;
    let limits = spawn::raise_file_limit();
    let server = host.serve(&directory.path().join(SOCKET)).map_err(RunError::system("listen to guests"))?;
    let mut command = Command::new(&program.path);
    spawn::prepare(&mut command, &program, options, view, directory.path(), &image);
    signals.restore_in(&mut command, limits);
    leave_closed(&mut command);
    adopt_orphans();
    let (child, files) = match view {
        View::Preload => {
            let shadow = Shadow::create(&directory.path().join(SHADOW), &host)
                .map_err(RunError::system("make the tree of the device's files"))?;
            host.watch(Box::new(shadow));
            (start(command, &program)?, None)
        }
        View::Namespace => {
            let (child, files) = spawn::spawn_in_namespace(command, &program, &host)?;
            (child, Some(files))
        }
    };
    let mut family = Family::new(child, &signals, options.grace);
    let ended = family.wait();
    if let Some(ended) = ended {
        explain(ended, &program);
    }
    family.wait_for_others(|left| {
        let path = program.path.display();
        say(format_args!("{path} has ended; what it left running still has the device: {left}; ^C ends the device"));
    });
    let running = family.running();
    if family.is_over() && !running.is_empty() {
        let grace = options.grace.as_secs_f64();
        say(format_args!("{grace} s after SIGTERM these still run, from now on without the device: {running}"));
    }
    // What is told of files that the last processes had open.
    if let Some(files) = files.filter(|_| !family.has_others()) {
        files.wait(LAST_RELEASES);
    }
    drop(server);
    host.release_all();
    // The program's end is what counts; that the trace is not whole is told beside it.
    if let Err(error) = reporter.finish() {
        say(format_args!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default()));
    }
    if options.summary {
        let _ = write!(std::io::stderr(), "{}", reporter.summary());
    }
    Ok(ended.map_or(Ended::STILL_RUNNING, Ended::code))
}

/// Which view a program gets.
fn choose_view(choice: ViewChoice, program: &Program) -> Result<View, RunError> {
    match (choice, program.unpreloadable) {
        (ViewChoice::Preload, Some(why)) => Err(RunError::NotPreloadable { program: program.path.clone(), why }),
        (ViewChoice::Preload, None) | (ViewChoice::Auto, None) => Ok(View::Preload),
        (ViewChoice::Namespace, _) => Ok(View::Namespace),
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
    }
}

/// Says what a bare signal would not: that the program used instructions which can only be emulated in others.
fn explain(ended: Ended, program: &Program) {
    let by = match ended {
        Ended::Signal(libc::SIGILL) => "was ended by an instruction that this CPU lacks (SIGILL)",
        // A CPU that has ENQCMD refuses it so where no device gave the process a PASID.
        Ended::Signal(libc::SIGSEGV) => "was ended by SIGSEGV, as by ENQCMD on a CPU that has it and no PASID",
        _ => return,
    };
    if let Some(why) = program.unpreloadable {
        say(format_args!(
            "{} {why}, and {by}: MOVDIR64B, ENQCMD and UMWAIT are emulated in dynamically linked programs only; let it submit \
             by write(), or link it dynamically",
            program.binary.display()
        ));
    }
}

/// A sentence for the user, beside what the program prints. If nobody reads it, that is that.
fn say(sentence: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "telpher run: {sentence}");
}
