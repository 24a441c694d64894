//! The core's cycles while the device works: Figure 11.

use crate::experiments::asplos_device::umwait_share;
use crate::figures::sweep::{FROM_64, axis, measured, over_sizes};
use crate::figures::{Panel, Result, Scale, level_mark};
use crate::lab::Lab;

pub(super) fn figure_11(lab: &Lab) -> Result<Vec<Panel>> {
    let series = [1, 2, 4, 8, 16, 32, 64, 128]
        .map(|batch| measured(format!("BS {batch}"), FROM_64, |size| umwait_share(lab, size, batch)));
    let share = axis("share of the core's cycles in UMWAIT", "", Scale::Linear);
    Ok(vec![over_sizes("", share, series.into_iter().collect::<Result<_>>()?, vec![level_mark("K-051")])])
}
