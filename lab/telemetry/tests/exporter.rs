//! Families of runs whose index and words the tests write, also hostile ones, and of processes that publish.

mod common;

use common::RunFolder;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use telpher_device::published::{
    Departed, INDEX_VERSION, PublishedDevice, PublishedEngine, PublishedFile, PublishedQueue, RunIndex,
};
use telpher_metrics::{Description, SEQUENCE_WORD, SharedCells, metrics};
use telpher_model::DeviceCounts;
use telpher_telemetry::exporter::kubelet::Grants;
use telpher_telemetry::exporter::{DEFINITIONS, Exporter, TextFormat};
use telpher_telemetry::published::{self, ProcessMetrics, Publications};
use telpher_telemetry::{Snapshot, run, sysfs};

const QUEUES: u32 = 8;
const PROCESSES: u32 = 100;
/// The word of a queue's Retry answers, see `DeviceCounts`.
const RETRIES: usize = 8;

/// The directory of a run of this process, with eight queues and a hundred open files of processes that do not exist;
/// removed on drop.
struct Fixture {
    folder: RunFolder,
    files: Vec<File>,
    index: RunIndex,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let folder = RunFolder::new(&format!("exporter-{test}"));
        let (slots, of_slots) = folder.file("slots", 4096);
        let (mut files, mut open) = (vec![slots], Vec::new());
        for number in 0..PROCESSES {
            let (memory, of_memory) = folder.file(&number.to_string(), DeviceCounts::WORDS * 8);
            // Process N has got N Retry answers.
            let wq = number % QUEUES;
            memory.write_all_at(&u64::from(number).to_ne_bytes(), (RETRIES as u64 + u64::from(wq)) * 8).unwrap();
            files.push(memory);
            open.push(PublishedFile {
                open: number.into(),
                wq,
                // Beyond the kernel's largest number.
                process: 5_000_000 + number,
                pasid: number,
                memory: of_memory,
                slots: of_slots,
                slot: number,
                ..PublishedFile::default()
            });
        }
        let queue = |wq| PublishedQueue { wq, size: 16, threshold: 12, enabled: true, ..PublishedQueue::default() };
        let device = PublishedDevice {
            state: "enabled".into(),
            queues: (0..QUEUES).map(queue).collect(),
            engines: (0..4).map(|engine| PublishedEngine { engine, group: Some(0) }).collect(),
            ..PublishedDevice::default()
        };
        let (version, host) = (INDEX_VERSION, std::process::id());
        let index = RunIndex { version, host, devices: vec![device], files: open, ..RunIndex::default() };
        let fixture = Fixture { folder, files, index };
        fixture.write();
        fixture
    }

    fn write(&self) {
        self.folder.write(&self.index);
    }

    fn read(&self) -> Snapshot {
        run::read(&self.folder.0, "run-1").unwrap()
    }
}

fn text(exporter: &mut Exporter, snapshot: &Snapshot, processes: &[ProcessMetrics]) -> String {
    exporter.families(snapshot, (processes, &[]), Duration::from_millis(1)).text(TextFormat::Prometheus)
}

/// The samples of a family: series without the name, and value.
fn samples(text: &str, name: &str) -> BTreeMap<String, f64> {
    let of_family = text.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
    let of_family = of_family.filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'));
    of_family.map(|(labels, value)| (labels.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn a_hundred_processes_are_summed_by_owner_and_told_apart_only_if_asked() {
    let mut fixture = Fixture::new("hundred");
    let total = f64::from((0..PROCESSES).sum::<u32>());
    for per_process in [false, true] {
        let text = text(&mut Exporter::new(per_process), &fixture.read(), &[]);
        let [queues, clients] = ["dsa_wq_retries_total", "dsa_client_retries_total"].map(|name| samples(&text, name));
        assert_eq!([queues.values().sum::<f64>(), clients.values().sum::<f64>()], [total; 2], "{text}");
        // These processes have no container, so that all of a queue have one owner.
        assert_eq!(clients.len(), if per_process { PROCESSES } else { QUEUES } as usize, "{clients:?}");
        assert_eq!(samples(&text, "dsa_wq_clients").values().sum::<f64>(), f64::from(PROCESSES));
    }
    // A process closes its queue: its totals go to the closed files, and no sum shrinks.
    let mut exporter = Exporter::new(false);
    let before = text(&mut exporter, &fixture.read(), &[]);
    let closed = fixture.index.files.remove(99);
    fixture.index.departed =
        vec![Departed { device: 0, wq: closed.wq, files: 1, words: vec![(RETRIES + closed.wq as usize, 99 + 5)] }];
    fixture.index.generation += 1;
    fixture.write();
    let after = text(&mut exporter, &fixture.read(), &[]);
    let [before, clients] = [&before, &after].map(|text| samples(text, "dsa_client_retries_total"));
    let queues = samples(&after, "dsa_wq_retries_total");
    assert!(before.iter().all(|(series, value)| clients[series] >= *value), "{before:?} {clients:?}");
    assert_eq!([queues.values().sum::<f64>(), clients.values().sum::<f64>()], [total + 5.0; 2], "{clients:?}");
}

#[test]
fn pods_and_containers_have_the_names_of_their_logs() {
    let fixture = Fixture::new("pods");
    let [proc, log] = ["proc", "log"].map(|name| fixture.folder.0.join(name));
    let uid = |pod: u32| format!("9b8d7e6f-4f5e-1c0a-9b8d-7e6f4f5e1c0{pod:x}");
    let id = |container: u32| format!("{container:064x}");
    // Six processes: two of each container, and the last pod has no logs here.
    for (number, container) in [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)] {
        let process = proc.join((5_000_000 + number).to_string());
        fs::create_dir_all(&process).unwrap();
        let pod = uid(container).replace('-', "_");
        let slice = format!("kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{}.scope", id(container));
        fs::write(process.join("cgroup"), format!("0::/{slice}\n")).unwrap();
    }
    for (pod, name) in [(0, "shop_web-0"), (1, "shop_db.main")] {
        fs::create_dir_all(log.join(format!("pods/{name}_{}", uid(pod)))).unwrap();
    }
    for entry in ["pods/lost+found", "pods/a_b_c_d", "containers/x.log"] {
        fs::create_dir_all(log.join(entry)).unwrap();
    }
    std::os::unix::fs::symlink("/nowhere", log.join(format!("containers/web-0_shop_server-{}.log", id(0)))).unwrap();
    let mut exporter = Exporter::with_roots(false, "/sys".into(), proc, log);
    let text = text(&mut exporter, &fixture.read(), &[]);
    let retries = samples(&text, "dsa_client_retries_total");
    let of =
        |labels: String| retries.iter().filter(|(series, _)| series.contains(&labels)).map(|(_, value)| value).sum();
    let [named, unlabelled, unknown]: [f64; 3] = [
        format!(
            ",namespace=\"shop\",pod=\"web-0\",pod_uid=\"{}\",container=\"{}\",container_name=\"server\"}}",
            uid(0),
            id(0)
        ),
        format!(",namespace=\"shop\",pod=\"db.main\",pod_uid=\"{}\",container=\"{}\"}}", uid(1), id(1)),
        format!("wq=\"wq0.5\",pod_uid=\"{}\",container=\"{}\"}}", uid(2), id(2)),
    ]
    .map(of);
    assert_eq!([named, unlabelled, unknown], [3.0, 7.0, 5.0], "{retries:?}");
}

#[test]
fn hostile_words_and_indexes_give_a_text_and_nothing_else() {
    let mut fixture = Fixture::new("hostile");
    for memory in &fixture.files[1..] {
        memory.write_all_at(&vec![0xff; DeviceCounts::WORDS * 8], 0).unwrap();
    }
    let words = (0..DeviceCounts::WORDS).map(|at| (at, u64::MAX)).collect();
    fixture.index.departed = vec![Departed { files: u64::MAX, words, ..Departed::default() }];
    // Files of queues and devices that do not exist, and a descriptor that is none.
    fixture.index.files[1].wq = u32::MAX;
    fixture.index.files[2].device = u32::MAX;
    fixture.index.files[3].slot = u32::MAX;
    fixture.index.devices[0].state = "\"}\n# HELP x y\n\\".into();
    fixture.write();
    let mut exporter = Exporter::new(true);
    for _ in 0..2 {
        let text = text(&mut exporter, &fixture.read(), &[]);
        assert!(samples(&text, "dsa_wq_retries_total").values().all(|value| *value <= u64::MAX as f64));
        assert!(text.lines().all(|line| !line.starts_with("# HELP x")), "{text}");
        let buckets = samples(&text, "dsa_execution_seconds_bucket");
        assert!(buckets.values().all(|value| *value <= u64::MAX as f64));
    }
    fixture.index.files[5].memory.inode += 1;
    fixture.index.generation += 1;
    fixture.write();
    let text = text(&mut exporter, &fixture.read(), &[]);
    let wq = fixture.index.files[5].wq;
    let is_of_queue = |series: &String| series.contains(&format!("wq=\"wq0.{wq}\""));
    for name in ["dsa_wq_retries_total", "dsa_client_retries_total"] {
        assert!(!samples(&text, name).keys().any(is_of_queue), "a sum without one of its files would be wrong");
    }
    let reason = "metric=\"dsa_wq_retries_total\",reason=\"the totals of a process cannot be read\"";
    assert!(text.contains(reason) && samples(&text, "telpher_exporter_problems")[""] >= 1.0, "{text}");
}

#[test]
fn hardware_has_what_linux_shows_and_a_reason_for_the_rest() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("exporter-sys-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    for (path, text) in [
        ("dsa0/state", "enabled\n"),
        ("dsa0/clients", "2\n"),
        ("dsa0/version", "0x100\n"),
        ("dsa0/numa_node", "-1\n"),
        ("wq0.0/state", "enabled\n"),
        ("wq0.0/mode", "shared\n"),
        ("wq0.0/type", "user\n"),
        ("wq0.0/name", "app\"1\n"),
        ("wq0.0/size", "16\n"),
        ("wq0.0/group_id", "0\n"),
        ("wq0.0/dsa!wq0.0/file0/pid", "4000000000\n"),
        ("wq0.0/dsa!wq0.0/file0/cr_faults", "5\n"),
        ("engine0.0/group_id", "0\n"),
    ] {
        let path = root.join("bus/dsa/devices").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let snapshot = sysfs::read(&root);
    let text = text(&mut Exporter::with_roots(true, root.clone(), "/proc".into(), "/var/log".into()), &snapshot, &[]);
    fs::remove_dir_all(&root).unwrap();
    for line in [
        "dsa_device_info{source=\"hardware\",device=\"dsa0\",version=\"0x100\"} 1",
        "dsa_device_enabled{source=\"hardware\",device=\"dsa0\"} 1",
        "dsa_wq_info{source=\"hardware\",device=\"dsa0\",wq=\"wq0.0\",mode=\"shared\",group=\"0\",type=\"user\",\
         name=\"app\\\"1\"} 1",
        "dsa_wq_size{source=\"hardware\",device=\"dsa0\",wq=\"wq0.0\"} 16",
        "dsa_client_record_faults_total{source=\"hardware\",device=\"dsa0\",wq=\"wq0.0\",pid=\"4000000000\",\
         command=\"\"} 5",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    for name in ["dsa_wq_descriptors_total", "dsa_client_descriptors_total", "dsa_engine_busy_seconds_total"] {
        assert!(samples(&text, name).is_empty());
        assert!(text.contains(&format!("metric=\"{name}\",reason=\"the kernel s")), "{name}: {text}");
    }
}

metrics! {
    /// What a mill has done.
    struct Mill {
        /// Sacks that were ground.
        sacks: u64 = counter "telpher_test_sacks_total",
        /// Sacks that were sent back.
        refused: [u64; 2] = counter "telpher_test_refused_sacks_total" by reason ["wet", "torn"],
        /// Time that its stones turned.
        turning: Duration = counter(Seconds) "telpher_test_turning_seconds_total",
        /// Bytes in its barn.
        stored: u64 = gauge(Bytes) "telpher_test_stored_bytes",
    }
}

/// All regions that a process publishes are found, whatever their bytes are. One test, because the tests of a process
/// would find each other's regions.
#[test]
fn what_processes_publish_is_read_and_damage_is_left_out() {
    let words = || telpher_os::published_words(SharedCells::<Mill>::words(2)).unwrap();
    let good = words();
    let cells = SharedCells::<Mill>::create(good, 2, "").unwrap();
    cells.add(0, Mill::AT.sacks, 3);
    cells.add(1, Mill::AT.sacks, 4);
    cells.add(1, Mill::AT.turning, 1_500_000_000);
    cells.add(0, Mill::AT.stored, 10);
    cells.subtract(1, Mill::AT.stored, 4);
    // No region; one in which a process was killed while it claimed a set; one with another table.
    let _zeros = words();
    let busy = words();
    SharedCells::<Mill>::create(busy, 2, "").unwrap();
    busy[SEQUENCE_WORD].store(7, Ordering::Relaxed);
    let odd = words();
    SharedCells::<Mill>::create(odd, 2, "").unwrap();
    let name = |words: &[AtomicU64], from: &[u8; 8], to: &[u8; 8]| {
        let [from, to] = [from, to].map(|word| u64::from_ne_bytes(*word));
        let found = words
            .iter()
            .filter(|word| word.load(Ordering::Relaxed) == from)
            .map(|word| word.store(to, Ordering::Relaxed));
        assert!(found.count() > 0);
    };
    // "counter\t" becomes "gauge\t…": the names then break a rule.
    name(odd, b"counter\t", b"gauge\t\t\t");
    let own = |pid: u32| pid == std::process::id();
    let Publications { processes: found, unread, .. } = published::read(Path::new("/proc"));
    let found: Vec<_> = found.into_iter().filter(|process| own(process.pid)).collect();
    let unread: Vec<_> = unread.into_iter().filter(|process| own(process.pid)).map(|process| process.why).collect();
    let [process] = &found[..] else { panic!("{found:?}") };
    assert_eq!(process.values, [7, 0, 0, 1_500_000_000, 6]);
    assert_eq!(unread.len(), 3, "{unread:?}");
    assert!(unread.iter().any(|why| why.contains("is being changed all the time")), "{unread:?}");

    let mut exporter = Exporter::new(true);
    let pid = std::process::id();
    let shown = text(&mut exporter, &Snapshot::default(), &found);
    for line in [
        format!("telpher_test_sacks_total{{pid=\"{pid}\"}} 7"),
        format!("telpher_test_refused_sacks_total{{reason=\"torn\",pid=\"{pid}\"}} 0"),
        format!("telpher_test_turning_seconds_total{{pid=\"{pid}\"}} 1.5"),
        format!("telpher_test_stored_bytes{{pid=\"{pid}\"}} 6"),
        "telpher_exporter_processes 1".into(),
        "telpher_exporter_problems 0".into(),
    ] {
        assert!(shown.lines().any(|found| found == line), "{line}\n{shown}");
    }
    // Descriptions that contradict the first one, or break a rule, are left out and counted.
    let with = |change: &dyn Fn(&mut ProcessMetrics)| {
        let mut other = ProcessMetrics { inode: 1, ..found[0].clone() };
        change(&mut other);
        other
    };
    let others = [
        with(&|other| other.metrics[0].help = "Other.".into()),
        with(&|other| other.metrics[0].name = "up".into()),
        with(&|other| other.metrics[1].label = Some(("le".into(), "1".into()))),
        with(&|other| other.metrics[0].help = "A\n# TYPE up counter.".into()),
    ];
    for other in others {
        let shown = text(&mut exporter, &Snapshot::default(), &[found[0].clone(), other]);
        assert_eq!(samples(&shown, "telpher_exporter_problems")[""], 1.0, "{shown}");
        assert_eq!(samples(&shown, "telpher_test_sacks_total").values().sum::<f64>(), 7.0, "{shown}");
    }
    // Another reader knows some values of a process, which stand beside those that the process publishes itself.
    let part = ProcessMetrics::part::<Mill>(5_000_001, 0, &[("telpher_test_sacks_total", 2), ("no_such_metric", 1)]);
    let shown = text(&mut Exporter::new(false), &Snapshot::default(), &[found[0].clone(), part]);
    assert_eq!((samples(&shown, "telpher_test_sacks_total")[""], shown.contains("no_such")), (9.0, false), "{shown}");
    // Without labels of processes, totals of one that has ended stay while another one of its owner lives.
    let mut exporter = Exporter::new(false);
    let second = with(&|other| (other.pid, other.values[0]) = (5_000_000, 100));
    for (processes, sacks) in [(vec![found[0].clone(), second], 107.0), (found.clone(), 107.0)] {
        let shown = text(&mut exporter, &Snapshot::default(), &processes);
        assert_eq!(samples(&shown, "telpher_test_sacks_total")[""], sacks, "{shown}");
    }
}

/// A process with a number of ground sacks in a region.
fn mill(pid: u32, inode: u64, sacks: u64) -> ProcessMetrics {
    ProcessMetrics::part::<Mill>(pid, inode, &[("telpher_test_sacks_total", sacks)])
}

/// Another process of the same owner that is always read, so that the owner has samples.
const ALWAYS: u32 = 5_000_000;

/// A folder like `/proc`; removed on drop.
struct Proc(PathBuf);

impl Proc {
    fn new(test: &str) -> Proc {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("exporter-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Proc(path)
    }

    /// Opens a region in a process, and returns its inode.
    fn open(&self, pid: u32) -> u64 {
        self.open_as(pid, telpher_os::PUBLISHED_FROM, &format!("memfd:{} (deleted)", telpher_os::PUBLISHED))
    }

    /// Opens a file of this name in a process, and returns its inode.
    fn open_as(&self, pid: u32, descriptor: i32, name: &str) -> u64 {
        let memory = self.0.join(format!("memory-{pid}-{descriptor}"));
        let descriptors = self.0.join(format!("{pid}/fd"));
        fs::create_dir_all(&memory).unwrap();
        fs::create_dir_all(&descriptors).unwrap();
        let file = memory.join(name);
        fs::write(&file, "").unwrap();
        symlink(&file, descriptors.join(descriptor.to_string())).unwrap();
        fs::metadata(&file).unwrap().ino()
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.0.join(pid.to_string())).unwrap();
    }

    fn exporter(&self) -> Exporter {
        Exporter::with_roots(false, "/sys".into(), self.0.clone(), "/var/log".into())
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the sacks of all processes, one of which is always read and has one.
fn all_sacks(exporter: &mut Exporter, process: Option<ProcessMetrics>) -> f64 {
    let processes: Vec<_> = process.into_iter().chain([mill(ALWAYS, 0, 1)]).collect();
    let text = text(exporter, &Snapshot::default(), &processes);
    samples(&text, "telpher_test_sacks_total").values().sum()
}

#[test]
fn values_that_cannot_be_read_for_a_while_are_counted_once() {
    let proc = Proc::new("unread");
    let inode = proc.open(7);
    let mut exporter = proc.exporter();
    assert_eq!(all_sacks(&mut exporter, Some(mill(7, inode, 100))), 101.0);
    // Its sets are being claimed, for instance.
    assert_eq!(all_sacks(&mut exporter, None), 101.0);
    assert_eq!(all_sacks(&mut exporter, Some(mill(7, inode, 120))), 121.0);
    proc.end(7);
    for _ in 0..2 {
        assert_eq!(all_sacks(&mut exporter, None), 121.0, "it has ended");
    }
}

#[test]
fn a_file_that_is_no_region_is_not_asked_for_its_inode() {
    let proc = Proc::new("other-file");
    // Its file system could be one that never answers; here it would answer with the region's inode.
    let inode = proc.open_as(7, telpher_os::PUBLISHED_FROM, "file");
    let mut exporter = proc.exporter();
    assert_eq!(all_sacks(&mut exporter, Some(mill(7, inode, 100))), 101.0);
    assert_eq!(all_sacks(&mut exporter, None), 101.0);
    // The region counted as closed, so what is read now is another one's.
    assert_eq!(all_sacks(&mut exporter, Some(mill(7, inode, 20))), 121.0);
}

#[test]
fn a_region_that_a_child_has_from_its_parent_is_counted_once_when_the_parent_ends() {
    let proc = Proc::new("child");
    // The parent, process 20, ends after the first reading. The child cannot be read for a while.
    let inode = proc.open(21);
    let mut exporter = proc.exporter();
    for (holder, sacks) in [(Some(20), 100), (Some(21), 120), (None, 120), (Some(21), 125), (Some(3), 130)] {
        let process = holder.map(|holder| mill(holder, inode, sacks));
        assert_eq!(all_sacks(&mut exporter, process), sacks as f64 + 1.0, "{holder:?}");
    }
}

#[test]
fn a_child_with_a_region_of_its_parent_owns_its_other_regions_itself() {
    let proc = Proc::new("owners");
    let container = format!("{:064x}", 7);
    let [of_parent, own] = [21, 22].map(|pid| proc.open(pid));
    fs::write(proc.0.join("21/cgroup"), format!("0::/system.slice/cri-containerd-{container}.scope\n")).unwrap();
    let mut exporter = proc.exporter();
    text(&mut exporter, &Snapshot::default(), &[mill(20, of_parent, 100)]);
    let text = text(&mut exporter, &Snapshot::default(), &[mill(21, of_parent, 120), mill(21, own, 7)]);
    let sacks = samples(&text, "telpher_test_sacks_total");
    let expected = BTreeMap::from([(String::new(), 120.0), (format!("{{container=\"{container}\"}}"), 7.0)]);
    assert_eq!(sacks, expected, "{text}");
}

/// A process with values of many descriptions, beginning with a number.
fn many_values(pid: u32, first: u32, count: u32) -> ProcessMetrics {
    let of_mill = mill(pid, 0, 1);
    let name = |number| format!("telpher_test_values_{number}_total");
    let metrics = (first..first + count).map(|number| Description { name: name(number), ..of_mill.metrics[0].clone() });
    ProcessMetrics { metrics: metrics.collect(), values: vec![1; count as usize], ..of_mill }
}

#[test]
fn one_process_with_many_descriptions_keeps_no_other_one_out_and_ended_ones_make_room() {
    let mut exporter = Exporter::with_roots(false, "/sys".into(), "/nowhere".into(), "/var/log".into());
    let mut shown = |processes: &[ProcessMetrics]| {
        let text = text(&mut exporter, &Snapshot::default(), processes);
        let values = text.lines().filter(|line| line.starts_with("telpher_test_values_")).count();
        (values, samples(&text, "telpher_exporter_problems")[""], text.contains("telpher_test_sacks_total 1"))
    };
    // It describes more than all crates together, and is left out and counted.
    assert_eq!(shown(&[many_values(7, 0, 5000), mill(8, 0, 1)]), (0, 1.0, true));
    // Programs come and end, each with other values.
    for program in 0..10 {
        let present = [many_values(10 + program, 1000 * program, 1000), mill(8, 0, 1)];
        assert_eq!(shown(&present), (1000, 0.0, true), "{program}");
    }
    // A program ends whose descriptions another one has as well; a new one has its number.
    for first in [0, 1000] {
        let lasting = [many_values(9, 0, 1000), mill(8, 0, 1)];
        assert_eq!(shown(&[vec![many_values(7, first, 1000)], lasting.to_vec()].concat()).1, 0.0, "{first}");
        assert_eq!(shown(&lasting), (1000, 0.0, true));
    }
}

#[test]
fn one_process_with_many_values_keeps_no_other_one_out() {
    let shown = |hostile: &dyn Fn(u32) -> ProcessMetrics| {
        let mut exporter = Exporter::with_roots(false, "/sys".into(), "/nowhere".into(), "/var/log".into());
        let processes: Vec<_> = [many_values(6, 0, 1000)].into_iter().chain((0..60).map(hostile)).collect();
        let text = text(&mut exporter, &Snapshot::default(), &[processes, vec![mill(8, 0, 1)]].concat());
        (samples(&text, "telpher_exporter_problems")[""], text.contains("telpher_test_sacks_total 1"))
    };
    // Sixty regions of a process, of which two are shown.
    let regions = |number| ProcessMetrics { inode: 1000 + u64::from(number), ..many_values(7, 0, 1000) };
    assert_eq!(shown(&regions), (58.0, true));
    // Regions that are left out because of their descriptions take no room.
    let contradicting = |number| {
        let mut process = many_values(100 + number, 0, 1000);
        process.metrics[0].help = "Other.".into();
        process
    };
    assert_eq!(shown(&contradicting), (60.0, true));
}

#[test]
fn shares_of_queues_that_are_not_listed_are_told() {
    let mut exporter = Exporter::new(false);
    for left_out in [0, 3] {
        exporter.set_grants(Some(Ok(Grants { left_out, ..Grants::default() })));
        let text = text(&mut exporter, &Snapshot::default(), &[]);
        assert_eq!(text.contains("metric=\"dsa_wq_granted_info\",reason=\"3 more shares "), left_out != 0, "{text}");
        assert_eq!(samples(&text, "telpher_exporter_problems")[""], f64::from(u8::from(left_out != 0)));
    }
}

#[test]
fn the_page_lists_every_family() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/telemetry.md")).unwrap();
    let row = |definition: &telpher_telemetry::exporter::Definition| {
        let unit = if definition.unit.word().is_empty() { "–" } else { definition.unit.word() };
        format!("| `{}` | {} | {unit} | {} |", definition.name(), definition.kind.word(), definition.help)
    };
    let missing: Vec<String> = DEFINITIONS.iter().map(row).filter(|row| !page.contains(row)).collect();
    assert!(missing.is_empty(), "docs/telemetry.md must have these rows:\n{}", missing.join("\n"));
}
