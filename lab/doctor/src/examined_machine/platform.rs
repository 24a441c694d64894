//! Everything below the driver: processor, kernel, PCI functions, IOMMUs, module, NUMA nodes.

use super::{list, text};
use std::collections::BTreeSet;
use std::path::Path;
use telpher_hw::Files;

/// The kernel.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    /// The release as printed by `uname -r`.
    pub(crate) release: Option<String>,
    /// Major and minor number.
    pub(crate) version: Option<(u32, u32)>,
    /// The file of its configuration, and the relevant lines.
    pub(crate) config: Option<(String, String)>,
}

impl Kernel {
    pub(super) fn of(files: &dyn Files) -> Self {
        let release = text(files, "/proc/sys/kernel/osrelease");
        let version = release.as_deref().and_then(version);
        let config = release.as_deref().and_then(|release| {
            let places = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
            places.into_iter().find_map(|path| text(files, &path).map(|lines| (path, lines)))
        });
        Kernel { release, version, config }
    }

    /// Returns whether an option of its configuration is on; `None` if that is not known.
    pub(crate) fn has(&self, option: &str) -> Option<bool> {
        let (_, lines) = self.config.as_ref()?;
        let on = [format!("CONFIG_{option}=y"), format!("CONFIG_{option}=m")];
        Some(lines.lines().any(|line| on.iter().any(|on| line == on)))
    }
}

/// Parses a release: `6.12.1-amd64` is (6, 12).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The processor.
#[derive(Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) vendor: String,
    pub(crate) family: Option<u32>,
    pub(crate) model: Option<u32>,
    /// The model name.
    pub(crate) name: String,
    /// The flags that /proc/cpuinfo lists; empty if they are not known.
    pub(crate) flags: BTreeSet<String>,
}

/// Models of Intel's family 6 that have DSA: Sapphire Rapids, Granite Rapids (two), Sierra Forest, Emerald Rapids,
/// Clearwater Forest. Source: Linux arch/x86/include/asm/intel-family.h.
const MODELS_WITH_DSA: [u32; 6] = [0x8f, 0xad, 0xae, 0xaf, 0xcf, 0xdd];

impl Cpu {
    pub(super) fn of(files: &dyn Files) -> Self {
        let listing = text(files, "/proc/cpuinfo").unwrap_or_default();
        let value = |wanted: &str| {
            listing.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == wanted).then(|| value.trim().to_owned())
            })
        };
        Cpu {
            vendor: value("vendor_id").unwrap_or_default(),
            family: value("cpu family").and_then(|number| number.parse().ok()),
            model: value("model").and_then(|number| number.parse().ok()),
            name: value("model name").unwrap_or_default(),
            flags: value("flags").unwrap_or_default().split_whitespace().map(String::from).collect(),
        }
    }

    /// Returns true if a flag is known to be absent.
    pub(crate) fn lacks(&self, flag: &str) -> bool {
        !self.flags.is_empty() && !self.flags.contains(flag)
    }

    pub(crate) fn is_guest(&self) -> bool {
        self.flags.contains("hypervisor")
    }

    /// Returns true for processor families with DSA; some models of these have none.
    pub(crate) fn is_of_a_family_with_dsa(&self) -> bool {
        self.vendor == "GenuineIntel"
            && self.family == Some(6)
            && self.model.is_some_and(|model| MODELS_WITH_DSA.contains(&model))
    }
}

/// A DSA function on the PCI bus.
#[derive(Debug)]
pub(crate) struct Function {
    /// The address, such as `0000:6a:01.0`.
    pub(crate) address: String,
    /// The function's driver.
    pub(crate) driver: Option<String>,
    /// The IOMMU of the function; `None` if the kernel uses none for it, or does not report it.
    pub(crate) iommu: Option<String>,
}

/// PCI device numbers of DSA: version 1 (Sapphire and Emerald Rapids), and those added in 6.12. Source: linux-abi §7.
const DSA_DEVICES: [&str; 3] = ["0x0b25", "0x11fb", "0x1212"];
/// The folder of PCI functions.
pub(crate) const PCI: &str = "/sys/bus/pci/devices";

impl Function {
    pub(super) fn all(files: &dyn Files) -> Option<Vec<Self>> {
        // An address becomes part of commands, and a bundle may contain anything.
        let is_address = |name: &String| name.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
        let found = list(files, PCI)?.into_iter().filter(is_address).filter_map(|address| {
            let folder = format!("{PCI}/{address}");
            let is = |name: &str, values: &[&str]| {
                text(files, &format!("{folder}/{name}")).is_some_and(|text| values.contains(&text.as_str()))
            };
            if !is("vendor", &["0x8086"]) || !is("device", &DSA_DEVICES) {
                return None;
            }
            let target = |name: &str| {
                let path = files.link(Path::new(&format!("{folder}/{name}"))).ok()?;
                Some(path.file_name()?.to_string_lossy().into_owned())
            };
            Some(Function { driver: target("driver"), iommu: target("iommu"), address })
        });
        Some(found.collect())
    }
}

/// The IOMMUs.
#[derive(Debug, Default)]
pub(crate) struct Iommu {
    /// Names of the firmware's ACPI tables; `None` if they cannot be read.
    pub(crate) tables: Option<Vec<String>>,
    /// The Intel IOMMUs that the kernel uses; `None` if it does not list them.
    pub(crate) units: Option<Vec<Unit>>,
}

/// One IOMMU.
#[derive(Debug)]
pub(crate) struct Unit {
    /// The name, such as `dmar0`.
    pub(crate) name: String,
    /// Its folder in sysfs.
    pub(crate) folder: String,
    /// Capability register.
    pub(crate) cap: Option<u64>,
    /// Extended capability register.
    pub(crate) ecap: Option<u64>,
}

/// The folder of the firmware's tables.
pub(crate) const TABLES: &str = "/sys/firmware/acpi/tables";
/// The folder of IOMMUs.
pub(crate) const IOMMUS: &str = "/sys/class/iommu";

impl Iommu {
    pub(super) fn of(files: &dyn Files) -> Self {
        let units = list(files, IOMMUS).map(|names| {
            let units = names.into_iter().filter(|name| name.starts_with("dmar")).map(|name| {
                let folder = format!("{IOMMUS}/{name}/intel-iommu");
                let register = |name: &str| {
                    let text = text(files, &format!("{folder}/{name}"))?;
                    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
                };
                Unit { cap: register("cap"), ecap: register("ecap"), folder, name }
            });
            units.collect()
        });
        Iommu { tables: list(files, TABLES), units }
    }

    /// Returns the IOMMUs of these functions in which a register bit is clear. Other IOMMUs do not matter: on Sapphire
    /// Rapids most of them have no PASID and no page requests (intel-device-plugins-for-kubernetes 1836). If the kernel
    /// does not say which IOMMU a function is behind, the bit must be clear in all of them.
    pub(crate) fn without(
        &self,
        functions: &[Function],
        register: impl Fn(&Unit) -> Option<u64>,
        bit: u32,
    ) -> Vec<&Unit> {
        let clear = |unit: &Unit| register(unit).is_some_and(|value| value >> bit & 1 == 0);
        let all = || self.units.iter().flatten();
        let is_ours = |unit: &Unit| functions.iter().any(|function| function.iommu.as_ref() == Some(&unit.name));
        if all().any(is_ours) {
            all().filter(|unit| is_ours(unit) && clear(unit)).collect()
        } else if all().all(clear) {
            all().collect()
        } else {
            Vec::new()
        }
    }
}

/// The driver's module.
#[derive(Debug)]
pub(crate) struct Module {
    /// Whether the module is loaded or part of the kernel.
    pub(crate) loaded: bool,
    /// The parameter `sva`.
    pub(crate) sva: Option<String>,
    /// The origin of the module.
    pub(crate) file: ModuleFile,
    /// Configuration that keeps it from loading: file and line.
    pub(crate) blacklisted: Vec<(String, String)>,
}

/// The origin of a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ModuleFile {
    /// A file that can be loaded.
    Loadable,
    /// Part of the kernel.
    BuiltIn,
    /// Neither, according to this list of the kernel's modules.
    Absent(String),
    /// The lists cannot be read, as in most containers.
    Unknown,
}

/// Folders of modprobe's configuration. Source: modprobe.d(5).
const MODPROBE: [&str; 4] = ["/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d"];

impl Module {
    pub(super) fn of(files: &dyn Files, release: Option<&str>) -> Self {
        Module {
            loaded: list(files, "/sys/module/idxd").is_some(),
            sva: text(files, "/sys/module/idxd/parameters/sva"),
            file: release.map_or(ModuleFile::Unknown, |release| module_file(files, release)),
            blacklisted: blacklisted(files),
        }
    }
}

fn module_file(files: &dyn Files, release: &str) -> ModuleFile {
    let folder = format!("/lib/modules/{release}");
    let names = |list: &str| text(files, &format!("{folder}/{list}"));
    let holds = |text: &str| text.lines().any(|line| line.split(':').next().unwrap_or_default().contains("/idxd.ko"));
    if names("modules.builtin").is_some_and(|text| holds(&text)) {
        return ModuleFile::BuiltIn;
    }
    match names("modules.dep") {
        Some(text) if holds(&text) => ModuleFile::Loadable,
        Some(_) => ModuleFile::Absent(format!("{folder}/modules.dep")),
        None => ModuleFile::Unknown,
    }
}

fn blacklisted(files: &dyn Files) -> Vec<(String, String)> {
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for folder in MODPROBE {
        for name in list(files, folder).unwrap_or_default() {
            let path = format!("{folder}/{name}");
            // A file in an earlier folder hides a file of the same name in a later one.
            if !name.ends_with(".conf") || !known.insert(name) {
                continue;
            }
            for line in text(files, &path).unwrap_or_default().lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                let keeps = match words[..] {
                    ["blacklist", "idxd"] => true,
                    ["install", "idxd", command, ..] => ["false", "true"].iter().any(|name| command.ends_with(name)),
                    _ => false,
                };
                if keeps {
                    found.push((path.clone(), line.trim().to_owned()));
                }
            }
        }
    }
    found
}

/// A NUMA node.
#[derive(Debug)]
pub(crate) struct NumaNode {
    pub(crate) number: u32,
    /// Its processors.
    pub(crate) cpus: Vec<u32>,
    /// The distance to each node, in the order of nodes; empty if not known.
    pub(crate) distances: Vec<u32>,
}

/// The folder of NUMA nodes.
pub(crate) const NUMA: &str = "/sys/devices/system/node";

impl NumaNode {
    pub(super) fn all(files: &dyn Files) -> Vec<Self> {
        let names = list(files, NUMA).unwrap_or_default();
        let numbers = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok());
        let mut nodes: Vec<NumaNode> = numbers
            .map(|number| {
                let says = |name: &str| text(files, &format!("{NUMA}/node{number}/{name}")).unwrap_or_default();
                let distances = says("distance").split_whitespace().map_while(|word| word.parse().ok()).collect();
                NumaNode { number, cpus: super::numbers(&says("cpulist")), distances }
            })
            .collect();
        nodes.sort_by_key(|node| node.number);
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_all_distributions_have_a_version() {
        for (release, expected) in [
            ("6.12.1-amd64", Some((6, 12))),
            ("5.14.0-427.26.1.el9_4.x86_64", Some((5, 14))),
            ("6.8.0-rc7", Some((6, 8))),
            ("7.0", Some((7, 0))),
            ("weird", None),
            ("", None),
        ] {
            assert_eq!(version(release), expected, "{release}");
        }
    }
}
