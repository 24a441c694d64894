//! The parameters of a DIF operation as Python values.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};
use telpher_mover::DifConfig;

/// Block size and flags of a DIF operation. The flags are those of the specification, all off by default.
#[pyclass(frozen, eq, from_py_object, module = "telpher", name = "DifConfig")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Dif(pub(crate) DifConfig);

/// Parses the named flags; the error lists the accepted names.
fn flags<F: bitflags::Flags>(side: &str, names: &[String]) -> PyResult<F> {
    names.iter().try_fold(F::empty(), |set, name| match F::from_name(&name.to_uppercase()) {
        Some(flag) => Ok(set.union(flag)),
        None => {
            let all: Vec<_> =
                F::FLAGS.iter().map(|flag| flag.name().to_lowercase()).filter(|n| !n.is_empty()).collect();
            Err(PyValueError::new_err(format!("'{name}' is not a {side} flag; accepted: {}", all.join(", "))))
        }
    })
}

#[pymethods]
impl Dif {
    #[new]
    #[pyo3(signature = (block=512, *, guard=vec![], source=vec![], dest=vec![]))]
    #[allow(clippy::needless_pass_by_value, reason = "Python's lists come by value")]
    fn new(block: u32, guard: Vec<String>, source: Vec<String>, dest: Vec<String>) -> PyResult<Self> {
        let found = DifBlock::ALL.into_iter().find(|candidate| candidate.bytes() == block);
        let block = found.ok_or_else(|| {
            PyValueError::new_err(format!("a block must have 512, 520, 4096 or 4104 bytes of data, not {block}"))
        })?;
        Ok(Dif(DifConfig {
            block,
            flags: flags::<DifFlags>("guard", &guard)?,
            source: flags::<SourceDifFlags>("source", &source)?,
            dest: flags::<DestDifFlags>("dest", &dest)?,
        }))
    }

    /// Bytes of data in a block; in protected data each block is followed by an 8-byte integrity field.
    #[getter]
    const fn block(&self) -> u32 {
        self.0.block.bytes()
    }

    fn __repr__(&self) -> String {
        let names = |names: Vec<&'static str>| names.join(", ").to_lowercase();
        let DifConfig { block, flags, source, dest } = &self.0;
        format!(
            "DifConfig(block={}, guard=[{}], source=[{}], dest=[{}])",
            block.bytes(),
            names(flags.iter_names().map(|(name, _)| name).collect()),
            names(source.iter_names().map(|(name, _)| name).collect()),
            names(dest.iter_names().map(|(name, _)| name).collect()),
        )
    }
}
