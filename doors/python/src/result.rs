//! The results of operations as Python objects.

use crate::error::raised;
use pyo3::prelude::*;
use pyo3::types::PyFrozenSet;
use telpher_mover::{Delta, JobError, Outcome, Tags, Via};

/// A job that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) result: Result<Outcome, JobError>,
    pub(crate) via: Via,
}

/// What executed it: "cpu", "device", or "both" if a device started and the CPU finished.
pub(crate) const fn via(via: Via) -> &'static str {
    match via {
        Via::Cpu => "cpu",
        Via::Device => "device",
        Via::Both => "both",
    }
}

/// The result of `create_delta`. `kind` is "identical" (nothing was written), "complete" (the first `size` bytes of the
/// record contain every difference) or "overflow" (the record was too short and must not be applied).
#[pyclass(frozen, eq, get_all, module = "telpher", name = "Delta")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeltaFound {
    /// "identical", "complete" or "overflow".
    kind: &'static str,
    /// Length of the delta record in bytes.
    size: u32,
}

#[pymethods]
impl DeltaFound {
    fn __repr__(&self) -> String {
        format!("Delta(kind='{}', size={})", self.kind, self.size)
    }
}

/// The result of a DIF operation: true if every block's integrity field matched.
#[pyclass(frozen, eq, get_all, module = "telpher", name = "DifResult")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DifFound {
    /// True if no block failed.
    ok: bool,
    /// Offset in the source of the failed block; that block and the rest were not processed.
    at: Option<u64>,
    /// What did not match in it: "guard", "app_tag", "ref_tag", "all_f".
    what: Vec<&'static str>,
    /// The tags of the source's next block.
    source: Option<DifTags>,
    /// The tags of the destination's next block.
    dest: Option<DifTags>,
}

#[pymethods]
impl DifFound {
    fn __bool__(&self) -> bool {
        self.ok
    }

    fn __repr__(&self) -> String {
        match self.at {
            None => "DifResult(ok=True)".to_owned(),
            Some(at) => format!("DifResult(ok=False, at={at}, what=['{}'])", self.what.join("', '")),
        }
    }
}

/// Reference and application tags of one side of a DIF operation.
#[pyclass(frozen, eq, get_all, from_py_object, module = "telpher", name = "Tags")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DifTags {
    /// Reference tag of the first block.
    ref_tag: u32,
    /// Application tag of the first block.
    app_tag: u16,
    /// Bits of the application tag that are not checked.
    app_mask: u16,
}

#[pymethods]
impl DifTags {
    #[new]
    #[pyo3(signature = (ref_tag=0, app_tag=0, app_mask=0))]
    const fn new(ref_tag: u32, app_tag: u16, app_mask: u16) -> Self {
        DifTags { ref_tag, app_tag, app_mask }
    }

    fn __repr__(&self) -> String {
        let DifTags { ref_tag, app_tag, app_mask } = self;
        format!("Tags(ref_tag={ref_tag:#x}, app_tag={app_tag:#x}, app_mask={app_mask:#x})")
    }
}

impl From<DifTags> for Tags {
    fn from(tags: DifTags) -> Tags {
        Tags { ref_tag: tags.ref_tag, app_mask: tags.app_mask, app_tag: tags.app_tag }
    }
}

impl From<Tags> for DifTags {
    fn from(tags: Tags) -> DifTags {
        DifTags { ref_tag: tags.ref_tag, app_mask: tags.app_mask, app_tag: tags.app_tag }
    }
}

impl Ended {
    /// The result as a Python value, or the exception.
    pub(crate) fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let outcome = self.result.as_ref().map_err(raised)?;
        let value = match *outcome {
            Outcome::Done | Outcome::Equal => py.None(),
            Outcome::Different { at } => at.into_pyobject(py)?.into_any().unbind(),
            Outcome::Crc(crc) => crc.into_pyobject(py)?.into_any().unbind(),
            Outcome::Crc64(crc) => crc.into_pyobject(py)?.into_any().unbind(),
            Outcome::Computed(seen) => {
                let names = seen.iter_names().map(|(name, _)| lower(name));
                PyFrozenSet::new(py, names)?.into_any().unbind()
            }
            Outcome::Delta(delta) => {
                let (kind, size) = match delta {
                    Delta::Identical => ("identical", 0),
                    Delta::Complete { bytes } => ("complete", bytes),
                    Delta::Overflow { bytes, .. } => ("overflow", bytes),
                };
                DeltaFound { kind, size }.into_pyobject(py)?.into_any().unbind()
            }
            Outcome::Dif { source, dest } => {
                let (source, dest) = (Some(source.into()), Some(dest.into()));
                DifFound { ok: true, at: None, what: Vec::new(), source, dest }.into_pyobject(py)?.into_any().unbind()
            }
            Outcome::DifMismatch { at, what } => {
                let what = what.iter_names().map(|(name, _)| lower(name)).collect();
                let found = DifFound { ok: false, at: Some(at), what, source: None, dest: None };
                found.into_pyobject(py)?.into_any().unbind()
            }
            ref other => {
                return Err(crate::error::Error::new_err(format!("this version does not know the result {other:?}")));
            }
        };
        Ok(value)
    }
}

/// The names in [`DifFound::what`], and of what happened to numbers.
fn lower(name: &str) -> &'static str {
    match name {
        "GUARD" => "guard",
        "APP_TAG" => "app_tag",
        "REF_TAG" => "ref_tag",
        "ALL_F" => "all_f",
        "INVALID" => "invalid",
        "DENORMAL" => "denormal",
        "OVERFLOW" => "overflow",
        "UNDERFLOW" => "underflow",
        _ => "unknown",
    }
}
