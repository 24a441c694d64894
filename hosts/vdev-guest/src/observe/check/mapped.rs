//! Checks whether an address is mapped, without accessing it.
#![allow(unsafe_code, reason = "mincore")]

use crate::sys::{self, Errno};
use telpher_mem::PAGE_BYTES;

/// True if the page of an address is mapped, present or not.
pub(super) fn is_mapped(address: u64) -> bool {
    let Ok(page) = usize::try_from(address / PAGE_BYTES * PAGE_BYTES) else { return false };
    let mut answer = 0_u8;
    let arguments = [page, 1, (&raw mut answer).expose_provenance(), 0, 0, 0];
    // SAFETY: mincore reads only page tables, not the memory, and writes one byte for the one page.
    let asked = unsafe { sys::call(libc::SYS_mincore, arguments) };
    asked != Err(Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_mem::Pages;

    #[test]
    fn an_untouched_page_is_mapped_and_a_hole_is_not() {
        let pages = Pages::new(2).unwrap();
        assert!(is_mapped(pages.address() + 5000));
        assert!(!is_mapped(0));
        assert!(!is_mapped(u64::MAX));
    }
}
