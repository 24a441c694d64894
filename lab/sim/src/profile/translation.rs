//! `[translation]`: address translation, and the costs of missing pages.

use super::ProfileError;
use super::section::Section;
use crate::machine::TranslationCosts;

pub(super) fn costs(section: Section<'_>) -> Result<TranslationCosts, ProfileError> {
    let costs = TranslationCosts {
        miss: section.nanos("miss_ns")?,
        walk_bytes: section.count("walk_bytes", 0..=4096, "bytes")?,
        known: section.count("known_pages", 1..=1 << 30, "pages")?,
        page_request: section.nanos("page_request_ns")?,
        report: section.nanos("report_ns")?,
        touch: section.nanos("touch_ns")?,
    };
    section.end()?;
    Ok(costs)
}
