//! `telpher.Batch`: operations that are submitted together.

use crate::arithmetic::{BlockList, Compute, ListFormat, Numbers};
use crate::dif::Dif;
use crate::job::{Job, Members, ResultTaker, taker};
use crate::mover::record;
use crate::operations::{Pattern, ShortPattern, operations};
use crate::result::DifTags;
use crate::view::{CopyViews, View, ViewMut, disjoint, lie};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use telpher_mover::CrcMode;

/// A list of operations that are submitted together: one descriptor to the device, one wait for all. Each method adds
/// an operation and returns its index. `submit()` sends them and returns a `Job`, whose result is the list of their
/// results; a failed operation has its exception there.
#[pyclass(frozen, module = "telpher", name = "Batch")]
pub(crate) struct Batch(Mutex<Option<StartedBatch>>);

struct StartedBatch {
    batch: telpher_mover::Batch,
    takers: Vec<ResultTaker>,
}

impl Batch {
    pub(crate) fn new(mover: &telpher_mover::Mover) -> Self {
        Batch(Mutex::new(Some(StartedBatch { batch: mover.batch(), takers: Vec::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, Option<StartedBatch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add<B: Send + 'static>(
        &self,
        add: impl FnOnce(&mut telpher_mover::Batch) -> telpher_mover::Key<B>,
    ) -> PyResult<usize> {
        let mut begun = self.lock();
        let begun = begun.as_mut().ok_or_else(|| PyValueError::new_err("this batch was already submitted"))?;
        let key = add(&mut begun.batch);
        begun.takers.push(taker(key));
        Ok(begun.takers.len() - 1)
    }
}

macro_rules! batch_methods {
    ($(
        $(#[$doc:meta])*
        $name:ident, $name_async:ident ($($arg:ident: $Arg:ty),*)
            = ($($signature:tt)*), reads [$($read:ident),*], writes [$($write:ident),*], |$front:ident| $call:expr;
    )*) => {
        #[pymethods]
        impl Batch {
            /// Adds a copy of `src` to `dst`, which must have the same length; the two may overlap.
            fn copy(&self, src: View, dst: ViewMut) -> PyResult<usize> {
                match lie(src, dst) {
                    CopyViews::Apart(src, dst) => self.add(|batch| batch.copy(src, dst)),
                    CopyViews::Over(overlap) => {
                        let (from, to) = overlap.course();
                        self.add(|batch| batch.copy_within(overlap, from, to))
                    }
                }
            }

            /// Applies the first `size` bytes of a delta record (all of them by default) to `dst`. The record is read
            /// during this call.
            #[pyo3(signature = (delta, dst, size=None))]
            #[allow(clippy::needless_pass_by_value, reason = "a view is held for the call")]
            fn apply_delta(&self, delta: View, dst: ViewMut, size: Option<u32>) -> PyResult<usize> {
                let (record, size) = record(&delta, size)?;
                self.add(|batch| batch.apply_delta(record, dst, size))
            }

            /// Adds a comparison whose unexpected outcome counts as a failure at the next fence. `difference` states
            /// whether the buffers are expected to differ. Its own result is that of the comparison.
            #[pyo3(signature = (a, b, *, difference=false))]
            fn compare_expecting(&self, a: View, b: View, difference: bool) -> PyResult<usize> {
                self.add(|batch| batch.compare_expecting(a, b, difference))
            }

            /// The operations after the fence start only when all operations before it have succeeded. If one of them
            /// failed, had an outcome that `compare_expecting` did not expect, or had a DIF mismatch, the operations
            /// after the fence fail as abandoned.
            fn fence(&self) -> PyResult<()> {
                let mut begun = self.lock();
                let begun = begun.as_mut().ok_or_else(|| PyValueError::new_err("this batch was already submitted"))?;
                begun.batch.fence();
                Ok(())
            }

            /// Submits the list; afterwards it accepts no more operations.
            fn submit(&self, py: Python<'_>) -> PyResult<Job> {
                let begun = self.lock().take().ok_or_else(|| PyValueError::new_err("this batch was already submitted"))?;
                let StartedBatch { batch, takers } = begun;
                let job = py.detach(|| batch.submit());
                Ok(Job::new(Box::new(Members { job, takers }), true))
            }

            fn __len__(&self) -> usize {
                self.lock().as_ref().map_or(0, |begun| begun.takers.len())
            }

            fn __repr__(&self) -> String {
                match &*self.lock() {
                    Some(begun) => format!("<telpher.Batch of {} operations>", begun.takers.len()),
                    None => "<telpher.Batch, submitted>".to_owned(),
                }
            }

            $(
                $(#[$doc])*
                #[pyo3(signature = ($($signature)*))]
                #[allow(clippy::too_many_arguments, reason = "Python's keywords")]
                fn $name(&self, $($arg: $Arg),*) -> PyResult<usize> {
                    disjoint(&[$(&$read),*], &[$(&$write),*])?;
                    self.add(|$front| $call)
                }
            )*
        }
    };
}
operations!(batch_methods);
