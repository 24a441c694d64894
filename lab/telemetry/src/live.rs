//! The live view in a terminal: reads, draws, and handles keys until the end. The terminal is as before afterwards,
//! also after a panic or a signal.

use crate::snapshot::Snapshot;
use crate::view::{Reaction, View};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::execute;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};
use telpher_os::Termination;

/// The longest wait for a key, after which a signal is noticed. Source: chosen; a tenth of a second is felt as at once.
const NOTICE: Duration = Duration::from_millis(100);

/// Why the view cannot be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The terminal does not do what was asked for.
    #[error("cannot use the terminal; `telpher top --once` needs none")]
    Terminal(#[source] io::Error),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
}

/// Restores the terminal when dropped.
struct Screen;

impl Drop for Screen {
    fn drop(&mut self) {
        // Without a terminal there is nothing to restore, and no place for a message.
        let _ = execute!(io::stdout(), Show);
        let _ = ratatui::try_restore();
    }
}

/// Shows the view until a key or a signal ends it, or until no device of a run or of hardware is left. If there was
/// none at first, until nothing is left.
///
/// # Errors
/// If the terminal fails.
pub fn show(view: View, every: Duration, read: impl FnMut() -> Snapshot) -> Result<(), LiveError> {
    match show_until_end(view, every, read) {
        // The terminal has gone in the middle of a drawing: that ends the view as it does between two of them.
        Err(LiveError::Terminal(_)) if !has_terminal(Duration::ZERO) => Ok(()),
        end => end,
    }
}

fn show_until_end(mut view: View, every: Duration, mut read: impl FnMut() -> Snapshot) -> Result<(), LiveError> {
    // Before the screen: a signal must not end the process while the terminal has another mode.
    let termination = Termination::listen_with_terminal().map_err(LiveError::Signals)?;
    let _screen = Screen;
    // Also has panics restore the terminal before their message.
    // Never dropped: ratatui would report that the cursor of a terminal that is gone cannot be shown, on this terminal,
    // and panic. The screen shows the cursor.
    let mut terminal = ManuallyDrop::new(ratatui::try_init().map_err(LiveError::Terminal)?);
    let begins_with_devices = view.has_lasting_devices();
    let mut last = Instant::now();
    // crossterm notices a new size from its first poll on, so that comes before the first drawing.
    let mut has_event = event::poll(Duration::ZERO).map_err(LiveError::Terminal)?;
    terminal.draw(|frame| view.draw(frame)).map_err(LiveError::Terminal)?;
    loop {
        let wait = every.saturating_sub(last.elapsed());
        let wait = if has_event { Duration::ZERO } else { wait.min(NOTICE) };
        // crossterm reads the end of a terminal that is gone again and again, so it is asked only after this check.
        if !has_terminal(wait) || termination.wait(Duration::ZERO) {
            return Ok(());
        }
        has_event = event::poll(Duration::ZERO).map_err(LiveError::Terminal)?;
        let mut reaction = Reaction::Ignore;
        if has_event {
            reaction = match event::read().map_err(LiveError::Terminal)? {
                Event::Key(key) if key.kind != KeyEventKind::Release => view.key(key),
                Event::Resize(..) => Reaction::Draw,
                _ => Reaction::Ignore,
            };
        }
        if reaction == Reaction::Quit {
            return Ok(());
        }
        if last.elapsed() >= every {
            let snapshot = read();
            if snapshot.is_empty() || (begins_with_devices && !snapshot.has_lasting_devices()) {
                return Ok(());
            }
            view.update(snapshot, last.elapsed().as_secs_f64());
            last = Instant::now();
            reaction = Reaction::Draw;
        }
        if reaction == Reaction::Draw {
            terminal.draw(|frame| view.draw(frame)).map_err(LiveError::Terminal)?;
        }
    }
}

/// Waits for a key, at most for this time. Returns false if the terminal is gone.
fn has_terminal(wait: Duration) -> bool {
    let stdin = io::stdin();
    let mut input = [PollFd::new(&stdin, PollFlags::IN)];
    // A signal, such as that of a new size, ends the wait early.
    let _ = poll(&mut input, Timespec::try_from(wait).ok().as_ref());
    !input[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}
