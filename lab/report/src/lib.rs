//! Results as tables, JSON, CSV and one HTML page. Knows none of the crates whose results it shows.
//!
//! ```text
//! result ──► table, units ──► text        standard output, by deliver
//!        ──► chart ──► SVG ──► html ──► one self-contained page
//! panel  ──► plot ──► SVG ──┘    simulated series and published numbers
//! simulation, prediction, query, tier, switch, devices ──► tables    results of commands as data
//! recording what a program copied
//! hover     the values of points and bars, shown under the pointer
//! terminal  the width and the colours of the terminal; tables fit into it
//! about     the header of a simulation
//! schema    the names of JSON results' schemas
//! machine   the machine on which the result was measured; stands at the top of every report
//! ```
#![forbid(unsafe_code)]

pub mod about;
pub mod chart;
pub mod csv;
pub mod deliver;
pub mod devices;
pub mod features;
pub mod hover;
pub mod html;
pub mod machine;
pub mod offload;
pub mod panel;
pub mod plot;
pub mod prediction;
pub mod query;
pub mod recording;
pub mod schema;
pub mod simulation;
pub mod switch;
pub mod table;
pub mod terminal;
pub mod tier;
pub mod units;

use machine::Machine;

/// The lines above the tables in a terminal: the machine and the remarks.
#[must_use]
pub fn heading(m: &Machine, remarks: &[String]) -> String {
    let place = if m.virtual_machine { " (virtual machine)" } else { "" };
    let mut out = format!("{}{place} · {} cores · Linux {} · {}\n", m.cpu, m.cores.len(), m.kernel, m.date);
    for remark in remarks {
        out.push_str(remark);
        out.push('\n');
    }
    out
}
