//! Captures the packets of a port into a file for packet tools.
//!
//! The format is classic pcap with nanoseconds. Forwarding threads fill chunks and never wait: if the writer has no
//! room for a chunk, the chunk is dropped and its packets are counted. So a file has only whole packets, and the
//! packets in the file and those left out add up to all packets of the port.
//!
//! Source: IETF draft-ietf-opsawg-pcap §4 (file header), §5 (packet record).

use crate::error::SwitchError;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use telpher_vhost::Packets;

/// Nanoseconds, in the writer's order of bytes. Source: draft-ietf-opsawg-pcap §4.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
/// Source: draft-ietf-opsawg-pcaplinktype, `LINKTYPE_ETHERNET`.
const ETHERNET: u32 = 1;
/// Bytes at which a chunk is sent to the writer. Source: chosen, some hundred packets.
const PIECE: usize = 256 << 10;
/// Maximum chunks that wait for the writer: 64 MiB. Source: chosen, what a fast disk writes in a tenth of a second.
const WAITING: usize = 256;

/// A running capture of one port.
#[derive(Debug)]
pub struct Capture {
    path: PathBuf,
    snap: u32,
    pieces: SyncSender<Piece>,
    counts: Arc<CaptureCounts>,
    writer: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

/// Packet counts of a capture.
#[derive(Debug, Default)]
pub struct CaptureCounts {
    /// Packets in the file.
    pub written: AtomicU64,
    /// Packets left out because the writer was behind or could not write.
    pub left_out: AtomicU64,
}

#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    packets: u64,
}

/// One thread's writer into a capture.
#[derive(Debug)]
pub struct CaptureWriter {
    capture: Arc<Capture>,
    piece: Piece,
}

impl Capture {
    /// Creates or replaces the file. At most `snap` bytes of each packet are written.
    pub fn begin(path: &Path, snap: u32) -> Result<Arc<Capture>, SwitchError> {
        let failed = |source| SwitchError::Capture { path: path.into(), source };
        let mut file = telpher_os::create_file(path).map_err(failed)?;
        file.write_all(&file_header(snap)).map_err(failed)?;
        let (pieces, received) = sync_channel(WAITING);
        let counts = Arc::new(CaptureCounts::default());
        let for_writer = Arc::clone(&counts);
        let thread = std::thread::Builder::new().name("capture".into());
        let writer = thread.spawn(move || write(&mut file, &received, &for_writer)).map_err(failed)?;
        let writer = Mutex::new(Some(writer));
        Ok(Arc::new(Capture { path: path.into(), snap, pieces, counts, writer }))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the packets in the file, and those left out.
    pub fn counts(&self) -> (u64, u64) {
        // Relaxed: the counts publish no other data.
        (self.counts.written.load(Ordering::Relaxed), self.counts.left_out.load(Ordering::Relaxed))
    }

    /// Creates the writer for one thread.
    pub fn pen(self: &Arc<Capture>) -> CaptureWriter {
        CaptureWriter { capture: Arc::clone(self), piece: Piece::default() }
    }

    /// Waits until everything sent to the writer is in the file. Call it after all threads' writers are dropped.
    pub fn end(&self) -> Result<(), SwitchError> {
        let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
        // An empty chunk ends the file; the send waits until the writer has room.
        let _ = self.pieces.send(Piece::default());
        let ended = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer panicked")));
        ended.map_err(|source| SwitchError::Capture { path: self.path.clone(), source })
    }
}

impl CaptureWriter {
    /// Records the packets of a burst from index `from` on, with the present time.
    pub fn write(&mut self, packets: &Packets, from: usize) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Seconds have 32 bits until 2106.
        let seconds = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        for packet in (from..packets.len()).filter_map(|index| packets.get(index)) {
            // No packet is longer than 64 KiB.
            let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            let kept = len.min(self.capture.snap);
            for word in [seconds, now.subsec_nanos(), kept, len] {
                self.piece.bytes.extend(word.to_le_bytes());
            }
            self.piece.bytes.extend(&packet[..kept as usize]);
            self.piece.packets += 1;
            if self.piece.bytes.len() >= PIECE {
                self.flush();
            }
        }
    }

    /// Sends the chunk so far.
    pub fn flush(&mut self) {
        if self.piece.packets > 0 {
            let piece = std::mem::take(&mut self.piece);
            if let Err(TrySendError::Full(piece) | TrySendError::Disconnected(piece)) =
                self.capture.pieces.try_send(piece)
            {
                self.capture.counts.left_out.fetch_add(piece.packets, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for CaptureWriter {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Writes chunks until an empty one. After a failure the rest is left out and counted.
fn write(file: &mut File, pieces: &Receiver<Piece>, counts: &CaptureCounts) -> io::Result<()> {
    let mut outcome = Ok(());
    for piece in pieces.iter().take_while(|piece| piece.packets > 0) {
        if outcome.is_ok() {
            let before = file.metadata().map(|metadata| metadata.len());
            outcome = file.write_all(&piece.bytes);
            if let (Err(_), Ok(before)) = (&outcome, before) {
                // Whole packets only.
                let _ = file.set_len(before);
            }
        }
        let count = if outcome.is_ok() { &counts.written } else { &counts.left_out };
        count.fetch_add(piece.packets, Ordering::Relaxed);
    }
    outcome
}

fn file_header(snap: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    bytes.extend(VERSION.iter().flat_map(|word| word.to_le_bytes()));
    // Two fields that are always zero: the time zone and its accuracy.
    bytes.extend([0, 0, snap, ETHERNET].iter().flat_map(|word: &u32| word.to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_vhost::{PacketPool, PoolOptions};

    #[test]
    fn whole_packets_are_written_and_the_rest_is_counted() {
        let folder = std::env::temp_dir().join(format!("telpher-capture-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.pcap");
        let capture = Capture::begin(&path, 80).unwrap();
        let pool = PacketPool::new(PoolOptions { buffers: 2, longest: 2048 }).unwrap();
        let mut row = pool.allocate(2);
        row.resize(0, 60);
        row.resize(1, 100);
        row.for_each_mut(|packet| packet.fill(7));
        let mut pen = capture.pen();
        pen.write(&row, 0);
        drop(pen);
        capture.end().unwrap();
        assert_eq!(capture.counts(), (2, 0));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..24], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(bytes.len(), 24 + 16 + 60 + 16 + 80);
        assert_eq!((&bytes[32..40], &bytes[40..100]), (&[60, 0, 0, 0, 60, 0, 0, 0][..], &[7; 60][..]));
        assert_eq!((&bytes[108..116], &bytes[116..]), (&[80, 0, 0, 0, 100, 0, 0, 0][..], &[7; 80][..]));
        // Packets recorded after the writer has ended are left out.
        let mut late = capture.pen();
        late.write(&row, 1);
        drop(late);
        assert_eq!(capture.counts(), (2, 1));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
