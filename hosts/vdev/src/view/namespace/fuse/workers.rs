//! Worker threads for operations that may take long: a program's descriptors, a drain. There are as many threads as
//! concurrent jobs, so no job waits for another; idle threads end after a while.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long a thread without work stays. Source: chosen: longer than a program's pauses.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    gone: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    change: Condvar,
}

/// The threads.
#[derive(Default)]
pub(super) struct Workers {
    shared: Arc<Shared>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}

impl Workers {
    /// Runs the job on a worker thread; runs it on the calling thread only if no thread is available.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            self.shared.change.notify_one();
            return;
        }
        drop(state);
        let shared = Arc::clone(&self.shared);
        if std::thread::Builder::new().name("telpher-files".to_owned()).spawn(move || shared.work()).is_err() {
            self.shared.work_once();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).gone = true;
        self.shared.change.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        loop {
            self.work_once();
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.jobs.is_empty() {
                state.idle += 1;
                let idle = |state: &mut State| state.jobs.is_empty() && !state.gone;
                (state, _) =
                    self.change.wait_timeout_while(state, IDLE_TIMEOUT, idle).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                if state.jobs.is_empty() {
                    return;
                }
            }
        }
    }

    fn work_once(&self) {
        let job = self.state.lock().unwrap_or_else(PoisonError::into_inner).jobs.pop_front();
        if let Some(job) = job {
            job();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_blocked_job_does_not_block_others() {
        let workers = Workers::default();
        let (release, released) = channel::<()>();
        let (done, all_done) = channel();
        let slow = done.clone();
        workers.run(move || {
            released.recv().unwrap();
            slow.send(0).unwrap();
        });
        for number in 1..=20 {
            let done = done.clone();
            workers.run(move || done.send(number).unwrap());
        }
        let mut quick: Vec<i32> = (0..20).map(|_| all_done.recv().unwrap()).collect();
        quick.sort_unstable();
        assert_eq!(quick, (1..=20).collect::<Vec<_>>());
        release.send(()).unwrap();
        assert_eq!(all_done.recv().unwrap(), 0);
    }

    #[test]
    fn an_idle_thread_is_reused() {
        let workers = Workers::default();
        let (done, all_done) = channel();
        for _ in 0..100 {
            let done = done.clone();
            workers.run(move || done.send(std::thread::current().id()).unwrap());
            let _ = all_done.recv().unwrap();
            while workers.shared.state.lock().unwrap().idle == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(workers.shared.state.lock().unwrap().idle, 1, "one thread has done them all");
    }
}
