//! `telpher advise`: a recommended configuration for a load, each choice checked by simulation.

use crate::args::Advise;
use crate::sim::{SimError, machine};
use telpher_device::{Config, WqMode};
use telpher_predict::advise::{advise, tables as report};
use telpher_predict::sharing;
use telpher_report::deliver::{deliver, writable};
use telpher_report::schema;
use telpher_sim::Machine;
use telpher_sim::advise::WorkRequest;
use telpher_sim::tenants::Tenants;

/// Computes and prints the recommendation for the command line.
pub(crate) fn run(args: &Advise) -> Result<(), SimError> {
    writable(&args.output.destination())?;
    if let Some(path) = &args.config {
        telpher_os::check_writable(path)
            .map_err(|source| SimError::Write { path: path.display().to_string(), source })?;
    }
    let machine = machine(&args.profile, &args.set)?;
    let demands = match &args.work {
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|source| SimError::Read { path: name.clone(), source })?;
            if Tenants::are_in(&name, &text)? {
                return share(args, &machine, &Tenants::parse(&name, &text, &machine)?);
            }
            WorkRequest::parse(&name, &text, &machine)?
        }
        None => from_options(args),
    };
    let result = advise(&machine, &demands, args.objective.0)?;
    let json = configuration(args, &result.accel_config)?;
    let (text, csv) = (|| report::text(&result, &json), || report::csv(&result));
    Ok(deliver(&args.output.destination(), schema::ADVISE, &result, text, csv, || report::html(&result, &json))?)
}

/// Computes and prints the configuration for tenants.
fn share(args: &Advise, machine: &Machine, tenants: &Tenants) -> Result<(), SimError> {
    let result = sharing::advise(machine, tenants)?;
    let json = configuration(args, &result.accel_config)?;
    let (text, csv) = (|| sharing::tables::text(&result, &json), || sharing::tables::csv(&result));
    let html = || sharing::tables::html(&result, &json);
    Ok(deliver(&args.output.destination(), schema::TENANTS, &result, text, csv, html)?)
}

/// Returns the configuration in the format of accel-config, and writes it to the file of --config.
fn configuration(args: &Advise, configs: &[Config]) -> Result<String, SimError> {
    let json = serde_json::to_string_pretty(configs).expect("configurations are plain data");
    if let Some(path) = args.config.as_ref().filter(|_| !configs.is_empty()) {
        telpher_os::write_file(path, format!("{json}\n").as_bytes())
            .map_err(|source| SimError::Write { path: path.display().to_string(), source })?;
        eprintln!("Configuration: {}", path.display());
        let mut queues = configs.iter().flat_map(|device| &device.groups).flat_map(|group| &group.grouped_workqueues);
        if queues.any(|queue| queue.mode == WqMode::Shared) {
            eprintln!("It has shared queues, which Linux gives to users from 5.18 on.");
        }
    }
    Ok(json)
}

fn from_options(args: &Advise) -> Vec<WorkRequest> {
    let (src, dst) = args.placement.map_or((0, 0), |placement| (placement.src as usize, placement.dst as usize));
    let demand = |op: &telpher_abi::Opcode| WorkRequest {
        name: op.short_name().to_owned(),
        threads: args.threads,
        rate: args.rate,
        in_flight: args.in_flight,
        src,
        dst,
        read_soon: args.read_soon,
        // Lossless: sizes are at most 2 GiB.
        ..WorkRequest::of(*op, u32::try_from(args.size).unwrap_or(u32::MAX))
    };
    args.op.0.iter().map(demand).collect()
}
