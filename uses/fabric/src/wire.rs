//! The words of an entry. Every field of a peer is checked here, once.
//!
//! ```text
//! word 0   sequence number (the ring's), then the kind, the flags or the count, the slot
//! Eager        tag, data, id and length, 32 bytes
//! Announce     tag, data, id, length
//! Offer        tag, data, id, length, address, address of the token, token
//! Offer        of a file: tag, data, id, length, position, generation, -; the place of the file in place of a slot
//! Piece        offset, -, id and length
//! Abort        -, -, id
//! Write        key, data, id and length, address, 24 bytes
//! WritePiece   key, offset, id and length, address, length of the range
//! ReadPiece    as WritePiece
//! ReadEnd      -, -, id
//! Atomic       key, operation and type and length of the range, id and length of the operands, address, 24 bytes
//! Matched      length, -, id
//! SlotsFree    -, 24 slots of 16 bits
//! Received     -, -, id
//! Prefers      the number of bits of a length; whether memory is offered, in place of a count
//! Accessed     whether there is a slot and whether the end is wanted, -, id; the result in place of a count
//! ```

use crate::atomics::{Atomic, AtomicOp};
use crate::entry::{
    ACCESS_INLINE_BYTES, AccessAnswer, AccessId, AccessPiece, Answer, AtomicEntry, Envelope, INLINE_BYTES,
    MOST_SLOTS_FREE, Message, MessageId,
};
use crate::error::Broken;
use crate::layout::Sizes;
use crate::number::Number;
use crate::offered::{Offered, OfferedFile, OfferedMemory};
use crate::peer_files::MOST_FILES;
use crate::regions::{AccessError, RemoteRange};
use crate::ring::{ENTRY_WORDS, Entry};

const EAGER: u8 = 1;
const ANNOUNCE: u8 = 2;
const PIECE: u8 = 3;
const ABORT: u8 = 4;
const WRITE: u8 = 5;
const WRITE_PIECE: u8 = 6;
const READ_PIECE: u8 = 7;
const ATOMIC: u8 = 8;
const OFFER: u8 = 9;
const OFFER_FILE: u8 = 10;
const READ_END: u8 = 11;
const MATCHED: u8 = 17;
const SLOTS_FREE: u8 = 18;
const RECEIVED: u8 = 19;
const ACCESSED: u8 = 20;
const PREFERS: u8 = 21;

/// The results of an access, by their numbers; 0 is success.
const ACCESS_ERRORS: [AccessError; 5] = [
    AccessError::UnknownKey,
    AccessError::OutOfRange,
    AccessError::NotPermitted,
    AccessError::Misaligned,
    AccessError::NotMapped,
];

const IS_TAGGED: u8 = 1;
const HAS_DATA: u8 = 2;
const WANTS_ANSWER: u8 = 4;
const FETCHES: u8 = 8;

const HAS_SLOT: u64 = 1;
const WANTS_END: u64 = 2;

/// The first word of an entry's inline bytes.
const INLINE_WORD: usize = ENTRY_WORDS - INLINE_BYTES / size_of::<u64>();
/// The same for an access.
const ACCESS_INLINE_WORD: usize = ENTRY_WORDS - ACCESS_INLINE_BYTES / size_of::<u64>();
/// The first word of the slots in `SlotsFree`.
const SLOTS_WORD: usize = ENTRY_WORDS - MOST_SLOTS_FREE * size_of::<u16>() / size_of::<u64>();
/// The longest message. Source: chosen; sums of two lengths cannot overflow.
const MOST_LEN: u64 = 1 << 63;

/// The bytes of a short message, copied from its entry.
pub(crate) type Inline = [u8; INLINE_BYTES];

const fn broken(rule: &'static str) -> Broken {
    Broken { rule }
}

/// Composes the first word.
#[inline]
fn head(kind: u8, flags: u8, slot: u16) -> u64 {
    u64::from(kind) << 32 | u64::from(flags) << 40 | u64::from(slot) << 48
}

/// Splits the first word.
#[inline]
fn split_head(word: u64) -> (u8, u8, u16) {
    let [.., kind, flags, low, high] = word.to_le_bytes();
    (kind, flags, u16::from_le_bytes([low, high]))
}

#[inline]
fn pair(id: MessageId, len: u32) -> u64 {
    u64::from(id.0) | u64::from(len) << 32
}

#[inline]
fn split_pair(word: u64) -> (MessageId, u32) {
    #[allow(clippy::cast_possible_truncation, reason = "the two halves of a word")]
    (MessageId(word as u32), (word >> 32) as u32)
}

#[inline]
fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

#[inline]
fn flags_of(envelope: &Envelope) -> u8 {
    flag(envelope.is_tagged, IS_TAGGED) | flag(envelope.data.is_some(), HAS_DATA)
}

/// Encodes a message; the inline bytes are those of an eager message of up to [`INLINE_BYTES`].
#[inline]
pub(crate) fn encode_message(message: &Message, inline: &Inline) -> Entry {
    let mut entry = [0; ENTRY_WORDS];
    match *message {
        Message::Eager { envelope, wants_answer } => {
            let flags = flags_of(&envelope) | flag(wants_answer.is_some(), WANTS_ANSWER);
            entry[0] = head(EAGER, flags, 0);
            entry[1] = if envelope.is_tagged { envelope.tag } else { 0 };
            entry[2] = envelope.data.unwrap_or(0);
            // The length of an eager message was checked by the caller: it fits.
            entry[3] = u64::from(wants_answer.map_or(0, |id| id.0)) | envelope.len << 32;
            put_inline(&mut entry[INLINE_WORD..], inline);
        }
        Message::Announce { envelope, id } => {
            entry[0] = head(ANNOUNCE, flags_of(&envelope), 0);
            entry[1] = if envelope.is_tagged { envelope.tag } else { 0 };
            entry[2] = envelope.data.unwrap_or(0);
            entry[3] = pair(id, 0);
            entry[4] = envelope.len;
        }
        Message::Offer { envelope, id, at } => {
            entry[1] = if envelope.is_tagged { envelope.tag } else { 0 };
            entry[2] = envelope.data.unwrap_or(0);
            entry[3] = pair(id, 0);
            entry[4] = envelope.len;
            match at {
                Offered::Process(memory) => {
                    entry[0] = head(OFFER, flags_of(&envelope), 0);
                    [entry[5], entry[6], entry[7]] = [memory.address, memory.token_address, memory.token];
                }
                Offered::File(OfferedFile { place, generation, offset }) => {
                    entry[0] = head(OFFER_FILE, flags_of(&envelope), place.into());
                    [entry[5], entry[6]] = [offset, generation.into()];
                }
            }
        }
        Message::Piece { id, slot, len, offset } => {
            entry[0] = head(PIECE, 0, slot);
            entry[1] = offset;
            entry[3] = pair(id, len);
        }
        Message::Abort { id } => {
            entry[0] = head(ABORT, 0, 0);
            entry[3] = pair(id, 0);
        }
        Message::Write { id, range, data } => {
            entry[0] = head(WRITE, flag(data.is_some(), HAS_DATA), 0);
            entry[1] = range.key;
            entry[2] = data.unwrap_or(0);
            // The caller has checked the length, as for an eager message.
            entry[3] = u64::from(id.0) | range.len << 32;
            entry[4] = range.address;
            put_inline(&mut entry[ACCESS_INLINE_WORD..], inline);
        }
        Message::WritePiece(piece) => put_piece(&mut entry, WRITE_PIECE, &piece),
        Message::ReadPiece(piece) => put_piece(&mut entry, READ_PIECE, &piece),
        Message::ReadEnd { id } => {
            entry[0] = head(READ_END, 0, 0);
            entry[3] = pair(MessageId(id.0), 0);
        }
        Message::Atomic(AtomicEntry { id, range, atomic, slot }) => {
            entry[0] = head(ATOMIC, flag(slot.is_some(), FETCHES), slot.unwrap_or(0));
            entry[1] = range.key;
            entry[2] = u64::from(atomic.op as u8) | u64::from(atomic.of as u8) << 8 | range.len << 32;
            // The caller has checked the length, as for an eager message.
            entry[3] = u64::from(id.0) | atomic.operand_bytes(range.len) << 32;
            entry[4] = range.address;
            put_inline(&mut entry[ACCESS_INLINE_WORD..], inline);
        }
    }
    entry
}

/// Puts as many inline bytes into the words as fit.
#[inline]
fn put_inline(words: &mut [u64], inline: &Inline) {
    for (word, bytes) in words.iter_mut().zip(inline.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
}

/// Takes inline bytes out of the words.
#[inline]
fn take_inline(words: &[u64], inline: &mut Inline) {
    for (bytes, word) in inline.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
}

fn put_piece(entry: &mut Entry, kind: u8, piece: &AccessPiece) {
    entry[0] = head(kind, 0, piece.slot);
    entry[1] = piece.range.key;
    entry[2] = piece.offset;
    entry[3] = pair(MessageId(piece.id.0), piece.len);
    entry[4] = piece.range.address;
    entry[5] = piece.range.len;
}

/// Decodes a message and its inline bytes. The bytes are meaningful for an eager message only.
#[inline]
pub(crate) fn decode_message(entry: &Entry, sizes: &Sizes) -> Result<(Message, Inline), Broken> {
    let (kind, flags, slot) = split_head(entry[0]);
    let (id, len) = split_pair(entry[3]);
    if slot != 0 && ![PIECE, WRITE_PIECE, READ_PIECE, ATOMIC, OFFER_FILE].contains(&kind) {
        return Err(broken("a message has a slot and is no piece"));
    }
    let mut inline = [0; INLINE_BYTES];
    let message = match kind {
        EAGER => {
            if flags & !(IS_TAGGED | HAS_DATA | WANTS_ANSWER) != 0 {
                return Err(broken("an eager message has an unknown flag"));
            }
            if len > sizes.eager_bytes {
                return Err(broken("an eager message is longer than the connection allows"));
            }
            let wants_answer = (flags & WANTS_ANSWER != 0).then_some(id);
            if wants_answer.is_none() && id.0 != 0 {
                return Err(broken("a message has a number and wants no answer"));
            }
            take_inline(&entry[INLINE_WORD..], &mut inline);
            Message::Eager { envelope: envelope(entry, flags, len.into())?, wants_answer }
        }
        ANNOUNCE => {
            if flags & !(IS_TAGGED | HAS_DATA) != 0 {
                return Err(broken("an announcement has an unknown flag"));
            }
            if len != 0 || entry[4] > MOST_LEN {
                return Err(broken("an announced message is longer than any memory"));
            }
            Message::Announce { envelope: envelope(entry, flags, entry[4])?, id }
        }
        OFFER => {
            if flags & !(IS_TAGGED | HAS_DATA) != 0 {
                return Err(broken("an offer has an unknown flag"));
            }
            let fits = entry[4] <= MOST_LEN && entry[5].checked_add(entry[4]).is_some();
            if len != 0 || !fits || entry[7] == 0 {
                return Err(broken("an offered message is longer than any memory, or its memory has no token"));
            }
            let memory = OfferedMemory { address: entry[5], token_address: entry[6], token: entry[7] };
            Message::Offer { envelope: envelope(entry, flags, entry[4])?, id, at: Offered::Process(memory) }
        }
        OFFER_FILE => {
            let file = offered_file(entry, flags, slot, len)?;
            Message::Offer { envelope: envelope(entry, flags, entry[4])?, id, at: Offered::File(file) }
        }
        PIECE => {
            if u32::from(slot) >= sizes.slots || flags != 0 {
                return Err(broken("a piece is in a slot that does not exist"));
            }
            if len == 0 || len > sizes.slot_bytes || entry[1] > MOST_LEN - u64::from(len) {
                return Err(broken("a piece has no bytes, or more than a slot or a message can have"));
            }
            Message::Piece { id, slot, len, offset: entry[1] }
        }
        ABORT if flags == 0 && len == 0 => Message::Abort { id },
        WRITE => {
            take_inline(&entry[ACCESS_INLINE_WORD..], &mut inline);
            write(entry, flags, AccessId(id.0), len, sizes)?
        }
        WRITE_PIECE => Message::WritePiece(access_piece(entry, flags, slot, sizes)?),
        READ_PIECE => Message::ReadPiece(access_piece(entry, flags, slot, sizes)?),
        READ_END if flags == 0 && len == 0 => Message::ReadEnd { id: AccessId(id.0) },
        ATOMIC => {
            take_inline(&entry[ACCESS_INLINE_WORD..], &mut inline);
            Message::Atomic(atomic(entry, flags, slot, sizes)?)
        }
        _ => return Err(broken("a message has an unknown kind")),
    };
    Ok((message, inline))
}

fn offered_file(entry: &Entry, flags: u8, place: u16, len: u32) -> Result<OfferedFile, Broken> {
    let fits = entry[4] <= MOST_LEN && entry[5].checked_add(entry[4]).is_some();
    let place = u8::try_from(place).ok().filter(|place| usize::from(*place) < MOST_FILES);
    match (place, u32::try_from(entry[6])) {
        (Some(place), Ok(generation)) if flags & !(IS_TAGGED | HAS_DATA) == 0 && len == 0 && fits && entry[7] == 0 => {
            Ok(OfferedFile { place, generation, offset: entry[5] })
        }
        _ => Err(broken("an offer names a file that cannot exist, or more bytes than a file can have")),
    }
}

fn write(entry: &Entry, flags: u8, id: AccessId, len: u32, sizes: &Sizes) -> Result<Message, Broken> {
    let data = (flags & HAS_DATA != 0).then_some(entry[2]);
    if flags & !HAS_DATA != 0 || (data.is_none() && entry[2] != 0) {
        return Err(broken("a write has an unknown flag, or data without saying so"));
    }
    if len > sizes.eager_bytes {
        return Err(broken("a write in one piece is longer than the connection allows"));
    }
    Ok(Message::Write { id, range: RemoteRange { key: entry[1], address: entry[4], len: len.into() }, data })
}

fn atomic(entry: &Entry, flags: u8, slot: u16, sizes: &Sizes) -> Result<AtomicEntry, Broken> {
    let (MessageId(id), operand_bytes) = split_pair(entry[3]);
    let [op, of, zero @ .., _, _, _, _] = entry[2].to_le_bytes();
    let (Some(&op), Some(&of)) = (AtomicOp::ALL.get(usize::from(op)), Number::ALL.get(usize::from(of))) else {
        return Err(broken("an atomic operation or its type is unknown"));
    };
    let (atomic, len) = (Atomic { op, of }, entry[2] >> 32);
    let range = RemoteRange { key: entry[1], address: entry[4], len };
    let slot_of = (flags & FETCHES != 0).then_some(slot);
    if flags & !FETCHES != 0 || zero != [0; 2] || (slot_of.is_none() && slot != 0) || u32::from(slot) >= sizes.slots {
        return Err(broken("an atomic operation has an unknown flag, or a slot that does not exist"));
    }
    let request = AtomicEntry { id: AccessId(id), range, atomic, slot: slot_of };
    let fits = len > 0 && len.is_multiple_of(of.bytes()) && len <= sizes.atomic_bytes();
    if !fits || atomic.operand_bytes(len) != u64::from(operand_bytes) || !atomic.exists(request.form()) {
        return Err(broken("an atomic operation has a wrong length, or does not exist for its type"));
    }
    Ok(request)
}

fn access_piece(entry: &Entry, flags: u8, slot: u16, sizes: &Sizes) -> Result<AccessPiece, Broken> {
    let (MessageId(id), len) = split_pair(entry[3]);
    let range = RemoteRange { key: entry[1], address: entry[4], len: entry[5] };
    let offset = entry[2];
    if u32::from(slot) >= sizes.slots || flags != 0 {
        return Err(broken("a piece of an access is in a slot that does not exist"));
    }
    let is_in_range = range.len <= MOST_LEN && offset.checked_add(len.into()).is_some_and(|end| end <= range.len);
    if len == 0 || len > sizes.slot_bytes || !is_in_range {
        return Err(broken("a piece of an access has no bytes, or more than a slot or its range has"));
    }
    Ok(AccessPiece { id: AccessId(id), range, slot, len, offset })
}

#[inline]
fn envelope(entry: &Entry, flags: u8, len: u64) -> Result<Envelope, Broken> {
    let envelope = Envelope {
        is_tagged: flags & IS_TAGGED != 0,
        tag: entry[1],
        data: (flags & HAS_DATA != 0).then_some(entry[2]),
        len,
    };
    if (!envelope.is_tagged && envelope.tag != 0) || (envelope.data.is_none() && entry[2] != 0) {
        return Err(broken("a message has a tag or data without saying so"));
    }
    Ok(envelope)
}

/// Encodes an answer.
pub(crate) fn encode_answer(answer: &Answer) -> Entry {
    let mut entry = [0; ENTRY_WORDS];
    match *answer {
        Answer::Matched { id, len } => {
            entry[0] = head(MATCHED, 0, 0);
            entry[1] = len;
            entry[3] = pair(id, 0);
        }
        Answer::SlotsFree { count, slots } => {
            entry[0] = head(SLOTS_FREE, count, 0);
            for (word, slots) in entry[SLOTS_WORD..].iter_mut().zip(slots.as_chunks::<4>().0) {
                *word = slots.iter().rev().fold(0, |word, slot| word << 16 | u64::from(*slot));
            }
        }
        Answer::Received { id } => {
            entry[0] = head(RECEIVED, 0, 0);
            entry[3] = pair(id, 0);
        }
        Answer::Prefers { class, offers } => {
            entry[0] = head(PREFERS, offers.into(), 0);
            entry[1] = class.into();
        }
        Answer::Accessed(AccessAnswer { id, slot, wants_end, result }) => {
            let number = result.err().and_then(|error| ACCESS_ERRORS.iter().position(|known| *known == error));
            let number = number.map_or(0, |at| u8::try_from(at + 1).expect("a few errors"));
            entry[0] = head(ACCESSED, number, slot.unwrap_or(0));
            entry[1] = if slot.is_some() { HAS_SLOT } else { 0 } | if wants_end { WANTS_END } else { 0 };
            entry[3] = pair(MessageId(id.0), 0);
        }
    }
    entry
}

/// Decodes an answer.
pub(crate) fn decode_answer(entry: &Entry, sizes: &Sizes) -> Result<Answer, Broken> {
    let (kind, count, slot) = split_head(entry[0]);
    if kind == ACCESSED {
        return accessed(entry, count, slot, sizes);
    }
    if kind == PREFERS {
        let class = u8::try_from(entry[1]).ok().filter(|class| *class < 64 && slot == 0 && count <= 1);
        let class = class.ok_or(broken("a preference is for a length that no message has"))?;
        return Ok(Answer::Prefers { class, offers: count == 1 });
    }
    if slot != 0 || (kind != SLOTS_FREE && count != 0) {
        return Err(broken("an answer has a field that it does not use"));
    }
    if kind == SLOTS_FREE {
        return slots_free(entry, count, sizes);
    }
    let (id, rest) = split_pair(entry[3]);
    match kind {
        _ if rest != 0 => Err(broken("an answer has a field that it does not use")),
        MATCHED if entry[1] > MOST_LEN => Err(broken("a receive is longer than any memory")),
        MATCHED => Ok(Answer::Matched { id, len: entry[1] }),
        RECEIVED => Ok(Answer::Received { id }),
        _ => Err(broken("an answer has an unknown kind")),
    }
}

fn accessed(entry: &Entry, number: u8, slot: u16, sizes: &Sizes) -> Result<Answer, Broken> {
    let (MessageId(id), rest) = split_pair(entry[3]);
    // The end is wanted of accesses in pieces, which have slots.
    let (has_slot, wants_end) = match entry[1] {
        0 => (false, false),
        HAS_SLOT => (true, false),
        word if word == HAS_SLOT | WANTS_END => (true, true),
        _ => return Err(broken("the answer to an access has an unknown flag")),
    };
    if rest != 0 || (!has_slot && slot != 0) || u32::from(slot) >= sizes.slots {
        return Err(broken("the answer to an access names a slot that does not exist"));
    }
    let result = match number.checked_sub(1) {
        None => Ok(()),
        Some(at) => match ACCESS_ERRORS.get(usize::from(at)) {
            Some(error) => Err(*error),
            None => return Err(broken("the answer to an access has an unknown result")),
        },
    };
    Ok(Answer::Accessed(AccessAnswer { id: AccessId(id), slot: has_slot.then_some(slot), wants_end, result }))
}

fn slots_free(entry: &Entry, count: u8, sizes: &Sizes) -> Result<Answer, Broken> {
    let used = usize::from(count);
    if used == 0 || used > MOST_SLOTS_FREE {
        return Err(broken("an answer frees no slots, or more than it can name"));
    }
    let mut slots = [0; MOST_SLOTS_FREE];
    for (slots, word) in slots.as_chunks_mut::<4>().0.iter_mut().zip(&entry[SLOTS_WORD..]) {
        #[allow(clippy::cast_possible_truncation, reason = "the four quarters of a word")]
        slots.iter_mut().enumerate().for_each(|(quarter, slot)| *slot = (word >> (16 * quarter)) as u16);
    }
    if slots[..used].iter().any(|slot| u32::from(*slot) >= sizes.slots) || slots[used..].iter().any(|slot| *slot != 0) {
        return Err(broken("an answer frees a slot that does not exist"));
    }
    Ok(Answer::SlotsFree { count, slots })
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "tests truncate small numbers")]
mod tests {
    use super::*;
    use crate::config::Config;

    fn sizes() -> Sizes {
        Sizes::of(&Config::default()).unwrap()
    }

    fn envelopes(len: u64) -> Vec<Envelope> {
        let mut envelopes = Vec::new();
        for (is_tagged, tag) in [(false, 0), (true, 0), (true, u64::MAX)] {
            for data in [None, Some(0), Some(u64::MAX)] {
                envelopes.push(Envelope { is_tagged, tag, data, len });
            }
        }
        envelopes
    }

    fn messages() -> Vec<Message> {
        let mut messages = Vec::new();
        for id in [MessageId(0), MessageId(u32::MAX)] {
            for len in [0, 1, 32, 33, u64::from(sizes().eager_bytes)] {
                for envelope in envelopes(len) {
                    messages.push(Message::Eager { envelope, wants_answer: None });
                    messages.push(Message::Eager { envelope, wants_answer: Some(id) });
                }
            }
            for len in [0, 1, MOST_LEN] {
                for envelope in envelopes(len) {
                    let memory = OfferedMemory { address: 4096, token_address: u64::MAX, token: 1 };
                    let place = MOST_FILES as u8 - 1;
                    let file = OfferedFile { place, generation: u32::MAX, offset: u64::MAX - MOST_LEN };
                    messages.push(Message::Announce { envelope, id });
                    messages.push(Message::Offer { envelope, id, at: Offered::Process(memory) });
                    messages.push(Message::Offer { envelope, id, at: Offered::File(file) });
                }
            }
            for (slot, len, offset) in [(0, 1, 0), (63, sizes().slot_bytes, MOST_LEN - (16 << 10))] {
                messages.push(Message::Piece { id, slot, len, offset });
            }
            messages.push(Message::Abort { id });
        }
        messages.extend(accesses());
        messages
    }

    fn accesses() -> Vec<Message> {
        let mut messages = Vec::new();
        for (number, key, address) in [(0, 0, 0), (u32::MAX, u64::MAX, u64::MAX)] {
            let id = AccessId(number);
            messages.push(Message::ReadEnd { id });
            for len in [0, 1, 24, 25, u64::from(sizes().eager_bytes)] {
                for data in [None, Some(0), Some(u64::MAX)] {
                    messages.push(Message::Write { id, range: RemoteRange { key, address, len }, data });
                }
            }
            for (slot, len, offset, total) in [(0, 1, 0, 1), (63, sizes().slot_bytes, MOST_LEN - (16 << 10), MOST_LEN)]
            {
                let range = RemoteRange { key, address, len: total };
                let piece = AccessPiece { id, range, slot, len, offset };
                messages.extend([Message::WritePiece(piece), Message::ReadPiece(piece)]);
            }
            for (op, of) in AtomicOp::ALL.into_iter().flat_map(|op| Number::ALL.map(|of| (op, of))) {
                for (slot, len) in [(None, of.bytes()), (Some(0), 3 * of.bytes()), (Some(63), sizes().atomic_bytes())] {
                    let range = RemoteRange { key, address, len };
                    let entry = AtomicEntry { id, range, atomic: Atomic { op, of }, slot };
                    if entry.atomic.exists(entry.form()) {
                        messages.push(Message::Atomic(entry));
                    }
                }
            }
        }
        messages
    }

    fn answers() -> Vec<Answer> {
        let mut answers = Vec::new();
        for id in [MessageId(0), MessageId(u32::MAX)] {
            answers.push(Answer::Received { id });
            for slot in [None, Some(0), Some(63)] {
                let results = ACCESS_ERRORS.map(Err).into_iter().chain([Ok(())]);
                let accessed =
                    |wants_end, result| Answer::Accessed(AccessAnswer { id: AccessId(id.0), slot, wants_end, result });
                answers.extend(results.map(|result| accessed(false, result)));
                answers.extend(slot.map(|_| accessed(true, Ok(()))));
            }
            answers.extend([0, MOST_LEN].map(|len| Answer::Matched { id, len }));
        }
        for class in [0, 63] {
            answers.extend([false, true].map(|offers| Answer::Prefers { class, offers }));
        }
        for count in [1, 2, 23, 24] {
            let slots = std::array::from_fn(|at| if at < usize::from(count) { (at * 2) as u16 } else { 0 });
            answers.push(Answer::SlotsFree { count, slots });
        }
        answers
    }

    #[test]
    fn every_entry_is_decoded_to_what_was_encoded() {
        let inline = std::array::from_fn(|at| at as u8 ^ 0xa5);
        for message in messages() {
            let (decoded, bytes) = decode_message(&encode_message(&message, &inline), &sizes()).unwrap();
            assert_eq!(decoded, message);
            let (_, inline_bytes) = message.payload();
            assert!(bytes[..inline_bytes] == inline[..inline_bytes]);
        }
        for answer in answers() {
            assert_eq!(decode_answer(&encode_answer(&answer), &sizes()), Ok(answer));
        }
    }

    #[test]
    fn every_field_outside_its_limits_is_refused() {
        let tagged = Envelope { is_tagged: true, tag: 1, data: None, len: 8 };
        let eager = Message::Eager { envelope: tagged, wants_answer: None };
        let announce = Message::Announce { envelope: tagged, id: MessageId(1) };
        let memory = OfferedMemory { address: 4096, token_address: 8, token: 1 };
        let offer = Message::Offer { envelope: tagged, id: MessageId(1), at: Offered::Process(memory) };
        let file = OfferedFile { place: 1, generation: 7, offset: 4096 };
        let file = Message::Offer { envelope: tagged, id: MessageId(1), at: Offered::File(file) };
        let piece = Message::Piece { id: MessageId(1), slot: 1, len: 8, offset: 0 };
        let abort = Message::Abort { id: MessageId(1) };
        let range = RemoteRange { key: 7, address: 8, len: 100 };
        let write = Message::Write { id: AccessId(1), range, data: None };
        let read_end = Message::ReadEnd { id: AccessId(1) };
        let access = Message::WritePiece(AccessPiece { id: AccessId(1), range, slot: 1, len: 8, offset: 92 });
        let atomic = Atomic { op: AtomicOp::Sum, of: Number::U32 };
        let atomic = Message::Atomic(AtomicEntry {
            id: AccessId(1),
            range: RemoteRange { len: 8, ..range },
            atomic,
            slot: Some(1),
        });
        let (slots, eager_bytes) = (u64::from(sizes().slots), u64::from(sizes().eager_bytes));
        // A word of the entry, and the bits that are set there in place of those under the mask.
        let (kind, flags, slot) = (0xff << 32, 0xff << 40, 0xffff << 48);
        let changes: &[(&Message, usize, u64, u64)] = &[
            (&eager, 0, kind, 0),
            (&eager, 0, kind, 15 << 32),
            (&eager, 0, kind, 17 << 32),
            (&eager, 0, kind, kind),
            (&eager, 0, flags, 8 << 40),
            (&eager, 0, flags, 0x80 << 40),
            (&eager, 0, flags, 0),
            (&eager, 0, slot, 1 << 48),
            (&eager, 2, u64::MAX, 1),
            (&eager, 3, u64::MAX, (eager_bytes + 1) << 32),
            (&eager, 3, u64::MAX, u64::MAX),
            (&eager, 3, u64::MAX, 1),
            (&announce, 0, flags, 4 << 40),
            (&announce, 0, flags, 0),
            (&announce, 0, slot, 1 << 48),
            (&announce, 2, u64::MAX, 1),
            (&announce, 3, u64::MAX, 1 << 32),
            (&announce, 4, u64::MAX, MOST_LEN + 1),
            (&announce, 4, u64::MAX, u64::MAX),
            (&offer, 0, flags, 4 << 40),
            (&offer, 0, flags, 0),
            (&offer, 0, slot, 1 << 48),
            (&offer, 2, u64::MAX, 1),
            (&offer, 3, u64::MAX, 1 << 32),
            (&offer, 4, u64::MAX, MOST_LEN + 1),
            (&offer, 5, u64::MAX, u64::MAX - 7),
            (&offer, 7, u64::MAX, 0),
            (&file, 0, flags, 4 << 40),
            (&file, 0, slot, (MOST_FILES as u64) << 48),
            (&file, 0, slot, slot),
            (&file, 2, u64::MAX, 1),
            (&file, 3, u64::MAX, 1 << 32),
            (&file, 4, u64::MAX, MOST_LEN + 1),
            (&file, 5, u64::MAX, u64::MAX - 7),
            (&file, 6, u64::MAX, 1 << 32),
            (&file, 7, u64::MAX, 1),
            (&piece, 0, flags, 1 << 40),
            (&piece, 0, slot, slots << 48),
            (&piece, 0, slot, slot),
            (&piece, 3, u64::MAX, 1),
            (&piece, 3, u64::MAX, (u64::from(sizes().slot_bytes) + 1) << 32),
            (&piece, 3, u64::MAX, u64::MAX),
            (&piece, 1, u64::MAX, MOST_LEN - 7),
            (&piece, 1, u64::MAX, u64::MAX),
            (&abort, 0, flags, 1 << 40),
            (&abort, 0, slot, 1 << 48),
            (&abort, 3, u64::MAX, 1 << 32),
            (&write, 0, flags, 1 << 40),
            (&write, 0, flags, 4 << 40),
            (&write, 0, slot, 1 << 48),
            (&write, 2, u64::MAX, 1),
            (&write, 3, u64::MAX, (eager_bytes + 1) << 32),
            (&write, 3, u64::MAX, u64::MAX),
            (&read_end, 0, flags, 1 << 40),
            (&read_end, 0, slot, 1 << 48),
            (&read_end, 3, u64::MAX, 1 << 32 | 1),
            (&access, 0, kind, 15 << 32),
            (&access, 0, flags, 1 << 40),
            (&access, 0, slot, slots << 48),
            (&access, 0, slot, slot),
            (&access, 2, u64::MAX, 93),
            (&access, 2, u64::MAX, u64::MAX),
            (&access, 3, u64::MAX, 1),
            (&access, 3, u64::MAX, 9 << 32),
            (&access, 3, u64::MAX, (u64::from(sizes().slot_bytes) + 1) << 32),
            (&access, 3, u64::MAX, u64::MAX),
            (&access, 5, u64::MAX, 99),
            (&access, 5, u64::MAX, MOST_LEN + 1),
            (&access, 5, u64::MAX, u64::MAX),
            (&atomic, 0, flags, 0),
            (&atomic, 0, flags, 9 << 40),
            (&atomic, 0, slot, slots << 48),
            (&atomic, 0, slot, slot),
            // No such operation or type; one that compares; one that does not exist for the type.
            (&atomic, 2, 0xff, 19),
            (&atomic, 2, 0xff, 0xff),
            (&atomic, 2, 0xff00, 10 << 8),
            (&atomic, 2, 0xff00, 0xff00),
            (&atomic, 2, 0xff, 12),
            (&atomic, 2, 0xffff, 8 << 8 | 6),
            (&atomic, 2, 0xffff_0000, 1 << 16),
            (&atomic, 2, u64::MAX << 32, 0),
            (&atomic, 2, u64::MAX << 32, 7 << 32),
            (&atomic, 2, u64::MAX << 32, 12 << 32),
            (&atomic, 2, u64::MAX << 32, u64::MAX << 32),
            (&atomic, 3, u64::MAX, 1),
            (&atomic, 3, u64::MAX, 4 << 32 | 1),
            (&atomic, 3, u64::MAX, u64::MAX),
        ];
        for (message, word, mask, value) in changes {
            let mut entry = encode_message(message, &[0; INLINE_BYTES]);
            assert!(decode_message(&entry, &sizes()).is_ok());
            entry[*word] = entry[*word] & !mask | value;
            let decoded = decode_message(&entry, &sizes());
            assert!(decoded.is_err(), "{message:?} with {value:#x} in word {word}: {decoded:?}");
        }
    }

    #[test]
    fn every_answer_outside_its_limits_is_refused() {
        let slots_free = |count, slot| {
            let mut slots = [0; MOST_SLOTS_FREE];
            slots[1] = slot;
            Answer::SlotsFree { count, slots }
        };
        let slots = u16::try_from(sizes().slots).unwrap();
        for (count, slot) in [(0, 0), (25, 0), (255, 0), (1, 1), (2, slots), (24, u16::MAX)] {
            let entry = encode_answer(&slots_free(count, slot));
            assert!(decode_answer(&entry, &sizes()).is_err(), "{count} slots, one of them {slot}");
        }
        let matched = encode_answer(&Answer::Matched { id: MessageId(3), len: 8 });
        for (word, value) in [(0, 1 << 40), (0, 1 << 48), (1, MOST_LEN + 1), (1, u64::MAX), (3, 1 << 32)] {
            let mut entry = matched;
            entry[word] = if word == 0 { entry[0] | value } else { value };
            assert!(decode_answer(&entry, &sizes()).is_err(), "{value:#x} in word {word}");
        }
        let prefers = encode_answer(&Answer::Prefers { class: 63, offers: true });
        for (word, value) in [(0, 2 << 40), (0, 1 << 48), (1, 64), (1, u64::MAX)] {
            let mut entry = prefers;
            entry[word] = if word == 0 { entry[0] | value } else { value };
            assert!(decode_answer(&entry, &sizes()).is_err(), "{value:#x} in word {word}");
        }
        let accessed = AccessAnswer { id: AccessId(3), slot: Some(5), wants_end: false, result: Ok(()) };
        let accessed = encode_answer(&Answer::Accessed(accessed));
        let last_error = u64::try_from(ACCESS_ERRORS.len()).unwrap();
        let wrong =
            [(0, (last_error + 1) << 40), (0, 0xff << 40), (0, 0xffff << 48), (1, 0), (1, 2), (1, 4), (3, 1 << 32)];
        for (word, value) in wrong {
            let mut entry = accessed;
            entry[word] = if word == 0 { entry[0] | value } else { value };
            assert!(decode_answer(&entry, &sizes()).is_err(), "{value:#x} in word {word}");
        }
        for kind in [0, 1, 16, 22, 255] {
            let entry = [head(kind, 0, 0), 0, 0, 0, 0, 0, 0, 0];
            assert!(decode_answer(&entry, &sizes()).is_err(), "kind {kind}");
        }
    }
}
