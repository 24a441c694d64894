//! The settings of a run: those of DTO's variables, and over them those of the options.

use crate::args::{Format, Offload, StatsArg};
use std::path::PathBuf;
use telpher_offload_wire::{Settings, read_dto_variables};

/// Returns the settings, and the file that DTO's variables name for statistics. Warns of variables that mean something
/// else to DTO.
pub(super) fn settings(args: &Offload, warn: impl FnOnce(&str)) -> (Settings, Option<PathBuf>) {
    let statistics = args.stats == Some(StatsArg::Dto);
    let mut settings = Settings { follow: !args.no_follow, statistics, ..Settings::new("all") };
    let is_overridden = |name: &str| match name {
        "DTO_MIN_BYTES" => args.threshold.is_some(),
        "DTO_DSA_MEMCPY" | "DTO_DSA_MEMMOVE" | "DTO_DSA_MEMSET" | "DTO_DSA_MEMCMP" => args.function.is_some(),
        "DTO_AUTO_ADJUST_KNOBS" => args.always,
        "DTO_WQ_LIST" | "DTO_USESTDC_CALLS" => !args.device.is_empty(),
        "DTO_COLLECT_STATS" => args.stats.is_some() || args.run.format != Format::Table,
        "DTO_LOG_FILE" => args.run.file().is_some(),
        _ => false,
    };
    // Names and values of DTO are ASCII, so a value that is damaged here is invalid anyway.
    let environment = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| !is_overridden(name));
    let variables = read_dto_variables(environment, &mut settings);
    if !variables.remarks.is_empty() {
        warn(&format!("variables of DTO: {}", variables.remarks.join("; ")));
    }
    if !args.device.is_empty() {
        settings.devices.clone_from(&args.device);
    }
    settings.threshold = args.threshold.unwrap_or(settings.threshold);
    settings.functions = args.function.unwrap_or(settings.functions);
    settings.learns &= !args.always;
    settings.deny.clone_from(&args.deny);
    // Each process of the run reads the file, in whatever folder it runs.
    settings.verdicts = args.verdicts.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    (settings, variables.log_file.map(PathBuf::from))
}
