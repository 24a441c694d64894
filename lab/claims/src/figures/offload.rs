//! Kuper et al., Figure 19: a cache whose long copies a library gives to devices.

use crate::experiments::apps::{CACHE_CORES, CacheOffload, cache};
use crate::lab::Lab;
use telpher_report::panel::{Axis, Origin, Panel, Scale, Series, Shape};
use telpher_sim::{DtoVersion, ScenarioError};

type Result<T> = std::result::Result<T, ScenarioError>;

/// The series, with their names.
const SERIES: [(&str, CacheOffload); 4] = [
    ("cores only", CacheOffload::CoresOnly),
    ("DTO of 2023", CacheOffload::Dto(DtoVersion::V2023)),
    ("DTO of 2025", CacheOffload::Dto(DtoVersion::V2025)),
    ("telpher offload", CacheOffload::Telpher),
];

pub(super) fn figure_19(lab: &Lab) -> Result<Vec<Panel>> {
    let names: Vec<String> = CACHE_CORES.iter().map(|cores| format!("{cores}h/{}s", 2 * cores)).collect();
    let panel = |title: &str, y: &str, unit, measure: &str, relative: bool| {
        let mut series = Vec::new();
        for (name, offload) in SERIES {
            let value = |cores| {
                let value = cache(lab, cores, offload, measure)?;
                Ok(if relative { value / cache(lab, cores, CacheOffload::CoresOnly, measure)? } else { value })
            };
            let values = CACHE_CORES.into_iter().map(value).collect::<Result<Vec<f64>>>()?;
            let points = (0u8..).map(f64::from).zip(values).collect();
            series.push(Series { name: name.into(), origin: Origin::Simulated, points });
        }
        let axis = |label: &str, unit, scale| Axis { label: label.into(), unit, scale };
        let x = axis("cores (h) and threads (s)", "", Scale::Names(names.clone()));
        let y = axis(y, unit, Scale::Linear);
        Ok(Panel { title: title.into(), x, y, shape: Shape::Bars, series, marks: Vec::new() })
    };
    Ok(vec![
        panel("(a) gets", "rate", "M/s", "gets", false)?,
        panel("(a) sets", "rate", "M/s", "sets", false)?,
        // Both by the same factor: a thread's operations have fixed shares.
        panel("(a) gets and sets, relative", "rate over that of cores only", "", "gets", true)?,
        panel("(b) gets", "99.999 % latency", "µs", "latency of gets, 99.999 %", false)?,
        panel("(b) sets", "99.999 % latency", "µs", "latency of sets, 99.999 %", false)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_mover::MemoryCallsPolicy;

    #[test]
    fn the_caption_has_the_defaults_of_the_offload_library() {
        let sheet = crate::figures::sheets().find(|sheet| sheet.id == "offload-19").unwrap();
        let from = format!("defaults (from {} KiB on, one retry", MemoryCallsPolicy::THRESHOLD >> 10);
        assert!(sheet.how.contains(&from) && MemoryCallsPolicy::OFFERS == 2, "{}", sheet.how);
    }

    /// The shape of Figure 19a, and the order of Figure 19b, as the text describes them for DTO of that time.
    #[test]
    fn the_gain_shrinks_above_eight_cores_and_the_tail_is_shorter_up_to_them() {
        let panels = figure_19(&Lab::default()).unwrap();
        let values = |title: &str, name: &str| {
            let panel = panels.iter().find(|panel| panel.title == title).unwrap();
            let series = panel.series.iter().find(|series| series.name == name).unwrap();
            series.points.iter().map(|(_, value)| *value).collect::<Vec<_>>()
        };
        let gains = values("(a) gets and sets, relative", "DTO of 2023");
        let most = gains[..3].iter().copied().fold(0.0, f64::max);
        assert!(most > 1.0 && gains[3] < most && gains[4] < gains[3], "{gains:?}");
        for title in ["(b) gets", "(b) sets"] {
            let (cores, devices) = (values(title, "cores only"), values(title, "DTO of 2023"));
            assert!((1..3).all(|at| devices[at] < cores[at]), "{title}: {cores:?}, {devices:?}");
        }
        let sets = values("(a) sets", "DTO of 2023")[1] / values("(a) gets", "DTO of 2023")[1];
        assert!((0.045..0.065).contains(&sets), "5 of 95 operations that copy are sets, not {sets}");
    }
}
