//! `telpher run`: a program on a virtual DSA.

use crate::args::{self, Run};
use crate::log;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use telpher_device::Residency;
use telpher_vdev::hardware::{Hardware, HardwareError};
use telpher_vdev::kernel::Abi;
use telpher_vdev::run::{self, RunError, RunOptions, TraceFormat, ViewChoice};

/// Runs the program to its end and returns the program's exit code.
///
/// # Errors
/// If the device or the program cannot be started.
pub(crate) fn run(args: &Run) -> Result<ExitCode, RunError> {
    let options = options(args)?;
    log::info(|| {
        let Hardware { devices, source, .. } = &options.hardware;
        format!("devices of {source}: {}; driver of kernel {}", devices.len(), options.abi.name())
    });
    log::info(|| format!("view {:?}, runner {:?}, residency {:?}", options.view, options.runner, options.residency));
    if let Some(path) = &options.trace {
        log::info(|| format!("the trace goes to {}", path.display()));
    }
    log::debug(|| format!("program {:?}, arguments {:?}", options.program, options.args));
    let unshared = options.hardware.unshared(options.abi);
    if !unshared.is_empty() {
        let (queues, kernel) = (unshared.join(", "), options.abi.name());
        // The run does not depend on this message.
        let _ = writeln!(
            std::io::stderr(),
            "telpher run: {} shares {queues}, and kernel {kernel} has no shared queues for users: dedicated here",
            options.hardware.source
        );
    }
    run::run(&options).map(ExitCode::from)
}

/// Converts the command line into the options of `telpher_vdev`.
fn options(args: &Run) -> Result<RunOptions, HardwareError> {
    let (program, rest) = args.program.split_first().expect("the parser asks for a program");
    Ok(RunOptions {
        program: program.clone(),
        args: rest.to_vec(),
        hardware: args.hardware.as_deref().map_or_else(|| Ok(Hardware::default()), Hardware::from_name)?,
        abi: match args.abi {
            args::Kernel::V5_15 => Abi::V5_15,
            args::Kernel::V6_1 => Abi::V6_1,
            args::Kernel::V6_6 => Abi::V6_6,
            args::Kernel::V6_12 => Abi::V6_12,
            args::Kernel::V7_0 => Abi::V7_0,
        },
        // On by default: DSA programs map a portal first, and on kernels since INTEL-SA-01084 only CAP_SYS_RAWIO
        // lets them (K612 cdev.c). `--rawio` can only confirm it.
        rawio: !args.no_rawio,
        idpt: args.idpt,
        view: match args.view {
            args::View::Auto => ViewChoice::Auto,
            args::View::Preload => ViewChoice::Preload,
            args::View::Namespace => ViewChoice::Namespace,
            args::View::Devices => ViewChoice::Devices,
        },
        runner: args.runner.into(),
        residency: match args.residency {
            args::Residency::Strict => Residency::Strict,
            args::Residency::Lenient => Residency::Lenient,
        },
        rewrite: !args.no_rewrite,
        follow: !args.no_follow,
        trace: args.trace.clone(),
        trace_format: match args.trace_format {
            args::TraceFormat::Table => TraceFormat::Text,
            args::TraceFormat::Json => TraceFormat::JsonLines,
        },
        inject: args.inject,
        check: args.check,
        summary: args.summary,
        grace: Duration::from_secs_f64(args.grace),
    })
}
