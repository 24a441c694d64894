//! What the terminal shows: the width of its lines, and colours.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use telpher_report::terminal;

/// Tells the results which stream shows them: its terminal, if it is one, has a width and colours.
pub(crate) fn show_on(stream: &(impl AsFd + IsTerminal)) {
    terminal::set(columns(stream), has_colours(stream));
}

/// Returns the characters of a line of the terminal that is the stream.
pub(crate) fn columns(stream: &impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Returns true if a stream shows colours: a terminal does, unless the user asks for none (no-color.org).
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    let asks_for_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !asks_for_none && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}
