//! Memory of the caller that a message is read from or written to.

use telpher_mem::Space;

/// The most segments of one message. Source: libfabric's shm provider allows 4, and MPIs ask for no more.
pub const MOST_SEGMENTS: usize = 4;

/// Bytes of this process that belong to an operation until its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Buffer {
    address: u64,
    len: u64,
}

impl Buffer {
    /// Vouches for `len` bytes at `address`.
    ///
    /// # Safety
    /// Until the operation that is given this buffer has completed, or the region with it is closed, no Rust reference
    /// to the bytes exists that contradicts its use: none at all if they are written, none that writes if they are only
    /// read. The bytes may be unmapped; then the operation fails and nothing else happens.
    #[inline]
    #[must_use]
    #[allow(unsafe_code, reason = "the contract of memory that C callers lend")]
    pub const unsafe fn vouch(address: u64, len: u64) -> Buffer {
        Buffer { address, len }
    }

    /// Names bytes that a test does not access.
    #[cfg(test)]
    pub(crate) const fn unaccessed(address: u64, len: u64) -> Buffer {
        Buffer { address, len }
    }

    /// A buffer for tests that access no bytes.
    #[cfg(test)]
    pub(crate) const fn unused(len: u64) -> Buffer {
        Buffer { address: 4096, len }
    }

    /// Returns the address of the first byte.
    #[inline]
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// True if the buffer has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the part of `len` bytes from byte `offset`; less if the buffer ends before.
    #[must_use]
    pub fn part(&self, offset: u64, len: u64) -> Buffer {
        let offset = offset.min(self.len);
        // Cannot overflow: a buffer of `Segments` ends within the address space.
        Buffer { address: self.address.wrapping_add(offset), len: len.min(self.len - offset) }
    }
}

/// Bytes that were taken from a caller.
#[derive(Debug)]
pub(crate) struct TakenBytes {
    _bytes: Box<[u8]>,
}

impl TakenBytes {
    /// Copies the bytes of the segments. Returns the segments of the copy too, to be read while the value exists.
    ///
    /// # Errors
    /// The address of the first byte that cannot be read.
    pub(crate) fn of(segments: &Segments, memory: &impl Space) -> Result<(TakenBytes, Segments), u64> {
        TakenBytes::of_all(&[*segments], memory)
    }

    /// Copies the bytes of all segments, like [`of`](TakenBytes::of).
    pub(crate) fn of_all(segments: &[Segments], memory: &impl Space) -> Result<(TakenBytes, Segments), u64> {
        // Cannot overflow: each has at most 2^63 bytes, and there are two at most.
        let len = usize::try_from(segments.iter().map(Segments::len).sum::<u64>()).map_err(|_| 0_u64)?;
        let mut bytes = vec![0; len].into_boxed_slice();
        let mut rest = &mut bytes[..];
        for buffer in segments.iter().flat_map(Segments::as_slice) {
            let part = usize::try_from(buffer.len()).ok().and_then(|len| rest.split_off_mut(..len));
            let Some(part) = part else { break };
            memory.read(buffer.address, part).map_err(|fault| fault.address)?;
        }
        let buffer = Buffer { address: bytes.as_ptr().expose_provenance() as u64, len: len as u64 };
        let copied = Segments::new(&[buffer]).expect("one buffer of allocated bytes");
        Ok((TakenBytes { _bytes: bytes }, copied))
    }
}

/// The buffers of one message, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segments {
    buffers: [Buffer; MOST_SEGMENTS],
    count: usize,
}

impl Segments {
    /// A message in one buffer; `None` if it exceeds 2^63 bytes or the address space.
    #[inline]
    #[must_use]
    pub fn of(buffer: Buffer) -> Option<Segments> {
        let fits = buffer.len <= 1 << 63 && buffer.address.checked_add(buffer.len).is_some();
        let none = Buffer { address: 0, len: 0 };
        fits.then_some(Segments { buffers: [buffer, none, none, none], count: 1 })
    }

    /// Joins buffers; `None` if they are more than [`MOST_SEGMENTS`], or if their length exceeds 2^63 bytes.
    #[must_use]
    pub fn new(buffers: &[Buffer]) -> Option<Segments> {
        let mut segments = Segments { count: buffers.len(), ..Segments::default() };
        segments.buffers.get_mut(..buffers.len())?.copy_from_slice(buffers);
        let mut total = 0_u64;
        for buffer in buffers {
            total = total.checked_add(buffer.len).filter(|&sum| sum <= 1 << 63)?;
            buffer.address.checked_add(buffer.len)?;
        }
        Some(segments)
    }

    /// Returns the sum of the lengths in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        if self.count == 1 {
            return self.buffers[0].len;
        }
        // Cannot overflow: `new` has summed them.
        self.as_slice().iter().map(Buffer::len).sum()
    }

    /// True if the message has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the buffers in order.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Buffer] {
        &self.buffers[..self.count]
    }

    /// Returns the pieces that hold `len` bytes from byte `offset` of the message, as addresses and lengths, in order;
    /// fewer if the message ends before.
    #[inline]
    pub fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut skip = offset;
        let mut rest = len;
        self.as_slice().iter().filter_map(move |buffer| {
            let skipped = skip.min(buffer.len);
            skip -= skipped;
            let piece = (buffer.len - skipped).min(rest);
            rest -= piece;
            // Cannot overflow: `new` has checked the end of the buffer.
            (piece > 0).then(|| (buffer.address + skipped, piece))
        })
    }
}
