//! `telpher sim profiles`: the machines there are.

use super::{SimError, about};
use crate::report::table::{Align, Table};
use crate::report::units;
use telpher_sim::{BUILT_IN, TEMPLATE};

/// A table of all, or the text of one.
pub(crate) fn text(name: Option<&str>) -> Result<String, SimError> {
    match name {
        None => all(),
        Some("template") => Ok(TEMPLATE.to_owned()),
        Some(name) => match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Ok((*text).to_owned()),
            None => Err(about::machine(name, &[]).err().unwrap_or_else(|| {
                SimError::Not(format!("{name} is a file of your own; only built-in profiles are printed"))
            })),
        },
    }
}

fn all() -> Result<String, SimError> {
    let mut table = Table::new(&[
        ("profile", Align::Left),
        ("devices", Align::Right),
        ("one copies", Align::Right),
        ("memory nodes", Align::Right),
        ("", Align::Left),
    ]);
    for (name, text) in BUILT_IN {
        let machine = about::machine(name, &[])?;
        let copies = units::rate(telpher_rate(machine.device.through));
        let (devices, nodes) = (machine.devices.len().to_string(), machine.nodes.len().to_string());
        table.row([(*name).to_owned(), devices, copies, nodes, first_sentence(text)]);
    }
    Ok(format!("{table}\nOne's own: telpher sim profiles template > my-machine.toml\n"))
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn telpher_rate(rate: u64) -> f64 {
    rate as f64
}

/// What the comment at the beginning of a profile says, up to its first full stop or colon.
fn first_sentence(text: &str) -> String {
    let comment = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect::<Vec<_>>().join(" ");
    let end = comment.find([':', ';']).into_iter().chain(comment.find(". ")).min();
    comment[..end.unwrap_or(comment.len())].to_owned()
}
