//! One input on one connection: both ends are used while a hostile peer writes any words into the shared memory. No end
//! panics or accesses memory outside the connection's. Every field that an end returns is within the limits. Once an
//! end has reported a broken rule, it reports the same for ever. Until the first hostile write, every message and
//! answer arrives as it was pushed.
//!
//! An input is a list of steps, each a byte and its operands: push a message or an answer, take one, leave one in the
//! ring, and as the hostile peer write an entry that looks like the next one, a count of taken entries, or any word
//! anywhere. Used by the libFuzzer target and by the bounded test `uses/fabric/tests/fuzz_fabric.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use telpher_fabric::entry::{
    AccessAnswer, AccessId, AccessPiece, Answer, AtomicEntry, Envelope, INLINE_BYTES, MOST_SLOTS_FREE, Message,
    MessageId,
};
use telpher_fabric::regions::RemoteRange;
use telpher_fabric::{
    AccessError, Atomic, AtomicOp, Broken, Buffer, Config, Incoming, Number, Offered, OfferedFile, OfferedMemory,
    Outgoing, Payload, PushError, Segments, link,
};
use telpher_mem::{Local, SharedWords64, Space};

/// Most steps of an input: longer inputs find nothing new.
const STEPS: usize = 500;
/// A small connection, so that rings are full and wrap soon.
const ENTRIES: u32 = 8;
const PAYLOAD_BYTES: u32 = 4096;
const SLOTS: u32 = 4;
const SLOT_BYTES: u32 = 4096;
const LONG_PAYLOAD_BYTES: u32 = 8192;
/// Some payloads are short and others long.
const EAGER_BYTES: u32 = 1500;
/// Where the parts of the memory are, as the layout's documentation says.
const MESSAGES_TAKEN: usize = 0;
const ANSWERS_TAKEN: usize = 128;
const MESSAGES: usize = 4096;
const ANSWERS: usize = 2 * 4096;
const ENTRY_BYTES: usize = 64;

/// The rest of an input; zeros after its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number that is often at an edge.
    fn edge(&mut self, limit: u64) -> u64 {
        match self.byte() % 8 {
            0 => 0,
            1 => limit,
            2 => limit.wrapping_add(1),
            3 => limit.wrapping_sub(1),
            4 => u64::MAX,
            5 => 1 << (self.byte() % 64),
            6 => u64::from(self.byte()),
            _ => self.word(),
        }
    }
}

struct Fixture {
    outgoing: Outgoing,
    incoming: Incoming,
    words: SharedWords64,
    local: Local,
    /// What was pushed and not taken, with the bytes; valid until the first hostile write.
    messages: VecDeque<(Message, Vec<u8>)>,
    answers: VecDeque<Answer>,
    /// Entries that each end has taken, from which a hostile peer knows the next one.
    taken: [u32; 2],
    is_honest: bool,
    broken: [Option<Broken>; 2],
}

/// Runs one input; panics if a promise is broken.
pub(crate) fn play(input: &[u8]) {
    let mut input = Input(input);
    let mut scene = Fixture::new();
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        scene.step(&mut input);
    }
}

impl Fixture {
    #[allow(unsafe_code, reason = "reads the connection's memory, and buffers of this file")]
    fn new() -> Fixture {
        let mut config = Config::default();
        (config.ring_entries, config.payload_bytes, config.eager_bytes) = (ENTRIES, PAYLOAD_BYTES, EAGER_BYTES);
        (config.slots, config.slot_bytes, config.long_payload_bytes) = (SLOTS, SLOT_BYTES, LONG_PAYLOAD_BYTES);
        let (outgoing, incoming) = link(&config).expect("the sizes are within their limits");
        let memory = Arc::clone(outgoing.memory().mapping());
        let words = SharedWords64::new(&memory, 0, memory.len() / 8).expect("all words");
        // SAFETY: reads memory that no Rust reference writes.
        let local = unsafe { Local::new() };
        let (messages, answers) = (VecDeque::new(), VecDeque::new());
        Fixture {
            outgoing,
            incoming,
            words,
            local,
            messages,
            answers,
            taken: [0; 2],
            is_honest: true,
            broken: [None; 2],
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..=3 => self.push(input),
            4..=6 => self.take(input),
            7 => self.push_answer(input),
            8 => self.take_answer(),
            9..=11 => self.forge(input),
            12 => self.forge_count(input),
            13 => {
                let at = input.word() % self.words.len() as u64;
                self.write(usize::try_from(at).expect("an index"), input.word());
            }
            // Most inputs begin with some honest traffic.
            _ => {
                self.push(input);
                self.take(input);
            }
        }
    }

    #[allow(unsafe_code, reason = "vouches for bytes that outlive the push")]
    fn push(&mut self, input: &mut Input<'_>) {
        let id = MessageId(u32::from(input.byte()));
        let len = if input.byte().is_multiple_of(2) {
            u64::from(input.byte() % 40)
        } else {
            input.word() % u64::from(EAGER_BYTES + 1)
        };
        let is_tagged = input.byte().is_multiple_of(2);
        let data = (input.byte().is_multiple_of(2)).then(|| input.word());
        let envelope = Envelope { is_tagged, tag: if is_tagged { input.word() } else { 0 }, data, len };
        let message = match input.byte() % 10 {
            0 if input.byte().is_multiple_of(2) => Message::Announce { envelope, id },
            0 => {
                let [address, token_address, token] = [input.word() >> 1, input.word(), input.word() | 1];
                let memory = OfferedMemory { address, token_address, token };
                let file = OfferedFile { place: input.byte() % 8, generation: input.byte().into(), offset: address };
                let at = if input.byte().is_multiple_of(2) { Offered::Process(memory) } else { Offered::File(file) };
                Message::Offer { envelope, id, at }
            }
            1 => {
                Message::Piece { id, slot: u16::from(input.byte() % 4), len: 1 + u32::from(input.byte()), offset: len }
            }
            2 if input.byte().is_multiple_of(2) => Message::ReadEnd { id: AccessId(id.0) },
            2 => Message::Abort { id },
            6 => {
                let range = RemoteRange { key: input.word(), address: input.word(), len };
                Message::Write { id: AccessId(id.0), range, data }
            }
            9 => {
                let of = Number::ALL[usize::from(input.byte()) % Number::ALL.len()];
                let atomic = Atomic { op: AtomicOp::ALL[usize::from(input.byte()) % AtomicOp::ALL.len()], of };
                let slot = input.byte().is_multiple_of(2).then(|| u16::from(input.byte() % 4));
                let len = of.bytes() * u64::from(1 + input.byte() % 40);
                let range = RemoteRange { key: input.word(), address: input.word(), len };
                let entry = AtomicEntry { id: AccessId(id.0), range, atomic, slot };
                if !atomic.exists(entry.form()) {
                    return;
                }
                Message::Atomic(entry)
            }
            kind @ 7.. => {
                let (slot, len) = (u16::from(input.byte() % 4), 1 + u32::from(input.byte()));
                let offset = input.word() >> 2;
                let range = RemoteRange { key: input.word(), address: input.word(), len: offset + u64::from(len) };
                let piece = AccessPiece { id: AccessId(id.0), range, slot, len, offset };
                if kind == 7 { Message::WritePiece(piece) } else { Message::ReadPiece(piece) }
            }
            kind => Message::Eager { envelope, wants_answer: (kind == 3).then_some(id) },
        };
        let mut bytes = Vec::new();
        if matches!(message, Message::Eager { .. } | Message::Write { .. } | Message::Atomic(_)) {
            let first = input.byte();
            bytes.extend((0..message.payload().0).map(|at| first.wrapping_add(at.to_le_bytes()[0])));
        }
        let address = bytes.as_ptr().expose_provenance() as u64;
        // SAFETY: the bytes live until the end of this function.
        let buffer = unsafe { Buffer::vouch(address, bytes.len() as u64) };
        match self.outgoing.push(&message, &Segments::new(&[buffer]).expect("one buffer")) {
            Ok(()) => self.messages.push_back((message, bytes)),
            Err(PushError::Full) => assert!(!self.is_honest || self.messages.len() > 1, "an empty ring is full"),
            Err(PushError::Broken(broken)) => breaks(&mut self.broken[0], self.is_honest, broken),
            Err(error) => panic!("{error}"),
        }
    }

    fn take(&mut self, input: &mut Input<'_>) {
        let memory = Arc::clone(self.incoming.memory().mapping());
        let arrived = match self.incoming.next_message() {
            Ok(Some(arrived)) => arrived,
            Ok(None) => return assert!(!self.is_honest || self.messages.is_empty(), "a message is missing"),
            Err(broken) => return breaks(&mut self.broken[1], self.is_honest, broken),
        };
        let (message, payload) = (*arrived.message(), *arrived.payload());
        let mut bytes = Vec::new();
        match (message, payload) {
            (Message::Eager { .. } | Message::Write { .. } | Message::Atomic(_), Payload::Inline(inline)) => {
                let (len, inline_bytes) = message.payload();
                assert!(len <= inline_bytes as u64 && inline_bytes <= INLINE_BYTES);
                bytes.extend_from_slice(&inline[..usize::try_from(len).expect("at most 32")]);
            }
            (Message::Eager { .. } | Message::Write { .. } | Message::Atomic(_), Payload::Shared { address, len }) => {
                assert!(u64::from(len) == message.payload().0 && len <= EAGER_BYTES);
                let end = address + u64::from(len);
                assert!(address >= memory.address() && end <= memory.address() + memory.len() as u64);
                bytes.resize(usize::try_from(len).expect("at most 1500"), 0);
                self.local.read(address, &mut bytes).expect("the payload is mapped");
            }
            (Message::Announce { envelope, .. }, Payload::Inline(_)) => assert!(envelope.len <= 1 << 63),
            (Message::Offer { envelope, at, .. }, Payload::Inline(_)) => {
                let (first, is_valid) = match at {
                    Offered::Process(memory) => (memory.address, memory.token != 0),
                    Offered::File(file) => (file.offset, file.place < 8),
                };
                assert!(first.checked_add(envelope.len).is_some() && is_valid);
            }
            (Message::Piece { slot, len, offset, .. }, Payload::Inline(_)) => {
                assert!(u32::from(slot) < SLOTS && len > 0 && len <= SLOT_BYTES);
                assert!(offset.checked_add(len.into()).is_some());
            }
            (Message::WritePiece(piece) | Message::ReadPiece(piece), Payload::Inline(_)) => {
                assert!(u32::from(piece.slot) < SLOTS && piece.len > 0 && piece.len <= SLOT_BYTES);
                assert!(piece.offset + u64::from(piece.len) <= piece.range.len && piece.range.len <= 1 << 63);
            }
            (Message::Abort { .. } | Message::ReadEnd { .. }, Payload::Inline(_)) => {}
            (message, payload) => panic!("{message:?} with {payload:?}"),
        }
        if self.is_honest {
            assert_eq!(Some(&(message, bytes)), self.messages.front());
        }
        if input.byte().is_multiple_of(8) {
            return arrived.leave();
        }
        drop(arrived);
        self.taken[0] = self.taken[0].wrapping_add(1);
        self.messages.pop_front();
        if let Message::Piece { slot, .. } = message {
            assert!(self.incoming.slot(slot).is_some_and(|at| at >= memory.address()));
        }
    }

    fn push_answer(&mut self, input: &mut Input<'_>) {
        let id = MessageId(u32::from(input.byte()));
        let answer = match input.byte() % 4 {
            2 => {
                let slot = input.byte().is_multiple_of(2).then(|| u16::from(input.byte() % 4));
                let results = [Ok(()), Err(AccessError::UnknownKey), Err(AccessError::NotMapped)];
                let result = results[usize::from(input.byte() % 3)];
                let wants_end = slot.is_some() && input.byte().is_multiple_of(2);
                Answer::Accessed(AccessAnswer { id: AccessId(id.0), slot, wants_end, result })
            }
            0 => Answer::Matched { id, len: input.word() >> 1 },
            1 if input.byte().is_multiple_of(2) => Answer::Received { id },
            1 => Answer::Prefers { class: input.byte() % 64, offers: input.byte().is_multiple_of(2) },
            _ => {
                let count = 1 + input.byte() % 24;
                let used = usize::from(count);
                let slot = |at| if at < used { u16::from(input.byte() % 4) } else { 0 };
                Answer::SlotsFree { count, slots: std::array::from_fn(slot) }
            }
        };
        match self.incoming.push_answer(&answer) {
            Ok(()) => self.answers.push_back(answer),
            Err(PushError::Full) => assert!(!self.is_honest || self.answers.len() > 1, "an empty ring is full"),
            Err(PushError::Broken(broken)) => breaks(&mut self.broken[1], self.is_honest, broken),
            Err(error) => panic!("{error}"),
        }
    }

    fn take_answer(&mut self) {
        let answer = match self.outgoing.next_answer() {
            Ok(Some(answer)) => answer,
            Ok(None) => return assert!(!self.is_honest || self.answers.is_empty(), "an answer is missing"),
            Err(broken) => return breaks(&mut self.broken[0], self.is_honest, broken),
        };
        match answer {
            Answer::Matched { len, .. } => assert!(len <= 1 << 63),
            Answer::SlotsFree { count, slots } => {
                assert!(count > 0 && usize::from(count) <= MOST_SLOTS_FREE);
                assert!(slots.iter().all(|slot| u32::from(*slot) < SLOTS));
            }
            Answer::Accessed(AccessAnswer { slot, wants_end, .. }) => {
                assert!(slot.map_or(!wants_end, |slot| u32::from(slot) < SLOTS));
            }
            Answer::Prefers { class, .. } => assert!(class < 64),
            Answer::Received { .. } => {}
        }
        if self.is_honest {
            assert_eq!(Some(&answer), self.answers.front());
        }
        self.taken[1] = self.taken[1].wrapping_add(1);
        self.answers.pop_front();
    }

    fn write(&mut self, word: usize, value: u64) {
        self.is_honest = false;
        self.words[word].store(value, Ordering::Release);
    }

    /// Writes an entry that looks like the next one, with fields at the edges of their limits.
    fn forge(&mut self, input: &mut Input<'_>) {
        let ring = usize::from(input.byte() % 2);
        let next = self.taken[ring];
        let start = [MESSAGES, ANSWERS][ring] + (next % ENTRIES) as usize * ENTRY_BYTES;
        let kinds: [&[u8]; 2] = [&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], &[17, 18, 19, 20, 21]];
        let kind = match input.byte() {
            any @ 0..10 => any,
            chosen => kinds[ring][usize::from(chosen) % kinds[ring].len()],
        };
        let [flags, slot_low, slot_high] = match input.byte() % 4 {
            0 => [input.byte(), input.byte(), input.byte()],
            1 => [0, input.byte() % 5, 0],
            2 => [input.byte() % 8, 0, 0],
            _ => [0; 3],
        };
        let limits = [0, 1 << 63, 0, u64::from(EAGER_BYTES) << 32, 1 << 63, 3, 3, 3];
        for (word, limit) in limits.into_iter().enumerate().skip(1) {
            let value = input.edge(limit);
            self.write(start / 8 + word, value);
        }
        let sequence = next.wrapping_add(1).to_le_bytes();
        let head = [sequence[0], sequence[1], sequence[2], sequence[3], kind, flags, slot_low, slot_high];
        self.write(start / 8, u64::from_le_bytes(head));
    }

    /// Writes a count of taken entries.
    fn forge_count(&mut self, input: &mut Input<'_>) {
        let ring = usize::from(input.byte() % 2);
        let value = input.edge(u64::from(self.taken[ring]));
        self.write([MESSAGES_TAKEN, ANSWERS_TAKEN][ring] / 8, value);
    }
}

/// The first broken rule is the one that an end reports from then on.
fn breaks(first: &mut Option<Broken>, is_honest: bool, broken: Broken) {
    assert!(!is_honest, "{broken}");
    assert_eq!(*first.get_or_insert(broken), broken);
}
