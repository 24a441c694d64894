//! A mover from the name of a device, for programs that need nothing else of `telpher-device`.

use crate::api::mover::Mover;
use crate::learn::tuning::{KERNELS_CHOSEN, Tuning, TuningError};
use std::time::Duration;
use telpher_device::{DeviceName, NameError, OpenOptions, Opened};
use telpher_ops::Variants;

/// Error: no mover for a name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The text is not the name of a device.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] telpher_device::OpenError),
    /// The tuning file of the environment cannot be used.
    #[error(transparent)]
    Tuning(#[from] TuningError),
}

impl Mover {
    /// Opens a device by its name and returns a mover over its queues: `cpu`, `model:spr`, `model:FILE`, `hw:wq0.1`, or
    /// `all` for every hardware queue that this process may use. Without any queue, the CPU does everything.
    ///
    /// The policy and the costs are those of the tuning file that the environment names, or else the defaults, as in C
    /// and Python. A modelled device chooses for each operation which thread executes it. For other options, open the
    /// device with `telpher_device::open` and pass its portals to [`new`](Mover::new).
    ///
    /// ```
    /// use telpher_mover::{Mover, Outcome};
    ///
    /// let mover = Mover::open("model:spr")?;
    /// let (result, src, dst) = mover.copy(vec![7; 1 << 20], vec![0; 1 << 20]).wait().into_parts();
    /// assert_eq!(result, Ok(Outcome::Done));
    /// assert_eq!(src, dst);
    /// # Ok::<(), telpher_mover::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OpenError`] contains the name or file, and the system's error.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let name: DeviceName = name.parse()?;
        let tuning = Tuning::from_environment()?;
        let Opened { portals, .. } = telpher_device::open(&name, OpenOptions::default())?;
        let mover = Mover::new(portals, tuning.as_ref().map(Tuning::policy).unwrap_or_default());
        if let Some(tuning) = &tuning {
            mover.load_costs(tuning);
        }
        if tuning.is_none_or(|tuning| tuning.kernels.is_none()) {
            choose_kernels();
        }
        Ok(mover)
    }
}

/// How long kernels are measured on a processor of an unknown family. Source: chosen; a program does not notice it.
const SELF_TEST: Duration = Duration::from_millis(2);

/// Measures the variants of kernels once in a process, if the processor's family was not measured beforehand, and makes
/// the fastest ones those of this process.
fn choose_kernels() {
    if Variants::family().is_none() {
        KERNELS_CHOSEN.call_once(|| Variants::measure(&mut vec![0; Variants::SCRATCH], SELF_TEST).apply());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Outcome, Via};

    #[test]
    fn a_long_copy_goes_to_the_device_of_the_name() {
        let via = |name: &str| {
            let mover = Mover::open(name).expect("the device opens");
            let done = mover.copy(vec![3_u8; 1 << 20], vec![0; 1 << 20]).wait();
            let via = done.via;
            let (result, src, dst) = done.into_parts();
            assert_eq!((result, src), (Ok(Outcome::Done), dst));
            via
        };
        assert_eq!(via("cpu"), Via::Cpu);
        assert_eq!(via("model:spr"), Via::Device);
    }

    #[test]
    fn an_unknown_name_is_an_error() {
        assert!(matches!(Mover::open("gpu"), Err(OpenError::Name(_))));
        assert!(matches!(Mover::open("model:no/such/file.json"), Err(OpenError::Device(_))));
    }
}
