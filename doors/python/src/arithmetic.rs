//! The parameters of conversions, computations and lists as Python values.

use crate::view::View;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use telpher_mover::{Arithmetic, Blocks, ComputeType, DataType, E4m3Overflow, Rounding, SglFormat};

/// Returns the value with this name; the error lists the names.
fn named<T: Copy>(what: &str, name: &str, all: &[T], name_of: fn(T) -> &'static str) -> PyResult<T> {
    all.iter().copied().find(|value| name_of(*value) == name).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|value| name_of(*value)).collect();
        PyValueError::new_err(format!("'{name}' is not a {what}; accepted: {}", names.join(", ")))
    })
}

/// Types and options of a conversion or computation. `output` is the type of the results, by default that of the
/// sources. Types are "int8" to "int64", "fp8-e5m2", "fp8-e4m3", "fp16", "bf16", "fp32" and "fp64"; both are integers
/// or both are floating point. Options without a meaning for the types have no effect.
#[pyclass(frozen, eq, from_py_object, module = "telpher", name = "Arithmetic")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Numbers(pub(crate) Arithmetic);

#[pymethods]
impl Numbers {
    #[new]
    #[pyo3(signature = (input, output=None, *, negate1=false, negate2=false, flush_to_zero=false,
        denormals_are_zero=false, rounding="nearest-even", signed=false, saturate=false))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools, reason = "Python's keywords")]
    fn new(
        input: &str,
        output: Option<&str>,
        negate1: bool,
        negate2: bool,
        flush_to_zero: bool,
        denormals_are_zero: bool,
        rounding: &str,
        signed: bool,
        saturate: bool,
    ) -> PyResult<Self> {
        let data_type = |name| named("type of numbers", name, DataType::ALL, DataType::name);
        Ok(Numbers(Arithmetic {
            input: data_type(input)?,
            output: data_type(output.unwrap_or(input))?,
            negate1,
            negate2,
            flush_to_zero,
            denormals_are_zero,
            rounding: named("rounding", rounding, Rounding::ALL, Rounding::name)?,
            signed,
            saturate,
            e4m3_overflow: E4m3Overflow::Nan,
        }))
    }

    /// The type of the sources.
    #[getter]
    const fn input(&self) -> &'static str {
        self.0.input.name()
    }

    /// The type of the results.
    #[getter]
    const fn output(&self) -> &'static str {
        self.0.output.name()
    }

    fn __repr__(&self) -> String {
        let Arithmetic { input, output, rounding, .. } = self.0;
        let options = [
            (self.0.negate1, "negate1"),
            (self.0.negate2, "negate2"),
            (self.0.flush_to_zero, "flush_to_zero"),
            (self.0.denormals_are_zero, "denormals_are_zero"),
            (self.0.signed, "signed"),
            (self.0.saturate, "saturate"),
        ];
        let options: String =
            options.iter().filter(|(set, _)| *set).map(|(_, name)| format!(", {name}=True")).collect();
        format!("Arithmetic('{}', '{}', rounding='{}'{options})", input.name(), output.name(), rounding.name())
    }
}

/// How two numbers become one.
#[derive(Debug)]
pub(crate) struct Compute(pub(crate) ComputeType);

impl<'py> FromPyObject<'_, 'py> for Compute {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        named("computation", object.extract()?, ComputeType::ALL, ComputeType::name).map(Compute)
    }
}

/// What the entries of a list are.
#[derive(Debug)]
pub(crate) struct ListFormat(SglFormat);

impl ListFormat {
    /// Offsets in bytes.
    pub(crate) const OFFSETS: ListFormat = ListFormat(SglFormat::Offset64);

    /// Blocks of `bytes`, named in this format.
    pub(crate) fn blocks(&self, bytes: u32) -> Blocks {
        Blocks { format: self.0, bytes }
    }
}

impl<'py> FromPyObject<'_, 'py> for ListFormat {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        named("format of a list", object.extract()?, SglFormat::ALL, SglFormat::name).map(ListFormat)
    }
}

/// A private copy of a list: it decides which bytes a device reads and writes, so it must not change meanwhile.
#[derive(Debug)]
pub(crate) struct BlockList(pub(crate) Vec<u8>);

impl BlockList {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'py> FromPyObject<'_, 'py> for BlockList {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(BlockList(object.extract::<View>()?.to_vec()))
    }
}
