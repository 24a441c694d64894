//! Converts a C operation to a checked one: checks every range and reads every number once, for all interfaces.

use super::Raw;
use crate::c_structs::{self, Op, arithmetic_flag, flag, opcode};
use crate::failure::Refusal;
use std::ops::Range;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};
use telpher_mover::{
    Arithmetic, Blocks, ComputeType, CrcMode, DataType, DifConfig, E4m3Overflow, Rounding, SglFormat, Tags,
};

/// An operation whose ranges are guaranteed: buffers in the order of the mover's method of that name.
#[derive(Debug)]
pub(crate) enum Request {
    Nop,
    Drain,
    Copy(Raw, Raw),
    CopyDurable(Raw, Raw),
    /// A copy whose ranges overlap, within the range that contains both.
    CopyWithin(Raw, Range<usize>, usize),
    Fill(Raw, u64),
    Fill16(Raw, [u64; 2]),
    /// With the expected outcome, if there is one: true for a difference.
    Compare(Raw, Raw, Option<bool>),
    ComparePattern(Raw, u64),
    CreateDelta(Raw, Raw, Raw),
    ApplyDelta(Raw, Raw, u32),
    Dualcast(Raw, Raw, Raw),
    Crc(Raw, u32, CrcMode),
    CopyCrc(Raw, Raw, u32, CrcMode),
    DifCheck(Raw, DifConfig, Tags),
    DifInsert(Raw, Raw, DifConfig, Tags),
    DifStrip(Raw, Raw, DifConfig, Tags),
    DifUpdate(Raw, Raw, DifConfig, Tags, Tags),
    DixGenerate(Raw, Raw, DifConfig, Tags),
    Crc64(Raw, u64, CrcMode),
    CopyCrc64(Raw, Raw, u64, CrcMode),
    Convert(Raw, Raw, Arithmetic),
    Reduce(Raw, Raw, Raw, ComputeType, Arithmetic),
    ReduceDualcast(Raw, Raw, Raw, Raw, ComputeType, Arithmetic),
    /// Memory, list, destination.
    GatherReduce(Raw, Raw, Raw, Blocks, ComputeType, Arithmetic),
    Gather(Raw, Raw, Raw, Blocks),
    Scatter(Raw, Raw, Raw, Blocks),
    ScatterFill(Raw, Raw, Blocks, u64),
    PrefetchPages(Raw),
    Flush(Raw),
}

/// Calls the method of an interface (`Mover`, `Batch`, `Channel`) for a request, and passes its result to `$then`. The
/// caller handles nop, drain and an expected comparison, because the interfaces differ there.
macro_rules! dispatch {
    ($request:expr, $front:expr, $then:path, { $($own:pat => $answer:expr),* $(,)? }) => {{
        use $crate::raw::Request;
        match $request {
            $($own => $answer,)*
            Request::Copy(src, dst) => $then($front.copy(src, dst)),
            Request::CopyDurable(src, dst) => $then($front.copy_durable(src, dst)),
            Request::CopyWithin(whole, from, to) => $then($front.copy_within(whole, from, to)),
            Request::Fill(dst, pattern) => $then($front.fill(dst, pattern)),
            Request::Fill16(dst, pattern) => $then($front.fill16(dst, pattern)),
            Request::Compare(a, b, _) => $then($front.compare(a, b)),
            Request::ComparePattern(src, pattern) => $then($front.compare_pattern(src, pattern)),
            Request::CreateDelta(a, b, delta) => $then($front.create_delta(a, b, delta)),
            Request::ApplyDelta(delta, dst, bytes) => $then($front.apply_delta(delta, dst, bytes)),
            Request::Dualcast(src, a, b) => $then($front.dualcast(src, a, b)),
            Request::Crc(src, seed, mode) => $then($front.crc(src, seed, mode)),
            Request::CopyCrc(src, dst, seed, mode) => $then($front.copy_crc(src, dst, seed, mode)),
            Request::DifCheck(src, config, tags) => $then($front.dif_check(src, config, tags)),
            Request::DifInsert(src, dst, config, tags) => $then($front.dif_insert(src, dst, config, tags)),
            Request::DifStrip(src, dst, config, tags) => $then($front.dif_strip(src, dst, config, tags)),
            Request::DifUpdate(src, dst, config, tags, new) => $then($front.dif_update(src, dst, config, tags, new)),
            Request::DixGenerate(src, dst, config, tags) => $then($front.dix_generate(src, dst, config, tags)),
            Request::Crc64(src, seed, mode) => $then($front.crc64(src, seed, mode)),
            Request::CopyCrc64(src, dst, seed, mode) => $then($front.copy_crc64(src, dst, seed, mode)),
            Request::Convert(src, dst, arithmetic) => $then($front.convert(src, dst, arithmetic)),
            Request::Reduce(a, b, dst, compute, arithmetic) => $then($front.reduce(a, b, dst, compute, arithmetic)),
            Request::ReduceDualcast(a, b, dst, dst2, compute, arithmetic) => {
                $then($front.reduce_dualcast(a, b, dst, dst2, compute, arithmetic))
            }
            Request::GatherReduce(src, list, dst, blocks, compute, arithmetic) => {
                $then($front.gather_reduce(src, list, dst, blocks, compute, arithmetic))
            }
            Request::Gather(src, list, dst, blocks) => $then($front.gather(src, list, dst, blocks)),
            Request::Scatter(src, list, dst, blocks) => $then($front.scatter(src, list, dst, blocks)),
            Request::ScatterFill(list, dst, blocks, pattern) => $then($front.scatter_fill(list, dst, blocks, pattern)),
            Request::PrefetchPages(src) => $then($front.prefetch_pages(src)),
            Request::Flush(src) => $then($front.flush(src)),
        }
    }};
}
pub(crate) use dispatch;

/// All flags.
const FLAGS: u32 = flag::TELPHER_FENCE
    | flag::TELPHER_EXPECT_EQUAL
    | flag::TELPHER_EXPECT_DIFFERENT
    | flag::TELPHER_CRC_BYPASS_INVERT_REFLECT
    | flag::TELPHER_CRC_BYPASS_DATA_REFLECT
    | flag::TELPHER_LIST_INDEX32
    | flag::TELPHER_LIST_INDEX64;

/// The DIF flags that have a meaning; the fields keep others too. All eight flags of a source have names.
const DIF_FLAGS: DifFlags = DifFlags::INVERT_CRC_SEED.union(DifFlags::INVERT_CRC_RESULT);
const DEST_FLAGS: DestDifFlags = DestDifFlags::APP_TAG_PASS
    .union(DestDifFlags::APP_TAG_INCREMENTS)
    .union(DestDifFlags::GUARD_PASS)
    .union(DestDifFlags::REF_TAG_PASS)
    .union(DestDifFlags::REF_TAG_FIXED);

impl Request {
    /// Checks and converts an operation.
    ///
    /// # Safety
    ///
    /// The ranges that the operation names (which ones, and how long, depends on its opcode) are lent as for [`Raw`],
    /// until the request or what is created from it has been dropped: read for `src` and `src2`, written for `dst` and
    /// `dst2`.
    pub(crate) unsafe fn of(op: &Op) -> Result<Request, Refusal> {
        if op.reserved != [0; 1] {
            return Err(Refusal::Reserved("operation"));
        }
        if op.flags & !FLAGS != 0 {
            return Err(Refusal::Flags(op.flags & !FLAGS));
        }
        // SAFETY: our caller's guarantee is the callee's.
        let src = || unsafe { Raw::new("the source", op.src, op.len) };
        // SAFETY: as above.
        let src2 = || unsafe { Raw::new("the second source", op.src2, op.len) };
        // SAFETY: as above.
        let dst = || unsafe { Raw::new("the destination", op.dst, op.len) };
        // SAFETY: as above.
        let dst2 = || unsafe { Raw::new("the second destination", op.dst2, op.len) };
        // SAFETY: as above.
        let own = || unsafe { Raw::new("the destination", op.dst, op.dst_len) };
        // SAFETY: as above.
        let own2 = || unsafe { Raw::new("the second destination", op.dst2, op.dst_len) };
        // SAFETY: as above.
        let list = || unsafe { Raw::new("the list", op.src2, op.src2_len) };
        let seed = op.seed;
        Ok(match op.opcode {
            opcode::TELPHER_NOP => Request::Nop,
            opcode::TELPHER_DRAIN => Request::Drain,
            opcode::TELPHER_COPY => Request::Copy(apart(src()?, &[&dst()?])?, dst()?),
            opcode::TELPHER_COPY_DURABLE => Request::CopyDurable(apart(src()?, &[&dst()?])?, dst()?),
            opcode::TELPHER_MOVE => within(src()?, dst()?),
            opcode::TELPHER_FILL => Request::Fill(dst()?, op.pattern[0]),
            opcode::TELPHER_FILL16 => Request::Fill16(dst()?, op.pattern),
            opcode::TELPHER_COMPARE => Request::Compare(src()?, src2()?, expected(op.flags)?),
            opcode::TELPHER_COMPARE_PATTERN => Request::ComparePattern(src()?, op.pattern[0]),
            opcode::TELPHER_CREATE_DELTA => {
                let delta = own()?;
                Request::CreateDelta(apart(src()?, &[&delta])?, apart(src2()?, &[&delta])?, delta)
            }
            opcode::TELPHER_APPLY_DELTA => {
                let dst = own()?;
                let bytes =
                    u32::try_from(op.len).map_err(|_| Refusal::TooLong { what: "the delta record", len: op.len })?;
                Request::ApplyDelta(apart(src()?, &[&dst])?, dst, bytes)
            }
            opcode::TELPHER_DUALCAST => {
                let second = dst2()?;
                Request::Dualcast(apart(src()?, &[&dst()?, &second])?, apart(dst()?, &[&second])?, second)
            }
            opcode::TELPHER_CRC => Request::Crc(src()?, seed, crc_mode(op.flags)),
            opcode::TELPHER_COPY_CRC => Request::CopyCrc(apart(src()?, &[&dst()?])?, dst()?, seed, crc_mode(op.flags)),
            opcode::TELPHER_DIF_CHECK => Request::DifCheck(src()?, dif(op)?, tags(op.tags)),
            opcode::TELPHER_DIF_INSERT => {
                Request::DifInsert(apart(src()?, &[&own()?])?, own()?, dif(op)?, tags(op.tags))
            }
            opcode::TELPHER_DIF_STRIP => Request::DifStrip(apart(src()?, &[&own()?])?, own()?, dif(op)?, tags(op.tags)),
            opcode::TELPHER_DIF_UPDATE => {
                let (src, new) = (apart(src()?, &[&own()?])?, tags(op.new_tags));
                Request::DifUpdate(src, own()?, dif(op)?, tags(op.tags), new)
            }
            opcode::TELPHER_DIX_GENERATE => {
                Request::DixGenerate(apart(src()?, &[&own()?])?, own()?, dif(op)?, tags(op.tags))
            }
            opcode::TELPHER_CRC64 => Request::Crc64(src()?, op.pattern[0], crc_mode(op.flags)),
            opcode::TELPHER_COPY_CRC64 => {
                Request::CopyCrc64(apart(src()?, &[&dst()?])?, dst()?, op.pattern[0], crc_mode(op.flags))
            }
            opcode::TELPHER_CONVERT => Request::Convert(apart(src()?, &[&own()?])?, own()?, arithmetic(op)?),
            opcode::TELPHER_REDUCE => {
                let (dst, compute) = (own()?, compute(op)?);
                Request::Reduce(apart(src()?, &[&dst])?, apart(src2()?, &[&dst])?, dst, compute, arithmetic(op)?)
            }
            opcode::TELPHER_REDUCE_DUALCAST => {
                let (dst, dst2, compute) = (own()?, own2()?, compute(op)?);
                let (a, b) = (apart(src()?, &[&dst, &dst2])?, apart(src2()?, &[&dst, &dst2])?);
                Request::ReduceDualcast(a, b, apart(dst, &[&dst2])?, dst2, compute, arithmetic(op)?)
            }
            opcode::TELPHER_GATHER_REDUCE => {
                let (dst, compute) = (own()?, compute(op)?);
                let (src, list) = (apart(src()?, &[&dst])?, apart(list()?, &[&dst])?);
                Request::GatherReduce(src, list, dst, blocks(op)?, compute, arithmetic(op)?)
            }
            opcode::TELPHER_GATHER => {
                let dst = own()?;
                Request::Gather(apart(src()?, &[&dst])?, apart(list()?, &[&dst])?, dst, blocks(op)?)
            }
            opcode::TELPHER_SCATTER => {
                let dst = own()?;
                Request::Scatter(apart(src()?, &[&dst])?, apart(list()?, &[&dst])?, dst, blocks(op)?)
            }
            opcode::TELPHER_SCATTER_FILL => {
                Request::ScatterFill(apart(src()?, &[&own()?])?, own()?, blocks(op)?, op.pattern[0])
            }
            opcode::TELPHER_PREFETCH_PAGES => Request::PrefetchPages(src()?),
            opcode::TELPHER_FLUSH => Request::Flush(src()?),
            other => return Err(Refusal::Opcode(other)),
        })
    }
}

/// Returns the range, if it overlaps none of the others.
pub(super) fn apart(range: Raw, others: &[&Raw]) -> Result<Raw, Refusal> {
    match others.iter().find(|other| range.overlaps(other)) {
        None => Ok(range),
        Some(other) => Err(Refusal::Overlap { first: range.address, second: other.address }),
    }
}

/// A copy like `memmove`.
fn within(src: Raw, dst: Raw) -> Request {
    if !src.overlaps(&dst) {
        return Request::Copy(src, dst);
    }
    let len = src.len;
    let (from, to) = if src.address <= dst.address { (0, dst.behind(&src)) } else { (src.behind(&dst), 0) };
    Request::CopyWithin(src.covering(&dst), from..from + len, to)
}

fn expected(flags: u32) -> Result<Option<bool>, Refusal> {
    match (flags & flag::TELPHER_EXPECT_EQUAL != 0, flags & flag::TELPHER_EXPECT_DIFFERENT != 0) {
        (false, false) => Ok(None),
        (true, false) => Ok(Some(false)),
        (false, true) => Ok(Some(true)),
        (true, true) => Err(Refusal::Flags(flag::TELPHER_EXPECT_EQUAL | flag::TELPHER_EXPECT_DIFFERENT)),
    }
}

fn crc_mode(flags: u32) -> CrcMode {
    CrcMode {
        bypass_invert_reflect: flags & flag::TELPHER_CRC_BYPASS_INVERT_REFLECT != 0,
        bypass_data_reflect: flags & flag::TELPHER_CRC_BYPASS_DATA_REFLECT != 0,
    }
}

fn blocks(op: &Op) -> Result<Blocks, Refusal> {
    let both = flag::TELPHER_LIST_INDEX32 | flag::TELPHER_LIST_INDEX64;
    let format = match op.flags & both {
        0 => SglFormat::Offset64,
        flag::TELPHER_LIST_INDEX32 => SglFormat::Index32,
        flag::TELPHER_LIST_INDEX64 => SglFormat::Index64,
        _ => return Err(Refusal::Flags(both)),
    };
    Ok(Blocks { format, bytes: op.block })
}

fn compute(op: &Op) -> Result<ComputeType, Refusal> {
    ComputeType::from_code(op.arithmetic.compute).ok_or(Refusal::Compute(op.arithmetic.compute))
}

fn arithmetic(op: &Op) -> Result<Arithmetic, Refusal> {
    let c_structs::Arithmetic { input, output, flags, .. } = op.arithmetic;
    let data_type = |code| DataType::from_code(code).ok_or(Refusal::DataType(code));
    let has = |flag: u32| u32::from(flags) & flag != 0;
    let rounding = match u32::from(flags) & arithmetic_flag::TELPHER_ROUND_TOWARD_ZERO {
        arithmetic_flag::TELPHER_ROUND_DOWN => Rounding::Down,
        arithmetic_flag::TELPHER_ROUND_UP => Rounding::Up,
        arithmetic_flag::TELPHER_ROUND_TOWARD_ZERO => Rounding::TowardZero,
        _ => Rounding::NearestEven,
    };
    Ok(Arithmetic {
        input: data_type(input)?,
        output: data_type(output)?,
        negate1: has(arithmetic_flag::TELPHER_NEGATE_1),
        negate2: has(arithmetic_flag::TELPHER_NEGATE_2),
        flush_to_zero: has(arithmetic_flag::TELPHER_FLUSH_TO_ZERO),
        denormals_are_zero: has(arithmetic_flag::TELPHER_DENORMALS_ARE_ZERO),
        rounding,
        signed: has(arithmetic_flag::TELPHER_SIGNED),
        saturate: has(arithmetic_flag::TELPHER_SATURATE),
        e4m3_overflow: E4m3Overflow::Nan,
    })
}

fn dif(op: &Op) -> Result<DifConfig, Refusal> {
    let c_structs::Dif { block, flags, source, dest } = op.dif;
    let config = || {
        Some(DifConfig {
            block: (block < 4).then(|| DifBlock::from_code(block))?,
            flags: DifFlags::from_bits(flags).filter(|flags| DIF_FLAGS.contains(*flags))?,
            source: SourceDifFlags::from_bits(source)?,
            dest: DestDifFlags::from_bits(dest).filter(|flags| DEST_FLAGS.contains(*flags))?,
        })
    };
    config().ok_or(Refusal::Dif { block, flags, source, dest })
}

fn tags(tags: c_structs::Tags) -> Tags {
    Tags { ref_tag: tags.ref_tag, app_tag: tags.app_tag, app_mask: tags.app_mask }
}
