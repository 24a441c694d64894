//! Parses requests from a socket and answers them. The contents of a packet are untrusted.

use super::Host;
use super::files::OpenFile;
use super::reply::Answer;
use crate::tree::{Caller, Entry, Errno};
use std::sync::Arc;
use telpher_vdev_wire::VERSION;
use telpher_vdev_wire::message::{Kind, MAX_PAYLOAD, PerfControl, PerfOpen, Report, Request};
use zerocopy::{FromBytes, IntoBytes};

/// Size of the longest packet, in bytes.
pub(super) const MAX_PACKET: usize = size_of::<Request>() + MAX_PAYLOAD;

/// A request whose lengths are consistent.
#[derive(Debug)]
pub(super) struct ParsedRequest<'a> {
    pub(super) head: Request,
    pub(super) kind: Kind,
    path: &'a str,
    pub(super) data: &'a [u8],
}

impl<'a> ParsedRequest<'a> {
    /// # Errors
    /// EPROTO for a guest of another version, EINVAL for an invalid request, ENOENT for a path that is not UTF-8.
    pub(super) fn read(packet: &'a [u8]) -> Result<Self, Errno> {
        let (head, payload) = Request::read_from_prefix(packet).map_err(|_| Errno::INVAL)?;
        if head.version != VERSION {
            return Err(Errno::PROTO);
        }
        let kind = Kind::from_code(head.kind).ok_or(Errno::INVAL)?;
        let (path, data) = payload.split_at_checked(head.path_len as usize).ok_or(Errno::INVAL)?;
        if data.len() != head.data_len as usize {
            return Err(Errno::INVAL);
        }
        let path = std::str::from_utf8(path).map_err(|_| Errno::NOENT)?;
        Ok(ParsedRequest { head, kind, path, data })
    }
}

impl Host {
    /// Handles one packet of a process.
    pub(super) fn answer(&self, process: u32, packet: &[u8]) -> Result<Answer, Errno> {
        let parsed = ParsedRequest::read(packet)?;
        let caller = Caller { process, space: parsed.head.space };
        let with_file = |file: Arc<OpenFile>, end| Answer {
            data: file.opened.as_bytes().to_vec(),
            end,
            file: Some(file),
            ..Answer::default()
        };
        match parsed.kind {
            Kind::Show => {
                let data = match self.entry(parsed.path)? {
                    Entry::Binary { .. } => {
                        let mut data = vec![0; MAX_PAYLOAD];
                        let len = self.read_at(parsed.path, parsed.head.argument, &mut data)?;
                        data.truncate(len);
                        data
                    }
                    _ => self.show(parsed.path)?,
                };
                // An attribute has at most one page.
                let data = if data.len() > MAX_PAYLOAD { return Err(Errno::FBIG) } else { data };
                Ok(Answer { data, ..Answer::default() })
            }
            Kind::Store => {
                let taken = match self.entry(parsed.path)? {
                    Entry::Binary { .. } => self.write_at(parsed.path, parsed.head.argument, parsed.data)?,
                    _ => self.store(parsed.path, parsed.data)?,
                };
                Ok(Answer { value: taken as u64, ..Answer::default() })
            }
            Kind::Open => {
                // Zero is reserved for processes without a guest; with it all such address spaces would count as the
                // same.
                if caller.space == 0 {
                    return Err(Errno::INVAL);
                }
                let nonblocking = parsed.head.argument & u64::from(libc::O_NONBLOCK.unsigned_abs()) != 0;
                let (file, end) = self.open_for_guest(parsed.path, caller)?;
                if nonblocking {
                    rustix::io::ioctl_fionbio(&end, true)?;
                }
                Ok(with_file(file, Some(end)))
            }
            Kind::Attach => self.attach(parsed.head.open, caller).map(|file| with_file(file, None)),
            Kind::Report => {
                let report = Report::read_from_bytes(parsed.data).map_err(|_| Errno::INVAL)?;
                self.report_of(parsed.head.open, caller, &report).map(|()| Answer::default())
            }
            Kind::PerfOpen => {
                let open = PerfOpen::read_from_bytes(parsed.data).map_err(|_| Errno::INVAL)?;
                Ok(Answer { end: Some(self.perf_open(&open)?), ..Answer::default() })
            }
            Kind::PerfRead => Ok(Answer { data: self.perf_read(parsed.head.open, parsed.data)?, ..Answer::default() }),
            Kind::PerfControl => {
                let control = PerfControl::read_from_bytes(parsed.data).map_err(|_| Errno::INVAL)?;
                let value = self.perf_control(parsed.head.open, parsed.head.argument, &control)?;
                Ok(Answer { value, ..Answer::default() })
            }
            // Answered elsewhere, in threads of their own.
            Kind::WindowCreate
            | Kind::WindowAttach
            | Kind::Windows
            | Kind::WindowRead
            | Kind::WindowWrite
            | Kind::WindowTouch
            | Kind::WindowUpdate
            | Kind::WindowFault
            | Kind::WindowSettle
            | Kind::WindowClose => Err(Errno::INVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(request: Request, path: &str, data: &[u8]) -> Vec<u8> {
        [request.as_bytes(), path.as_bytes(), data].concat()
    }

    fn request(path_len: u32, data_len: u32) -> Request {
        Request { version: VERSION, kind: Kind::Store as u32, path_len, data_len, ..Request::default() }
    }

    #[test]
    fn a_request_is_parsed() {
        let packet = packet(request(4, 3), "/sys", b"abc");
        let parsed = ParsedRequest::read(&packet).unwrap();
        assert_eq!((parsed.kind, parsed.path, parsed.data), (Kind::Store, "/sys", &b"abc"[..]));
    }

    #[test]
    fn invalid_requests_are_refused() {
        let refused =
            |request: Request, path: &str, data: &[u8]| ParsedRequest::read(&packet(request, path, data)).err();
        assert_eq!(refused(Request { version: VERSION + 1, ..request(0, 0) }, "", b""), Some(Errno::PROTO));
        assert_eq!(refused(Request { kind: 99, ..request(0, 0) }, "", b""), Some(Errno::INVAL));
        for (path_len, data_len) in [(5, 0), (u32::MAX, u32::MAX), (0, 8), (8, u32::MAX), (3, 3), (4, 4)] {
            assert_eq!(
                refused(request(path_len, data_len), "/sys", b"abc"),
                Some(Errno::INVAL),
                "{path_len} {data_len}"
            );
        }
        let bytes = [request(2, 0).as_bytes(), &[0xff, 0xfe]].concat();
        assert_eq!(ParsedRequest::read(&bytes).err(), Some(Errno::NOENT));
    }

    #[test]
    fn truncated_requests_are_refused() {
        let whole = packet(request(4, 3), "/sys", b"abc");
        assert!((0..whole.len()).all(|len| ParsedRequest::read(&whole[..len]).is_err()));
    }
}
