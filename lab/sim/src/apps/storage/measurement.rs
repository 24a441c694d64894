//! State that all cores of a target share, and what happened since the measurement began.

use super::parameters::Storage;
use crate::apps::measure;
use crate::picos::Picos;
use crate::scenario::Measure;

/// The link to an initiator.
#[derive(Clone, Copy, Default)]
pub(super) struct Link {
    /// When it becomes idle.
    pub(super) idle: Picos,
    /// Begin of the measurement, and the end of its last reply.
    pub(super) since: Picos,
    pub(super) until: Picos,
    /// Replies in between.
    pub(super) replies: u64,
}

/// What happened since the measurement began.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) replies: u64,
    pub(super) latency: Picos,
    pub(super) busy: Picos,
    /// Work in digests, or in their submission.
    pub(super) digesting: Picos,
    pub(super) sends: u64,
    /// System calls that wait, receive or send.
    pub(super) calls: u64,
    pub(super) by_device: u64,
    pub(super) by_core: u64,
    /// By the core because the channel was full.
    pub(super) fallbacks: u64,
    pub(super) submissions: u64,
    pub(super) submitted: u64,
}

/// State shared by all cores.
pub(super) struct Shared {
    /// When each disk becomes idle.
    pub(super) disks: Vec<Picos>,
    /// By initiator.
    pub(super) links: Vec<Link>,
    /// Replies from the beginning on.
    pub(super) done: u64,
    /// Begin and end of the measurement.
    pub(super) since: Picos,
    pub(super) until: Picos,
    /// From the beginning on: replies with a wrong digest.
    pub(super) wrong: u64,
    pub(super) tally: Tally,
}

impl Shared {
    /// The measurement begins.
    pub(super) fn begin(&mut self, now: Picos) {
        (self.since, self.tally) = (now, Tally::default());
        for link in &mut self.links {
            *link = Link { idle: link.idle, since: link.idle.max(now), until: Picos::ZERO, replies: 0 };
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "for display")]
    pub(super) fn measures(&self, app: &Storage) -> Vec<Measure> {
        let tally = &self.tally;
        let replies = tally.replies as f64;
        // Each link by itself: its replies arrive one after the other, so a full link has exactly its rate.
        let of = |link: &Link| link.replies as f64 / link.until.since(link.since).as_secs_f64().max(1e-12);
        let rate = self.links.iter().map(of).sum::<f64>();
        let seconds = self.until.since(self.since).as_secs_f64().max(1e-12);
        let over = |count: u64, of: u64| count as f64 / (of as f64).max(1.0);
        let share = |time: Picos| time.as_secs_f64() / seconds / f64::from(app.cores) * 100.0;
        let digests = tally.by_device + tally.by_core + tally.fallbacks;
        vec![
            measure("reads", rate / 1e3, "thousand/s"),
            measure("bytes read", rate * f64::from(app.bytes) / 1e9, "GB/s"),
            measure("mean latency", tally.latency.as_nanos_f64() / replies.max(1.0) / 1e3, "us"),
            measure("cores busy", share(tally.busy), "%"),
            measure("cores busy with digests", share(tally.digesting), "%"),
            measure("replies sent at once", over(tally.replies, tally.sends), "replies"),
            measure("system calls", over(tally.calls, tally.replies), "per read"),
            measure("digests by the device", over(tally.by_device, digests) * 100.0, "%"),
            measure("digests by the core in its place", over(tally.fallbacks, digests) * 100.0, "%"),
            measure("digests submitted at once", over(tally.submitted, tally.submissions), "digests"),
            measure("wrong digests", self.wrong as f64, "digests"),
        ]
    }
}
