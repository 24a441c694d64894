//! `telpher vhost`: a small software switch between virtual machines, with copies by the CPU or a device.
//!
//! ```text
//! options ──► telpher-switch-run: ports, DMA queues, forwarding threads
//! every second: Snapshot ──► live: lines on standard error
//! at the end:   Snapshot ──► totals ──► telpher-report's switch, on standard output
//! ```

mod live;
mod totals;

use crate::args::Vhost;
use crate::{log, version};
use live::Live;
use telpher_report::deliver::DeliverError;
use telpher_report::features::{FeatureBit, FeatureTable};
use telpher_report::schema;
use telpher_switch_run::{SwitchRun, SwitchRunError};
use telpher_vhost::Offer;
use telpher_vhost::feature_names::{DEVICE, FeatureName, PROTOCOL};
use telpher_vhost::layout::Features;
use telpher_vhost::message::ProtocolFeatures;

/// Why the switch failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VhostError {
    /// The switch failed.
    #[error(transparent)]
    Switch(#[from] SwitchRunError),
    /// The result cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Runs the switch until --seconds, Ctrl-C or SIGTERM.
pub(crate) fn run(args: &Vhost) -> Result<(), VhostError> {
    args.printed.check()?;
    let pairs = args.socket.iter().map(|socket| socket.queues).max().unwrap_or(1);
    let show = |pairs, agreed| {
        let table = features(&Offer::of_pairs(pairs), agreed).text(args.printed.format);
        Ok(args.printed.write(table)?)
    };
    if args.show_features && args.socket.is_empty() {
        return show(pairs, None);
    }
    let mut switch = SwitchRun::open(args.run_options(), |remark| eprintln!("telpher: {remark}"))?;
    switch.choices().into_iter().for_each(|choice| log::info(|| choice));
    log::info(|| format!("kernels: {}", version::kernels()));
    if args.show_features {
        return show(args.socket[0].queues, Some(switch.negotiated_features()?));
    }
    let first = switch.snapshot();
    switch.start()?;
    let mut live = Live::new(!args.quiet);
    live.begin(&switch.port_names(), switch.options().settings.mode, &switch.dma_queues().rule());
    let stopped = switch.run(|last, now| live.news(&first, last, now));
    let summary = totals::summary(switch.options(), switch.dma_queues(), &first, &switch.snapshot());
    args.printed.deliver(schema::VHOST, &summary, || summary.text(), || summary.csv())?;
    Ok(stopped?)
}

/// Lists the offered features with those that a frontend negotiated, if any.
fn features(offer: &Offer, agreed: Option<(Features, ProtocolFeatures)>) -> FeatureTable {
    let device = DEVICE.iter().map(|&FeatureName { feature: bit, name, meaning }| FeatureBit {
        bit: bit.bits().trailing_zeros(),
        name,
        meaning,
        offered: offer.features.contains(bit),
        agreed: agreed.map(|(features, _)| features.contains(bit)),
    });
    let protocol = PROTOCOL.iter().map(|&FeatureName { feature: bit, name, meaning }| FeatureBit {
        bit: bit.bits().trailing_zeros(),
        name,
        meaning,
        offered: offer.protocol.contains(bit),
        agreed: agreed.map(|(_, protocol)| protocol.contains(bit)),
    });
    FeatureTable { device: device.collect(), protocol: protocol.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offered_bit_has_a_name_and_a_meaning() {
        let offer = Offer::of_pairs(1);
        let shown = features(&offer, Some((Features::VERSION_1, ProtocolFeatures::MQ)));
        let bits = |bits: &[FeatureBit], is_in: fn(&FeatureBit) -> bool| {
            bits.iter().filter(|bit| is_in(bit)).fold(0, |sum, bit| sum | 1_u64 << bit.bit)
        };
        assert_eq!(bits(&shown.device, |bit| bit.offered), offer.features.bits());
        assert_eq!(bits(&shown.protocol, |bit| bit.offered), offer.protocol.bits());
        assert_eq!(bits(&shown.device, |bit| bit.agreed == Some(true)), Features::VERSION_1.bits());
        assert_eq!(bits(&shown.protocol, |bit| bit.agreed == Some(true)), ProtocolFeatures::MQ.bits());
    }
}
