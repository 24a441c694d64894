//! Hostile descriptors, bounded: seeded inputs for as long as `TELPHER_SOAK_SECONDS` says, and every kept find.

#[path = "../../../fuzz/hostile.rs"]
mod hostile;

use std::path::Path;
use std::time::{Duration, Instant};

/// Deterministic chance: splitmix64, Steele et al. 2014.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Mostly an address of the island or just outside, sometimes anything.
    fn address(&mut self) -> u64 {
        match self.below(20) {
            0 => self.next(),
            1 => u64::MAX - self.below(64),
            2..=9 => hostile::BASE + (self.below(hostile::PAGES * 4096 + 4096) & !63),
            _ => hostile::BASE - 64 + self.below(hostile::PAGES * 4096 + 128),
        }
    }

    fn size(&mut self) -> u64 {
        match self.below(8) {
            0 => self.next() & 0xffff_ffff,
            1 => 0,
            2 => 1 << self.below(32),
            3 => self.below(17) * 520,
            _ => self.below(9000),
        }
    }

    /// 64 bytes that often get past the first checks.
    fn descriptor(&mut self) -> [u8; 64] {
        let opcodes = [0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x20];
        let opcode = if self.once_in(16) {
            self.byte().into()
        } else {
            opcodes[usize::try_from(self.below(opcodes.len() as u64)).expect("small")]
        };
        // A record where it can be written, and a few other flags.
        let mut flags = 0x0c;
        for (flag, rarity) in [(0x01, 8), (0x02, 4), (0x10, 16), (0x80, 6), (0x100, 6), (0x4000, 12), (1 << 18, 8)] {
            flags |= if self.once_in(rarity) { flag } else { 0 };
        }
        if self.once_in(16) {
            flags = self.next() & 0xff_ffff;
        }
        let mut words = [u64::from(opcode) << 56 | flags << 32, self.address() & !31, 0, 0, 0, 0, 0, 0];
        (words[2], words[3], words[4]) = (self.address(), self.address(), self.size());
        if opcode == 1 {
            (words[2], words[4]) = (words[2] & !63, self.below(70));
        }
        for word in &mut words[3..] {
            if self.once_in(6) {
                *word = self.next();
            }
        }
        if self.once_in(2) {
            words[5] = self.address();
            words[6] = self.size();
        }
        let mut bytes = [0; 64];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// A whole input, in the grammar of `hostile::play`.
    fn input(&mut self) -> Vec<u8> {
        let mut input = vec![self.byte()];
        for _ in 0..=self.below(60) {
            match self.below(16) {
                0..=5 => {
                    input.push(0);
                    input.extend(self.descriptor());
                }
                6..=8 => input.extend([4, self.byte()]),
                9 => input.extend([5, self.byte()]),
                10 => input.extend([6, self.byte(), self.byte() & 7]),
                _ => {
                    // A member of some batch list.
                    let at = u16::try_from(self.below(hostile::PAGES * 64) * 64).expect("an island has 64 KiB");
                    input.push(7);
                    input.extend(at.to_le_bytes());
                    input.extend(self.descriptor());
                }
            }
        }
        input
    }
}

#[test]
fn hostile_descriptors_never_panic_hang_or_reach_another_tenant() {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse().expect("whole seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    // A short run repeats itself; a longer one goes on where the short one ended.
    for seed in 0.. {
        let input = Chance(seed).input();
        if let Err(panic) = std::panic::catch_unwind(|| hostile::play(&input)) {
            eprintln!("seed {seed}: keep this input in fuzz/seeds:\n{input:?}");
            std::panic::resume_unwind(panic);
        }
        if Instant::now() > end {
            eprintln!("{} inputs", seed + 1);
            return;
        }
    }
}

#[test]
fn kept_finds_stay_fixed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for entry in std::fs::read_dir(folder).expect("fuzz/seeds") {
        let path = entry.expect("an entry").path();
        eprintln!("{}", path.display());
        hostile::play(&std::fs::read(&path).expect("a readable seed"));
    }
}
