//! `telpher vfio`: modelled devices as PCI functions of virtual machines.
//!
//! ```text
//! options ──► telpher-vfio: a socket, a session and engines for each machine, until a signal
//! at the end: what each device has done, on standard output
//! ```

use crate::args::Vfio;
use crate::exit::Usage;
use crate::log;
use telpher_report::deliver::{self, DeliverError};
use telpher_vfio::{MachineTotals, VfioRun, VfioRunError, commands};

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VfioError {
    /// The servers failed.
    #[error(transparent)]
    Run(#[from] VfioRunError),
    /// The result cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

impl Usage for VfioError {
    fn is_usage(&self) -> bool {
        matches!(self, VfioError::Run(VfioRunError::NoMachine))
    }
}

/// Serves until --seconds, Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Vfio) -> Result<(), VfioError> {
    let options = args.run_options();
    if let Some(machine) = options.machines.first()
        && (args.print_qemu || args.print_libvirt)
    {
        let print = if args.print_qemu { commands::qemu } else { commands::libvirt };
        // QEMU may be started in another folder.
        let path = std::path::absolute(&machine.path).unwrap_or_else(|_| machine.path.clone());
        return Ok(deliver::print(print(&path))?);
    }
    let quiet = args.quiet;
    let servers = VfioRun::start(&options, move |remark| {
        if !quiet {
            eprintln!("telpher: {remark}");
        }
    })?;
    log::info(|| format!("preset {}, {} shared engines", options.preset.name(), options.engines));
    if !quiet {
        for (number, machine) in options.machines.iter().enumerate() {
            eprintln!("telpher: machine {number}: waiting at {}", machine.path.display());
        }
        eprintln!("telpher: --print-qemu prints QEMU's command line; Ctrl-C stops");
    }
    servers.wait();
    Ok(deliver::print(summary(&servers.totals()))?)
}

/// What the devices have done, a line for each.
fn summary(machines: &[MachineTotals]) -> String {
    let line = |(number, totals): (usize, &MachineTotals)| {
        let MachineTotals { path, descriptors, read, written, faults, lost, interrupts } = totals;
        format!(
            "machine {number} at {}: {descriptors} descriptors, {read} bytes read, {written} bytes written, \
             {faults} page faults, {lost} submissions not taken, {interrupts} interrupts\n",
            path.display()
        )
    };
    machines.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_has_a_line_with_its_numbers() {
        let totals =
            MachineTotals { path: "/tmp/a".into(), descriptors: 20, interrupts: 21, ..MachineTotals::default() };
        let text = summary(&[totals.clone(), totals]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("machine 1 at /tmp/a: 20 descriptors") && text.contains("21 interrupts"), "{text}");
    }
}
