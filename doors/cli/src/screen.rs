//! What the terminal shows: the width of its lines, and colours.

use std::io::IsTerminal as _;
use telpher_report::terminal;

/// Tells the results which terminal shows them, if one does.
pub(crate) fn start() {
    terminal::set(columns(), has_colours(std::io::stdout().is_terminal()));
}

/// Returns the characters of a line of the terminal on standard output.
pub(crate) fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Returns true if a stream shows colours: a terminal does, unless the user asks for none (no-color.org).
pub(crate) fn has_colours(is_terminal: bool) -> bool {
    let asks_for_none = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_terminal && !asks_for_none && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}
