//! Handles and constants of the two families of MPIs.
//!
//! In Open MPI a handle is the address of an object in its library. In MPICH, and in the MPIs with its ABI, it is a
//! number of 32 bits. Sources: `mpi.h` of Open MPI 4.1.4 and of MPICH 5.0.2.

use telpher_fabric::Number;
use telpher_fabric::collective::Reduction;

/// A handle of either family, as a C function gets it in a register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) usize);

/// A family of MPIs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Family {
    OpenMpi,
    Mpich,
    /// Handles of another kind: no call is taken.
    Other,
}

/// A predefined type whose elements lie next to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Basic {
    pub(crate) bytes: u64,
    /// The numbers that can be reduced; `None` if the MPI does it.
    pub(crate) number: Option<Number>,
}

/// What a handle means, by the object's name in Open MPI and the number in MPICH.
struct Row<T> {
    object: &'static str,
    number: u32,
    meaning: T,
}

const fn of(object: &'static str, number: u32, meaning: Number) -> Row<Basic> {
    Row { object, number, meaning: Basic { bytes: meaning.bytes(), number: Some(meaning) } }
}

/// Bytes that are copied only.
const fn copied(object: &'static str, number: u32, bytes: u64) -> Row<Basic> {
    Row { object, number, meaning: Basic { bytes, number: None } }
}

/// Predefined types. Any other type is one of the user for this library.
const TYPES: [Row<Basic>; 38] = [
    of("ompi_mpi_signed_char", 0x4c00_0118, Number::I8),
    of("ompi_mpi_unsigned_char", 0x4c00_0102, Number::U8),
    of("ompi_mpi_short", 0x4c00_0203, Number::I16),
    of("ompi_mpi_unsigned_short", 0x4c00_0204, Number::U16),
    of("ompi_mpi_int", 0x4c00_0405, Number::I32),
    of("ompi_mpi_unsigned", 0x4c00_0406, Number::U32),
    of("ompi_mpi_long", 0x4c00_0807, Number::I64),
    of("ompi_mpi_unsigned_long", 0x4c00_0808, Number::U64),
    of("ompi_mpi_long_long_int", 0x4c00_0809, Number::I64),
    of("ompi_mpi_unsigned_long_long", 0x4c00_0819, Number::U64),
    of("ompi_mpi_int8_t", 0x4c00_0137, Number::I8),
    of("ompi_mpi_uint8_t", 0x4c00_013b, Number::U8),
    of("ompi_mpi_int16_t", 0x4c00_0238, Number::I16),
    of("ompi_mpi_uint16_t", 0x4c00_023c, Number::U16),
    of("ompi_mpi_int32_t", 0x4c00_0439, Number::I32),
    of("ompi_mpi_uint32_t", 0x4c00_043d, Number::U32),
    of("ompi_mpi_int64_t", 0x4c00_083a, Number::I64),
    of("ompi_mpi_uint64_t", 0x4c00_083e, Number::U64),
    of("ompi_mpi_aint", 0x4c00_0843, Number::I64),
    of("ompi_mpi_offset", 0x4c00_0844, Number::I64),
    of("ompi_mpi_count", 0x4c00_0845, Number::I64),
    of("ompi_mpi_integer", 0x4c00_041b, Number::I32),
    of("ompi_mpi_integer1", 0x4c00_012d, Number::I8),
    of("ompi_mpi_integer2", 0x4c00_022f, Number::I16),
    of("ompi_mpi_integer4", 0x4c00_0430, Number::I32),
    of("ompi_mpi_integer8", 0x4c00_0831, Number::I64),
    of("ompi_mpi_float", 0x4c00_040a, Number::F32),
    of("ompi_mpi_double", 0x4c00_080b, Number::F64),
    of("ompi_mpi_real", 0x4c00_041c, Number::F32),
    of("ompi_mpi_real4", 0x4c00_0427, Number::F32),
    of("ompi_mpi_real8", 0x4c00_0829, Number::F64),
    of("ompi_mpi_dblprec", 0x4c00_081f, Number::F64),
    copied("ompi_mpi_char", 0x4c00_0101, 1),
    copied("ompi_mpi_byte", 0x4c00_010d, 1),
    copied("ompi_mpi_packed", 0x4c00_010f, 1),
    copied("ompi_mpi_c_bool", 0x4c00_013f, 1),
    copied("ompi_mpi_c_float_complex", 0x4c00_0840, 8),
    copied("ompi_mpi_c_double_complex", 0x4c00_1041, 16),
];

const fn op(object: &'static str, number: u32, meaning: Reduction) -> Row<Reduction> {
    Row { object, number, meaning }
}

/// Predefined operations that this library has.
const OPERATIONS: [Row<Reduction>; 10] = [
    op("ompi_mpi_op_max", 0x5800_0001, Reduction::Greatest),
    op("ompi_mpi_op_min", 0x5800_0002, Reduction::Least),
    op("ompi_mpi_op_sum", 0x5800_0003, Reduction::Sum),
    op("ompi_mpi_op_prod", 0x5800_0004, Reduction::Product),
    op("ompi_mpi_op_land", 0x5800_0005, Reduction::And),
    op("ompi_mpi_op_band", 0x5800_0006, Reduction::BitAnd),
    op("ompi_mpi_op_lor", 0x5800_0007, Reduction::Or),
    op("ompi_mpi_op_bor", 0x5800_0008, Reduction::BitOr),
    op("ompi_mpi_op_lxor", 0x5800_0009, Reduction::Xor),
    op("ompi_mpi_op_bxor", 0x5800_000a, Reduction::BitXor),
];

/// The handles and constants of the MPI in this process.
#[derive(Debug)]
pub(crate) struct Abi {
    pub(crate) family: Family,
    types: Vec<(Handle, Basic)>,
    operations: Vec<(Handle, Reduction)>,
    pub(crate) byte: Handle,
    no_communicator: Handle,
    no_type: Handle,
    /// The address that stands for the receive buffer.
    pub(crate) in_place: usize,
    pub(crate) any_source: i32,
    pub(crate) any_tag: i32,
    /// The address that stands for no status.
    pub(crate) no_status: usize,
    /// The class of errors that have no class of their own.
    pub(crate) error_other: i32,
}

impl Abi {
    /// Takes the handles of a family. `address` finds the objects of Open MPI; rows of objects that it does not have
    /// are left out.
    pub(crate) fn new(family: Family, address: impl Fn(&str) -> Option<usize>) -> Abi {
        let handle = |object: &str, number: u32| match family {
            Family::OpenMpi => address(object).map(Handle),
            Family::Mpich => Some(Handle(number as usize)),
            Family::Other => None,
        };
        fn known<T: Copy>(rows: &[Row<T>], handle: impl Fn(&str, u32) -> Option<Handle>) -> Vec<(Handle, T)> {
            rows.iter().filter_map(|row| Some((handle(row.object, row.number)?, row.meaning))).collect()
        }
        // No handle is the address of nothing.
        let one = |object, number| handle(object, number).unwrap_or(Handle(0));
        let is_open_mpi = family == Family::OpenMpi;
        Abi {
            family,
            types: known(&TYPES, handle),
            operations: known(&OPERATIONS, handle),
            byte: one("ompi_mpi_byte", 0x4c00_010d),
            no_communicator: one("ompi_mpi_comm_null", 0x0400_0000),
            no_type: one("ompi_mpi_datatype_null", 0x0c00_0000),
            in_place: if is_open_mpi { 1 } else { usize::MAX },
            any_source: if is_open_mpi { -1 } else { -2 },
            any_tag: -1,
            no_status: usize::from(!is_open_mpi),
            error_other: if is_open_mpi { 16 } else { 15 },
        }
    }

    /// Returns a handle without the bits that a C function of the family leaves undefined.
    pub(crate) fn handle(&self, register: Handle) -> Handle {
        match self.family {
            Family::Mpich => Handle(register.0 & 0xffff_ffff),
            Family::OpenMpi | Family::Other => register,
        }
    }

    /// Returns what a handle of a predefined type means.
    pub(crate) fn basic(&self, of: Handle) -> Option<Basic> {
        find(&self.types, of)
    }

    /// Returns what a handle of a predefined operation means.
    pub(crate) fn reduction(&self, of: Handle) -> Option<Reduction> {
        find(&self.operations, of)
    }

    /// Returns whether the MPI refuses the handles.
    pub(crate) fn are_null(&self, communicator: Handle, data_type: Handle) -> bool {
        communicator == self.no_communicator || data_type == self.no_type || communicator.0 == 0 || data_type.0 == 0
    }
}

fn find<T: Copy>(rows: &[(Handle, T)], handle: Handle) -> Option<T> {
    rows.iter().find(|(known, _)| *known == handle).map(|(_, meaning)| *meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_mpich_contain_the_length_of_their_type() {
        // In MPICH's ABI, bits 8 to 15 of a predefined type are its bytes.
        for row in TYPES {
            assert_eq!(u64::from(row.number >> 8 & 0xff), row.meaning.bytes, "{}", row.object);
        }
    }

    #[test]
    fn upper_bits_of_a_register_are_no_part_of_a_handle_of_mpich() {
        let abi = Abi::new(Family::Mpich, |_| None);
        let double = abi.handle(Handle(0xdead_beef_4c00_080b));
        assert_eq!(abi.basic(double), Some(Basic { bytes: 8, number: Some(Number::F64) }));
        assert_eq!(abi.reduction(Handle(0x5800_0003)), Some(Reduction::Sum));
        assert_eq!((abi.basic(Handle(7)), abi.reduction(Handle(7))), (None, None));
        assert!(abi.are_null(Handle(0x0400_0000), double) && !abi.are_null(Handle(0x4400_0000), double));
    }

    #[test]
    fn objects_that_an_open_mpi_does_not_have_are_left_out() {
        let abi = Abi::new(Family::OpenMpi, |name| (name == "ompi_mpi_float").then_some(0x7000));
        assert_eq!(abi.basic(Handle(0x7000)).and_then(|basic| basic.number), Some(Number::F32));
        assert_eq!((abi.types.len(), abi.operations.len()), (1, 0));
    }

    #[test]
    fn no_call_of_an_unknown_family_is_taken() {
        let abi = Abi::new(Family::Other, |_| Some(1));
        assert!(abi.types.is_empty() && abi.operations.is_empty());
    }
}
