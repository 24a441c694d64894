//! Attributes of an open file, `dsa!wqM.N/fileK`. Source: K612 `cdev.c`. [`Id::index`](super::super::attribute::Id) is
//! the file's number.

use super::super::attribute::{Attribute, line, read_only};
use crate::tree::Errno;

/// The attribute table.
pub(crate) static ROWS: &[Attribute] = &[
    read_only("cr_faults", |k, id| line(k.file(id).ok_or(Errno::NODEV)?.record_faults)),
    read_only("cr_fault_failures", |k, id| line(k.file(id).ok_or(Errno::NODEV)?.record_fault_failures)),
    read_only("pid", |k, id| line(k.file(id).ok_or(Errno::NODEV)?.process)),
];
