//! `telpher list`: devices, groups, queues, engines and what they can do.

use crate::args::{Format, List};
use crate::bench::Error;
use telpher_bench::listing::{described, listings};
use telpher_device::Listing;
use telpher_mover::{Mover, Tuning};
use telpher_report::devices::{self, Device};
use telpher_report::{schema, terminal};

/// Prints the devices.
pub(crate) fn run(args: &List) -> Result<(), Error> {
    args.printed.check()?;
    let listings = listings(&args.device.name)?;
    let plain: Vec<&Listing> = listings.iter().map(|(_, listing)| listing).collect();
    // The variants of kernels that the file names are those of programs which open a mover here.
    if let Some(tuning) = Tuning::from_environment()? {
        Mover::cpu().load_costs(&tuning);
    }
    let described: Vec<Device> = listings.iter().map(described).collect();
    let text = || {
        let mut text: String = described.iter().map(devices::text).collect();
        if args.device.name == "all" && plain.iter().all(|listing| listing.modelled) {
            text.push_str("hw: the driver reports no DSA hardware; `telpher doctor` looks for the reason\n");
        }
        text + &format!("cpu: the CPU path, kernels {}\n", telpher_ops::dispatch::description())
    };
    args.printed.begin();
    Ok(args.printed.write(match args.printed.format {
        Format::Table => terminal::folded(&text(), terminal::columns()),
        // Programs that read accel-config's format expect a list.
        Format::Json => schema::LIST.pretty_each(&plain),
        Format::Csv => devices::csv(&described),
    })?)
}
