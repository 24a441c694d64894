//! `telpher sim profiles`: lists the machine profiles.

use super::{SimError, machine};
use telpher_report::table::{Align, Table};
use telpher_report::units;
use telpher_sim::{BUILT_IN, TEMPLATE};

/// Returns a table of all profiles, or the text of one.
pub(crate) fn text(name: Option<&str>) -> Result<String, SimError> {
    match name {
        None => all(),
        Some("template") => Ok(TEMPLATE.to_owned()),
        Some(name) => match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Ok((*text).to_owned()),
            None => Err(machine(name, &[]).err().unwrap_or_else(|| {
                SimError::Not(format!("{name} is a file of your own; only built-in profiles are printed"))
            })),
        },
    }
}

fn all() -> Result<String, SimError> {
    let mut table = Table::new(&[
        ("profile", Align::Left),
        ("devices", Align::Right),
        ("each copies", Align::Right),
        ("memory nodes", Align::Right),
    ]);
    for (name, text) in BUILT_IN {
        let machine = machine(name, &[])?;
        let copies = units::rate(float(machine.device.through));
        let (devices, nodes) = (machine.devices.len().to_string(), machine.nodes.len().to_string());
        table.row([(*name).to_owned(), devices, copies, nodes]);
        table.below(&first_sentence(text));
    }
    Ok(format!("{table}\nOne's own: telpher sim profiles template > my-machine.toml\n"))
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn float(rate: u64) -> f64 {
    rate as f64
}

/// Returns the first sentence of the comment at the beginning of a profile, or its part before a colon, semicolon or
/// bracket.
fn first_sentence(text: &str) -> String {
    let comment = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect::<Vec<_>>().join(" ");
    let ends = |(at, _): &(usize, &str)| comment[at + 2..].starts_with(char::is_uppercase);
    let stop = comment.match_indices(". ").find(ends).map(|(at, _)| at);
    let end = comment.find([':', ';', '(']).into_iter().chain(stop).min().unwrap_or(comment.len());
    comment[..end].trim_end_matches([' ', '.']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_summarised_by_its_first_sentence() {
        for (text, told) in [
            (
                "# Big iron as Kuper et al. measured it (ASPLOS).\n# More.\nname = 1",
                "Big iron as Kuper et al. measured it",
            ),
            ("# One socket. Two more.\n", "One socket"),
            ("name = 1", ""),
        ] {
            assert_eq!(first_sentence(text), told);
        }
    }

    #[test]
    fn every_profile_has_a_line_and_a_text() {
        let table = text(None).unwrap();
        for (name, profile) in BUILT_IN {
            assert!(table.lines().any(|line| line.contains(name)), "{table}");
            assert_eq!(text(Some(name)).unwrap(), *profile);
        }
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(text(Some("no-such")).unwrap_err().to_string().contains("there are spr-asplos"));
    }
}
