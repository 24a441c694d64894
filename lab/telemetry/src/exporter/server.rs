//! Answers `GET /metrics`, in one thread.
//!
//! Any local user may connect to a port, so everything is bounded: the connections, the bytes of a request, and the
//! time until its answer is taken. A new connection takes the place of the oldest one if there are as many as allowed.
//! So slow clients cannot keep others out: they are the ones that are closed.

use super::family::TextFormat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The most connections at a time. Source: chosen; Prometheus has one, and opens another one after an error.
const MOST_CONNECTIONS: usize = 64;
/// The most bytes of a request. Source: chosen; Prometheus sends some 300.
const MOST_REQUEST: usize = 8 << 10;
/// How long a request and its answer may take. Source: Prometheus' default for a scrape, 10 s.
const LONGEST: Duration = Duration::from_secs(10);

/// What the server's text is read from.
pub trait Metrics {
    /// Returns the text in a format.
    fn text(&mut self, format: TextFormat) -> String;

    /// Is called at least every few seconds, also without requests.
    fn tick(&mut self) {}
}

/// The address of the metrics.
const PATH: &str = "/metrics";

/// A listening server.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    connections: VecDeque<Connection>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    /// The answer, once the request is complete, and how much of it was sent.
    answer: Option<(Vec<u8>, usize)>,
}

/// What becomes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Wait,
    Close,
}

impl Server {
    /// Listens at an address.
    ///
    /// # Errors
    /// The system's error, such as that the port is in use.
    pub fn bind(address: SocketAddr) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Server { listener, connections: VecDeque::new() })
    }

    /// Returns the address, with the port that the system chose if it was 0.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers requests for ever.
    ///
    /// # Errors
    /// The system's error if it cannot wait.
    pub fn run(mut self, metrics: &mut impl Metrics) -> io::Result<()> {
        loop {
            self.turn(metrics)?;
        }
    }

    /// Waits for one event or some seconds, and answers what can be answered.
    fn turn(&mut self, metrics: &mut impl Metrics) -> io::Result<()> {
        const EVERY: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
        let mut waited = vec![PollFd::new(&self.listener, PollFlags::IN)];
        waited.extend(self.connections.iter().map(|connection| {
            let event = if connection.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&connection.stream, event)
        }));
        match poll(&mut waited, Some(&EVERY)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = waited.iter().map(|waited| !waited.revents().is_empty()).collect();
        drop(waited);
        let mut ready_connections = ready[1..].iter();
        self.connections.retain_mut(|connection| {
            let is_ready = *ready_connections.next().unwrap_or(&false);
            let next = if is_ready { connection.proceed(metrics) } else { Next::Wait };
            next == Next::Wait && connection.since.elapsed() < LONGEST
        });
        if ready[0] {
            self.accept();
        }
        metrics.tick();
        Ok(())
    }

    fn accept(&mut self) {
        // At most as many as there is room for, so that the ones that wait are answered before others are accepted.
        for _ in 0..MOST_CONNECTIONS {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    if self.connections.len() == MOST_CONNECTIONS {
                        self.connections.pop_front();
                    }
                    let since = Instant::now();
                    self.connections.push_back(Connection { stream, since, request: Vec::new(), answer: None });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Out of descriptors: the oldest connection gives its own.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        self.connections.pop_front();
                    }
                    return;
                }
            }
        }
    }
}

impl Connection {
    /// Reads or sends as much as is possible without waiting.
    fn proceed(&mut self, metrics: &mut impl Metrics) -> Next {
        while self.answer.is_none() {
            let mut part = [0; 2048];
            match self.stream.read(&mut part) {
                Ok(0) => return Next::Close,
                Ok(read) => {
                    self.request.extend_from_slice(&part[..read]);
                    self.answer = answer(&self.request, metrics).map(|answer| (answer, 0));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Wait,
                Err(_) => return Next::Close,
            }
        }
        let Some((answer, sent)) = &mut self.answer else { return Next::Wait };
        while *sent < answer.len() {
            match self.stream.write(&answer[*sent..]) {
                Ok(more) => *sent += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Next::Wait,
                Err(_) => return Next::Close,
            }
        }
        // What the client sent beyond its request is read, so that closing does not reset the connection before the
        // client has the answer.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        let _ = self.stream.read(&mut [0; MOST_REQUEST]);
        Next::Close
    }
}

/// Returns the answer to a request; `None` while it is incomplete.
fn answer(request: &[u8], metrics: &mut impl Metrics) -> Option<Vec<u8>> {
    let Some(end) = end_of_headers(request) else {
        let is_long = request.len() > MOST_REQUEST;
        return is_long.then(|| response("431 Request Header Fields Too Large", "", "the request is too long\n", true));
    };
    let head = String::from_utf8_lossy(&request[..end]);
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let (Some(method), Some(target), Some(version)) = (method, target, version) else {
        return Some(response("400 Bad Request", "", "this is no request of HTTP/1\n", true));
    };
    if !version.starts_with("HTTP/1.") || words.next().is_some() {
        return Some(response("400 Bad Request", "", "this is no request of HTTP/1\n", true));
    }
    let with_body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return Some(response("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD\n", true)),
    };
    let path = target.split('?').next().unwrap_or_default();
    if path == "/" {
        return Some(response("200 OK", "", "telpher exporter: the metrics are at /metrics\n", with_body));
    }
    if path != PATH {
        return Some(response("404 Not Found", "", "the metrics are at /metrics\n", with_body));
    }
    let accepted = lines.filter_map(|line| line.split_once(':'));
    let accepted = accepted.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    let accepted: Vec<&str> = accepted.flat_map(|(_, value)| value.split(',')).collect();
    let format = negotiated(&accepted);
    let headers = format!("Content-Type: {}\r\n", format.content_type());
    Some(response("200 OK", &headers, &metrics.text(format), with_body))
}

/// Returns the position behind the empty line that ends the headers.
fn end_of_headers(request: &[u8]) -> Option<usize> {
    request.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4).filter(|end| *end <= MOST_REQUEST)
}

fn response(status: &str, headers: &str, body: &str, with_body: bool) -> Vec<u8> {
    let plain = if headers.contains("Content-Type") { "" } else { "Content-Type: text/plain; charset=utf-8\r\n" };
    let len = body.len();
    let mut text = format!("HTTP/1.1 {status}\r\n{plain}{headers}Content-Length: {len}\r\nConnection: close\r\n\r\n");
    if with_body {
        text.push_str(body);
    }
    text.into_bytes()
}

/// Returns the format that a client prefers, by the parts of its header `Accept`. Source: RFC 9110, 12.5.1.
fn negotiated(accepted: &[&str]) -> TextFormat {
    let quality = |kind: &str| {
        let of_part = |part: &&str| {
            let mut parameters = part.split(';').map(str::trim);
            if !parameters.next().is_some_and(|name| name.eq_ignore_ascii_case(kind)) {
                return None;
            }
            let named = |key: &str| parameters.clone().find_map(|word| word.strip_prefix(key));
            // Version 0.0.1 is another format.
            if kind.starts_with("application/") && named("version=").is_some_and(|version| version != "1.0.0") {
                return None;
            }
            named("q=").map_or(Some(1.0), |q| q.parse::<f64>().ok())
        };
        accepted.iter().filter_map(of_part).fold(0.0, f64::max)
    };
    let open = quality("application/openmetrics-text");
    if open > 0.0 && open >= quality("text/plain") { TextFormat::OpenMetrics } else { TextFormat::Prometheus }
}

#[cfg(test)]
mod tests;
