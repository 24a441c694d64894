//! Prepares the program's environment and starts it in its view.

use super::options::{RunError, RunOptions};
use crate::host::Host;
use crate::view::namespace::{self, Nodes, Running};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use telpher_launch::libraries::VDEV;
use telpher_launch::{PRELOAD, Program, child_pid, preload, start_error};
use telpher_vdev_wire::settings::{EMULATED, INSTRUCTIONS, RUN, Settings, View};

/// Raises this process's limit of open files to the maximum: each open queue takes two descriptors. Returns the limit
/// for the program.
pub(super) fn raise_file_limit() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // If this is refused, fewer queues can be open at once.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    before
}

/// Sets a command's arguments and environment.
pub(super) fn prepare(
    command: &mut Command,
    program: &Program,
    options: &RunOptions,
    view: View,
    directory: &Path,
    image: &Path,
) {
    let directory_bytes = directory.as_os_str().as_bytes();
    let (rewrite, follow, windows) = (options.rewrite, options.follow, options.idpt);
    let settings = Settings { view, rewrite, follow, windows, directory: directory_bytes };
    let preload = preload(image, VDEV.name, &program.binary, std::env::var_os(PRELOAD).as_deref());
    command
        .arg0(&options.program)
        .args(&options.args)
        .env(RUN, OsString::from_vec(settings.to_value()))
        .env(INSTRUCTIONS, EMULATED)
        .env(PRELOAD, preload);
}

/// Starts the program in its own mount namespace.
///
/// # Errors
/// If the system does not execute the program, or refuses the view.
pub(super) fn spawn_in_namespace(
    mut command: Command,
    program: &Program,
    host: &Arc<Host>,
    nodes: Nodes,
) -> Result<(Pid, Running), RunError> {
    let no_view = |reason| RunError::Namespace { program: program.path.clone(), source: Box::new(reason) };
    let (entrance, running) = namespace::prepare(Arc::clone(host), nodes).map_err(no_view)?;
    entrance.install(&mut command);
    let spawned = command.spawn();
    drop(command);
    running.outcome().map_err(no_view)?;
    let child = spawned.map_err(|source| start_error(source, program))?;
    host.on_report(running.waker());
    Ok((child_pid(child.id(), program)?, running))
}
