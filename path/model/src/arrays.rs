//! The operations of 3.0, typed: arrays of numbers, and buffers that a scatter-gather list names. Source: SPEC §8.1.9
//! to §8.1.14, §8.3.19 to §8.3.25.

use crate::operand::{Domain, Operand};
use crate::windows::Window;
use telpher_abi::{ComputeType, DataType, Descriptor, Flags, OpFlags, Opcode, SglFormat, Status};
use telpher_mem::WriteHint;
use telpher_ops::Arithmetic;

/// Type Conversion, Reduce and Reduce with Dualcast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrays {
    /// Sources; a conversion has one.
    pub sources: [Option<Operand>; 2],
    /// Destinations; only Reduce with Dualcast has two.
    pub destinations: [Option<Operand>; 2],
    /// How two elements become one; `None` for a conversion.
    pub compute: Option<ComputeType>,
    /// Types and options.
    pub arithmetic: Arithmetic,
    /// Elements of each array.
    pub elements: u64,
    /// Reports status 0x02 if the result byte is not zero.
    pub check_result: bool,
    /// Where results are stored.
    pub hint: WriteHint,
}

impl Arrays {
    /// Returns the bytes of each source.
    #[must_use]
    pub fn source_bytes(&self) -> u64 {
        self.elements * u64::from(self.arithmetic.input.bytes())
    }

    /// Returns the bytes of each destination.
    #[must_use]
    pub fn result_bytes(&self) -> u64 {
        self.elements * u64::from(self.arithmetic.output.bytes())
    }

    /// Replaces the addresses of operands in other address spaces. Those of windows in offset mode must be aligned
    /// there, too; the status for a misaligned base is not named in SPEC §8.3.19.
    pub(crate) fn locate(&mut self, windows: &[Option<Window>; 2]) -> Result<(), (Status, u16)> {
        let (source_bytes, result_bytes) = (self.source_bytes(), self.result_bytes());
        let Arithmetic { input, output, .. } = self.arithmetic;
        for operand in self.sources.iter_mut().flatten() {
            located(operand, windows, (source_bytes, input), false)?;
        }
        for operand in self.destinations.iter_mut().flatten() {
            located(operand, windows, (result_bytes, output), true)?;
        }
        Ok(())
    }
}

fn located(
    operand: &mut Operand,
    windows: &[Option<Window>; 2],
    (len, data_type): (u64, DataType),
    write: bool,
) -> Result<(), (Status, u16)> {
    let Some(window) = operand.domain.window(windows) else { return Ok(()) };
    operand.address = window.locate(operand.address, len, write).map_err(|status| (status, window.handle))?;
    if !operand.address.is_multiple_of(data_type.bytes().into()) {
        return Err((Status::AddressAlignment, window.handle));
    }
    Ok(())
}

/// A scatter-gather list: where it is, and what its entries mean. It is always in the submitter's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferList {
    /// First entry.
    pub address: u64,
    /// Entries.
    pub entries: u64,
    /// What an entry is.
    pub format: SglFormat,
    /// What offsets and indexes are relative to.
    pub base: u64,
    /// Bytes of each buffer.
    pub buffer_bytes: u64,
}

impl BufferList {
    /// Returns the bytes of the list.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries * u64::from(self.format.entry_bytes())
    }

    /// Decodes the list at `address`. `None` for a format that no device has.
    fn of(d: &Descriptor, address: u64, elements: u32, data_type: DataType) -> Option<BufferList> {
        Some(BufferList {
            address,
            entries: d.sgl_size().into(),
            format: SglFormat::from_code(d.sgl_format_code())?,
            base: d.sgl_base(),
            buffer_bytes: u64::from(elements) * u64::from(data_type.bytes()),
        })
    }
}

/// Gather Reduce: element by element over all buffers of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GatherReduce {
    /// The sources.
    pub list: BufferList,
    /// The destination.
    pub dst: u64,
    /// How two elements become one.
    pub compute: ComputeType,
    /// Types and options.
    pub arithmetic: Arithmetic,
    /// Elements of each buffer.
    pub elements: u64,
    /// Reports status 0x02 if the result byte is not zero.
    pub check_result: bool,
    /// Where results are stored.
    pub hint: WriteHint,
}

/// What is copied from or to the buffers of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// The buffers to this range (Gather Copy).
    Gather(Operand),
    /// This range to the buffers (Scatter Copy).
    Scatter(Operand),
    /// A pattern to the buffers (Scatter Fill). It begins anew in each; the specification does not say.
    Fill(u64),
}

/// Gather Copy, Scatter Copy and Scatter Fill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListTransfer {
    /// The buffers.
    pub list: BufferList,
    /// The address space of the buffers.
    pub buffers: Domain,
    /// What is copied.
    pub transfer: Transfer,
    /// Where results are stored.
    pub hint: WriteHint,
}

impl ListTransfer {
    /// Returns the bytes of all buffers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.list.entries * self.list.buffer_bytes
    }

    /// Replaces the address of the range if it is in another address space. The buffers are located one by one when the
    /// list is read.
    pub(crate) fn locate(&mut self, windows: &[Option<Window>; 2]) -> Result<(), (Status, u16)> {
        let len = self.bytes();
        let (operand, write) = match &mut self.transfer {
            Transfer::Gather(operand) => (operand, true),
            Transfer::Scatter(operand) => (operand, false),
            Transfer::Fill(_) => return Ok(()),
        };
        if let Some(window) = operand.domain.window(windows) {
            operand.address = window.locate(operand.address, len, write).map_err(|status| (status, window.handle))?;
        }
        Ok(())
    }
}

/// Returns how two elements become one; `None` for a code that does not exist, or that these types do not have.
pub(crate) fn compute_of(d: &Descriptor, arithmetic: &Arithmetic) -> Option<ComputeType> {
    ComputeType::from_code(d.compute_type_code())
        .filter(|compute| compute.is_arithmetic() || !arithmetic.input.is_float())
}

/// The operands of Reduce and Reduce with Dualcast in the order of the ID selector, two bits each.
const SELECTED: usize = 4;

/// Returns the address spaces of source 1, source 2, destination 1 and destination 2 of a Reduce; `None` if the
/// selector has a reserved value.
pub(crate) fn selected_domains(d: &Descriptor) -> Option<[Domain; SELECTED]> {
    let mut domains = [Domain::Own; SELECTED];
    if d.flags().contains(OpFlags::USE_ID_SELECTOR) {
        for (at, domain) in domains.iter_mut().enumerate() {
            *domain = match d.id_selector() >> (2 * at) & 3 {
                0 => Domain::Own,
                1 => Domain::Handle1,
                2 => Domain::Handle2,
                _ => return None,
            };
        }
    }
    Some(domains)
}

/// Decodes Type Conversion, Reduce or Reduce with Dualcast; `None` if a field has a value that no device accepts.
pub(crate) fn arrays(d: &Descriptor, hint: WriteHint) -> Option<Arrays> {
    let arithmetic = Arithmetic::of(d).filter(Arithmetic::has_one_class)?;
    let check_result = d.flags().contains(Flags::CHECK_RESULT);
    let common = Arrays {
        sources: [None; 2],
        destinations: [None; 2],
        compute: None,
        arithmetic,
        elements: d.size().into(),
        check_result,
        hint,
    };
    if d.opcode() == Opcode::TypeConversion {
        return Some(Arrays {
            sources: [Some(Operand::first(d)), None],
            destinations: [Some(Operand::second(d)), None],
            ..common
        });
    }
    let domains = selected_domains(d)?;
    let operand = |address, at: usize| Some(Operand { address, domain: domains[at] });
    let second = if d.opcode() == Opcode::ReduceDualcast { operand(d.reduce_dst2(), 3) } else { None };
    Some(Arrays {
        sources: [operand(d.src(), 0), operand(d.dst(), 1)],
        destinations: [operand(d.reduce_dst(), 2), second],
        compute: Some(compute_of(d, &arithmetic)?),
        ..common
    })
}

/// Decodes Gather Reduce; `None` if a field has a value that no device accepts.
pub(crate) fn gather_reduce(d: &Descriptor, hint: WriteHint) -> Option<GatherReduce> {
    let arithmetic = Arithmetic::of(d).filter(Arithmetic::has_one_class)?;
    Some(GatherReduce {
        list: BufferList::of(d, d.src(), d.size(), arithmetic.input)?,
        dst: d.dst(),
        compute: compute_of(d, &arithmetic)?,
        arithmetic,
        elements: d.size().into(),
        check_result: d.flags().contains(Flags::CHECK_RESULT),
        hint,
    })
}

/// Decodes Gather Copy, Scatter Copy or Scatter Fill; `None` if a field has a value that no device accepts.
pub(crate) fn list_transfer(d: &Descriptor, hint: WriteHint) -> Option<ListTransfer> {
    let data_type = DataType::from_code(d.input_type_code())?;
    let gathers = d.opcode() == Opcode::GatherCopy;
    let list = BufferList::of(d, if gathers { d.src() } else { d.dst() }, d.element_count(), data_type)?;
    let (first, second) = (Operand::first(d), Operand::second(d));
    let (buffers, transfer) = match d.opcode() {
        Opcode::GatherCopy => (first.domain, Transfer::Gather(second)),
        Opcode::ScatterCopy => (second.domain, Transfer::Scatter(first)),
        _ => (second.domain, Transfer::Fill(d.src())),
    };
    Some(ListTransfer { list, buffers, transfer, hint })
}
