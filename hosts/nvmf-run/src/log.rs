//! Events of connections as lines of a log, at a limited rate.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use telpher_nvmf::connection::Ending;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::server::{Observer, QueueName, ServerEvent};

/// How important a line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// A host does something wrong or is refused.
    Warning,
    /// A host comes or goes.
    Info,
}

/// Warnings in one period. A hostile host can cause any number of them, and must not fill the disk.
const MOST_WARNINGS: u32 = 20;
/// The period of [`MOST_WARNINGS`].
const PERIOD: Duration = Duration::from_secs(10);

/// Counts the warnings of a period.
#[derive(Debug)]
struct Limit {
    begun: Instant,
    warnings: u32,
}

impl Limit {
    /// Returns whether a warning may be printed, and how many were left out in the period before.
    fn admit(&mut self, now: Instant) -> (bool, u32) {
        let mut left_out = 0;
        if now.saturating_duration_since(self.begun) >= PERIOD {
            left_out = self.warnings.saturating_sub(MOST_WARNINGS);
            (self.begun, self.warnings) = (now, 0);
        }
        self.warnings = self.warnings.saturating_add(1);
        (self.warnings <= MOST_WARNINGS, left_out)
    }
}

/// Turns events into lines for `print`.
pub(crate) struct Log<P> {
    print: P,
    limit: Mutex<Limit>,
}

impl<P> fmt::Debug for Log<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl<P: Fn(Level, String) + Send + Sync> Log<P> {
    pub(crate) fn new(print: P) -> Log<P> {
        Log { print, limit: Mutex::new(Limit { begun: Instant::now(), warnings: 0 }) }
    }
}

impl<P: Fn(Level, String) + Send + Sync> Observer for Log<P> {
    fn observe(&self, event: ServerEvent) {
        let (level, line) = line(&event);
        if level == Level::Warning {
            let (is_admitted, left_out) =
                self.limit.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
            if left_out > 0 {
                (self.print)(level, format!("{left_out} more warnings were left out"));
            }
            if !is_admitted {
                return;
            }
        }
        (self.print)(level, line);
    }
}

/// The line of an event.
fn line(event: &ServerEvent) -> (Level, String) {
    match event {
        ServerEvent::Connected { peer, queue, digests } => {
            (Level::Info, format!("{peer} connected {}, {}", name(queue), digests_text(*digests)))
        }
        ServerEvent::Closed { peer, queue, ending } => {
            (Level::Info, format!("{peer} closed {}: {}", name(queue), ending_text(*ending)))
        }
        ServerEvent::HostRefused { peer, host } => {
            // A name of a hostile host may have control characters.
            (Level::Warning, format!("{peer} was refused: host {host:?} may not use the subsystem"))
        }
        ServerEvent::Failed { peer, queue, ending } => {
            let queue = queue.as_ref().map_or_else(|| "a connection without a queue".into(), name);
            (Level::Warning, format!("{peer} ended {queue} by an error: {}", ending_text(Some(*ending))))
        }
        ServerEvent::TooMany { peer } => {
            (Level::Warning, format!("{peer} was refused: there are as many connections as limits.connections allows"))
        }
        ServerEvent::NoRing { error } => (
            Level::Warning,
            format!("a loop starts with epoll instead of io_uring: the kernel refuses its io_uring: {error}"),
        ),
        ServerEvent::NotAccepted { error } => (Level::Warning, format!("cannot accept a connection: {error}")),
    }
}

fn name(queue: &QueueName) -> String {
    let QueueName { subsystem, host, controller, qid } = queue;
    let kind = if *qid == 0 { "admin queue".into() } else { format!("I/O queue {qid}") };
    format!("{kind} of controller {controller} ({subsystem}) as {host:?}")
}

fn digests_text(digests: Digests) -> &'static str {
    match (digests.header, digests.data) {
        (false, false) => "no digests",
        (true, false) => "header digests",
        (false, true) => "data digests",
        (true, true) => "header and data digests",
    }
}

fn ending_text(ending: Option<Ending>) -> String {
    match ending {
        None => "the host closed the connection".into(),
        Some(Ending::Fatal(error)) => {
            let (fes, fei) = error.words();
            format!("{error} (FES {fes:02x}h, FEI {fei:#x})")
        }
        Some(Ending::TerminatedByHost(fes)) => format!("the host sent H2CTermReq with FES {fes:02x}h"),
        Some(Ending::NoConnect) => "the host did not connect a queue in time".into(),
        Some(Ending::ControllerEnded) => "the controller was reset or has ended".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_nvmf::pdu::FatalError;

    #[test]
    fn warnings_are_limited_and_the_number_left_out_is_told() {
        let begun = Instant::now();
        let mut limit = Limit { begun, warnings: 0 };
        for _ in 0..MOST_WARNINGS {
            assert_eq!(limit.admit(begun), (true, 0));
        }
        assert_eq!(limit.admit(begun), (false, 0));
        assert_eq!(limit.admit(begun), (false, 0));
        assert_eq!(limit.admit(begun + PERIOD), (true, 2));
        assert_eq!(limit.admit(begun + PERIOD), (true, 0));
    }

    #[test]
    fn a_fatal_error_is_told_with_its_field_and_its_host() {
        let ending = Ending::Fatal(FatalError::HeaderField { offset: 4 });
        let peer = "127.0.0.1:999".parse().unwrap();
        let (level, text) = line(&ServerEvent::Failed { peer, queue: None, ending });
        assert_eq!(level, Level::Warning);
        let expected = "127.0.0.1:999 ended a connection without a queue by an error: the field at offset 4 of a PDU's \
                        header is invalid (FES 01h, FEI 0x4)";
        assert_eq!(text, expected);
    }
}
