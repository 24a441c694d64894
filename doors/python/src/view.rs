//! A Python object's bytes for the time of an operation: the buffer protocol's own lock holds them in place.
#![allow(unsafe_code, reason = "promises what the buffer protocol guarantees: bytes that stay while the view is held")]

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::ops::Range;
use telpher_mem::{StableBuf, StableBufMut};

/// Bytes to read. While it is held, the exporter neither moves, resizes nor frees them (PEP 3118).
#[derive(Debug)]
pub(crate) struct View(PyUntypedBuffer);

/// Bytes to write.
#[derive(Debug)]
pub(crate) struct ViewMut(PyUntypedBuffer);

impl View {
    /// A copy of the bytes as they are now.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        if !bytes.is_empty() {
            // SAFETY: the buffer is held and `len` long, the vector is as long and fresh, so the two are disjoint.
            unsafe { self.0.buf_ptr().cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        }
        bytes
    }
}

fn held(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(object).map_err(|error| {
        let kind = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        if error.is_instance_of::<PyTypeError>(object.py()) {
            PyTypeError::new_err(format!("bytes, bytearray, memoryview or an array is needed, not {kind}"))
        } else {
            error
        }
    })?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err(
            "the buffer's bytes do not lie in one piece; make a contiguous copy of it first (numpy.ascontiguousarray)",
        ));
    }
    Ok(buffer)
}

impl<'py> FromPyObject<'_, 'py> for View {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        held(&object).map(View)
    }
}

impl<'py> FromPyObject<'_, 'py> for ViewMut {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = held(&object)?;
        if buffer.readonly() {
            return Err(PyBufferError::new_err("the destination cannot be written: its buffer is read-only"));
        }
        Ok(ViewMut(buffer))
    }
}

/// Where a buffer lies.
pub(crate) trait Place {
    /// Its addresses.
    fn range(&self) -> Range<u64>;
}

fn address(buffer: &PyUntypedBuffer) -> u64 {
    if buffer.len_bytes() == 0 {
        // An exporter may give any pointer for no bytes, null too; the trait asks for an aligned number.
        return 64;
    }
    buffer.buf_ptr().cast::<u8>().expose_provenance() as u64
}

macro_rules! stable {
    ($($view:ty),*) => {$(
        // SAFETY: the exporter keeps address and length while the buffer is held, which is as long as this value lives, and the
        // bytes are mapped and initialised (PEP 3118). That nobody writes them meanwhile no Python object can promise; as for
        // every extension that lets the interpreter go on, bytes that are written under an operation come out mixed: the
        // kernels that read them take no decision from a byte they read twice (`apply_delta` is given a copy of its record).
        unsafe impl StableBuf for $view {
            fn address(&self) -> u64 {
                address(&self.0)
            }
            fn len(&self) -> usize {
                self.0.len_bytes()
            }
        }
        impl Place for $view {
            fn range(&self) -> Range<u64> {
                self.address()..self.address() + self.len() as u64
            }
        }
    )*};
}
stable!(View, ViewMut);

// SAFETY: as above; the exporter said that the bytes may be written.
unsafe impl StableBufMut for ViewMut {
    fn address_mut(&mut self) -> u64 {
        address(&self.0)
    }
}

/// A source and a destination that overlap, as the one piece of memory they are.
#[derive(Debug)]
pub(crate) struct Overlap {
    src: View,
    dst: ViewMut,
}

impl Overlap {
    fn union(&self) -> Range<u64> {
        let (src, dst) = (self.src.range(), self.dst.range());
        src.start.min(dst.start)..src.end.max(dst.end)
    }

    /// The bytes to copy and where to, within the piece.
    pub(crate) fn course(&self) -> (Range<usize>, usize) {
        let base = self.union().start;
        let offset = |address: u64| usize::try_from(address - base).expect("an offset in memory of this process");
        let from = offset(self.src.range().start);
        (from..from + self.src.len(), offset(self.dst.range().start))
    }
}

// SAFETY: both buffers are held; two ranges that overlap have no gap between them, so every byte of the union belongs to one.
unsafe impl StableBuf for Overlap {
    fn address(&self) -> u64 {
        self.union().start
    }
    fn len(&self) -> usize {
        let union = self.union();
        usize::try_from(union.end - union.start).expect("a length of memory of this process")
    }
}

// SAFETY: only `copy_within(course())` is ever asked of it, which writes the destination's bytes alone.
unsafe impl StableBufMut for Overlap {
    fn address_mut(&mut self) -> u64 {
        self.address()
    }
}

/// How a copy lies.
pub(crate) enum Lie {
    /// Two places.
    Apart(View, ViewMut),
    /// One.
    Over(Overlap),
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Sorts a copy by whether its buffers overlap.
pub(crate) fn lie(src: View, dst: ViewMut) -> Lie {
    if src.len() == dst.len() && overlap(&src.range(), &dst.range()) {
        Lie::Over(Overlap { src, dst })
    } else {
        Lie::Apart(src, dst)
    }
}

/// Refuses a destination that overlaps any other buffer of its operation.
pub(crate) fn disjoint(reads: &[&dyn Place], writes: &[&dyn Place]) -> PyResult<()> {
    for (index, write) in writes.iter().enumerate() {
        let others = reads.iter().chain(&writes[index + 1..]);
        if others.into_iter().any(|other| overlap(&write.range(), &other.range())) {
            return Err(PyValueError::new_err(
                "a destination overlaps another buffer of the same operation; only copy can do that",
            ));
        }
    }
    Ok(())
}
