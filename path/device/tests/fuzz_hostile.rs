//! Hostile descriptors: seeded inputs for the time that `TELPHER_SOAK_SECONDS` sets, and every kept find.

#[path = "../../../fuzz/hostile.rs"]
mod hostile;

use std::path::Path;
use std::time::{Duration, Instant};
use telpher_os::Random;

/// A deterministic random number generator with ranges and choices.
struct Rng(Random);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0.next()
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

    /// Returns mostly an address in the island or just outside, sometimes any address.
    fn address(&mut self) -> u64 {
        match self.below(20) {
            0 => self.next(),
            1 => u64::MAX - self.below(64),
            2..=9 => hostile::BASE + (self.below(hostile::BYTES + 4096) & !63),
            _ => hostile::BASE - 64 + self.below(hostile::BYTES + 128),
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

    /// Returns 64 bytes that often pass the checks, as a member of a batch or not.
    fn descriptor(&mut self, member: bool) -> [u8; 64] {
        // Those of 1.x half of the time.
        let (first, newer) = (
            [0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x20_u64].as_slice(),
            [0x0a, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x21, 0x23, 0x24, 0x25, 0x26].as_slice(),
        );
        let opcodes = if self.once_in(2) { newer } else { first };
        let opcode = opcodes[usize::try_from(self.below(opcodes.len() as u64)).expect("small")];
        // Flags that may be legal here, besides those for a record: SPEC Table 5-3.
        let mut flags = 0x0c;
        let legal = match opcode {
            0 => 0,
            1 | 2 => 0x200,
            4 => 0x4_0502,
            5 | 6 => 0x0282,
            7 => 0x4f82,
            0x10 => 0x7_0202,
            0x11 => 0x7_4702,
            0x12 => 0x0202,
            0x0a => 0x1_0002,
            0x18 => 0x3_4782,
            0x19 => 0x1_4f82,
            0x1a => 0x3_4f82,
            0x1b => 0x4f82,
            0x1c | 0x1d => 0x3_4f02,
            0x1e => 0x2_4d02,
            0x21 => 0x1_0000,
            0x23 => 0x3_4702,
            0x24 => 0x6_4502,
            0x25 => 0x3_0682,
            0x26 => 0x1_0282,
            _ => 0x4702,
        };
        flags |= legal & if self.once_in(2) { 2 } else { self.next() & self.next() };
        flags |= u64::from(member && self.once_in(4));
        let mut words = [0, self.address() & !31, self.address(), self.address(), self.size(), 0, 0, 0];
        match opcode {
            0 | 2 => words[2..].fill(0),
            1 => (words[2], words[3], words[4]) = (words[2] & !63, 0, self.below(70)),
            4 => words[5] = if flags & 0x4_0000 != 0 { self.next() } else { 0 },
            5 | 6 => words[5] = self.below(2),
            7 => (words[5], words[6], words[4]) = (self.address() & !7, 80 + self.below(40) * 10, words[4] & !7),
            8 => (words[5], words[4]) = (self.below(40) * 10, words[4] & !7),
            9 => words[5] = self.address() & !0xfff | words[3] & 0xfff,
            0x10 | 0x11 => {
                words[3] = if opcode == 0x10 { 0 } else { words[3] };
                (words[5], words[6]) =
                    if flags & 0x1_0000 != 0 { (0, self.address() & !7) } else { (self.next() >> 32, 0) };
            }
            0x12..=0x15 => {
                words[4] = [512, 520, 520, 528, 1040, 4096, 4104, 8208][usize::try_from(self.below(8)).expect("small")];
                (words[5], words[6], words[7]) = (self.next() & 0x0f_f8ff, self.next(), self.next());
                if opcode == 0x13 {
                    (words[5], words[6]) = (words[5] & !0xff, 0);
                } else if opcode != 0x15 {
                    (words[5], words[7]) = (words[5] & !0xff00, 0);
                    words[3] = if opcode == 0x12 { 0 } else { words[3] };
                }
            }
            0x20 => words[2] = 0,
            0x0a => (words[3], words[6]) = (0, if flags & 0x1_0000 != 0 { 4096 << self.below(3) } else { 0 }),
            0x17 => {
                words[4] = [512, 520, 1024, 4096][usize::try_from(self.below(4)).expect("small")];
                (words[5], words[7]) = (self.next() & 0x0f_f800, self.next());
            }
            0x18..=0x1e => self.array_fields(opcode, flags, &mut words),
            0x21 => {
                words[2..5].copy_from_slice(&[self.address(), self.below(9000), 0]);
                words[7] = self.below(16) << 40 | self.below(4) << 48;
            }
            0x23..=0x26 => {
                words[5] = if opcode >= 0x25 { self.below(2) } else { self.next() };
                words[5] *= u64::from(opcode != 0x23);
                flags |= [0x1_0000, 0x2_0000, 0x1_0000, 0x1_0000][usize::try_from(opcode - 0x23).expect("small")];
                words[7] = self.handles(flags);
            }
            _ => {}
        }
        words[0] = opcode << 56 | flags << 32;
        // Sometimes anything: an opcode, a flag, a reserved byte.
        if self.once_in(6) {
            let word = usize::try_from(self.below(8)).expect("small");
            words[word] ^= if self.once_in(4) { self.next() } else { 1 << self.below(64) };
        }
        let mut bytes = [0; 64];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// Returns the handles of a descriptor, where its flags say so.
    fn handles(&mut self, flags: u64) -> u64 {
        let [first, second] = [self.below(5), self.below(5)];
        first * (flags >> 16 & 1) << 32 | second * (flags >> 17 & 1) << 48
    }

    /// Fills in an operation on arrays or lists of buffers; small ones, so that some lie in the island.
    fn array_fields(&mut self, opcode: u64, flags: u64, words: &mut [u64; 8]) {
        let (elements, buffers) = (1 + self.below(20), 1 + self.below(6));
        let types = self.below(10) << 4 | self.below(10);
        let (compute, options, format) = (self.below(8), self.below(1 << 12), 1 + self.below(3));
        // Arrays of numbers are aligned to them.
        if opcode <= 0x1b {
            (words[2], words[3]) = (words[2] & !7, words[3] & !7);
        }
        words[4] = elements;
        words[7] = match opcode {
            0x18 => types | options << 12 | self.handles(flags),
            0x19 | 0x1a => types | compute << 8 | options << 12 | self.below(16) << 24 | self.handles(flags),
            0x1b => types | compute << 8 | options << 12 | format << 28,
            _ => types & 0xf | format << 28 | self.handles(flags),
        };
        match opcode {
            0x19 | 0x1a => {
                words[5] = self.address() & !7;
                words[6] = if opcode == 0x1a { self.address() & !0xfff | words[5] & 0xfff } else { 0 };
            }
            0x1b => (words[5], words[6]) = (buffers << 32, self.address()),
            0x1c..=0x1e => {
                words[4] = elements * buffers << self.below(4);
                (words[5], words[6]) = (buffers << 32 | elements, self.address());
            }
            _ => {}
        }
    }

    /// Returns a whole input, in the grammar of `hostile::play`.
    fn input(&mut self) -> Vec<u8> {
        let mut input = vec![self.byte()];
        for _ in 0..=self.below(60) {
            match self.below(16) {
                0..=5 => {
                    input.push(0);
                    input.extend(self.descriptor(false));
                }
                6..=8 => input.extend([4, self.byte()]),
                9 => input.extend([5, self.byte()]),
                10 => input.extend([6, self.byte(), self.byte() & 7]),
                _ => {
                    // A member of a batch list.
                    let at = u16::try_from(self.below(hostile::BYTES / 64) * 64).expect("an island has 64 KiB");
                    input.push(7);
                    input.extend(at.to_le_bytes());
                    input.extend(self.descriptor(true));
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
    // A short run repeats itself; a longer one continues after it.
    for seed in 0.. {
        let input = Rng(Random::new(seed)).input();
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
