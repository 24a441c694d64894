//! Replicas of blocks: what is found again, also after the process was killed at any moment.
#![cfg(not(loom))]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use telpher_cache::{Cache, Config, ReplicaError, Replicas};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::{DurableFileError, Mover, Policy, Threshold};
use telpher_os::Random;

/// Set in the environment of a writer: its file, and its seed.
const WRITER: &str = "TELPHER_CACHE_TEST_WRITER";

const KEYS: u64 = 5;
const PLACES: u32 = 6;
const BYTES: u64 = 20_000;

/// A new path, or `None` if the folder for tests is in memory.
fn path(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replicas-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    match Replicas::create(Mover::cpu(), &path, 2, 1) {
        Ok(_) => {
            std::fs::remove_file(&path).unwrap();
            Some(path)
        }
        Err(ReplicaError::File(DurableFileError::InMemory { .. })) => {
            eprintln!("skipped: {} is in memory", path.display());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Opens a file that this process has just closed. A child that another test has forked, and that does not execute its
/// program yet, may still have it.
fn open(mover: Mover, path: &Path) -> Result<Replicas, ReplicaError> {
    let start = std::time::Instant::now();
    loop {
        match Replicas::open(mover.clone(), path) {
            Err(ReplicaError::File(DurableFileError::InUse { .. })) if start.elapsed().as_secs() < 60 => {
                std::thread::yield_now();
            }
            opened => return opened,
        }
    }
}

/// A mover with a device that does every copy.
fn device() -> Mover {
    let opened = telpher_device::open(&"model:v2-full".parse().unwrap(), telpher_device::OpenOptions::default());
    Mover::new(opened.unwrap().portals, Policy { threshold: Threshold::all(0), ..Policy::default() })
}

/// The block of a key in its `version`-th replica: the version, then bytes that follow from both.
fn block(key: u64, version: u64) -> Vec<u8> {
    let len = 8 + (key * 3000 + version * 611) % (BYTES - 8);
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    Random::new(key << 32 | version).fill(&mut bytes);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn version(block: &[u8]) -> u64 {
    u64::from_le_bytes(*block.first_chunk().unwrap())
}

#[test]
fn blocks_of_a_cache_are_found_again_by_their_keys() {
    let Some(path) = path("again") else { return };
    for mover in [Mover::cpu(), device()] {
        let fast = Pool::new(PoolOptions::new(1 << 20)).unwrap();
        let cache = Cache::new(mover.clone(), Config::new([fast])).unwrap();
        let source: Arc<[u8]> = block(1, 1).into();
        let handle = cache.access(&source, 0..source.len()).unwrap();
        let mut replicas = Replicas::create(mover.clone(), &path, PLACES, BYTES).unwrap();
        replicas.replicate(1, &handle.wait()).unwrap();
        replicas.replicate(2, b"").unwrap();
        for version in 1..20 {
            replicas.replicate(u64::MAX, &block(3, version)).unwrap();
        }
        let long = replicas.replicate(3, &vec![0; 20_001]).unwrap_err();
        assert!(matches!(long, ReplicaError::TooLong { len: 20_001, most: BYTES }));
        assert!(matches!(
            Replicas::open(mover.clone(), &path),
            Err(ReplicaError::File(DurableFileError::InUse { .. }))
        ));
        drop(replicas);
        let mut replicas = open(mover.clone(), &path).unwrap();
        let restored = replicas.restore(1).unwrap().unwrap();
        assert_eq!(cache.access(&restored, 0..restored.len()).unwrap().wait()[..], source[..]);
        assert_eq!(replicas.restore(u64::MAX).unwrap().as_deref(), Some(&block(3, 19)[..]));
        assert_eq!((replicas.restore(2).unwrap().as_deref(), replicas.restore(3).unwrap()), (Some(&[][..]), None));
        assert!(replicas.remove(u64::MAX).unwrap() && !replicas.remove(u64::MAX).unwrap());
        drop(replicas);
        let replicas = open(mover, &path).unwrap();
        let mut keys: Vec<u64> = replicas.keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, [1, 2], "a removed key has no older replica either");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_full_file_says_so_and_keeps_what_it_has() {
    let Some(path) = path("full") else { return };
    let mut replicas = Replicas::create(Mover::cpu(), &path, 2, 100).unwrap();
    replicas.replicate(1, b"one").unwrap();
    replicas.replicate(2, b"two").unwrap();
    assert!(matches!(replicas.replicate(1, b"new"), Err(ReplicaError::Full { places: 2 })));
    assert_eq!(replicas.restore(1).unwrap().as_deref(), Some(&b"one"[..]));
    assert!(replicas.remove(2).unwrap());
    replicas.replicate(1, b"new").unwrap();
    assert_eq!(replicas.restore(1).unwrap().as_deref(), Some(&b"new"[..]));
    for (places, bytes) in [(1, 100), (2, 0), (u32::MAX, u64::MAX), (2, u64::MAX)] {
        let refused = Replicas::create(Mover::cpu(), &path, places, bytes).unwrap_err();
        assert!(matches!(refused, ReplicaError::Shape { .. }), "{refused}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn damage_is_reported_and_never_returned() {
    let Some(path) = path("damage") else { return };
    let mut replicas = Replicas::create(Mover::cpu(), &path, 2, 100).unwrap();
    replicas.replicate(1, b"one").unwrap();
    drop(replicas);
    let intact = std::fs::read(&path).unwrap();
    // Every byte of the shape, the first header and the block.
    for at in (0..40).chain(4096..4096 + 40).chain(8192..8195) {
        let mut bytes = intact.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        match open(Mover::cpu(), &path) {
            Err(ReplicaError::NotReplicas) => assert!(at < 40, "byte {at}"),
            Ok(replicas) => match replicas.restore(1) {
                Ok(None) => assert!((4096..8192).contains(&at), "byte {at}"),
                Err(ReplicaError::Damaged { key: 1 }) => assert!(at >= 8192, "byte {at}"),
                other => panic!("byte {at}: {other:?}"),
            },
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    std::fs::remove_file(path).unwrap();
}

/// Not a test: the code of a writer. It prints each replica that it has made.
#[test]
fn the_writer_replicates() {
    let Ok(what) = std::env::var(WRITER) else { return };
    let (seed, path) = what.split_once(',').unwrap();
    let mut random = Random::new(seed.parse().unwrap());
    let mut replicas = open(Mover::cpu(), Path::new(path)).unwrap();
    let mut versions: HashMap<u64, u64> = HashMap::new();
    for key in 0..KEYS {
        versions.insert(key, replicas.restore(key).unwrap().map_or(0, |block| version(&block)));
    }
    let mut out = std::io::stdout();
    loop {
        let key = random.below(KEYS);
        let version = versions.get_mut(&key).unwrap();
        *version += 1;
        replicas.replicate(key, &block(key, *version)).unwrap();
        writeln!(out, "made {key} {version}").unwrap();
        out.flush().unwrap();
    }
}

/// A writer is killed after a random number of replicas, at whatever it is doing then. Each replica that it has
/// reported is there, or a later one of its key, and whole.
#[test]
fn a_killed_process_leaves_every_acknowledged_block_whole() {
    let Some(path) = path("killed") else { return };
    drop(Replicas::create(Mover::cpu(), &path, PLACES, BYTES).unwrap());
    let mut random = Random::new(7);
    let mut acknowledged: HashMap<u64, u64> = HashMap::new();
    for round in 0..12 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_writer_replicates", "--nocapture"])
            .env(WRITER, format!("{round},{}", path.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wanted = 1 + random.below(12);
        let mut made = 0;
        let mut note = |line: String| {
            let mut words = line.split(' ').skip_while(|word| !word.ends_with("made")).skip(1);
            let (Some(key), Some(version)) = (words.next(), words.next()) else { return false };
            // The last line may be cut off, also within its number.
            let (Ok(key), Ok(version)) = (key.parse::<u64>(), version.parse::<u64>()) else { return false };
            let least = acknowledged.entry(key).or_default();
            *least = (*least).max(version);
            true
        };
        while made < wanted {
            made += u64::from(note(lines.next().expect("a writer does not end by itself").unwrap()));
        }
        // A part of the time of a replica, so that kills fall into all its steps.
        std::thread::sleep(std::time::Duration::from_micros(random.below(3000)));
        child.kill().unwrap();
        child.wait().unwrap();
        lines.map_while(Result::ok).for_each(|line| {
            note(line);
        });
        let replicas = open(Mover::cpu(), &path).unwrap();
        for (&key, &least) in &acknowledged {
            let found = replicas.restore(key).unwrap().expect("an acknowledged key has a replica");
            let version = version(&found);
            assert!(version >= least, "round {round}: key {key} has {version}, acknowledged was {least}");
            assert_eq!(found[..], block(key, version)[..], "round {round}: key {key}");
        }
    }
    std::fs::remove_file(path).unwrap();
}
