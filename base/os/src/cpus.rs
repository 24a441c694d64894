//! The CPUs that threads run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// The CPUs that the calling thread may run on, in ascending order.
///
/// # Errors
/// What the kernel answers.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Lets the calling thread run on these CPUs only.
///
/// # Errors
/// If a number is larger than any CPU's, or the kernel refuses: no CPU is left, or none that this process may use.
pub fn run_on(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}")));
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_runs_where_it_is_put() {
        let allowed = allowed_cpus().unwrap();
        let last = *allowed.last().unwrap();
        std::thread::spawn(move || {
            run_on(&[last]).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [last]);
            assert!(run_on(&[]).is_err());
            assert_eq!(run_on(&[1 << 20]).unwrap_err().to_string(), "there is no CPU 1048576");
        })
        .join()
        .unwrap();
        assert_eq!(allowed_cpus().unwrap(), allowed, "other threads stay where they were");
    }
}
