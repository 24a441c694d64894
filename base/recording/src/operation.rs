//! What a program asked for: the operation, its size class, how its ranges overlap and are aligned.

use serde::Serialize;

/// A function of the C library that copies, fills or compares memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Operation {
    /// memcpy, and `__memcpy_chk`.
    Memcpy = 0,
    /// memmove, bcopy, and `__memmove_chk`.
    Memmove = 1,
    /// mempcpy, and `__mempcpy_chk`.
    Mempcpy = 2,
    /// memset, bzero, and `__memset_chk`.
    Memset = 3,
    /// memcmp, bcmp, and `__memcmpeq`.
    Memcmp = 4,
    /// Functions that copy a string: strcpy, strncpy and the like.
    StringCopy = 5,
}

/// What an operation does to memory. Each has its own calibration curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Access {
    /// Reads one range and writes another one.
    Copy = 0,
    /// Writes one range.
    Fill = 1,
    /// Reads two ranges.
    Compare = 2,
}

impl Access {
    /// The number of variants.
    pub(crate) const COUNT: usize = 3;
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Operation; 6] = [
        Operation::Memcpy,
        Operation::Memmove,
        Operation::Mempcpy,
        Operation::Memset,
        Operation::Memcmp,
        Operation::StringCopy,
    ];

    /// The name, as in C and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Operation::Memcpy => "memcpy",
            Operation::Memmove => "memmove",
            Operation::Mempcpy => "mempcpy",
            Operation::Memset => "memset",
            Operation::Memcmp => "memcmp",
            Operation::StringCopy => "string_copy",
        }
    }

    /// What the operation does to memory.
    #[must_use]
    pub const fn access(self) -> Access {
        match self {
            Operation::Memset => Access::Fill,
            Operation::Memcmp => Access::Compare,
            Operation::Memcpy | Operation::Memmove | Operation::Mempcpy | Operation::StringCopy => Access::Copy,
        }
    }
}

/// The number of size classes. The last one has all sizes from 1.75 TiB on.
pub const SIZE_CLASSES: usize = 160;

/// Returns the class of a size: four classes for each power of two; sizes below 8 have their own.
#[inline]
#[must_use]
pub fn size_class(len: usize) -> usize {
    let shift = (len | 4).ilog2() - 2;
    (4 * shift as usize + (len >> shift)).min(SIZE_CLASSES - 1)
}

/// Returns the smallest and the largest size of a class.
///
/// # Panics
/// If there is no such class.
#[must_use]
pub fn sizes_of_class(class: usize) -> (u64, u64) {
    assert!(class < SIZE_CLASSES, "class {class} of {SIZE_CLASSES}");
    let first = |class: usize| {
        let shift = (class / 4).saturating_sub(1);
        ((class - 4 * shift) as u64) << shift
    };
    (first(class), if class + 1 == SIZE_CLASSES { u64::MAX } else { first(class + 1) - 1 })
}

/// How much of the data was in the caches, judged by the time of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Temperature {
    /// The data was in the caches.
    Hot = 0,
    /// The data came from memory.
    Cold = 1,
    /// The call waited for page faults: the kernel had to provide pages.
    Fresh = 2,
}

impl Temperature {
    /// All temperatures, in the order of their numbers.
    pub const ALL: [Temperature; 3] = [Temperature::Hot, Temperature::Cold, Temperature::Fresh];
}

/// The direction in which a copy moves its data to an overlapping destination.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Direction {
    /// To lower addresses: the copy runs from front to back.
    Down = 0,
    /// To higher addresses: the copy runs from back to front.
    Up = 1,
}

impl Direction {
    /// Both directions, in the order of their numbers.
    pub const ALL: [Direction; 2] = [Direction::Down, Direction::Up];
}

/// The distances of overlapping ranges that are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Distance {
    /// Less than a cache line of 64 bytes.
    BelowLine = 0,
    /// Less than a page of 4 KiB.
    BelowPage = 1,
    /// A page or more.
    PageOrMore = 2,
}

impl Distance {
    /// All classes, in the order of their numbers.
    pub(crate) const ALL: [Distance; 3] = [Distance::BelowLine, Distance::BelowPage, Distance::PageOrMore];

    pub(crate) const fn of(bytes: u64) -> Distance {
        match bytes {
            0..64 => Distance::BelowLine,
            64..4096 => Distance::BelowPage,
            4096.. => Distance::PageOrMore,
        }
    }
}

/// The alignments of an address that are counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Alignment {
    /// A multiple of 4 KiB.
    Page = 0,
    /// A multiple of 64, but not of 4 KiB.
    Line = 1,
    /// Any other address.
    Other = 2,
}

impl Alignment {
    /// All classes, in the order of their numbers.
    pub(crate) const ALL: [Alignment; 3] = [Alignment::Page, Alignment::Line, Alignment::Other];

    pub(crate) const fn of(address: usize) -> Alignment {
        if address.is_multiple_of(4096) {
            Alignment::Page
        } else if address.is_multiple_of(64) {
            Alignment::Line
        } else {
            Alignment::Other
        }
    }
}

/// One call of a program, as the interposed function sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The function.
    pub operation: Operation,
    /// The address that is written; the first range of a comparison.
    pub destination: usize,
    /// The address that is read; the second range of a comparison. Ignored for memset.
    pub source: usize,
    /// Bytes that are copied, filled or compared at most.
    pub len: usize,
    /// The address to which the call returns; 0 if it is unknown.
    pub return_address: usize,
}

impl Call {
    /// Returns the direction and the distance in bytes if source and destination of a copy overlap. A copy onto itself
    /// counts as downwards, with distance 0.
    #[must_use]
    pub fn overlap(&self) -> Option<(Direction, u64)> {
        let distance = self.destination.abs_diff(self.source);
        if self.operation.access() != Access::Copy || distance >= self.len {
            return None;
        }
        let direction = if self.destination > self.source { Direction::Up } else { Direction::Down };
        Some((direction, distance as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_all_sizes_in_order() {
        let mut next = 0;
        for class in 0..SIZE_CLASSES {
            let (first, last) = sizes_of_class(class);
            assert_eq!(first, next, "class {class}");
            for size in [first, last] {
                assert_eq!(size_class(usize::try_from(size).unwrap()), class, "{size} bytes");
            }
            next = last.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last class ends with the largest size");
    }

    #[test]
    fn a_power_of_two_has_four_classes_of_equal_width() {
        let class = size_class(16 << 10);
        let widths: Vec<u64> = (class..class + 4).map(sizes_of_class).map(|(first, last)| last - first + 1).collect();
        assert_eq!((sizes_of_class(class).0, widths), (16 << 10, vec![4096; 4]));
    }

    #[test]
    fn overlap_has_a_direction_and_ends_at_the_length() {
        let call =
            |operation, destination, source| Call { operation, destination, source, len: 100, return_address: 0 };
        let of = |destination, source| call(Operation::Memmove, destination, source).overlap();
        assert_eq!(of(1000, 1044), Some((Direction::Down, 44)));
        assert_eq!(of(1099, 1000), Some((Direction::Up, 99)));
        assert_eq!(of(1000, 1000), Some((Direction::Down, 0)));
        assert_eq!((of(1100, 1000), of(1000, 1100)), (None, None));
        assert_eq!(call(Operation::Memcmp, 1000, 1044).overlap(), None);
    }

    #[test]
    fn names_are_those_of_the_json() {
        for operation in Operation::ALL {
            assert_eq!(serde_json::to_value(operation).unwrap(), operation.name());
        }
        assert!(Operation::ALL.iter().enumerate().all(|(at, operation)| *operation as usize == at));
    }
}
