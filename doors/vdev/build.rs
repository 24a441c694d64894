//! Builds the guest library and passes its path to `src/image.rs`, which embeds it in the binary.

#[path = "../guest.rs"]
mod guest;

use guest::Guest;

fn main() {
    let guest = Guest {
        package: "telpher-vdev-guest",
        profile: "guest",
        sources: &[
            "base/abi",
            "base/mem",
            "base/ops",
            "base/interpose",
            "path/portal",
            "path/model",
            "path/device",
            "doors/vdev-wire",
            "doors/vdev-guest",
        ],
    };
    println!("cargo::rustc-env=TELPHER_GUEST_IMAGE={}", guest.build().display());
}
