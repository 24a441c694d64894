//! Reads runs whose index and words the tests write, also hostile ones.

mod common;

use common::RunFolder;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, symlink};
use telpher_device::published::{
    Departed, INDEX, INDEX_VERSION, PublishedDevice, PublishedEngine, PublishedFile, PublishedQueue, RunIndex,
};
use telpher_model::DeviceCounts;
use telpher_telemetry::{ReadError, run, subscribe};

/// The directory of a run of this process, with one open file.
struct Fixture {
    folder: RunFolder,
    memory: File,
    _slots: File,
    index: RunIndex,
}

impl Fixture {
    fn new(test: &str) -> Fixture {
        let folder = RunFolder::new(&format!("run-{test}"));
        let (memory, memory_file) = folder.file("memory", DeviceCounts::WORDS * 8);
        let (slots, slots_file) = folder.file("slots", 4096);
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
        let fixture = Fixture { folder, memory, _slots: slots, index };
        fixture._slots.write_all_at(&5_u32.to_ne_bytes(), 12).unwrap();
        fixture.write();
        fixture
    }

    fn write(&self) {
        self.folder.write(&self.index);
    }
}

#[test]
fn open_and_closed_files_are_summed() {
    let mut fixture = Fixture::new("sum");
    // The Retry answers of queue 0 are the word 8.
    fixture.memory.write_all_at(&7_u64.to_ne_bytes(), 8 * 8).unwrap();
    fixture.index.departed = vec![Departed { files: 2, words: vec![(8, 30)], ..Departed::default() }];
    fixture.write();
    let snapshot = run::read(&fixture.folder.0, "run-1").unwrap();
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
    let snapshot = run::read(&fixture.folder.0, "run-1").unwrap();
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
    let snapshot = run::read(&fixture.folder.0, "run-1").unwrap();
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
    assert_eq!(subscribe(&fixture.folder.0).unwrap(), 1);
    let bytes = fs::read(fixture.folder.0.join("memory")).unwrap();
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
    assert!(matches!(run::read(&fixture.folder.0, "x"), Err(ReadError::Version { .. })));
    fs::write(fixture.folder.0.join(INDEX), "{").unwrap();
    assert!(matches!(run::read(&fixture.folder.0, "x"), Err(ReadError::Damaged { .. })));
    fs::remove_file(fixture.folder.0.join(INDEX)).unwrap();
    symlink("memory", fixture.folder.0.join(INDEX)).unwrap();
    assert!(matches!(run::read(&fixture.folder.0, "x"), Err(ReadError::Index { .. })), "a link is not followed");
}
