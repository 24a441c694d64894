//! Loads every plan of `telpher advise` under every kernel that supports it, for `TELPHER_SOAK_SECONDS`; at least one
//! under each kernel.

#[path = "plans/mod.rs"]
mod plans;
#[path = "../../../ci/skip.rs"]
mod skip;

use plans::{FLAVOURS, fits, loads};
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn every_plan_loads_under_every_kernel() {
    if std::process::Command::new("accel-config").arg("--version").output().is_err() {
        return skip::skip("every_plan_loads_under_every_kernel", "no accel-config (Debian package accel-config)");
    }
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    if seconds <= 1 {
        // `programs` loads each plan once.
        return;
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("soak-plan.json");
    let end = Instant::now() + Duration::from_secs(seconds);
    for plan in plans::plans(1) {
        for flavour in FLAVOURS.into_iter().filter(|flavour| fits(&plan, flavour)) {
            loads(&plan, &file, flavour).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
        if Instant::now() > end {
            return;
        }
    }
}
