//! Views of running programs that are updated until they end: `telpher tier top`, `telpher offload top`.

use crate::args::{Format, Updates};
use serde::Serialize;
use std::io::IsTerminal;
use std::time::Duration;
use telpher_report::deliver::{DeliverError, write_update};
use telpher_report::schema::{List, Schema};

/// Clears the screen and moves the cursor to its upper left corner. Source: ECMA-48, CUP, ED.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows what `read` returns, at intervals: until it returns nothing, the wanted number of updates is reached, or the
/// reader of a pipe has gone. In JSON, `name` is the field that has the list. Returns false if there was nothing to
/// show at the beginning.
///
/// # Errors
/// If standard output is closed, or the file cannot be written.
pub(crate) fn show<T: Serialize>(
    updates: &Updates,
    (schema, name): (Schema, &'static str),
    mut read: impl FnMut() -> Vec<T>,
    text: impl Fn(&[T]) -> String,
    csv: impl Fn(&[T]) -> String,
) -> Result<bool, DeliverError> {
    updates.printed.begin();
    let (file, format) = (updates.printed.file(), updates.printed.format);
    let count = if updates.once { 1 } else { updates.count.unwrap_or(u64::MAX) };
    let clears = format == Format::Table && count > 1 && file.is_none() && std::io::stdout().is_terminal();
    for shown in 0..count {
        let states = read();
        if states.is_empty() {
            return Ok(shown > 0);
        }
        let text = match format {
            // One line for each update.
            Format::Json if count > 1 => schema.line(&List { name, elements: &states }),
            _ => format.render(schema, &List { name, elements: &states }, || text(&states), || csv(&states)),
        };
        let is_read = write_update(file, if clears { format!("{CLEAR}{text}") } else { text })?;
        if !is_read {
            break;
        }
        if shown + 1 < count {
            std::thread::sleep(Duration::from_secs_f64(updates.every));
        }
    }
    Ok(true)
}
