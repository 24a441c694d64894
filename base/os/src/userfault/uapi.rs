//! The structures and numbers of userfaultfd(2) and its ioctls. Source of all: UAPI, linux/userfaultfd.h (Linux 6.18),
//! and ioctl_userfaultfd(2).

/// The API version that `UFFDIO_API` passes.
pub(super) const API: u64 = 0xaa;
/// Letter of the ioctls.
const LETTER: u64 = 0xaa;

const fn order(direction: u64, number: u64, bytes: usize) -> u64 {
    direction << 30 | (bytes as u64) << 16 | LETTER << 8 | number
}

const fn order_both(number: u64, bytes: usize) -> u64 {
    order(3, number, bytes)
}

/// The ioctl of /dev/userfaultfd that returns a new descriptor.
pub(super) const NEW: u64 = order(0, 0x00, 0);
pub(super) const UFFDIO_API: u64 = order_both(0x3f, size_of::<Api>());
pub(super) const REGISTER: u64 = order_both(0x00, size_of::<Register>());
pub(super) const UNREGISTER: u64 = order(2, 0x01, size_of::<Range>());
pub(super) const WAKE: u64 = order(2, 0x02, size_of::<Range>());
pub(super) const COPY: u64 = order_both(0x03, size_of::<Copy>());
pub(super) const ZEROPAGE: u64 = order_both(0x04, size_of::<Zero>());
pub(super) const MOVE: u64 = order_both(0x05, size_of::<Move>());
pub(super) const WRITEPROTECT: u64 = order_both(0x06, size_of::<WriteProtect>());

/// `UFFDIO_MOVE_MODE_DONTWAKE`: waiting threads are not woken.
#[cfg(any(test, feature = "test-util"))]
pub(super) const MOVE_DONT_WAKE: u64 = 1 << 0;

/// Modes of `UFFDIO_REGISTER`: missing pages, and write-protected pages.
pub(super) const REGISTER_MISSING: u64 = 1 << 0;
pub(super) const REGISTER_WP: u64 = 1 << 1;

#[repr(C)]
#[derive(Default)]
pub(super) struct Api {
    pub(super) api: u64,
    pub(super) features: u64,
    pub(super) ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) len: u64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct Register {
    pub(super) range: Range,
    pub(super) mode: u64,
    pub(super) ioctls: u64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct Copy {
    pub(super) dst: u64,
    pub(super) src: u64,
    pub(super) len: u64,
    pub(super) mode: u64,
    /// Bytes copied, or a negative error number.
    pub(super) copy: i64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct Zero {
    pub(super) range: Range,
    pub(super) mode: u64,
    /// Bytes mapped, or a negative error number.
    pub(super) zeropage: i64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct Move {
    pub(super) dst: u64,
    pub(super) src: u64,
    pub(super) len: u64,
    /// Bit 0: wake no thread.
    pub(super) mode: u64,
    /// Bytes moved, or a negative error number.
    pub(super) moved: i64,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct WriteProtect {
    pub(super) range: Range,
    /// Bit 0: protected.
    pub(super) mode: u64,
}

/// Bytes of an event message.
pub(super) const MESSAGE_BYTES: usize = 32;
/// Offsets of the argument's three words in the message.
pub(super) const ARGUMENT: [usize; 3] = [8, 16, 24];

pub(super) const PAGEFAULT: u8 = 0x12;
pub(super) const FORK: u8 = 0x13;
pub(super) const REMAP: u8 = 0x14;
pub(super) const REMOVE: u8 = 0x15;
pub(super) const UNMAP: u8 = 0x16;

const _: () = {
    // The numbers in the kernel's header.
    assert!(UFFDIO_API == 0xc018_aa3f && REGISTER == 0xc020_aa00 && UNREGISTER == 0x8010_aa01 && WAKE == 0x8010_aa02);
    assert!(
        COPY == 0xc028_aa03
            && ZEROPAGE == 0xc020_aa04
            && MOVE == 0xc028_aa05
            && WRITEPROTECT == 0xc018_aa06
            && NEW == 0xaa00
    );
};
