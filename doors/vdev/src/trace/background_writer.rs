//! Writing that nobody waits for: a pager that is not read on must not stop the thread which answers the program.

use std::io::{self, Write};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A writer whose bytes are written by a thread of its own, in order. What is not taken yet waits in memory.
pub(super) struct Later {
    /// Gone once it has been flushed.
    bytes: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl Later {
    /// Writes to `out` from now on.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn new(mut out: Box<dyn Write + Send>) -> io::Result<Self> {
        let (bytes, coming) = channel::<Vec<u8>>();
        let failed = Arc::new(Mutex::new(None));
        let told = Arc::clone(&failed);
        let write = move || {
            let mut result = Ok(());
            for bytes in coming {
                // After an error the rest is taken and dropped: it would have a hole.
                result = result.and_then(|()| out.write_all(&bytes));
            }
            if let Err(error) = result.and_then(|()| out.flush()) {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        };
        let thread = std::thread::Builder::new().name("telpher-writer".into()).spawn(write)?;
        Ok(Later { bytes: Some(bytes), thread: Some(thread), failed })
    }
}

impl Write for Later {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.bytes.as_ref().ok_or_else(closed)?.send(bytes.to_vec()).map_err(|_| closed())?;
        Ok(bytes.len())
    }

    /// Waits until all is written, and ends the thread: nothing can be written afterwards.
    fn flush(&mut self) -> io::Result<()> {
        drop(self.bytes.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        // Whoever wants to hear of errors has flushed.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_reader_who_pauses_keeps_the_writer_from_nothing() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let mut later = Later::new(Box::new(writer)).unwrap();
        // More than a pipe holds, and nobody reads.
        let line = [b'x'; 1000];
        for _ in 0..1000 {
            later.write_all(&line).unwrap();
        }
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all.len()
        });
        later.flush().unwrap();
        drop(later);
        assert_eq!(reading.join().unwrap(), 1_000_000);
    }

    #[test]
    fn what_could_not_be_written_is_told_at_the_end() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut later = Later::new(Box::new(writer)).unwrap();
        let _ = later.write(b"x");
        assert_eq!(later.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
