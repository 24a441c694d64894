//! Readers of Arrow's two formats: they check what a message declares before they allocate memory for it.
//!
//! ```text
//! file:   footer ──► blocks ──┐
//! stream: length, length, … ──┴─► one message ──► check ──► arrow-ipc's decoder ──► rows
//! ```
//!
//! arrow-ipc's own readers allocate as much as the file declares, and a process that allocates too much is killed
//! without a message.

use arrow_array::RecordBatch;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, CompressionType, Message, MessageHeader, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, Schema};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;
use telpher_os::size;

/// Why a message cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The file cannot be read, or ends too early.
    #[error("it cannot be read to its end")]
    Read(#[from] io::Error),
    /// Its structure is damaged.
    #[error("{0}")]
    Damaged(String),
    /// A compressed buffer declares more bytes than its compression can produce.
    #[error(
        "buffer {buffer} of message {message} declares {declared} bytes, and its {compressed} bytes of {codec} hold \
         at most {most}"
    )]
    Expansion {
        /// Number of the message, from 0.
        message: usize,
        /// Number of its buffer, from 0.
        buffer: usize,
        /// The length that it declares.
        declared: u64,
        /// Its bytes in the file.
        compressed: u64,
        /// `LZ4`.
        codec: &'static str,
        /// The most bytes that these can expand to.
        most: u64,
    },
    /// The message is larger than the limit.
    #[error(
        "message {message} declares {declared} bytes by its buffer {buffer}, and {} is the limit, half of the memory \
         left here; write the file in smaller batches", size(*most)
    )]
    Large {
        /// Number of the message, from 0.
        message: usize,
        /// Number of the buffer that exceeds the limit, from 0.
        buffer: usize,
        /// Total bytes of the buffers up to and including this one.
        declared: u64,
        /// The limit.
        most: u64,
    },
    /// arrow-ipc refused it.
    #[error(transparent)]
    Arrow(#[from] ArrowError),
}

fn damaged(what: impl Into<String>) -> MessageError {
    MessageError::Damaged(what.into())
}

/// The messages of a file or stream.
pub(super) struct Messages {
    reader: BufReader<File>,
    decoder: FileDecoder,
    schema: Arc<Schema>,
    /// Positions of the messages in a file; `None` for a stream, whose messages follow each other.
    places: Option<VecDeque<Block>>,
    /// Messages read so far.
    number: usize,
    /// The most bytes that one message may declare.
    most: u64,
}

/// First word of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Bytes of the continuation marker and the metadata's length.
const PREFIX: usize = 8;

impl Messages {
    /// Opens a file in Arrow's file format. Each message may declare at most `most` bytes.
    pub(super) fn of_file(file: File, most: u64) -> Result<Self, MessageError> {
        let mut reader = BufReader::new(file);
        // The last bytes: the footer's length and the magic bytes.
        let mut tail = [0; 10];
        reader.seek(SeekFrom::End(-10))?;
        reader.read_exact(&mut tail)?;
        let len = read_footer_length(tail)?;
        let back = i64::try_from(len).map_err(|_| damaged("the footer's length is beyond the file"))?;
        reader.seek(SeekFrom::End(-10 - back)).map_err(|_| damaged("the footer's length is beyond the file"))?;
        let footer = bytes(&mut reader, len as u64)?;
        let footer = root_as_footer(&footer).map_err(|error| damaged(format!("the footer is damaged: {error}")))?;
        let schema = footer.schema().ok_or_else(|| damaged("the footer has no schema"))?;
        let schema = schema_of(schema)?;
        let batches = footer.recordBatches().ok_or_else(|| damaged("the footer lists no batches"))?;
        let places = footer.dictionaries().into_iter().flatten().chain(batches).copied().collect();
        let decoder = FileDecoder::new(schema.clone(), footer.version());
        Ok(Messages { reader, decoder, schema, places: Some(places), number: 0, most })
    }

    /// Opens a file in Arrow's stream format. Each message may declare at most `most` bytes.
    pub(super) fn of_stream(file: File, most: u64) -> Result<Self, MessageError> {
        let mut reader = BufReader::new(file);
        let first = next_of_stream(&mut reader, most, 0)?;
        let first = first.ok_or_else(|| damaged("it has no schema, with which an Arrow stream begins"))?;
        let message = first.parse(0)?;
        let schema = message.header_as_schema();
        let schema = schema_of(schema.ok_or_else(|| damaged("it does not begin with a schema"))?)?;
        let decoder = FileDecoder::new(schema.clone(), message.version());
        Ok(Messages { reader, decoder, schema, places: None, number: 1, most })
    }

    /// Returns the schema with all columns.
    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Restricts the batches to these columns.
    pub(super) fn with_columns(mut self, columns: Vec<usize>) -> Self {
        self.decoder = self.decoder.with_projection(columns);
        self
    }

    fn next_message(&mut self) -> Result<Option<Whole>, MessageError> {
        let Some(places) = &mut self.places else {
            return next_of_stream(&mut self.reader, self.most, self.number);
        };
        let Some(block) = places.pop_front() else { return Ok(None) };
        let place = |value: i64| {
            u64::try_from(value).map_err(|_| damaged(format!("message {} is nowhere in the file", self.number)))
        };
        let (at, metadata, body) =
            (place(block.offset())?, place(block.metaDataLength().into())?, place(block.bodyLength())?);
        self.reader.seek(SeekFrom::Start(at))?;
        // Cannot overflow: either is below 2^63.
        fits(metadata + body, self.most, self.number)?;
        let bytes = bytes(&mut self.reader, metadata + body)?;
        Ok(Some(Whole { bytes, block }))
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, MessageError> {
        while let Some(whole) = self.next_message()? {
            let number = self.number;
            self.number += 1;
            let message = whole.parse(number)?;
            let (batch, dictionary) = (message.header_as_record_batch(), message.header_as_dictionary_batch());
            let is_dictionary = match message.header_type() {
                MessageHeader::RecordBatch => false,
                MessageHeader::DictionaryBatch => true,
                other => return Err(damaged(format!("message {number} is neither rows nor a dictionary: {other:?}"))),
            };
            let data = batch.or_else(|| dictionary?.data());
            let data = data.ok_or_else(|| damaged(format!("message {number} has no data")))?;
            check(&data, whole.body(number)?, number, self.most)?;
            let Whole { bytes, block } = whole;
            if is_dictionary {
                self.decoder.read_dictionary(&block, &bytes.into())?;
            } else if let Some(batch) = self.decoder.read_record_batch(&block, &bytes.into())? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

impl Iterator for Messages {
    type Item = Result<RecordBatch, MessageError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}

/// A message with its bytes as in the file: marker, length, metadata, body.
struct Whole {
    bytes: Vec<u8>,
    /// The lengths of marker, length and metadata together, and of the body.
    block: Block,
}

impl Whole {
    fn parse(&self, number: usize) -> Result<Message<'_>, MessageError> {
        let skipped = if self.bytes.starts_with(&CONTINUATION) { PREFIX } else { 4 };
        let metadata = self.bytes.get(skipped..).unwrap_or_default();
        root_as_message(metadata).map_err(|error| damaged(format!("message {number} is damaged: {error}")))
    }

    fn body(&self, number: usize) -> Result<&[u8], MessageError> {
        let metadata = usize::try_from(self.block.metaDataLength()).ok();
        let body = metadata.and_then(|metadata| self.bytes.get(metadata..));
        body.ok_or_else(|| damaged(format!("message {number} ends before its body")))
    }
}

fn schema_of(schema: arrow_ipc::Schema<'_>) -> Result<Arc<Schema>, MessageError> {
    if !schema.endianness().equals_to_target_endianness() {
        return Err(damaged("its numbers have another byte order than this machine's"));
    }
    Ok(Arc::new(try_fb_to_schema(schema)?))
}

/// Returns the next message of a stream; `None` at its end.
fn next_of_stream(reader: &mut BufReader<File>, most: u64, number: usize) -> Result<Option<Whole>, MessageError> {
    let mut word = [0; 4];
    match reader.read_exact(&mut word) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    if word == CONTINUATION {
        reader.read_exact(&mut word)?;
    }
    let len = i32::from_le_bytes(word);
    if len == 0 {
        return Ok(None);
    }
    let wrong = || damaged(format!("the metadata of message {number} declares {len} bytes"));
    let len = u64::try_from(len).map_err(|_| wrong())?;
    fits(len, most, number)?;
    let mut whole = [CONTINUATION, word].concat();
    whole.append(&mut bytes(reader, len)?);
    let metadata = i32::try_from(whole.len()).map_err(|_| wrong())?;
    let body = root_as_message(&whole[PREFIX..]).map(|message| message.bodyLength());
    let body = body.map_err(|error| damaged(format!("message {number} is damaged: {error}")))?;
    let declared =
        u64::try_from(body).map_err(|_| damaged(format!("message {number} declares a body of {body} bytes")))?;
    fits(declared, most, number)?;
    whole.append(&mut bytes(reader, declared)?);
    Ok(Some(Whole { bytes: whole, block: Block::new(0, metadata, body) }))
}

fn fits(declared: u64, most: u64, message: usize) -> Result<(), MessageError> {
    if declared > most {
        return Err(MessageError::Large { message, buffer: 0, declared, most });
    }
    Ok(())
}

/// Reads `len` bytes. The memory grows with the bytes that arrive, so a false length does not allocate more than the file
/// has.
fn bytes(reader: &mut BufReader<File>, len: u64) -> Result<Vec<u8>, MessageError> {
    let mut bytes = Vec::new();
    if reader.take(len).read_to_end(&mut bytes)? as u64 != len {
        return Err(damaged(format!("it ends {} bytes too early", len - bytes.len() as u64)));
    }
    Ok(bytes)
}

/// Returns the codec's name, and the most bytes that one compressed byte can expand to.
///
/// LZ4: a byte that lengthens a run adds 255 bytes (LZ4 block format, "Matchlen"). Zstandard: a block of four bytes
/// repeats one of them over 128 KiB (RFC 8878, §3.1.1.2.2 to 3.1.1.2.4); no block is shorter and none gives more.
fn expansion(codec: CompressionType) -> Option<(&'static str, u64)> {
    match codec {
        CompressionType::LZ4_FRAME => Some(("LZ4", 255)),
        CompressionType::ZSTD => Some(("Zstandard", (128 << 10) / 4)),
        _ => None,
    }
}

/// Checks that every buffer is inside the body and declares no more than it can expand to, and that all of them together
/// stay within the limit.
fn check(data: &arrow_ipc::RecordBatch<'_>, body: &[u8], message: usize, most: u64) -> Result<(), MessageError> {
    let codec =
        match data.compression() {
            None => None,
            Some(compression) => Some(expansion(compression.codec()).ok_or_else(|| {
                damaged(format!("message {message} is compressed by a method that Arrow does not have"))
            })?),
        };
    let mut all = 0_u64;
    for (buffer, place) in data.buffers().into_iter().flatten().enumerate() {
        let range = usize::try_from(place.offset()).ok().zip(usize::try_from(place.length()).ok());
        let bytes = range.and_then(|(at, len)| body.get(at..at.checked_add(len)?));
        let bytes = bytes.ok_or_else(|| damaged(format!("buffer {buffer} of message {message} is not in its body")))?;
        let Some((codec, times)) = codec.filter(|_| !bytes.is_empty()) else { continue };
        let wrong = || damaged(format!("buffer {buffer} of message {message} declares no length"));
        let (head, compressed) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
        let declared = match i64::from_le_bytes(*head) {
            // Stored without compression.
            -1 => continue,
            len => u64::try_from(len).map_err(|_| wrong())?,
        };
        let compressed = compressed.len() as u64;
        let can_hold = compressed.saturating_mul(times);
        if declared > can_hold {
            return Err(MessageError::Expansion { message, buffer, declared, compressed, codec, most: can_hold });
        }
        all = all.saturating_add(declared);
        if all > most {
            return Err(MessageError::Large { message, buffer, declared: all, most });
        }
    }
    Ok(())
}
