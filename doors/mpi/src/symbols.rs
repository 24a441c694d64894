//! The MPI's functions and objects, found in the process.
#![allow(unsafe_code, reason = "dlsym, and calls of the functions that it finds")]

use crate::abi::{Abi, Family, Handle};
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::OnceLock;

/// The MPI libraries that Python and others load without making their symbols known to all. Sources: the names of Open
/// MPI 4 and 5, of MPICH's ABI, and of Debian's MPICH.
const LIBRARIES: [&CStr; 3] = [c"libmpi.so.40", c"libmpi.so.12", c"libmpich.so.12"];

/// MPI's `MPI_Count`, and its `MPI_Aint`.
type Count = i64;

/// Declares the functions of the MPI that this library calls, and finds them. A handle is passed as a word; in MPICH's
/// ABI the functions use its lower half.
macro_rules! functions {
    ($($(#[$attribute:meta])* $field:ident = $name:literal ($($argument:ty),*);)*) => {
        /// The MPI's own functions.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $($(#[$attribute])* $field: Option<unsafe extern "C" fn($($argument),*) -> c_int>,)*
        }

        impl Functions {
            fn find(library: &Library) -> Functions {
                Functions {
                    $($field: library.symbol($name).map(|address| {
                        type Function = unsafe extern "C" fn($($argument),*) -> c_int;
                        // SAFETY: MPI defines the function of this name with these parameters; handles and pointers
                        // are words, see above.
                        unsafe { std::mem::transmute::<*mut c_void, Function>(address) }
                    }),)*
                }
            }
        }
    };
}

functions! {
    all_reduce = c"PMPI_Allreduce" (usize, usize, c_int, Handle, Handle, Handle);
    all_reduce_c = c"PMPI_Allreduce_c" (usize, usize, Count, Handle, Handle, Handle);
    reduce = c"PMPI_Reduce" (usize, usize, c_int, Handle, Handle, c_int, Handle);
    reduce_c = c"PMPI_Reduce_c" (usize, usize, Count, Handle, Handle, c_int, Handle);
    broadcast = c"PMPI_Bcast" (usize, c_int, Handle, c_int, Handle);
    broadcast_c = c"PMPI_Bcast_c" (usize, Count, Handle, c_int, Handle);
    all_gather = c"PMPI_Allgather" (usize, c_int, Handle, usize, c_int, Handle, Handle);
    all_gather_c = c"PMPI_Allgather_c" (usize, Count, Handle, usize, Count, Handle, Handle);
    finalize = c"PMPI_Finalize" ();
    comm_rank = c"PMPI_Comm_rank" (Handle, *mut c_int);
    comm_size = c"PMPI_Comm_size" (Handle, *mut c_int);
    comm_test_inter = c"PMPI_Comm_test_inter" (Handle, *mut c_int);
    comm_call_errhandler = c"PMPI_Comm_call_errhandler" (Handle, c_int);
    comm_create_keyval = c"PMPI_Comm_create_keyval" (usize, usize, *mut c_int, usize);
    comm_set_attr = c"PMPI_Comm_set_attr" (Handle, c_int, usize);
    iprobe = c"PMPI_Iprobe" (c_int, c_int, Handle, *mut c_int, usize);
    type_size = c"PMPI_Type_size_x" (Handle, *mut Count);
    type_extent = c"PMPI_Type_get_extent" (Handle, *mut Count, *mut Count);
    pack = c"PMPI_Pack" (usize, c_int, Handle, usize, c_int, *mut c_int, Handle);
    unpack = c"PMPI_Unpack" (usize, c_int, *mut c_int, usize, c_int, Handle, Handle);
}

/// Where symbols are looked up: in what all libraries of the process see, then in the MPI's library.
struct Library(*mut c_void);

impl Library {
    /// Finds the MPI's library if it is loaded; loads nothing.
    fn find() -> Library {
        let loaded = |name: &&CStr| {
            // SAFETY: the name is a C string, and RTLD_NOLOAD runs no code of a library.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            (!library.is_null()).then_some(library)
        };
        // The handle is never closed, so the library stays.
        Library(LIBRARIES.iter().find_map(loaded).unwrap_or(std::ptr::null_mut()))
    }

    fn symbol(&self, name: &CStr) -> Option<*mut c_void> {
        // An object of the MPI may have been copied into the program (a copy relocation), which comes first.
        [libc::RTLD_DEFAULT, self.0].into_iter().enumerate().find_map(|(at, library)| {
            if at > 0 && library.is_null() {
                return None;
            }
            // SAFETY: the name is a C string, and the handle is RTLD_DEFAULT or open.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!symbol.is_null()).then_some(symbol)
        })
    }
}

/// The MPI of this process.
#[derive(Debug)]
pub(crate) struct Mpi {
    pub(crate) abi: Abi,
    functions: Functions,
}

/// An error number of the MPI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MpiError(pub(crate) c_int);

/// The answer when the MPI has no such function. Source: `MPI_ERR_OTHER` of Open MPI; no program gets here, since its
/// MPI has the functions that it calls.
const NO_FUNCTION: c_int = 16;

fn checked(code: c_int) -> Result<(), MpiError> {
    if code == 0 { Ok(()) } else { Err(MpiError(code)) }
}

/// Calls a function of the MPI if there is one.
macro_rules! call {
    ($mpi:expr, $function:ident ($($argument:expr),*)) => {
        match $mpi.functions.$function {
            // SAFETY: the types are those of the declaration above. Pointers are to local variables of this call, or
            // those of the program, for whose call the function is called.
            Some(function) => unsafe { function($($argument),*) },
            None => NO_FUNCTION,
        }
    };
}

/// Returns what a function writes to its out argument.
macro_rules! query {
    ($mpi:expr, $type:ty, $function:ident ($($argument:expr),*)) => {{
        let mut value: $type = 0;
        checked(call!($mpi, $function ($($argument,)* &raw mut value))).map(|()| value)
    }};
}

impl Mpi {
    /// Returns the MPI of this process. The first call that a program makes finds it.
    pub(crate) fn get() -> &'static Mpi {
        static MPI: OnceLock<Mpi> = OnceLock::new();
        MPI.get_or_init(|| {
            let library = Library::find();
            let has = |name| library.symbol(name).is_some();
            let family = match has(c"ompi_mpi_comm_world") {
                true => Family::OpenMpi,
                // MPICH's library for the standard ABI has another name.
                false if !library.0.is_null() => Family::Mpich,
                false => Family::Other,
            };
            let address = |name: &str| {
                let symbol = library.symbol(&CString::new(name).ok()?)?;
                Some(symbol.expose_provenance())
            };
            Mpi { abi: Abi::new(family, address), functions: Functions::find(&library) }
        })
    }

    /// Calls `PMPI_Allreduce`, or the function for large counts.
    pub(crate) fn all_reduce(&self, from: usize, to: usize, count: Count, kind: (Handle, Handle), on: Handle) -> c_int {
        match small(count, self.functions.all_reduce_c.is_some()) {
            Some(count) => call!(self, all_reduce(from, to, count, kind.0, kind.1, on)),
            None => call!(self, all_reduce_c(from, to, count, kind.0, kind.1, on)),
        }
    }

    /// Calls `PMPI_Reduce`, or the function for large counts.
    pub(crate) fn reduce(
        &self,
        from: usize,
        to: usize,
        count: Count,
        kind: (Handle, Handle),
        root: c_int,
        on: Handle,
    ) -> c_int {
        match small(count, self.functions.reduce_c.is_some()) {
            Some(count) => call!(self, reduce(from, to, count, kind.0, kind.1, root, on)),
            None => call!(self, reduce_c(from, to, count, kind.0, kind.1, root, on)),
        }
    }

    /// Calls `PMPI_Bcast`, or the function for large counts.
    pub(crate) fn broadcast(&self, buffer: usize, count: Count, data_type: Handle, root: c_int, on: Handle) -> c_int {
        match small(count, self.functions.broadcast_c.is_some()) {
            Some(count) => call!(self, broadcast(buffer, count, data_type, root, on)),
            None => call!(self, broadcast_c(buffer, count, data_type, root, on)),
        }
    }

    /// Calls `PMPI_Allgather`, or the function for large counts.
    pub(crate) fn all_gather(&self, from: Items, to: Items, on: Handle) -> c_int {
        let has_large = self.functions.all_gather_c.is_some();
        match (small(from.count, has_large), small(to.count, has_large)) {
            (Some(sent), Some(received)) => {
                call!(self, all_gather(from.address, sent, from.data_type, to.address, received, to.data_type, on))
            }
            _ => {
                let (sent, received) = (from.count, to.count);
                call!(self, all_gather_c(from.address, sent, from.data_type, to.address, received, to.data_type, on))
            }
        }
    }

    pub(crate) fn finalize(&self) -> c_int {
        call!(self, finalize())
    }

    pub(crate) fn rank(&self, communicator: Handle) -> Result<c_int, MpiError> {
        query!(self, c_int, comm_rank(communicator))
    }

    pub(crate) fn size(&self, communicator: Handle) -> Result<c_int, MpiError> {
        query!(self, c_int, comm_size(communicator))
    }

    pub(crate) fn is_inter(&self, communicator: Handle) -> Result<bool, MpiError> {
        query!(self, c_int, comm_test_inter(communicator)).map(|flag| flag != 0)
    }

    /// Lets the communicator's error handler decide; returns if it does.
    pub(crate) fn call_error_handler(&self, communicator: Handle, error: c_int) {
        // If the handler cannot be called, the caller still gets the error.
        let _ = call!(self, comm_call_errhandler(communicator, error));
    }

    /// Lets the MPI's messages move on: MPI requires that of a rank that waits.
    pub(crate) fn progress(&self, communicator: Handle) {
        let Abi { any_source, any_tag, no_status, .. } = self.abi;
        let mut flag = 0;
        // Only its effect counts.
        let _ = call!(self, iprobe(any_source, any_tag, communicator, &raw mut flag, no_status));
    }

    /// Has the MPI call `freed` when it frees the communicator.
    pub(crate) fn on_free(&self, communicator: Handle, freed: fn(Handle)) -> Result<(), MpiError> {
        static KEY: OnceLock<Result<c_int, MpiError>> = OnceLock::new();
        static FREED: OnceLock<fn(Handle)> = OnceLock::new();
        FREED.get_or_init(|| freed);
        /// MPI's `MPI_Comm_copy_attr_function`: a copy of a communicator has no group yet.
        unsafe extern "C" fn copy(_: Handle, _: c_int, _: usize, _: usize, _: usize, flag: *mut c_int) -> c_int {
            // SAFETY: the MPI passes a place for the flag.
            unsafe { flag.write(0) };
            0
        }
        /// MPI's `MPI_Comm_delete_attr_function`.
        unsafe extern "C" fn delete(communicator: Handle, _: c_int, _: usize, _: usize) -> c_int {
            if let Some(freed) = FREED.get() {
                freed(Mpi::get().abi.handle(communicator));
            }
            0
        }
        let key = *KEY.get_or_init(|| {
            let (copy, delete) = (copy as *const () as usize, delete as *const () as usize);
            let mut key = 0;
            checked(call!(self, comm_create_keyval(copy, delete, &raw mut key, 0))).map(|()| key)
        });
        checked(call!(self, comm_set_attr(communicator, key?, 1)))
    }

    /// Returns the bytes of a type's values, without gaps.
    pub(crate) fn type_size(&self, data_type: Handle) -> Result<u64, MpiError> {
        let size = query!(self, Count, type_size(data_type))?;
        // Negative: `MPI_UNDEFINED`.
        u64::try_from(size).map_err(|_| MpiError(self.abi.error_other))
    }

    /// Returns the distance of a type's elements in an array.
    pub(crate) fn type_extent(&self, data_type: Handle) -> Result<i64, MpiError> {
        let mut lower = 0;
        query!(self, Count, type_extent(data_type, &raw mut lower))
    }

    /// Packs elements of any type.
    pub(crate) fn pack(&self, items: Items, into: &mut [u8], on: Handle) -> Result<(), MpiError> {
        let (count, len) = (self.int(items.count)?, self.int(into.len())?);
        let mut position = 0;
        let at = into.as_mut_ptr().expose_provenance();
        checked(call!(self, pack(items.address, count, items.data_type, at, len, &raw mut position, on)))?;
        if position == len { Ok(()) } else { Err(MpiError(self.abi.error_other)) }
    }

    /// Unpacks elements of any type.
    pub(crate) fn unpack(&self, from: &[u8], items: Items, on: Handle) -> Result<(), MpiError> {
        let (count, len) = (self.int(items.count)?, self.int(from.len())?);
        let mut position = 0;
        let at = from.as_ptr().expose_provenance();
        checked(call!(self, unpack(at, len, &raw mut position, items.address, count, items.data_type, on)))
    }

    /// Gathers `own` of all ranks in `all`.
    pub(crate) fn gather_bytes(&self, own: &[u8], all: &mut [u8], on: Handle) -> Result<(), MpiError> {
        let (len, byte) = (self.int(own.len())?, self.abi.byte);
        let (from, to) = (own.as_ptr().expose_provenance(), all.as_mut_ptr().expose_provenance());
        checked(call!(self, all_gather(from, len, byte, to, len, byte, on)))
    }

    fn int(&self, value: impl TryInto<c_int>) -> Result<c_int, MpiError> {
        value.try_into().map_err(|_| MpiError(self.abi.error_other))
    }
}

/// Elements in the program's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items {
    pub(crate) address: usize,
    pub(crate) count: Count,
    pub(crate) data_type: Handle,
}

/// Returns the count for a function without large counts, if it is small or if there is no other function.
fn small(count: Count, has_large: bool) -> Option<c_int> {
    match c_int::try_from(count) {
        Ok(count) => Some(count),
        Err(_) if has_large => None,
        // The MPI reports the count as an error.
        Err(_) => Some(-1),
    }
}
