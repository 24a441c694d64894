//! Reads runs whose index and words the tests write, also hostile ones.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use telpher_device::published::{
    Departed, INDEX, INDEX_VERSION, PublishedDevice, PublishedEngine, PublishedFile, PublishedQueue, RunIndex,
    SharedFile,
};
use telpher_model::DeviceCounts;
use telpher_telemetry::{ReadError, run, subscribe};

/// The directory of a run of this process, with one open file; removed on drop.
struct Fixture {
    path: PathBuf,
    memory: File,
    _slots: File,
    index: RunIndex,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("run-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        let file = |name: &str, bytes: usize| {
            let file = File::create_new(path.join(name)).unwrap();
            file.set_len(bytes as u64).unwrap();
            let shared = SharedFile { descriptor: file.as_raw_fd(), inode: file.metadata().unwrap().ino() };
            (file, shared)
        };
        let (memory, memory_file) = file("memory", DeviceCounts::WORDS * 8);
        let (slots, slots_file) = file("slots", 4096);
        let open = PublishedFile {
            open: 1,
            process: std::process::id(),
            pasid: 9,
            memory: memory_file,
            slots: slots_file,
            slot: 3,
            ..PublishedFile::default()
        };
        let queue =
            PublishedQueue { size: 16, threshold: 12, enabled: true, group: Some(0), ..PublishedQueue::default() };
        let device = PublishedDevice {
            state: "enabled".into(),
            queues: vec![queue],
            engines: vec![PublishedEngine { engine: 0, group: Some(0) }],
            ..PublishedDevice::default()
        };
        let index = RunIndex {
            version: INDEX_VERSION,
            host: std::process::id(),
            devices: vec![device],
            files: vec![open],
            ..RunIndex::default()
        };
        let fixture = Fixture { path, memory, _slots: slots, index };
        fixture._slots.write_all_at(&5_u32.to_ne_bytes(), 12).unwrap();
        fixture.write();
        fixture
    }

    fn write(&self) {
        let part = self.path.join("part");
        File::create(&part).unwrap().write_all(&serde_json::to_vec(&self.index).unwrap()).unwrap();
        fs::rename(part, self.path.join(INDEX)).unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[test]
fn open_and_closed_files_are_summed() {
    let mut fixture = Fixture::new("sum");
    // The Retry answers of queue 0 are the word 8.
    fixture.memory.write_all_at(&7_u64.to_ne_bytes(), 8 * 8).unwrap();
    fixture.index.departed = vec![Departed { files: 2, words: vec![(8, 30)], ..Departed::default() }];
    fixture.write();
    let snapshot = run::read(&fixture.path, "run-1").unwrap();
    assert_eq!(snapshot.problems, [""; 0]);
    assert_eq!(snapshot.devices[0].retries.known(), Some(37));
    assert_eq!((snapshot.queues[0].occupancy.known(), snapshot.queues[0].clients.known()), (Some(5), Some(1)));
    let rows: Vec<_> = snapshot.processes.iter().map(|row| (row.pid.known(), row.retries.known())).collect();
    assert_eq!(rows, [(Some(std::process::id().into()), Some(7)), (None, Some(30))]);
}

#[test]
fn words_of_a_hostile_process_overflow_nothing() {
    let mut fixture = Fixture::new("hostile");
    fixture.memory.write_all_at(&vec![0xff; DeviceCounts::WORDS * 8], 0).unwrap();
    fixture.index.departed = vec![
        Departed {
            files: 1,
            words: (0..DeviceCounts::WORDS).map(|at| (at, u64::MAX)).collect(),
            ..Departed::default()
        },
        Departed { files: 1, words: vec![(usize::MAX, 1)], ..Departed::default() },
    ];
    fixture.write();
    let snapshot = run::read(&fixture.path, "run-1").unwrap();
    assert_eq!(snapshot.devices[0].work.descriptors.known(), Some(u64::MAX));
    for text in [telpher_telemetry::tables::text(&snapshot, 200, None), telpher_telemetry::tables::csv(&snapshot)] {
        assert!(text.contains(&u64::MAX.to_string()));
    }
}

#[test]
fn a_descriptor_that_is_another_file_now_is_refused() {
    let mut fixture = Fixture::new("reused");
    fixture.index.files[0].memory.inode += 1;
    fixture.write();
    let snapshot = run::read(&fixture.path, "run-1").unwrap();
    assert!(snapshot.problems[0].contains("belongs to another file now"), "{:?}", snapshot.problems);
    let (device, queue) = (&snapshot.devices[0], &snapshot.queues[0]);
    for value in [&device.work.descriptors, &device.retries, &device.errors, &queue.work.descriptors, &queue.occupancy]
    {
        assert_eq!(value.known(), None, "a sum without one of its files would be wrong");
    }
    assert!(snapshot.processes.is_empty());
}

#[test]
fn a_subscription_is_the_first_word() {
    let fixture = Fixture::new("subscribe");
    let before = telpher_os::monotonic_ns();
    // This process has the file open for writing only by this descriptor.
    assert_eq!(subscribe(&fixture.path).unwrap(), 1);
    let bytes = fs::read(fixture.path.join("memory")).unwrap();
    let until = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    assert!(
        until >= before + telpher_model::LONGEST_NS && until <= telpher_os::monotonic_ns() + telpher_model::LONGEST_NS
    );
    let counts = DeviceCounts::default();
    counts.subscription().renew(until, before);
    assert!(counts.subscription().is_on(until - 1) && !counts.subscription().is_on(until));
}

#[test]
fn an_index_that_is_none_is_an_error_that_names_it() {
    let mut fixture = Fixture::new("damaged");
    fixture.index.version += 1;
    fixture.write();
    assert!(matches!(run::read(&fixture.path, "x"), Err(ReadError::Version { .. })));
    fs::write(fixture.path.join(INDEX), "{").unwrap();
    assert!(matches!(run::read(&fixture.path, "x"), Err(ReadError::Damaged { .. })));
    fs::remove_file(fixture.path.join(INDEX)).unwrap();
    symlink("memory", fixture.path.join(INDEX)).unwrap();
    assert!(matches!(run::read(&fixture.path, "x"), Err(ReadError::Index { .. })), "a link is not followed");
}
