//! A Python object's bytes during an operation: the buffer protocol's own lock keeps them at their address.
#![allow(unsafe_code, reason = "promises what the buffer protocol guarantees: bytes that stay while the view is held")]

use pyo3::exceptions::{PyBufferError, PyException, PyOSError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_cache::{FetchError, Find, Handle, ReadPermit, SyncHome, Synced, WrittenPages};
use telpher_mem::{Pool, PoolBuffer, StableBuf, StableBufMut};
use telpher_mover::{JobError, Mover, Outcome};

/// A buffer that its exporter keeps at its address: the exporter does not move, resize or free the bytes until this is
/// dropped (PEP 3118). The `Py_buffer` stays where it was filled in, because an exporter may point into it.
struct Held(Box<ffi::Py_buffer>);

// SAFETY: other threads only read address and length; the release attaches to the interpreter first.
unsafe impl Send for Held {}
// SAFETY: as above; through a shared reference only the two numbers are read.
unsafe impl Sync for Held {}

impl Held {
    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        // SAFETY: the object lives as long as the borrow.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
            let kind = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
            return Err(PyTypeError::new_err(format!(
                "bytes, bytearray, memoryview or an array is needed, not {kind}"
            )));
        }
        let mut words = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // SAFETY: the object has a buffer; the `Py_buffer` is ours and writable.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), words.as_mut_ptr(), flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: the exporter has filled it in. From here on it is released on every path.
        let held = Held(unsafe { words.assume_init() });
        // SAFETY: filled in and not released.
        if unsafe { ffi::PyBuffer_IsContiguous(&raw const *held.0, b'C' as c_char) } == 0 {
            return Err(PyBufferError::new_err(
                "the buffer's elements do not lie one after the other in C order; numpy.ascontiguousarray makes a copy \
                 that does (of an array in Fortran order the transpose, .T, does already)",
            ));
        }
        // SAFETY: null, or a string that lives as long as the buffer is held.
        if !held.0.format.is_null() && has_references(unsafe { CStr::from_ptr(held.0.format) }) {
            return Err(PyTypeError::new_err(
                "the array contains references to Python objects, which cannot be moved as bytes",
            ));
        }
        Ok(held)
    }

    fn len(&self) -> usize {
        self.0.len.unsigned_abs()
    }

    fn address(&self) -> u64 {
        // For zero bytes an exporter may return any pointer, even null; the traits require an aligned address.
        if self.len() == 0 { 64 } else { self.0.buf.expose_provenance() as u64 }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Without an interpreter there is no exporter to return the buffer to.
        // SAFETY: filled in by an exporter and released once.
        Python::try_attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}

/// Returns whether a format of PEP 3118 has an element `O`; field names are enclosed in colons.
fn has_references(format: &CStr) -> bool {
    let format = format.to_bytes();
    format.contains(&b'O') && format.split(|&byte| byte == b':').step_by(2).any(|types| types.contains(&b'O'))
}

/// Readable bytes.
pub(crate) struct View(Held);

/// Writable bytes.
pub(crate) struct ViewMut(Held);

impl View {
    /// A copy of the current bytes.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        if !bytes.is_empty() {
            // SAFETY: the buffer is held and `len` long; the vector has the same length and is new, so the two are
            // disjoint.
            unsafe { self.0.0.buf.cast::<u8>().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        }
        bytes
    }
}

impl ViewMut {
    /// Overwrites the first bytes.
    pub(crate) fn store(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(self.len());
        if len > 0 {
            // SAFETY: the buffer is held, writable and at least `len` long; the bytes are another object's.
            unsafe { self.0.0.buf.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        }
    }
}

/// Duplicates the file descriptors that a program names by number.
pub(crate) fn descriptors(numbers: &[i32]) -> PyResult<Vec<OwnedFd>> {
    let duplicate = |&number: &i32| {
        let open = number >= 0;
        // SAFETY: not -1, and used for one system call, which refuses a number that is not open.
        let duplicate = open.then(|| unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned());
        match duplicate {
            Some(Ok(file)) => Ok(file),
            Some(Err(error)) => {
                Err(PyOSError::new_err((error.raw_os_error(), format!("descriptor {number}: {error}"))))
            }
            None => Err(PyValueError::new_err(format!("{number} is no file descriptor"))),
        }
    };
    numbers.iter().map(duplicate).collect()
}

impl<'py> FromPyObject<'_, 'py> for View {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Held::get(&object, ffi::PyBUF_FULL_RO).map(View)
    }
}

impl<'py> FromPyObject<'_, 'py> for ViewMut {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        Held::get(&object, ffi::PyBUF_FULL).map(ViewMut).map_err(|error| {
            if !error.is_instance_of::<PyException>(py) || Held::get(&object, ffi::PyBUF_FULL_RO).is_err() {
                return error;
            }
            PyBufferError::new_err(format!("the destination has a read-only buffer: {}", error.value(py)))
        })
    }
}

/// A buffer that contains blocks of a cache: held as long as any entry or handle needs it.
pub(crate) type Source = Arc<View>;

/// Bytes that this module keeps, as Python sees them: exports a buffer.
#[pyclass(frozen, module = "telpher", name = "LentBytes")]
pub(crate) struct LentBytes {
    /// The address and the length of bytes that are valid as long as the owner, and writable if it says so.
    address: u64,
    len: usize,
    is_writable: bool,
    _owner: Box<dyn Any + Send + Sync>,
}

impl LentBytes {
    /// A cached block's bytes at their present location, read-only.
    pub(crate) fn cached(handle: Handle<Source>, permit: Option<ReadPermit>) -> Self {
        let (address, len) = (handle.address(), handle.len());
        LentBytes { address, len, is_writable: false, _owner: Box::new((handle, permit)) }
    }

    /// All bytes of a writable buffer, with what is dropped when nothing uses them any more.
    pub(crate) fn written(data: &Arc<ViewMut>, permit: impl Send + Sync + 'static) -> Self {
        let (address, len) = (data.address(), data.len());
        LentBytes { address, len, is_writable: true, _owner: Box::new((Arc::clone(data), permit)) }
    }
}

#[pymethods]
impl LentBytes {
    /// # Safety
    ///
    /// As for the interpreter: `buffer` is null or writable.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if buffer.is_null() {
            return Err(PyBufferError::new_err("the buffer structure is null"));
        }
        let LentBytes { address, len, is_writable, .. } = slf.get();
        let start = usize::try_from(*address).unwrap_or(usize::MAX);
        let start = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        let len = isize::try_from(*len).map_err(|_| PyBufferError::new_err("the block is too long"))?;
        let is_readonly = c_int::from(!is_writable);
        // SAFETY: not null, and writable as our caller guarantees. `len` bytes from `start` on are valid as long as the
        // owner, which lives as long as this object; the buffer gets a reference to the object. It is marked read-only
        // unless the bytes are writable.
        match unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, len, is_readonly, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// Part of a buffer that several jobs share, each with a part of its own.
struct Part<B> {
    of: Arc<B>,
    range: Range<usize>,
}

// SAFETY: the buffer, and so its part, stays at its address as long as this value has a share of it; `FastBlock` makes
// only parts that lie inside. As for `View`, no Python object can guarantee that the bytes are not written meanwhile.
unsafe impl<B: StableBuf + Sync> StableBuf for Part<B> {
    fn address(&self) -> u64 {
        self.of.address() + self.range.start as u64
    }
    fn len(&self) -> usize {
        self.range.len()
    }
}

// SAFETY: as above; the exporter stated that the bytes may be written, and the parts that jobs write do not overlap.
unsafe impl StableBufMut for Part<ViewMut> {
    fn address_mut(&mut self) -> u64 {
        self.address()
    }
}

/// A block in fast memory, and its home: a buffer that other threads may write meanwhile, so no Rust slice of it
/// exists. The `memoryview`s of the block share it, so that its bytes live as long as any of them.
///
/// Lock it without the interpreter lock: a thread that syncs it may wait for that.
pub(crate) struct FastBlock {
    fast: Arc<PoolBuffer>,
    /// Where it begins, which never changes.
    address: u64,
    state: Mutex<FastBlockState>,
}

struct FastBlockState {
    /// `None` once it was closed.
    home: Option<Arc<ViewMut>>,
    mover: Mover,
    written: WrittenPages,
    /// Each `memoryview` for writing has a clone.
    writers: Arc<()>,
}

/// The copies of a sync.
struct Copies<'a> {
    mover: &'a Mover,
    fast: &'a Arc<PoolBuffer>,
    home: &'a Arc<ViewMut>,
}

impl Copies<'_> {
    fn parts(&self, range: &Range<usize>) -> (Part<PoolBuffer>, Part<ViewMut>) {
        let fast = Part { of: Arc::clone(self.fast), range: range.clone() };
        (fast, Part { of: Arc::clone(self.home), range: range.clone() })
    }
}

impl SyncHome for Copies<'_> {
    fn differing(&mut self, ranges: &[Range<usize>]) -> Result<Vec<bool>, JobError> {
        let begin = |range| {
            let (fast, home) = self.parts(range);
            self.mover.compare(fast, home)
        };
        let jobs: Vec<_> = ranges.iter().map(begin).collect();
        // All are waited for, also after an error: each holds the home.
        let results: Vec<_> = jobs.into_iter().map(|job| job.wait().result).collect();
        results.into_iter().map(|result| Ok(result? != Outcome::Equal)).collect()
    }

    fn copy(&mut self, ranges: &[Range<usize>]) -> Vec<Result<Outcome, JobError>> {
        let begin = |range| {
            let (fast, home) = self.parts(range);
            self.mover.copy(fast, home)
        };
        let jobs: Vec<_> = ranges.iter().map(begin).collect();
        jobs.into_iter().map(|job| job.wait().result).collect()
    }
}

/// Why a block was not synced.
pub(crate) enum NotSynced {
    /// A `memoryview` for writing exists.
    InUse,
    /// The block was closed meanwhile.
    Closed,
    Job(JobError),
}

impl FastBlock {
    /// Copies a buffer to memory of the pool.
    pub(crate) fn fetch(mover: &Mover, pool: &Pool, home: ViewMut) -> Result<Arc<Self>, FetchFailed> {
        let len = home.len();
        let room = || FetchFailed::NoRoom(FetchError::NoRoom { len, home: () }.to_string());
        let fast = pool.obtain(len).ok_or_else(room)?;
        let (result, home, mut fast) = mover.copy(home, fast).wait().into_parts();
        result.map_err(FetchFailed::Job)?;
        let address = fast.as_mut_ptr().expose_provenance() as u64;
        let (writers, written) = (Arc::new(()), WrittenPages::new(len));
        let state = FastBlockState { home: Some(Arc::new(home)), mover: mover.clone(), written, writers };
        Ok(Arc::new(FastBlock { fast: Arc::new(fast), address, state: Mutex::new(state) }))
    }

    fn lock(&self) -> MutexGuard<'_, FastBlockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its length in bytes.
    pub(crate) fn size(&self) -> usize {
        self.fast.len()
    }

    /// The bytes that a sync has to check.
    pub(crate) fn unsynced(&self) -> usize {
        let state = self.lock();
        state.home.as_ref().map_or(0, |_| state.written.unsynced())
    }

    /// All its bytes, read-only.
    pub(crate) fn bytes(self: &Arc<Self>) -> LentBytes {
        LentBytes { address: self.address, len: self.size(), is_writable: false, _owner: Box::new(Arc::clone(self)) }
    }

    /// Bytes for writing, which the next sync copies back. The range is inside the block.
    /// `None` if it was closed.
    pub(crate) fn write(self: &Arc<Self>, range: &Range<usize>) -> Option<LentBytes> {
        let mut state = self.lock();
        state.home.as_ref()?;
        state.written.mark(range);
        let owner = Box::new((Arc::clone(self), Arc::clone(&state.writers)));
        let address = self.address + range.start as u64;
        Some(LentBytes { address, len: range.len(), is_writable: true, _owner: owner })
    }

    /// Releases the home, without a sync. The memory is kept for `memoryview`s that are left.
    pub(crate) fn close(&self) {
        let home = self.lock().home.take();
        // Without the lock: it attaches to the interpreter.
        drop(home);
    }

    /// Copies bytes back, unless some can still be written: such writes would be lost.
    pub(crate) fn sync(&self, find: Find) -> Result<Synced, NotSynced> {
        let mut state = self.lock();
        if Arc::get_mut(&mut state.writers).is_none() {
            return Err(NotSynced::InUse);
        }
        let FastBlockState { home, mover, written, .. } = &mut *state;
        let home = home.as_ref().ok_or(NotSynced::Closed)?;
        written.sync(find, &mut Copies { mover, fast: &self.fast, home }).map_err(NotSynced::Job)
    }
}

/// Why a block could not be fetched.
pub(crate) enum FetchFailed {
    /// The pool has not enough memory; a sentence.
    NoRoom(String),
    Job(JobError),
}

/// The address range of a buffer.
pub(crate) trait HasRange {
    /// Its addresses.
    fn range(&self) -> Range<u64>;
}

macro_rules! stable {
    ($($view:ty),*) => {$(
        // SAFETY: the exporter keeps address and length while the buffer is held, which is as long as this value lives,
        // and the bytes are mapped and initialised (PEP 3118). No Python object can guarantee that the bytes are not
        // written meanwhile. As in every extension that releases the interpreter lock, bytes written during an
        // operation give mixed results. The kernels make no decision from a byte that they read twice (`apply_delta`
        // gets a copy of its record).
        unsafe impl StableBuf for $view {
            fn address(&self) -> u64 {
                self.0.address()
            }
            fn len(&self) -> usize {
                self.0.len()
            }
        }
        impl HasRange for $view {
            fn range(&self) -> Range<u64> {
                self.address()..self.address() + self.len() as u64
            }
        }
    )*};
}
stable!(View, ViewMut);

// SAFETY: as above; the exporter stated that the bytes may be written.
unsafe impl StableBufMut for ViewMut {
    fn address_mut(&mut self) -> u64 {
        self.0.address()
    }
}

/// A source and a destination that overlap, as one block of memory.
pub(crate) struct Overlap {
    src: View,
    dst: ViewMut,
}

impl Overlap {
    fn union(&self) -> Range<u64> {
        let (src, dst) = (self.src.range(), self.dst.range());
        src.start.min(dst.start)..src.end.max(dst.end)
    }

    /// The range to copy and its destination, within the block.
    pub(crate) fn course(&self) -> (Range<usize>, usize) {
        let base = self.union().start;
        let offset = |address: u64| usize::try_from(address - base).expect("an offset in memory of this process");
        let from = offset(self.src.range().start);
        (from..from + self.src.len(), offset(self.dst.range().start))
    }
}

// SAFETY: both buffers are held; overlapping ranges have no gap between them, so every byte of the union belongs to one
// of them.
unsafe impl StableBuf for Overlap {
    fn address(&self) -> u64 {
        self.union().start
    }
    fn len(&self) -> usize {
        let union = self.union();
        usize::try_from(union.end - union.start).expect("a length of memory of this process")
    }
}

// SAFETY: it is only used for `copy_within(course())`, which writes only the destination's bytes.
unsafe impl StableBufMut for Overlap {
    fn address_mut(&mut self) -> u64 {
        self.address()
    }
}

/// The buffers of a copy.
pub(crate) enum CopyViews {
    /// Disjoint.
    Apart(View, ViewMut),
    /// Overlapping.
    Over(Overlap),
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Distinguishes copies by whether their buffers overlap.
pub(crate) fn lie(src: View, dst: ViewMut) -> CopyViews {
    if src.len() == dst.len() && overlap(&src.range(), &dst.range()) {
        CopyViews::Over(Overlap { src, dst })
    } else {
        CopyViews::Apart(src, dst)
    }
}

/// Refuses a destination that overlaps another buffer of its operation.
pub(crate) fn disjoint(reads: &[&dyn HasRange], writes: &[&dyn HasRange]) -> PyResult<()> {
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
