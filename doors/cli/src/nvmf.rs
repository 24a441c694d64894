//! `telpher nvmf`: serves disks over NVMe/TCP, and controls the server.
//!
//! ```text
//! options, file ──► telpher-nvmf-run's Config ──► NvmfRun ──► a thread for each loop, until a signal
//! ctl ──► control socket ──► statistics: text, JSON or CSV on standard output
//! bench ──► telpher-bench's load generator, on a target or on servers of its own
//! ```

use crate::args::{Nvmf, NvmfBench, NvmfCheck, NvmfCtl, NvmfCtlKind};
use crate::{live, log};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use telpher_bench::nvmf_load::{self, Load};
use telpher_bench::{BenchError, report};
use telpher_nvmf_run::values::Protected;
use telpher_nvmf_run::{
    AskError, Config, ConfigError, Level, NvmfRun, NvmfRunError, STOP_WITHIN, Statistics, ask, default_socket,
};
use telpher_os::Termination;
use telpher_report::deliver::{self, DeliverError};
use telpher_report::machine::Machine;
use telpher_report::schema;

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NvmfError {
    /// The options name nothing to serve.
    #[error("nothing to serve; give --memory SIZE, --file PATH, --null SIZE or --config FILE")]
    Nothing,
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The server failed.
    #[error(transparent)]
    Run(#[from] NvmfRunError),
    /// A running server could not be asked.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The answer of a server is not what this version expects.
    #[error("the server is another version of telpher; its answer cannot be read")]
    Answer(#[source] serde_json::Error),
    /// Signals cannot be received.
    #[error("cannot wait for signals")]
    Signals(#[source] std::io::Error),
    /// The current folder is unknown.
    #[error("cannot find the current folder")]
    Path(#[source] std::io::Error),
    /// A measurement failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// Connections of a load ended early.
    #[error("{count} connections ended early, the first: {first}")]
    EndedEarly {
        /// How many.
        count: usize,
        /// The first one, and its error.
        first: String,
    },
    /// The result cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Serves until Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Nvmf) -> Result<(), NvmfError> {
    if args.serves_nothing() {
        return Err(NvmfError::Nothing);
    }
    let config = args.configuration()?;
    if args.print_config {
        return Ok(deliver::print(config.text())?);
    }
    // Before any thread starts, so that none of them ends the process on a signal.
    let signals = Termination::listen().map_err(NvmfError::Signals)?;
    let server = NvmfRun::open(&config, |level, line| match level {
        Level::Warning => eprintln!("telpher: warning: {line}"),
        Level::Info => log::info(|| line),
    })?;
    let running = server.start()?;
    log::info(|| format!("{} loops; {}", config.loops, running.rule()));
    let control = running.control_socket().display().to_string();
    deliver::print(greeting(&config, running.addresses(), &control))?;
    for address in running.addresses().iter().filter(|address| !address.ip().to_canonical().is_loopback()) {
        eprintln!(
            "telpher: warning: {address} is not a loopback address. Without TLS and authentication, every program that \
             reaches it can read and write the disks."
        );
    }
    let stopping = |_: &_| {
        eprintln!(
            "Stopping: completing commands for at most {} s; a second signal ends at once.",
            STOP_WITHIN.as_secs()
        );
    };
    Ok(running.run(&signals, stopping)?)
}

/// What is served, and how to connect.
fn greeting(config: &Config, addresses: &[SocketAddr], control: &str) -> String {
    let mut text = summary(config);
    for address in addresses {
        let ip = address.ip();
        let named = if ip.is_unspecified() { "ADDRESS".to_owned() } else { ip.to_string() };
        text += &format!("Listening at {address}. On Linux, as root:\n  modprobe nvme-tcp\n");
        for subsystem in &config.subsystems {
            text += &format!("  nvme connect -t tcp -a {named} -s {} -n {}\n", address.port(), subsystem.nqn);
        }
    }
    text + &format!("There is no TLS and no authentication. Control socket: {control}\nCtrl-C stops.\n")
}

/// The subsystems and namespaces of a configuration.
fn summary(config: &Config) -> String {
    let mut text = String::new();
    for subsystem in &config.subsystems {
        text += &format!("Subsystem {}, ", subsystem.nqn);
        text += &match &subsystem.hosts {
            None => "any host\n".to_owned(),
            Some(hosts) if hosts.len() == 1 => "1 host\n".to_owned(),
            Some(hosts) => format!("{} hosts\n", hosts.len()),
        };
        for (nsid, namespace) in subsystem.numbered() {
            let backend = namespace.backend.as_ref().map_or_else(String::new, ToString::to_string);
            let mode = if namespace.read_only { ", read-only" } else { "" };
            let protection = match namespace.protection {
                Protected::No => String::new(),
                kind => format!(", {kind}, application tag {}", namespace.application_tag),
            };
            let blocks = namespace.block_bytes;
            text += &format!("  namespace {nsid}: {backend}, blocks of {blocks} bytes{mode}{protection}\n");
        }
    }
    text
}

/// Checks a configuration.
pub(crate) fn check(args: &NvmfCheck) -> Result<(), NvmfError> {
    let config = Config::read(&args.file)?;
    Ok(deliver::print(format!("{}{} is valid.\n", summary(&config), args.file.display()))?)
}

/// Measures a target, or servers of its own.
pub(crate) fn bench(args: &NvmfBench) -> Result<(), NvmfError> {
    args.printed.check()?;
    let (load, machine) = (args.load(), Machine::read());
    if args.address.is_some() {
        let result = nvmf_load::run(&load, machine)?;
        args.printed.deliver(
            schema::NVMF_BENCH,
            &result,
            || report::nvmf_load::text(&result),
            || report::nvmf_load::csv(&result),
        )?;
        return succeeded([&result.load]);
    }
    let result = nvmf_load::run_loops(&load, &args.servers(), machine)?;
    let (text, csv) = (|| report::nvmf_load::loops_text(&result), || report::nvmf_load::loops_csv(&result));
    args.printed.deliver(schema::NVMF_BENCH_LOOPS, &result, text, csv)?;
    succeeded(result.runs.iter().map(|run| &run.load))
}

/// Checks that no connection ended early.
fn succeeded<'a>(loads: impl IntoIterator<Item = &'a Load>) -> Result<(), NvmfError> {
    let mut errors = loads.into_iter().flat_map(|load| &load.errors);
    let Some(first) = errors.next().cloned() else { return Ok(()) };
    Err(NvmfError::EndedEarly { count: 1 + errors.count(), first })
}

/// Sends a request to a running server, and prints its answer.
pub(crate) fn ctl(args: &NvmfCtl) -> Result<(), NvmfError> {
    let socket: PathBuf = args.control.clone().map_or_else(default_socket, Ok)?;
    let send = |mut request: Value| {
        if let Some(nqn) = &args.subsystem {
            request["subsystem"] = json!(nqn);
        }
        ask(&socket, &request)
    };
    let statistics = || -> Result<Statistics, NvmfError> {
        serde_json::from_value(send(json!({ "command": "statistics" }))?).map_err(NvmfError::Answer)
    };
    let answer = match &args.kind {
        NvmfCtlKind::AddNamespace(add) => {
            // The server may run in another folder.
            let backend = add.backend.absolute().map_err(NvmfError::Path)?;
            let namespace = json!({
                "nsid": add.nsid,
                "backend": backend,
                "block_bytes": add.block_bytes,
                "uuid": add.uuid.map(|uuid| uuid.to_string()),
                "nguid": add.nguid.map(|nguid| nguid.to_string()),
                "read_only": add.read_only,
                "protection": add.protection.to_string(),
                "application_tag": add.application_tag,
            });
            let answer = send(json!({ "command": "add-namespace", "namespace": namespace }))?;
            if let Some(remark) = answer["remark"].as_str() {
                eprintln!("telpher: warning: {remark}");
            }
            return Ok(deliver::print(format!("namespace {} was added", answer["nsid"]))?);
        }
        NvmfCtlKind::RemoveNamespace { nsid } => send(json!({ "command": "remove-namespace", "nsid": nsid }))?,
        NvmfCtlKind::ResizeNamespace { nsid, size } => {
            send(json!({ "command": "resize-namespace", "nsid": nsid, "size": size }))?
        }
        NvmfCtlKind::AddHost { host } => send(json!({ "command": "add-host", "host": host }))?,
        NvmfCtlKind::RemoveHost { host } => send(json!({ "command": "remove-host", "host": host }))?,
        NvmfCtlKind::Statistics(printed) => {
            printed.check()?;
            let statistics = statistics()?;
            return Ok(printed.deliver(
                schema::NVMF_STATISTICS,
                &statistics,
                || statistics.text(),
                || statistics.csv(),
            )?);
        }
        NvmfCtlKind::Top(updates) => {
            let mut first = Some(statistics()?);
            let read = || first.take().or_else(|| statistics().ok()).into_iter().collect();
            let joined = |all: &[Statistics], one: fn(&Statistics) -> String| all.iter().map(one).collect::<String>();
            live::show(
                updates,
                (schema::NVMF_TOP, "servers"),
                read,
                |all| joined(all, Statistics::text),
                |all| joined(all, Statistics::csv),
            )?;
            return Ok(());
        }
        NvmfCtlKind::Show => {
            let shown = send(json!({ "command": "show" }))?;
            return Ok(deliver::print(schema::NVMF_SHOW.pretty(&shown))?);
        }
    };
    log::info(|| format!("the server's answer: {answer}"));
    Ok(())
}
