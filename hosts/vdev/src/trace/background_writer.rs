//! Writes in the background: a pager that stops reading must not block the thread that answers the program.

use std::io::{self, Write};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A writer that passes its bytes to a thread, which writes them in order. Bytes that are not yet written stay in
/// memory.
pub(super) struct BackgroundWriter {
    /// `None` after the flush.
    bytes: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
    failed: Arc<Mutex<Option<io::Error>>>,
}

impl BackgroundWriter {
    /// Creates a writer to `out`.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn new(mut out: Box<dyn Write + Send>) -> io::Result<Self> {
        let (bytes, received) = channel::<Vec<u8>>();
        let failed = Arc::new(Mutex::new(None));
        let outcome = Arc::clone(&failed);
        let write = move || {
            let mut result = Ok(());
            for bytes in received {
                // After an error the rest is discarded: it would have a gap.
                result = result.and_then(|()| out.write_all(&bytes));
            }
            if let Err(error) = result.and_then(|()| out.flush()) {
                *outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        };
        let thread = std::thread::Builder::new().name("telpher-writer".into()).spawn(write)?;
        Ok(BackgroundWriter { bytes: Some(bytes), thread: Some(thread), failed })
    }
}

impl Write for BackgroundWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        self.bytes.as_ref().ok_or_else(closed)?.send(bytes.to_vec()).map_err(|_| closed())?;
        Ok(bytes.len())
    }

    /// Waits until everything is written, and ends the thread: nothing can be written afterwards.
    fn flush(&mut self) -> io::Result<()> {
        drop(self.bytes.take());
        if let Some(thread) = self.thread.take() {
            // The thread has already reported a panic.
            let _ = thread.join();
        }
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        // Callers that need the error have flushed.
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_reader_that_pauses_does_not_block_the_writer() {
        let (mut reader, pipe) = std::io::pipe().unwrap();
        let mut writer = BackgroundWriter::new(Box::new(pipe)).unwrap();
        // More than a pipe holds, without a reader.
        let line = [b'x'; 1000];
        for _ in 0..1000 {
            writer.write_all(&line).unwrap();
        }
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all.len()
        });
        writer.flush().unwrap();
        drop(writer);
        assert_eq!(reading.join().unwrap(), 1_000_000);
    }

    #[test]
    fn a_write_error_is_returned_by_flush() {
        let (reader, pipe) = std::io::pipe().unwrap();
        drop(reader);
        let mut writer = BackgroundWriter::new(Box::new(pipe)).unwrap();
        let _ = writer.write(b"x");
        assert_eq!(writer.flush().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
