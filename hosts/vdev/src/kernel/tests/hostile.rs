//! Random operations in random order: nothing panics, and the attributes stay consistent.

use super::*;
use crate::tree::Entry;
use telpher_os::Random;
use telpher_vdev_wire::message::Report;

/// Choices of a seeded generator: the same seed gives the same run.
struct Chance(Random);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.0.below(limit as u64)).unwrap()
    }

    fn of<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.below(items.len())]
    }
}

const VALUES: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "8",
    "16",
    "64",
    "128",
    "-1",
    "4096",
    "shared",
    "dedicated",
    "user",
    "kernel",
    "none",
    "dmaengine",
    "a name",
    "",
    "\n",
    "x",
    "0x10",
    "99999999999999999999",
    "1,2,3",
    "ffffffff,ffffffff",
    "\u{fffd}",
    "on",
    "auto",
    "change",
];
const NAMES: &[&str] =
    &["dsa0", "dsa1", "wq0.0", "wq0.1", "wq0.2", "wq1.0", "group0.0", "", ".", "wq0.", "wq.0", "dsa"];
const DRIVERS: &[&str] = &["idxd", "user", "dmaengine", "dsa"];
/// Offsets in configuration space at which a write has an effect.
const OFFSETS: &[u64] = &[4, 0x48, 0x49, 0x226, 0x236, 0x244, 0x24c, 0x168, 4095, 4096];

/// Every existing file, without links.
fn files(kernel: &Kernel) -> Vec<String> {
    let (mut waiting, mut found) = (vec![String::from("/sys")], Vec::new());
    while let Some(directory) = waiting.pop() {
        for (name, entry) in kernel.list(&directory).unwrap() {
            let path = format!("{directory}/{name}");
            match entry {
                Entry::Directory => waiting.push(path),
                Entry::Attribute { .. } | Entry::Binary { .. } => found.push(path),
                Entry::Link(_) | Entry::Node { .. } => {}
            }
        }
    }
    found
}

fn check(kernel: &mut Kernel, what: &str) {
    let mut clients = 0;
    for queue in 0..8 {
        let name = format!("wq0.{queue}");
        let minor = get(kernel, &format!("{name}/cdev_minor"));
        let node = kernel.entry(&format!("/dev/dsa/{name}"));
        let driver = kernel.entry(&path(&format!("{name}/driver")));
        match &minor {
            Ok(minor) => {
                assert_eq!(node, Ok(Entry::Node { major: 511, minor: minor.parse().unwrap() }), "{what}");
                assert!(driver.is_ok(), "{what}");
                assert!(kernel.entry(&format!("/dev/char/511:{minor}")).is_ok(), "{what}");
            }
            Err(_) => assert_eq!(node, Err(Errno::NOENT), "{what}"),
        }
        let enabled = get(kernel, &format!("{name}/state")).unwrap() == "enabled";
        assert!(!enabled || driver.is_ok(), "{what}: only a driver enables a queue");
        let takes = kernel.queues()[queue].2;
        assert!(!takes || enabled, "{what}: {name} works without the driver");
        clients += get(kernel, &format!("{name}/clients")).unwrap().parse::<u32>().unwrap();
    }
    assert_eq!(get(kernel, "dsa0/clients"), Ok(clients.to_string()), "{what}");
    assert_eq!(
        kernel.entry("/dev/dsa").is_ok(),
        kernel.list("/dev/dsa").is_ok_and(|nodes| !nodes.is_empty()),
        "{what}"
    );
}

#[test]
fn no_order_of_writes_breaks_the_driver() {
    let mut up = 0;
    for (seed, abi) in (1..=8_u64).zip(Abi::ALL.into_iter().cycle()) {
        let preset = if seed > 4 { Preset::Full } else { Preset::Spr };
        let mut kernel = brought(preset, abi, if abi == Abi::V5_15 { Stage::Found } else { Stage::Enabled });
        let mut chance = Chance(Random::new(seed));
        let mut opens: Vec<u64> = Vec::new();
        let mut paths = files(&kernel);
        for step in 0..1000 {
            let what = match chance.below(12) {
                0..=4 => {
                    let file = paths[chance.below(paths.len())].clone();
                    let value = chance.of(VALUES);
                    let written = kernel.store(&file, value.as_bytes());
                    format!("echo {value:?} > {file}: {written:?}")
                }
                5 => {
                    let (driver, name) = (chance.of(DRIVERS), chance.of(NAMES));
                    format!(
                        "bind {driver} {name}: {:?}",
                        kernel.store(&format!("/sys/bus/dsa/drivers/{driver}/bind"), name.as_bytes())
                    )
                }
                6 if chance.below(4) == 0 => {
                    let (driver, name) = (chance.of(DRIVERS), chance.of(NAMES));
                    format!("unbind {driver} {name}: {:?}", unbind(&mut kernel, driver, name))
                }
                7 => {
                    // Enables as much as possible again, sometimes after a reset of the function.
                    if chance.below(4) == 0 {
                        let _ = unbind(&mut kernel, "idxd", "dsa0");
                        let function = "/sys/bus/pci/devices/0000:6a:01.0";
                        for (at, value) in [(4, 0x0406_u16), (0x226, 0x8000), (0x236, 5), (0x244, 1), (0x24c, 0x200)] {
                            kernel.write_at(&format!("{function}/config"), at, &value.to_le_bytes()).unwrap();
                        }
                        kernel.write_at(&format!("{function}/config"), 0x24e, &[0, 0]).unwrap();
                        write(&mut kernel, &format!("{function}/reset"), "1").unwrap();
                        for queue in 0..8 {
                            let _ = set(&mut kernel, &format!("wq0.{queue}/group_id"), "-1");
                            let _ = set(&mut kernel, &format!("wq0.{queue}/size"), "0");
                        }
                        for group in 0..4 {
                            let _ = set(&mut kernel, &format!("group0.{group}/read_buffers_reserved"), "0");
                            let _ = set(&mut kernel, &format!("group0.{group}/use_read_buffer_limit"), "0");
                            let _ = set(&mut kernel, &format!("group0.{group}/read_buffers_allowed"), "96");
                        }
                    }
                    for (attribute, value) in SETTINGS {
                        let _ = set(&mut kernel, attribute, value);
                    }
                    for (driver, name) in [("idxd", "dsa0"), ("user", "wq0.0"), ("user", "wq0.1")] {
                        let _ = bind(&mut kernel, driver, name);
                    }
                    "brought up".into()
                }
                8 => {
                    let node = chance.of(&["/dev/dsa/wq0.0", "/dev/dsa/wq0.1", "/dev/char/511:0"]);
                    let space = chance.below(3) as u64;
                    let opened = kernel.open(node, caller(u32::try_from(chance.below(3)).unwrap(), space));
                    opens.extend(opened.iter().map(|opened| opened.open));
                    format!("open {node}: {:?}", opened.map(|opened| opened.open))
                }
                9 if !opens.is_empty() => {
                    let open = opens[chance.below(opens.len())];
                    let caller = caller(u32::try_from(chance.below(3)).unwrap(), chance.below(3) as u64);
                    let report = Report {
                        kind: u32::try_from(chance.below(6)).unwrap(),
                        reserved: 0,
                        words: [chance.0.next(); 8],
                    };
                    let halts = report.kind == 4 && chance.below(8) > 0;
                    let reported = if halts { Ok(()) } else { kernel.report(open, &report) };
                    format!(
                        "attach {open}: {:?}, report {reported:?}",
                        kernel.attach(open, caller).map(|opened| opened.pasid)
                    )
                }
                10 if !opens.is_empty() => {
                    let open = opens.swap_remove(chance.below(opens.len()));
                    kernel.release(open);
                    format!("release {open}")
                }
                11 if chance.below(6) == 0 => {
                    let at = OFFSETS[chance.below(OFFSETS.len())];
                    let bytes = chance.0.next().to_le_bytes();
                    let config = "/sys/bus/pci/devices/0000:6a:01.0/config";
                    format!("setpci {at:#x}: {:?}", kernel.write_at(config, at, &bytes[..2]))
                }
                _ => {
                    paths = files(&kernel);
                    let file = &paths[chance.below(paths.len())];
                    format!("cat {file}: {:?}", kernel.show(file).map(|text| text.len()))
                }
            };
            check(&mut kernel, &format!("seed {seed}, step {step}: {what}"));
            up += usize::from(kernel.queues().iter().any(|(.., takes)| *takes));
        }
        for open in opens {
            kernel.release(open);
        }
        assert_eq!(get(&mut kernel, "dsa0/clients").as_deref(), Ok("0"), "seed {seed}");
        assert_eq!(kernel.show("/sys/module/idxd/refcnt"), Ok(b"0\n".to_vec()), "seed {seed}");
    }
    assert!(
        (500..7500).contains(&up),
        "queues are enabled and disabled: they accepted descriptors after {up} of 8000 steps"
    );
}
