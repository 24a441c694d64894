//! Address vectors.

use super::missing::{MISSING, fid_table};
use super::object::{bind_nothing, close, head, inner, no_control, open as open_object};
use super::{answer, caught, length, write_text};
use crate::abi::flags as f;
use crate::abi::objects::FidAv;
use crate::abi::objects::{OpsAv, OpsFid};
use crate::address_vector::AddressVector;
use crate::failure::{Errno, INVALID};
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Arc;
use telpher_fabric::Address;
use telpher_fabric::address::ADDRESS_BYTES;

static FID: OpsFid = fid_table(close::<FidAv>, bind_nothing, no_control);

static OPS: OpsAv = OpsAv {
    size: size_of::<OpsAv>(),
    insert,
    insertsvc: MISSING,
    insertsym: MISSING,
    remove,
    lookup,
    straddr,
    av_set: MISSING,
    insert_auth_key: MISSING,
    lookup_auth_key: MISSING,
    set_user_id: MISSING,
};

/// Opens an address vector.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn open(out: *mut *mut FidAv, av: AddressVector, context: *mut c_void) -> Result<(), Errno> {
    let fid = FidAv { fid: head::<FidAv>(context, &FID), ops: &raw const OPS };
    // SAFETY: the caller's promise.
    unsafe { open_object(out, fid, Arc::new(av)) }
}

/// Inserts addresses, and returns how many are inserted. The number of one that is refused is "not available".
unsafe extern "C" fn insert(
    av: *mut FidAv,
    addr: *const c_void,
    count: usize,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let inserted = length(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let av = unsafe { inner(av) }?;
        let array_bytes = count.checked_mul(ADDRESS_BYTES).filter(|&bytes| isize::try_from(bytes).is_ok());
        let array_bytes = array_bytes.ok_or(INVALID)?;
        if (count > 0 && addr.is_null()) || !numbers.is_aligned() {
            return Err(INVALID);
        }
        let addresses = match array_bytes {
            0 => &[],
            // SAFETY: an array of encoded addresses.
            bytes => unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), bytes) },
        };
        let errors = if flags & f::SYNC_ERR != 0 { context.cast::<c_int>() } else { std::ptr::null_mut() };
        let mut inserted = 0;
        let mut refused = None;
        for (place, bytes) in addresses.chunks_exact(ADDRESS_BYTES).enumerate() {
            let result = av.insert(bytes);
            inserted += usize::from(result.is_ok());
            if !numbers.is_null() {
                // SAFETY: an array of `count` numbers.
                unsafe { numbers.add(place).write(result.unwrap_or(f::ADDRESS_UNSPECIFIED)) };
            }
            if !errors.is_null() {
                // SAFETY: an array of `count` error numbers.
                unsafe { errors.add(place).write(result.map_or_else(|errno| errno.0, |_| 0)) };
            }
            refused = refused.or(result.err());
        }
        // A caller that inserts one address learns why it was refused.
        match refused {
            Some(errno) if inserted == 0 && errors.is_null() => Err(errno),
            _ => Ok(inserted),
        }
    });
    c_int::try_from(inserted).unwrap_or(c_int::MAX)
}

unsafe extern "C" fn remove(av: *mut FidAv, numbers: *mut u64, count: usize, flags: u64) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so is the next one.
        let av = unsafe { inner(av) }?;
        if flags != 0 || (count > 0 && (numbers.is_null() || !numbers.is_aligned())) {
            return Err(INVALID);
        }
        for place in 0..count {
            // SAFETY: an array of `count` numbers.
            av.remove(unsafe { numbers.add(place).read() })?;
        }
        Ok(())
    })
}

/// Copies the encoded address, as much as fits; `len` is what there is.
unsafe extern "C" fn lookup(av: *mut FidAv, number: u64, addr: *mut c_void, len: *mut usize) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so is the next one.
        let av = unsafe { inner(av) }?;
        let address = av.address(number).ok_or(INVALID)?;
        // SAFETY: as above.
        unsafe { write_address(&address, addr, len) }.map(|_| ())
    })
}

/// Copies an encoded address, as much as fits, and sets `len` to what there is. True if it fits.
///
/// # Safety
/// `len` may be written, and `addr` for as many bytes as it says.
pub(crate) unsafe fn write_address(address: &Address, addr: *mut c_void, len: *mut usize) -> Result<bool, Errno> {
    if len.is_null() || !len.is_aligned() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let room = unsafe { len.read() };
    if addr.is_null() && room > 0 {
        return Err(INVALID);
    }
    let bytes = address.encode();
    // SAFETY: as above.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr.cast::<u8>(), bytes.len().min(room));
        len.write(bytes.len());
    }
    Ok(room >= bytes.len())
}

/// Writes an address as text, as much as fits; `len` is what there is.
unsafe extern "C" fn straddr(_: *mut FidAv, addr: *const c_void, buf: *mut c_char, len: *mut usize) -> *const c_char {
    let written = caught(|| {
        if addr.is_null() || len.is_null() || !len.is_aligned() {
            return Err(INVALID);
        }
        // SAFETY: an encoded address; the rules of `exports` hold for the next ones, too.
        let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), ADDRESS_BYTES) };
        let text = Address::decode(bytes).map_or_else(|| "no address of telpher".into(), |a| a.to_string());
        let text = CString::new(text).map_err(|_| INVALID)?;
        // SAFETY: as above.
        unsafe {
            write_text(&text, buf, len.read());
            len.write(text.as_bytes_with_nul().len());
        }
        Ok(())
    });
    if written.is_ok() { buf } else { std::ptr::null() }
}
