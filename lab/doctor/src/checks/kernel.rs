//! Checks the kernel's version and its build options.

use crate::causes;
use crate::examined_machine::{DRIVERS, ExaminedMachine, ModuleFile};
use crate::finding::{Evidence, Finding};

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let release = || p.seen("/proc/sys/kernel/osrelease");
    // Distributions backport drivers to older kernels (RHEL 9 is a 5.14), so the version proves nothing. Source:
    // linux-abi §9.
    let drivers = &p.dsa.drivers;
    if drivers.iter().any(|name| name == "dsa" || name == "idxd") && !drivers.iter().any(|name| name == "user") {
        return vec![
            Finding::of(&causes::KERNEL_TOO_OLD, "the kernel")
                .seen(p.listed(DRIVERS))
                .seen(release())
                .because(
                    "Queues for programs came with 5.6, without today's sub-drivers; shared queues work since 5.18.",
                )
                .remedy(
                    "use Linux 6.1 or later; from 6.7 on a queue also has to name its driver (attribute driver_name)",
                ),
        ];
    }
    // Called only for options that are not set.
    let option = |option: &str| Evidence {
        source: p.kernel.config.as_ref().map_or(String::new(), |(path, _)| path.clone()),
        says: format!("CONFIG_{option} is not set"),
    };
    let absent = match &p.module.file {
        ModuleFile::Absent(list) if !p.module.loaded => Some(list),
        _ => None,
    };
    if p.kernel.has("INTEL_IDXD") == Some(false) && !p.module.loaded {
        return vec![not_built(p).seen(option("INTEL_IDXD"))];
    }
    if let Some(list) = absent {
        return vec![not_built(p).seen(Evidence { source: list.clone(), says: "no line with idxd.ko".into() })];
    }
    if p.kernel.has("INTEL_IDXD_SVM") == Some(false) && p.lacks_sva() {
        return vec![
            Finding::of(&causes::SVM_NOT_BUILT, "the kernel")
                .seen(option("INTEL_IDXD_SVM"))
                .all_seen(super::firmware::sva(p))
                .remedy(
                    "build the kernel with CONFIG_INTEL_IOMMU_SVM=y and CONFIG_INTEL_IDXD_SVM=y, or use one of a \
                     distribution that does (grep IDXD /boot/config-*)",
                ),
        ];
    }
    Vec::new()
}

fn not_built(p: &ExaminedMachine<'_>) -> Finding {
    let package = if p.kernel.release.as_deref().is_some_and(|release| release.contains("generic")) {
        "apt install linux-modules-extra-$(uname -r)    # Ubuntu's accelerator drivers are in this package".to_owned()
    } else {
        "install the package with the rest of this kernel's modules (linux-modules-extra-…, kernel-modules-extra)"
            .to_owned()
    };
    Finding::of(&causes::DRIVER_NOT_BUILT, "the kernel")
        .seen(p.seen("/proc/sys/kernel/osrelease"))
        .remedy(package)
        .remedy("or build it with CONFIG_INTEL_IDXD=m and CONFIG_INTEL_IDXD_SVM=y")
}
