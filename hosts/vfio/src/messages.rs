//! Memory of the client without a file: the engine thread reads and writes it by messages.
//!
//! The session's thread receives the answers. It never waits for one itself: a client may answer only after it has got
//! the reply to its own command. Before the session waits for the engine thread, it [cancels](MessageDma::cancel) what
//! that thread waits for.

use crate::connection::Connection;
use crate::turns::EnginePool;
use crate::wire::{Command, Header};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// An exchange in progress. There is at most one: a function has one engine thread.
#[derive(Debug)]
enum Exchange {
    /// The command with this number was sent.
    Sent(u16),
    /// The body of its reply; `None` if the client refused.
    Answered(Option<Vec<u8>>),
}

#[derive(Debug, Default)]
struct State {
    next: u16,
    exchange: Option<Exchange>,
    /// Exchanges fail at once.
    cancelled: bool,
}

/// The server's own commands on one connection.
#[derive(Debug)]
pub(crate) struct MessageDma {
    connection: Arc<Connection>,
    /// The most bytes in one message.
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl MessageDma {
    pub(crate) fn new(connection: Arc<Connection>, most: u32) -> MessageDma {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        MessageDma { connection, most, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes exchanges fail, also the one in progress, until [`resume`](MessageDma::resume).
    pub(crate) fn cancel(&self) {
        self.lock().cancelled = true;
        self.changed.notify_all();
    }

    /// Allows exchanges again.
    pub(crate) fn resume(&self) {
        self.lock().cancelled = false;
    }

    /// Takes the client's reply to a command. A reply that no command waits for is dropped.
    pub(crate) fn answer(&self, header: &Header, body: &[u8]) {
        let mut state = self.lock();
        if matches!(state.exchange, Some(Exchange::Sent(id)) if id == header.id) {
            state.exchange = Some(Exchange::Answered((!header.is_error()).then(|| body.to_vec())));
            self.changed.notify_all();
        }
    }

    /// Sends a command and waits for its reply; `None` if there is none.
    fn exchange(&self, command: Command, body: &[&[u8]]) -> Option<Vec<u8>> {
        let mut state = self.lock();
        if state.cancelled {
            return None;
        }
        state.next = state.next.wrapping_add(1);
        let id = state.next;
        state.exchange = Some(Exchange::Sent(id));
        drop(state);
        let len = body.iter().map(|part| part.len()).sum();
        if self.connection.send(Header::command(id, command, len), body).is_err() {
            self.lock().exchange = None;
            return None;
        }
        let mut state = self.lock();
        loop {
            match state.exchange.take() {
                Some(Exchange::Answered(body)) => return body,
                _ if state.cancelled => return None,
                waiting => state.exchange = waiting,
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let count = (into.len() as u64).to_le_bytes();
        let Some(body) = self.exchange(Command::DmaRead, &[&address.to_le_bytes(), &count]) else { return false };
        match body.split_first_chunk::<16>() {
            Some((fields, data)) if fields[8..] == count && data.len() == into.len() => {
                into.copy_from_slice(data);
                true
            }
            _ => false,
        }
    }

    fn write(&self, address: u64, from: &[u8]) -> bool {
        let count = (from.len() as u64).to_le_bytes();
        self.exchange(Command::DmaWrite, &[&address.to_le_bytes(), &count, from]).is_some()
    }
}

/// Access to the client's memory for the engine thread of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageAccess<'a> {
    pub(crate) messages: &'a MessageDma,
    /// Where the thread has a turn, which it gives up while it waits.
    pub(crate) pool: &'a EnginePool,
    pub(crate) member: usize,
}

impl MessageAccess<'_> {
    /// Reads bytes; false if the client does not answer.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let mut at = address;
        self.without_turn(|| {
            into.chunks_mut(self.messages.most).all(|part| {
                let done = self.messages.read(at, part);
                at = at.wrapping_add(part.len() as u64);
                done
            })
        })
    }

    /// Writes bytes; false if the client does not answer.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> bool {
        let mut at = address;
        self.without_turn(|| {
            from.chunks(self.messages.most).all(|part| {
                let done = self.messages.write(at, part);
                at = at.wrapping_add(part.len() as u64);
                done
            })
        })
    }

    /// Lets other functions execute while the client answers.
    fn without_turn<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.pool.leave(self.member, 0);
        let result = wait();
        self.pool.take(self.member);
        result
    }
}
