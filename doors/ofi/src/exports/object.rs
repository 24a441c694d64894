//! Objects as C sees them: a `fid` with tables of operations, and behind it the object itself.

use crate::abi::objects::{Fid, FidAv, FidCntr, FidCq, FidDomain, FidEp, FidEq, FidFabric, FidMr};
use crate::abi::{flags as f, objects::OpsFid};
use crate::address_vector::AddressVector;
use crate::completion_queue::CompletionQueue;
use crate::counter::Counter;
use crate::domain::{Domain, Fabric, MemoryRegion};
use crate::endpoint::Ep;
use crate::event_queue::EventQueue;
use crate::exports::answer;
use crate::failure::{Errno, FORKED, INVALID};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use telpher_os::Lineage;

/// A structure of C that begins with a [`Fid`], and what is behind it.
///
/// # Safety
/// The structure is `repr(C)` and begins with a `Fid`. No two types have the same class.
pub(crate) unsafe trait ObjectFid: Sized {
    /// The object.
    type Inner;
    /// Its class.
    const CLASS: usize;

    /// Ends the use of the object. Other threads may hold it for a moment longer.
    fn close(_inner: &Self::Inner) {}
}

macro_rules! objects {
    ($($fid:ident $inner:ty = $class:expr $(, $close:expr)?;)*) => {$(
        // SAFETY: the structures in `abi::objects` are laid out so, and the classes below differ.
        unsafe impl ObjectFid for $fid {
            type Inner = $inner;
            const CLASS: usize = $class;

            $(fn close(inner: &Self::Inner) {
                $close(inner);
            })?
        }
    )*};
}

objects! {
    FidFabric Fabric = f::CLASS_FABRIC;
    FidDomain Domain = f::CLASS_DOMAIN;
    FidEp Ep = f::CLASS_EP, Ep::close;
    FidAv AddressVector = f::CLASS_AV;
    FidMr MemoryRegion = f::CLASS_MR;
    FidEq EventQueue = f::CLASS_EQ;
    FidCq CompletionQueue = f::CLASS_CQ;
    FidCntr Counter = f::CLASS_CNTR;
}

/// What a pointer to an object of C points to.
#[repr(C)]
struct Object<F: ObjectFid> {
    fid: F,
    inner: Arc<F::Inner>,
    created_in: Lineage,
}

/// Returns the head of a new object.
pub(crate) fn head<F: ObjectFid>(context: *mut c_void, ops: &'static OpsFid) -> Fid {
    Fid { class: F::CLASS, context, ops }
}

/// Gives C an object.
///
/// # Safety
/// `out` is an out pointer.
pub(crate) unsafe fn open<F: ObjectFid>(out: *mut *mut F, fid: F, inner: Arc<F::Inner>) -> Result<(), Errno> {
    if out.is_null() || !out.is_aligned() {
        return Err(INVALID);
    }
    let object = Box::into_raw(Box::new(Object { fid, inner, created_in: Lineage::current() }));
    // SAFETY: the caller vouches for `out`.
    unsafe { out.write(object.cast()) };
    Ok(())
}

/// Finds an object of C, if the pointer is of this class.
///
/// # Safety
/// See the rules of `exports`.
unsafe fn object<'a, F: ObjectFid + 'a>(fid: *const Fid) -> Result<&'a Object<F>, Errno> {
    if fid.is_null() || !fid.is_aligned() {
        return Err(INVALID);
    }
    // SAFETY: the caller vouches for a pointer to an object, which begins with a `Fid`.
    if unsafe { (*fid).class } != F::CLASS {
        return Err(INVALID);
    }
    // SAFETY: only `open` makes objects, and those of this class have this type.
    Ok(unsafe { &*fid.cast() })
}

/// Returns what is behind an object of C.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn inner<'a, F: ObjectFid + 'a>(fid: *const F) -> Result<&'a Arc<F::Inner>, Errno> {
    // SAFETY: the caller's promise.
    unsafe { inner_of_fid::<F>(fid.cast()) }
}

/// Returns what is behind a `fid` whose class is not known yet. A forked child is refused here, before it waits for a
/// lock that a thread of its parent held during the fork.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn inner_of_fid<'a, F: ObjectFid + 'a>(fid: *const Fid) -> Result<&'a Arc<F::Inner>, Errno> {
    // SAFETY: the caller's promise.
    let object = unsafe { object::<F>(fid) }?;
    if object.created_in.is_current() { Ok(&object.inner) } else { Err(FORKED) }
}

/// Closes an object, unless other objects use it. A forked child may close what it has inherited.
///
/// # Safety
/// See the rules of `exports`; nothing uses the pointer afterwards.
pub(crate) unsafe extern "C" fn close<F: ObjectFid>(fid: *mut Fid) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let found = unsafe { object::<F>(fid) }?;
        // A queue that is being read holds the endpoint for a moment.
        if F::CLASS != f::CLASS_EP && Arc::strong_count(&found.inner) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        F::close(&found.inner);
        // SAFETY: `open` made it of a box, and the caller gives it up.
        drop(unsafe { Box::from_raw(fid.cast::<Object<F>>()) });
        Ok(())
    })
}

/// `bind` of objects that nothing can be bound to.
pub(crate) unsafe extern "C" fn bind_nothing(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    -libc::ENOSYS
}

/// `control` of objects without commands.
pub(crate) unsafe extern "C" fn no_control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    -libc::ENOSYS
}
