//! What a recording knows when it starts, and the header that says so.

use crate::calibration::Curves;
use crate::layout::{CURVE_POINTS, Header, Limits, Point, SAMPLE_PERIOD, Tables, Text, VERSION};
use crate::operation::{Access, Operation, SIZE_CLASSES};
use crate::sampling::BLOCK;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// What a recording knows when it starts. The caller finds it out; this crate asks the system nothing.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// How many entries the tables have.
    pub limits: Limits,
    /// The process.
    pub pid: u32,
    /// Its parent.
    pub parent_pid: u32,
    /// The program's path; the first 508 bytes are kept.
    pub program: &'a [u8],
    /// Its arguments, separated by zero bytes as in `/proc/self/cmdline`; the first 2044 bytes are kept.
    pub arguments: &'a [u8],
    /// The options of the recording, as text; the first 508 bytes are kept.
    pub options: &'a str,
    /// The processor's brand string, up to 60 bytes.
    pub cpu: &'a str,
    /// EAX of CPUID leaf 1: family, model and stepping.
    pub cpu_signature: u32,
    /// Logical processors that the process may use.
    pub logical_cpus: u32,
    /// Bytes of the data caches of level 1, 2 and 3 that a core can use; 0 for a level that is absent.
    pub cache_bytes: [u64; 3],
    /// The kernel's release, up to 124 bytes.
    pub kernel: &'a str,
    /// Ticks of the time stamp counter in a second.
    pub tsc_hz: u64,
    /// The time stamp counter now.
    pub start_ticks: u64,
    /// Nanoseconds from 1970 to now.
    pub start_realtime_ns: u64,
    /// Ticks between two readings of the time stamp counter in a row, as the writer's caller reads it.
    pub timer_ticks: u64,
    /// What calls cost on this machine.
    pub curves: Curves<'a>,
    /// Bytes from which on the call's site is recorded.
    pub sites_from: usize,
    /// Bytes from which on a call is long: it is timed, counted while in flight, and traced. At least `sites_from`.
    pub long_from: usize,
}

impl Default for Start<'_> {
    /// Nothing is known; sites are recorded from 2 KiB on, and calls are long from 16 KiB on.
    fn default() -> Self {
        Start {
            limits: Limits::default(),
            pid: 0,
            parent_pid: 0,
            program: b"",
            arguments: b"",
            options: "",
            cpu: "",
            cpu_signature: 0,
            logical_cpus: 0,
            cache_bytes: [0; 3],
            kernel: "",
            tsc_hz: 0,
            start_ticks: 0,
            start_realtime_ns: 0,
            timer_ticks: 0,
            curves: Curves::default(),
            sites_from: 2 << 10,
            long_from: 16 << 10,
        }
    }
}

/// Why a recording cannot be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The memory is too small for tables of these limits.
    #[error("the recording needs {needed} bytes, and the memory has {have}")]
    Short {
        /// Bytes of the memory.
        have: u64,
        /// Bytes that it needs.
        needed: u64,
    },
    /// A value of [`Start`] makes no sense.
    #[error("{0}")]
    Start(&'static str),
    /// The memory does not begin at a multiple of 8.
    #[error("the memory of a recording must begin at a multiple of 8 bytes")]
    Misaligned,
}

impl Start<'_> {
    /// Returns the header, without its magic number, and the places of the tables.
    pub(crate) fn header(&self) -> Result<(Header, Tables), CreateError> {
        let tables = Tables::of(self.limits).map_err(CreateError::Start)?;
        if self.tsc_hz == 0 {
            return Err(CreateError::Start("the frequency of the time stamp counter is 0"));
        }
        if self.sites_from > self.long_from {
            return Err(CreateError::Start(
                "the size of long calls is below the size from which on sites are recorded",
            ));
        }
        let mut header = Header::new_zeroed();
        header.version = U32::new(VERSION);
        header.operations = count(Operation::ALL.len() as u64);
        header.size_classes = count(SIZE_CLASSES as u64);
        header.threads = U32::new(self.limits.threads);
        header.sites = U32::new(self.limits.sites);
        header.modules = U32::new(self.limits.modules);
        header.trace_blocks = U32::new(self.limits.trace_blocks);
        header.block = count(BLOCK);
        header.tables = tables.all();
        header.bytes = U64::new(tables.bytes);
        header.tsc_hz = U64::new(self.tsc_hz);
        header.start_ticks = U64::new(self.start_ticks);
        header.start_realtime_ns = U64::new(self.start_realtime_ns);
        header.timer_ticks = U64::new(self.timer_ticks);
        header.sample_period = U64::new(SAMPLE_PERIOD);
        header.sites_from = U64::new(self.sites_from as u64);
        header.long_from = U64::new(self.long_from as u64);
        header.cache_bytes = self.cache_bytes.map(U64::new);
        header.pid = U32::new(self.pid);
        header.parent_pid = U32::new(self.parent_pid);
        header.cpu_signature = U32::new(self.cpu_signature);
        header.logical_cpus = U32::new(self.logical_cpus);
        header.cpu = Text::new(self.cpu.as_bytes());
        header.kernel = Text::new(self.kernel.as_bytes());
        header.program = Text::new(self.program);
        header.arguments = Text::new(self.arguments);
        header.options = Text::new(self.options.as_bytes());
        header.curves = [Access::Copy, Access::Fill, Access::Compare].map(|access| curve(self.curves, access));
        Ok((header, tables))
    }
}

fn count(number: u64) -> U32 {
    U32::new(u32::try_from(number).expect("a small number"))
}

fn curve(curves: Curves<'_>, access: Access) -> [Point; CURVE_POINTS] {
    let of = curves.of(access);
    std::array::from_fn(|at| {
        let Some(point) = of.get(at) else { return Point::new_zeroed() };
        let [hot, cold, fresh] = [point.hot_ps, point.cold_ps, point.fresh_ps].map(U32::new);
        Point { len: U64::new(point.len), hot, cold, fresh, reserved: U32::ZERO }
    })
}

/// The words of a header, as they are in memory.
pub(crate) fn words(header: &Header) -> impl Iterator<Item = u64> + '_ {
    let eight = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
    header.as_bytes().chunks_exact(8).map(eight)
}
