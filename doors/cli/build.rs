//! Builds the library that `telpher tier run` preloads into programs, and passes its path to `src/tier/image.rs`.

#[path = "../guest.rs"]
mod guest;

use guest::Guest;

fn main() {
    let guest = Guest {
        package: "telpher-tier-guest",
        profile: "tier-guest",
        sources: &[
            "base/abi",
            "base/mem",
            "base/ops",
            "base/interpose",
            "path/portal",
            "path/model",
            "path/hw",
            "path/device",
            "path/mover",
            "uses/tier",
            "doors/tier-wire",
            "doors/tier-guest",
        ],
    };
    println!("cargo::rustc-env=TELPHER_TIER_IMAGE={}", guest.build().display());
}
