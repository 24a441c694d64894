//! One gRPC call without arguments, over a Unix socket: the part of HTTP/2 that it needs. Source: RFC 9113, RFC 7541
//! §6.2.2, and gRPC's "gRPC over HTTP2".
//!
//! ```text
//! client: preface, SETTINGS, WINDOW_UPDATE, HEADERS, DATA: an empty message ──►
//! server: ◄── SETTINGS, HEADERS, DATA: the answer, HEADERS: the end
//! ```
//!
//! Headers of the answer are not decoded: an answer without a message is an error.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The socket cannot be opened.
    #[error("cannot connect to {socket}")]
    Connect {
        /// The socket.
        socket: String,
        /// The system's error.
        source: io::Error,
    },
    /// The connection fails, or takes too long.
    #[error("the kubelet does not answer")]
    Transfer(#[from] io::Error),
    /// The answer is none.
    #[error("the kubelet's answer cannot be read: {0}")]
    Answer(&'static str),
}

/// How long a call may take. Source: chosen; a kubelet answers in some milliseconds.
const LONGEST: Duration = Duration::from_secs(2);
/// The most bytes of an answer. Source: gRPC's usual limit of a message.
const MOST_BYTES: usize = 4 << 20;
/// The most bytes of a frame. Source: RFC 9113 §4.2, the limit without a setting.
const MOST_FRAME: usize = 16 << 10;
/// The most frames of an answer: a server may send empty ones.
const MOST_FRAMES: usize = 4096;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// Flags of frames.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
/// The stream of the call.
const STREAM: u32 = 1;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("our frames are short");
    [&len.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call: literal fields that enter no table. No text is longer than 126 bytes.
fn headers(method: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let text = |text: &str| [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// The bytes of a call with an empty message.
fn request(method: &str) -> Vec<u8> {
    let window = 1_u32 << 30;
    // No pushed streams, and room for the whole answer.
    let settings = [&[0, 2, 0, 0, 0, 0, 0, 4][..], &window.to_be_bytes()].concat();
    [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &settings),
        frame(WINDOW_UPDATE, 0, 0, &window.to_be_bytes()),
        frame(HEADERS, END_HEADERS, STREAM, &headers(method)),
        frame(DATA, END_STREAM, STREAM, &[0; 5]),
    ]
    .concat()
}

/// Calls a method without arguments, and returns the message of its answer.
pub(super) fn unary(socket: &Path, method: &str) -> Result<Vec<u8>, CallError> {
    let failed = |source| CallError::Connect { socket: socket.display().to_string(), source };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_write_timeout(Some(LONGEST))?;
    stream.write_all(&request(method))?;
    let end = Instant::now() + LONGEST;
    let mut answer = Vec::new();
    for _ in 0..MOST_FRAMES {
        let mut head = [0; 9];
        read(&mut stream, &mut head, end)?;
        let [a, b, c, kind, flags, stream_bytes @ ..] = head;
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if len > MOST_FRAME {
            return Err(CallError::Answer("a frame is too long"));
        }
        let mut payload = vec![0; len];
        read(&mut stream, &mut payload, end)?;
        let is_ours = u32::from_be_bytes(stream_bytes) & !(1 << 31) == STREAM;
        match kind {
            DATA if is_ours => {
                answer.extend_from_slice(unpadded(&payload, flags)?);
                if answer.len() > MOST_BYTES {
                    return Err(CallError::Answer("it is too long"));
                }
            }
            SETTINGS if flags & ACK == 0 => stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?,
            PING if flags & ACK == 0 => stream.write_all(&frame(PING, ACK, 0, &payload))?,
            RESET if is_ours => return Err(CallError::Answer("the call was refused")),
            GOAWAY => return Err(CallError::Answer("the connection was refused")),
            _ => {}
        }
        if is_ours && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            return message(answer);
        }
    }
    Err(CallError::Answer("it does not end"))
}

/// Returns the data of a frame without its padding.
fn unpadded(payload: &[u8], flags: u8) -> Result<&[u8], CallError> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let data = payload
        .split_first()
        .and_then(|(padding, data)| data.len().checked_sub((*padding).into()).map(|len| &data[..len]));
    data.ok_or(CallError::Answer("a frame has more padding than bytes"))
}

/// Returns the message: after whether it is compressed, and its length.
fn message(answer: Vec<u8>) -> Result<Vec<u8>, CallError> {
    let Some((head, message)) = answer.split_first_chunk::<5>() else {
        return Err(CallError::Answer("the call was refused, or has no message"));
    };
    let [compressed, len @ ..] = *head;
    if compressed != 0 {
        return Err(CallError::Answer("its message is compressed"));
    }
    let message = message.get(..u32::from_be_bytes(len) as usize);
    message.map(<[u8]>::to_vec).ok_or(CallError::Answer("its message is cut"))
}

fn read(stream: &mut UnixStream, bytes: &mut [u8], end: Instant) -> io::Result<()> {
    let mut at = 0;
    while at < bytes.len() {
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        stream.set_read_timeout(Some(left.ok_or(io::ErrorKind::TimedOut)?))?;
        match stream.read(&mut bytes[at..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => at += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The answer of a server that sends these bytes, and then closes the connection.
    fn answered(test: &str, bytes: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let path = std::env::temp_dir().join(format!("telpher-call-{test}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = vec![0; request("/a/b").len()];
            stream.read_exact(&mut asked).unwrap();
            assert_eq!(asked, request("/a/b"));
            // Stays connected until the client has gone, except to close at once.
            if !bytes.is_empty() {
                let _ = stream.write_all(&bytes);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        let answer = unary(&path, "/a/b");
        server.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        answer
    }

    #[test]
    fn an_answer_may_come_in_pieces_with_padding_between_other_frames() {
        let message = [0, 0, 0, 0, 6, b'a', b'n', b's'];
        let frames = [
            frame(SETTINGS, 0, 0, &[]),
            frame(HEADERS, END_HEADERS, STREAM, &[0x88]),
            frame(PING, 0, 0, &[1; 8]),
            frame(DATA, 0, STREAM, &message),
            frame(DATA, PADDED, STREAM, &[2, b'w', b'e', b'r', 9, 9]),
            frame(HEADERS, END_HEADERS | END_STREAM, STREAM, &[0x88]),
        ];
        assert_eq!(answered("pieces", frames.concat()).unwrap(), b"answer");
    }

    #[test]
    fn what_is_no_answer_is_an_error_that_says_so() {
        let end = frame(HEADERS, END_HEADERS | END_STREAM, STREAM, &[0x88]);
        let data = |bytes: &[u8]| [frame(DATA, 0, STREAM, bytes), end.clone()].concat();
        for (test, bytes, words) in [
            ("none", end.clone(), "has no message"),
            ("compressed", data(&[1, 0, 0, 0, 0]), "compressed"),
            ("cut", data(&[0, 0, 0, 0, 9, 1]), "cut"),
            ("reset", frame(RESET, 0, STREAM, &[0; 4]), "refused"),
            ("away", frame(GOAWAY, 0, 0, &[0; 8]), "refused"),
            ("long", [&[255, 255, 255][..], &[0; 6]].concat(), "too long"),
            ("padding", frame(DATA, PADDED, STREAM, &[9, 1]), "padding"),
            ("endless", frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).repeat(MOST_FRAMES + 1), "does not end"),
            ("closed", Vec::new(), "does not answer"),
        ] {
            let error = answered(test, bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{test}: {error}");
        }
        let error = unary(Path::new("/nonexistent/socket"), "/a/b").unwrap_err();
        assert!(matches!(error, CallError::Connect { .. }), "{error}");
    }
}
