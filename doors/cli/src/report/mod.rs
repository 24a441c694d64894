//! Results as tables, JSON, CSV and one HTML page.

pub(crate) mod advise;
pub(crate) mod chart;
pub(crate) mod deliver;
pub(crate) mod figures;
pub(crate) mod html;
pub(crate) mod ops;
mod plot;
pub(crate) mod pollution;
pub(crate) mod prefetching;
pub(crate) mod qdp;
pub(crate) mod query;
pub(crate) mod questions;
mod rows;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod sweep;
pub(crate) mod table;
pub(crate) mod tier;
pub(crate) mod units;
pub(crate) mod validation;
pub(crate) mod vhost;

use crate::bench::machine::Machine;

/// Returns the heading above the tables in a terminal.
fn heading(m: &Machine, remarks: &[String]) -> String {
    let place = if m.virtual_machine { " (virtual machine)" } else { "" };
    let mut out = format!("{}{place} · {} cores · Linux {} · {}\n", m.cpu, m.cores.len(), m.kernel, m.date);
    for remark in remarks {
        out.push_str(remark);
        out.push('\n');
    }
    out
}
