//! Requests as they come out of a socket, and what is sent back. Whoever sends may send anything.

use super::Host;
use super::files::OpenFile;
use crate::tree::{Caller, Entry, Errno};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use telpher_vdev_wire::VERSION;
use telpher_vdev_wire::message::{Kind, MAX_PAYLOAD, Reply, Report, Request};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the longest packet.
pub(super) const MAX_PACKET: usize = size_of::<Request>() + MAX_PAYLOAD;

/// A request whose lengths agree.
#[derive(Debug)]
struct Asked<'a> {
    head: Request,
    kind: Kind,
    path: &'a str,
    data: &'a [u8],
}

/// What becomes of a request.
#[derive(Debug, Default)]
pub(super) struct Answer {
    value: u64,
    data: Vec<u8>,
    /// The file itself, for who has opened it.
    end: Option<OwnedFd>,
    /// Whose lease and board go along.
    file: Option<Arc<OpenFile>>,
}

impl<'a> Asked<'a> {
    /// # Errors
    /// EPROTO for a guest of another version, EINVAL for what is no request, ENOENT for a path that nothing can have.
    fn read(packet: &'a [u8]) -> Result<Self, Errno> {
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
        Ok(Asked { head, kind, path, data })
    }
}

impl Host {
    /// Answers one packet of a process.
    pub(super) fn answer(&self, process: u32, packet: &[u8]) -> Result<Answer, Errno> {
        let asked = Asked::read(packet)?;
        let caller = Caller { process, space: asked.head.space };
        let with_file = |file: Arc<OpenFile>, end| Answer {
            data: file.opened.as_bytes().to_vec(),
            end,
            file: Some(file),
            ..Answer::default()
        };
        match asked.kind {
            Kind::Show => {
                let data = match self.entry(asked.path)? {
                    Entry::Binary { .. } => {
                        let mut data = vec![0; MAX_PAYLOAD];
                        let len = self.read_at(asked.path, asked.head.argument, &mut data)?;
                        data.truncate(len);
                        data
                    }
                    _ => self.show(asked.path)?,
                };
                // An attribute has a page at most.
                let data = if data.len() > MAX_PAYLOAD { return Err(Errno::FBIG) } else { data };
                Ok(Answer { data, ..Answer::default() })
            }
            Kind::Store => {
                let taken = match self.entry(asked.path)? {
                    Entry::Binary { .. } => self.write_at(asked.path, asked.head.argument, asked.data)?,
                    _ => self.store(asked.path, asked.data)?,
                };
                Ok(Answer { value: taken as u64, ..Answer::default() })
            }
            Kind::Open => {
                // Zero is for those who have no guest; it would let every such address space pass for this one.
                if caller.space == 0 {
                    return Err(Errno::INVAL);
                }
                let nonblocking = asked.head.argument & u64::from(libc::O_NONBLOCK.unsigned_abs()) != 0;
                let (file, end) = self.open_for_guest(asked.path, caller)?;
                if nonblocking {
                    rustix::io::ioctl_fionbio(&end, true)?;
                }
                Ok(with_file(file, Some(end)))
            }
            Kind::Attach => self.attach(asked.head.open, caller).map(|file| with_file(file, None)),
            Kind::Report => {
                let report = Report::read_from_bytes(asked.data).map_err(|_| Errno::INVAL)?;
                self.report_of(asked.head.open, caller.space, &report).map(|()| Answer::default())
            }
        }
    }
}

impl Answer {
    /// The descriptors that travel beside it, in the order told at [`Kind`].
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let shared =
            self.file.iter().flat_map(|file| [file.lease.file(), file.board.memory().file(), file.board.rows().file()]);
        self.end.iter().map(AsFd::as_fd).chain(shared).collect()
    }

    /// The data behind the head.
    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }
}

/// The head of the reply to a request.
pub(super) fn head(answer: &Result<Answer, Errno>) -> Reply {
    let reply = Reply { version: VERSION, ..Reply::default() };
    match answer {
        Ok(answer) => {
            Reply { value: answer.value, data_len: u32::try_from(answer.data.len()).unwrap_or_default(), ..reply }
        }
        Err(errno) => Reply { errno: errno.raw_os_error(), ..reply },
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
    fn a_request_is_taken_apart() {
        let packet = packet(request(4, 3), "/sys", b"abc");
        let asked = Asked::read(&packet).unwrap();
        assert_eq!((asked.kind, asked.path, asked.data), (Kind::Store, "/sys", &b"abc"[..]));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let refused = |request: Request, path: &str, data: &[u8]| Asked::read(&packet(request, path, data)).err();
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
        assert_eq!(Asked::read(&bytes).err(), Some(Errno::NOENT));
    }

    #[test]
    fn no_prefix_of_a_request_is_one() {
        let whole = packet(request(4, 3), "/sys", b"abc");
        assert!((0..whole.len()).all(|len| Asked::read(&whole[..len]).is_err()));
    }
}
