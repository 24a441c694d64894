//! A reader's permit for versioned bytes, and the `memoryview`s of its blocks, which end with it.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PyWeakrefReference};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_cache::{ReadPermit, ReadProbe};

/// Shared by a `Reading` and its blocks.
pub(crate) struct OpenReading {
    /// `None` once it was ended.
    open: Mutex<Option<Open>>,
    probe: ReadProbe,
}

struct Open {
    permit: ReadPermit,
    /// Weak references to the `memoryview`s of its blocks. Each has a clone of the permit.
    views: Vec<Py<PyWeakrefReference>>,
}

impl OpenReading {
    pub(crate) fn new(permit: ReadPermit) -> Arc<Self> {
        let probe = permit.probe();
        Arc::new(OpenReading { open: Mutex::new(Some(Open { permit, views: Vec::new() })), probe })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a clone of the permit.
    pub(crate) fn permit(&self) -> PyResult<ReadPermit> {
        self.lock().as_ref().map(|open| open.permit.clone()).ok_or_else(ended)
    }

    /// Remembers a `memoryview` of a block, to release it at the end.
    pub(crate) fn remember(&self, view: &Bound<'_, PyMemoryView>) -> PyResult<()> {
        let weak = PyWeakrefReference::new(view.as_any())?;
        let mut reading = self.lock();
        let open = reading.as_mut().ok_or_else(ended)?;
        if open.views.len() == open.views.capacity() {
            open.views.retain(|view| view.bind(weak.py()).upgrade().is_some());
        }
        open.views.push(weak.unbind());
        Ok(())
    }

    /// Ends the reading: releases its `memoryview`s. Returns false if others that were made from these, or arrays,
    /// still use the bytes: they keep writers away until they are freed.
    pub(crate) fn end(&self, py: Python<'_>) -> bool {
        let Some(Open { permit, views }) = self.lock().take() else { return self.probe.has_ended() };
        for view in views.iter().filter_map(|view| view.bind(py).upgrade()) {
            // Fails if an array or the like uses it; such a view has a clone of the permit.
            let _ = view.call_method0("release");
        }
        drop(permit);
        self.probe.has_ended()
    }
}

fn ended() -> PyErr {
    PyValueError::new_err("this reading has ended")
}
