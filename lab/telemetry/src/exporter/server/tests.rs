use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

/// A text longer than the buffers of a socket, so that a slow reader stops the answer.
const LONG: usize = 4 << 20;

struct Fixed(String);

impl Metrics for Fixed {
    fn text(&mut self, format: TextFormat) -> String {
        format!("{format:?} {}", self.0)
    }
}

fn ask(request: &str) -> String {
    String::from_utf8(answer(request.as_bytes(), &mut Fixed("text\n".into())).expect("a whole request")).unwrap()
}

/// Ends the server of a test, also if the test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a server beside `clients`.
fn beside(text: String, clients: impl FnOnce(SocketAddr)) {
    let mut server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = server.address().unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut metrics = Fixed(text);
            while !is_done.load(Ordering::Relaxed) {
                server.turn(&mut metrics).unwrap();
            }
        });
        let _done = Done(&is_done);
        clients(address);
    });
}

fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn requests_have_the_answers_of_http() {
    assert!(ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\r\n\r\nPrometheus text\n"));
    assert!(
        ask("GET /metrics?a=b HTTP/1.0\r\n\r\n")
            .starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4")
    );
    assert!(ask("HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("Content-Length: 16\r\nConnection: close\r\n\r\n"));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "200 OK"),
        ("GET /other HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("GET http://x/metrics HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed"),
        ("GET /metrics\r\n\r\n", "400 Bad Request"),
        ("GET /metrics HTTP/2\r\n\r\n", "400 Bad Request"),
        ("GET /metrics HTTP/1.1 x\r\n\r\n", "400 Bad Request"),
        ("\r\n\r\n", "400 Bad Request"),
        ("\u{fffd}\0 \r\n\r\n", "400 Bad Request"),
    ] {
        assert!(ask(request).starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request:?}: {}", ask(request));
    }
    let metrics = &mut Fixed(String::new());
    assert_eq!(answer(b"GET /metrics HTTP/1.1\r\n", metrics), None);
    for ending in ["", "\r\n\r\n"] {
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}{ending}", "x".repeat(MOST_REQUEST));
        assert!(answer(long.as_bytes(), metrics).unwrap().starts_with(b"HTTP/1.1 431 "));
    }
}

#[test]
fn the_format_is_the_one_that_the_client_prefers() {
    use TextFormat::{OpenMetrics, Prometheus};
    for (accept, format) in [
        // What Prometheus 2.42 sends.
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OpenMetrics,
        ),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Prometheus),
        ("application/openmetrics-text;version=0.0.1, text/plain;q=0.1", Prometheus),
        ("application/openmetrics-text; q=0.2, text/plain; q=0.9", Prometheus),
        ("application/openmetrics-text;q=0", Prometheus),
        ("application/openmetrics-text;q=NaN", Prometheus),
        ("Application/OpenMetrics-Text", OpenMetrics),
        ("*/*", Prometheus),
        ("", Prometheus),
    ] {
        assert_eq!(negotiated(&accept.split(',').collect::<Vec<_>>()), format, "{accept}");
        let text = ask(&format!("GET /metrics HTTP/1.1\r\nACCEPT: {accept}\r\n\r\n"));
        assert!(text.contains(&format!("Content-Type: {}\r\n", format.content_type())), "{text}");
    }
}

#[test]
fn clients_that_send_or_read_nothing_keep_no_other_out() {
    beside("x".repeat(LONG), |address| {
        // More than there is room for: some send nothing, some a part of a request, some take no answer.
        let silent: Vec<TcpStream> = (0..3 * MOST_CONNECTIONS)
            .map(|number| {
                let mut stream = TcpStream::connect(address).unwrap();
                let sent: &[u8] = [b"".as_slice(), b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"][number % 3];
                // The server may have closed it for a newer one.
                let _ = stream.write_all(sent);
                stream
            })
            .collect();
        let text = get(address);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.len() > LONG, "{} bytes", text.len());
        drop(silent);
        assert!(get(address).len() > LONG);
    });
}

#[test]
fn a_request_may_come_in_single_bytes() {
    beside("text".into(), |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("\r\n\r\nPrometheus text"), "{text}");
    });
}
