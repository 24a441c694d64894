//! The ends of jobs as a descriptor that becomes readable, for programs with an event loop of their own.
//!
//! ```text
//! watch(job, token) ──► arrived ──► the notifier's thread steps each job ──► ended, eventfd ──► take_ended()
//! ```
//!
//! Kernels give user space no interrupt for a completion record, so a thread has to look for it. Here that is the
//! notifier's thread: it rests between two looks as [`Policy::wait`](crate::Policy::wait) says, and it sleeps while no
//! job is in flight.

use crate::api::batch::BatchJob;
use crate::api::job::Job;
use crate::api::mover::Mover;
use crate::forks;
use crate::inflight::Core;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::future::Future;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};
use telpher_os::Lineage;

/// The name of a notifier's thread, as Linux shows it.
pub const NOTIFIER_THREAD: &str = "telpher-notify";

/// How long a waiting thread sleeps between two steps of a job that has no notifier's thread, in a forked child or
/// after the thread was stopped. Source: assumed; in a child the CPU executes the job, so most end within the first
/// step.
const CHILD_SLEEP: Duration = Duration::from_micros(50);

/// Ends that are kept before those of dropped handles are looked for. Source: assumed; more than most loops leave.
const ENDS: usize = 64;

/// Something that a [`Notifier`] can watch: it makes progress in steps, and ends.
pub trait Watchable: Send {
    /// Makes one step, without waiting; returns true if it has ended.
    fn is_done(&mut self) -> bool;
}

impl<B: Send + 'static> Watchable for Job<B> {
    fn is_done(&mut self) -> bool {
        Job::is_done(self)
    }
}

impl Watchable for BatchJob {
    fn is_done(&mut self) -> bool {
        BatchJob::is_done(self)
    }
}

/// Reports the ends of jobs by a descriptor that is readable while there are ends to take, so that a loop over epoll,
/// poll, io_uring or libuv needs no polling. From [`Mover::notifier`].
///
/// Each job is watched under a number of the caller's, its token. [`take_ended`](Notifier::take_ended) returns the
/// tokens of jobs that have ended, each once.
///
/// ```
/// use rustix::event::{PollFd, PollFlags, poll};
/// use telpher_mover::Mover;
///
/// let mover = Mover::cpu();
/// let notifier = mover.notifier()?;
/// let watched = [7, 8].map(|byte| notifier.watch(mover.copy(vec![byte; 64], vec![0; 64]), byte.into()));
/// let mut ended = Vec::new();
/// while ended.len() < 2 {
///     poll(&mut [PollFd::new(&notifier, PollFlags::IN)], None)?;
///     ended.extend(notifier.take_ended(usize::MAX));
/// }
/// assert_eq!(ended, [7, 8]);
/// let copied = watched.map(|watched| watched.wait().wait().into_parts().2[0]);
/// assert_eq!(copied, [7, 8]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # The thread
///
/// The notifier has a thread, because no kernel interrupts user space for a completion record. While jobs are in flight
/// the thread looks for their records and rests as [`Policy::wait`](crate::Policy::wait) says;
/// [`Wait::Predicted`](crate::Wait::Predicted) leaves most of the core to other threads. While none is in flight it
/// sleeps and uses no CPU time. A look costs a step of each watched job. The thread handles no signals of the program.
///
/// # Forks
///
/// A forked child does not have the thread, and shares the descriptor with its parent. So in the child
/// [`Watched::is_done`] and the functions that wait make the steps, no end is reported, and the descriptor must not be
/// used. A fork waits a few milliseconds for a step that the thread is making. If that step takes longer, its job
/// never ends in the child.
///
/// # On drop
///
/// Jobs that are watched go on to their end, and their [`Watched`] handles get them. The thread ends after the last.
/// [`close`](Notifier::close) waits for that; [`stop`](Notifier::stop) ends the thread at once.
pub struct Notifier {
    inner: Arc<Inner>,
    thread_id: ThreadId,
    /// Taken when the notifier is closed or stopped.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A job that a [`Notifier`] watches, until it is taken back.
///
/// As a future it wakes its task when the job has ended, so that an executor's thread is idle meanwhile; a [`Job`] by
/// itself has to be polled.
///
/// # On drop
///
/// As when the job itself is dropped: it goes on, and its buffers stay with the mover until the device has ended. Its
/// end is not reported any more.
#[must_use = "dropping it drops the job"]
pub struct Watched<J: Watchable + 'static>(Arc<Entry<J>>);

/// A watched job that the notifier does not report before this is dropped. From [`Notifier::prepare`].
#[must_use = "dropping it lets the notifier report the job"]
pub struct Prepared<'a> {
    inner: &'a Inner,
    entry: Arc<dyn AnyEntry>,
}

struct Inner {
    /// The process that has the thread.
    process: Lineage,
    eventfd: OwnedFd,
    /// Jobs in flight whose handles exist. SeqCst: threads change it rarely, and the order needs no thought.
    in_flight: Arc<AtomicUsize>,
    /// The thread was stopped, so the handles make the steps.
    is_stopped: Arc<AtomicBool>,
    /// Jobs that have ended and were not taken yet. Locked while the eventfd is changed: it is readable if this is not
    /// empty.
    ended: Mutex<Ended>,
    arrived: Mutex<Arrived>,
    /// Signalled when something arrives, and when the notifier is dropped.
    changed: Condvar,
}

/// Jobs that have ended and were not taken yet.
#[derive(Default)]
struct Ended {
    jobs: VecDeque<Arc<dyn AnyEntry>>,
    /// When there are more, those whose handles were dropped are removed.
    limit: usize,
}

/// What the thread has not seen yet.
#[derive(Default)]
struct Arrived {
    jobs: Vec<Arc<dyn AnyEntry>>,
    /// The notifier was dropped or stopped: no more jobs will come.
    is_closed: bool,
    /// Set by each of both, until the thread has seen it.
    has_news: bool,
}

/// A watched job.
struct Entry<J> {
    token: u64,
    /// The process whose notifier's thread steps the job.
    process: Lineage,
    /// The notifier's number of jobs in flight.
    in_flight: Arc<AtomicUsize>,
    /// The notifier's thread was stopped.
    is_stopped: Arc<AtomicBool>,
    state: Mutex<State<J>>,
    /// A thread of a forked child has locked the state, so its copy of the lock is free at times.
    was_locked_in_child: AtomicBool,
    has_ended: Condvar,
}

enum State<J> {
    InFlight(J, Option<Waker>),
    Ended(J),
    /// The owner has taken the job back.
    Taken,
    /// The handle was dropped.
    Dropped,
}

/// What a look at a job has found.
#[derive(PartialEq, Eq)]
enum Found {
    InFlight,
    Ended,
    Dropped,
}

/// An entry without the type of its job.
trait AnyEntry: Send + Sync {
    fn step(&self) -> Found;
    /// Returns the token, unless the handle was dropped.
    fn token(&self) -> Option<u64>;
    /// Tells those that wait for the job that the thread was stopped.
    fn wake(&self);
}

/// A panic of a job's step is caught, so no lock protects anything half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<J: Watchable> AnyEntry for Entry<J> {
    fn step(&self) -> Found {
        let mut state = lock(&self.state);
        let State::InFlight(job, _) = &mut *state else {
            return if matches!(*state, State::Dropped) { Found::Dropped } else { Found::Ended };
        };
        // A job whose step panics is given back: its owner's next call panics in the owner's thread.
        if !catch_unwind(AssertUnwindSafe(|| job.is_done())).unwrap_or(true) {
            return Found::InFlight;
        }
        let waker = match std::mem::replace(&mut *state, State::Dropped) {
            State::InFlight(job, waker) => {
                *state = State::Ended(job);
                waker
            }
            _ => unreachable!("it is locked since it was in flight"),
        };
        drop(state);
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.has_ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        Found::Ended
    }

    fn token(&self) -> Option<u64> {
        (!matches!(*lock(&self.state), State::Dropped)).then_some(self.token)
    }

    fn wake(&self) {
        let waker = match &mut *lock(&self.state) {
            State::InFlight(_, waker) => waker.take(),
            _ => None,
        };
        self.has_ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<J: Watchable> Entry<J> {
    /// Locks the state; `None` in a forked child if another thread has it locked, which may be one of the parent.
    fn locked(&self) -> Option<MutexGuard<'_, State<J>>> {
        if self.process.is_current() || self.was_locked_in_child.load(Ordering::SeqCst) {
            return Some(lock(&self.state));
        }
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.was_locked_in_child.store(true, Ordering::SeqCst);
        Some(state)
    }

    /// True if the notifier's thread steps the job: not in a forked child, and not after it was stopped.
    fn has_thread(&self) -> bool {
        self.process.is_current() && !self.is_stopped.load(Ordering::SeqCst)
    }

    /// In place of the notifier's thread: makes a step, and returns true if the job has ended.
    fn step_here(&self) -> bool {
        self.locked().is_some_and(|state| {
            drop(state);
            self.step() != Found::InFlight
        })
    }
}

impl Inner {
    /// Reports that jobs have ended.
    fn report(&self, jobs: impl IntoIterator<Item = Arc<dyn AnyEntry>>) {
        let mut ended = lock(&self.ended);
        ended.jobs.extend(jobs);
        // A program may wait for its jobs itself, and never take an end.
        if ended.jobs.len() > ended.limit {
            ended.jobs.retain(|job| job.token().is_some());
            ended.limit = ended.jobs.len() * 2 + ENDS;
        }
        self.signal();
    }

    /// Makes the descriptor readable, also if the program has read it without taking the ends.
    fn signal(&self) {
        // Fails only if the counter is full, and then it is readable.
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
    }

    /// The thread: steps the watched jobs until the notifier is dropped and all have ended, or until it is stopped.
    fn run(&self, core: &Core) {
        // The kernel's usual slack would make each sleep 50 µs longer; an error only leaves it so.
        let _ = rustix::thread::set_current_timer_slack(Some(NonZeroU64::MIN));
        let mut jobs = Vec::new();
        loop {
            let mut arrived = lock(&self.arrived);
            if self.is_stopped.load(Ordering::SeqCst) {
                jobs.append(&mut arrived.jobs);
                drop(arrived);
                jobs.iter().for_each(|job| job.wake());
                return;
            }
            while arrived.jobs.is_empty() && jobs.is_empty() {
                if arrived.is_closed {
                    return;
                }
                arrived = self.changed.wait(arrived).unwrap_or_else(PoisonError::into_inner);
            }
            if self.is_stopped.load(Ordering::SeqCst) {
                continue;
            }
            jobs.append(&mut arrived.jobs);
            arrived.has_news = false;
            drop(arrived);
            core.wait_with(|nap| self.sleep(nap), || self.look(&mut jobs));
        }
    }

    /// Steps each job and reports those that have ended; ready if the list of jobs changes.
    fn look(&self, jobs: &mut Vec<Arc<dyn AnyEntry>>) -> Poll<()> {
        // A child must not inherit a job that this thread has locked.
        let _no_fork = forks::no_fork();
        let count = jobs.len();
        let mut ended = Vec::new();
        jobs.retain(|job| match job.step() {
            Found::InFlight => true,
            Found::Ended => {
                ended.push(Arc::clone(job));
                false
            }
            Found::Dropped => false,
        });
        if !ended.is_empty() {
            self.report(ended);
        }
        if jobs.len() < count || lock(&self.arrived).has_news { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Sleeps until there is news, at most for the given time; returns false if there is.
    fn sleep(&self, at_most: Duration) -> bool {
        let result = self.changed.wait_timeout_while(lock(&self.arrived), at_most, |arrived| !arrived.has_news);
        let (arrived, _) = result.unwrap_or_else(PoisonError::into_inner);
        !arrived.has_news
    }

    /// Tells the thread something.
    fn tell(&self, news: impl FnOnce(&mut Arrived)) {
        let mut arrived = lock(&self.arrived);
        news(&mut arrived);
        arrived.has_news = true;
        drop(arrived);
        self.changed.notify_one();
    }
}

impl Mover {
    /// Starts a thread that reports the ends of jobs by a descriptor; see [`Notifier`].
    ///
    /// # Errors
    ///
    /// If the system refuses a descriptor or a thread.
    pub fn notifier(&self) -> io::Result<Notifier> {
        forks::handle();
        let inner = Arc::new(Inner {
            process: Lineage::current(),
            in_flight: Arc::default(),
            is_stopped: Arc::default(),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            ended: Mutex::default(),
            arrived: Mutex::default(),
            changed: Condvar::new(),
        });
        let (core, of_thread) = (Arc::clone(self.shared_core()), Arc::clone(&inner));
        let thread = telpher_os::spawn_unsignalled(NOTIFIER_THREAD, move || of_thread.run(&core))?;
        Ok(Notifier { inner, thread_id: thread.thread().id(), thread: Mutex::new(Some(thread)) })
    }
}

impl Notifier {
    /// Watches a job. When it has ended, the descriptor becomes readable and [`take_ended`](Notifier::take_ended)
    /// returns `token`; at once if it has ended already.
    ///
    /// The job may be one of another mover; then the thread rests as this notifier's mover says. After
    /// [`stop`](Notifier::stop) no end is reported.
    pub fn watch<J: Watchable + 'static>(&self, job: J, token: u64) -> Watched<J> {
        self.prepare(job, token).0
    }

    /// Like [`watch`](Notifier::watch), for a caller that has to store the handle before another thread may see the
    /// end: the job is not reported, and the thread does not step it, before [`Prepared`] is dropped.
    pub fn prepare<J: Watchable + 'static>(&self, job: J, token: u64) -> (Watched<J>, Prepared<'_>) {
        let (process, in_flight) = (self.inner.process, Arc::clone(&self.inner.in_flight));
        let is_stopped = Arc::clone(&self.inner.is_stopped);
        in_flight.fetch_add(1, Ordering::SeqCst);
        let state = Mutex::new(State::InFlight(job, None));
        let was_locked_in_child = AtomicBool::new(false);
        let has_ended = Condvar::new();
        let entry = Arc::new(Entry { token, process, in_flight, is_stopped, state, was_locked_in_child, has_ended });
        let prepared = Prepared { inner: &self.inner, entry: Arc::clone(&entry) as _ };
        (Watched(entry), prepared)
    }

    /// Returns true in the process that created the notifier: no other one has its thread.
    #[must_use]
    pub fn is_own_process(&self) -> bool {
        self.inner.process.is_current()
    }

    /// Ends the notifier, and waits for the end of its thread, so that nothing of the mover is used any more. Returns
    /// false if it cannot wait: a watched job is in flight, this is not the process of the thread, or the thread was
    /// stopped. A thread that runs ends after the last watched job.
    pub fn close(mut self) -> bool {
        let thread = self.take_thread();
        if !self.is_own_process() {
            // The thread's memory is not that of a thread here.
            std::mem::forget(thread);
            return false;
        }
        self.inner.tell(|arrived| arrived.is_closed = true);
        let is_idle = self.inner.in_flight.load(Ordering::SeqCst) == 0;
        // A job's buffers can drop the notifier on its thread.
        let thread = thread.filter(|_| is_idle && self.thread_id != std::thread::current().id());
        thread.is_some_and(|thread| thread.join().is_ok())
    }

    /// Ends the notifier's thread, also while watched jobs are in flight, and waits for its end: it makes no further
    /// step. The handles of those jobs make the steps from then on, as in a forked child, and no end is reported. Does
    /// nothing in a process that is not that of the thread. For the end of a program or of an interpreter, when a
    /// thread in the background must not run on. Several threads may call it; each waits.
    ///
    /// Called on the notifier's own thread, by a job's buffer that is dropped there, it returns at once, and the thread
    /// ends after that look at its jobs.
    pub fn stop(&self) {
        if !self.is_own_process() {
            return;
        }
        self.inner.is_stopped.store(true, Ordering::SeqCst);
        self.inner.tell(|arrived| arrived.is_closed = true);
        // Before the lock, which a thread holds while it waits for this one.
        if self.thread_id == std::thread::current().id() {
            return;
        }
        let mut thread = lock(&self.thread);
        if let Some(thread) = thread.take() {
            // An error is a panic, which the thread has printed.
            let _ = thread.join();
        }
    }

    /// Returns true if its thread reports ends: in the process that created the notifier, until it is
    /// [stopped](Notifier::stop).
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.is_own_process() && !self.inner.is_stopped.load(Ordering::SeqCst)
    }

    fn take_thread(&mut self) -> Option<JoinHandle<()>> {
        self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the tokens of at most `most` jobs that have ended, in the order of their ends, each once. If none is
    /// left, the descriptor is not readable any more. Never blocks.
    ///
    /// The end of a job whose [`Watched`] handle was dropped is left out, so the descriptor may have been readable
    /// without an end.
    #[must_use = "an end is reported once"]
    pub fn take_ended(&self, most: usize) -> Vec<u64> {
        if !self.is_own_process() {
            // The parent's thread has written to the descriptor, for the parent.
            return Vec::new();
        }
        let mut ended = lock(&self.inner.ended);
        // Fails if it is not readable.
        let _ = rustix::io::read(&self.inner.eventfd, &mut [0; 8]);
        let mut tokens = Vec::new();
        while tokens.len() < most
            && let Some(job) = ended.jobs.pop_front()
        {
            tokens.extend(job.token());
        }
        if !ended.jobs.is_empty() {
            self.inner.signal();
        }
        tokens
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        if self.is_own_process() {
            self.inner.tell(|arrived| arrived.is_closed = true);
        } else {
            // As in `close`.
            std::mem::forget(self.take_thread());
        }
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if !self.inner.process.is_current() {
            return;
        }
        match self.entry.step() {
            Found::InFlight => {
                // Decided under the lock: a thread that is stopped later takes the entry from the list.
                let mut is_stopped = false;
                self.inner.tell(|arrived| {
                    is_stopped = self.inner.is_stopped.load(Ordering::SeqCst);
                    if !is_stopped {
                        arrived.jobs.push(Arc::clone(&self.entry));
                    }
                });
                if is_stopped {
                    self.entry.wake();
                }
            }
            Found::Ended => self.inner.report([Arc::clone(&self.entry)]),
            Found::Dropped => {}
        }
    }
}

impl Debug for Prepared<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").finish_non_exhaustive()
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.eventfd.as_fd()
    }
}

impl Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = lock(&self.inner.ended).jobs.len();
        f.debug_struct("Notifier").field("ended", &ended).field("eventfd", &self.inner.eventfd).finish_non_exhaustive()
    }
}

const TAKEN: &str = "the job was taken before";

impl<J: Watchable> Watched<J> {
    /// Returns true if the job has ended. Makes no step, except in a forked child, which lacks the notifier's thread,
    /// and after the thread was [stopped](Notifier::stop).
    #[must_use]
    pub fn is_done(&self) -> bool {
        if !self.0.has_thread() {
            return self.0.step_here();
        }
        !matches!(*lock(&self.0.state), State::InFlight(..))
    }

    /// Returns the job if it has ended and was not taken before. Its end is reported nevertheless.
    pub fn take(&self) -> Option<J> {
        take(&mut *self.0.locked()?)
    }

    /// Waits until the job has ended, without using CPU time on this thread, and returns it.
    ///
    /// # Panics
    ///
    /// If the job was [taken](Watched::take) before.
    pub fn wait(self) -> J {
        self.wait_for(Duration::MAX);
        self.take().expect(TAKEN)
    }

    /// Waits until the job has ended, for at most `at_most`; returns true if it has.
    pub fn wait_for(&self, at_most: Duration) -> bool {
        // A time that the clock cannot express is no limit.
        let end = Instant::now().checked_add(at_most);
        let left = || end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        if self.0.has_thread() {
            let mut state = lock(&self.0.state);
            // The thread's end is announced with the state locked.
            while matches!(*state, State::InFlight(..)) && self.0.has_thread() {
                let left = left();
                if left.is_zero() {
                    return false;
                }
                state = self.0.has_ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if !matches!(*state, State::InFlight(..)) {
                return true;
            }
        }
        while !self.is_done() {
            if left().is_zero() {
                return false;
            }
            std::thread::sleep(CHILD_SLEEP);
        }
        true
    }
}

/// Returns the job of a state in which it has ended.
fn take<J>(state: &mut State<J>) -> Option<J> {
    if !matches!(state, State::Ended(_)) {
        return None;
    }
    match std::mem::replace(state, State::Taken) {
        State::Ended(job) => Some(job),
        _ => None,
    }
}

impl<J: Watchable> Future for Watched<J> {
    type Output = J;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<J> {
        if !self.0.has_thread() && !self.0.step_here() {
            // As with a job itself, each poll is a step.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut state = lock(&self.0.state);
        if let State::InFlight(_, waker) = &mut *state {
            *waker = Some(context.waker().clone());
            if !self.0.has_thread() {
                // It was stopped just now, and does not see this waker.
                context.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        Poll::Ready(take(&mut state).expect(TAKEN))
    }
}

impl<J: Watchable> Drop for Watched<J> {
    fn drop(&mut self) {
        // In a forked child, a job that the parent's thread was stepping is leaked.
        let Some(mut locked) = self.0.locked() else { return };
        let state = std::mem::replace(&mut *locked, State::Dropped);
        drop(locked);
        if matches!(state, State::InFlight(..)) {
            self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        // Without the lock: the job's buffers may do anything when they are dropped.
        drop(state);
    }
}

impl<J: Watchable> Debug for Watched<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("token", &self.0.token).field("is_done", &self.is_done()).finish()
    }
}
