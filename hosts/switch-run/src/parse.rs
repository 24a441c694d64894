//! Ports, maps and captures as users write them.

use crate::{Capture, RingMap, SocketPort};
use std::str::FromStr;
use telpher_vhost::{CopyPolicy, Role};

/// Why a text is not one of them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(String);

impl FromStr for SocketPort {
    type Err = ParseError;

    /// Parses `PATH[,server|client][,queues=N]`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err(ParseError(format!("'{text}' has no path; a port is PATH[,server|client][,queues=N]")));
        }
        let mut socket = SocketPort { path: path.into(), role: Role::Server, queues: 1 };
        for part in parts {
            match (part, part.strip_prefix("queues=").map(str::parse::<u16>)) {
                ("server", _) => socket.role = Role::Server,
                ("client", _) => socket.role = Role::Client,
                (_, Some(Ok(queues @ 1..=128))) => socket.queues = queues,
                _ => {
                    let said =
                        format!("'{part}' is not an option of a port; use server, client, or queues=1 to queues=128");
                    return Err(ParseError(said));
                }
            }
        }
        Ok(socket)
    }
}

impl FromStr for RingMap {
    type Err = ParseError;

    /// Parses `[PORT:]rxq[N]@QUEUE[+QUEUE…]`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bad = || {
            ParseError(format!(
                "'{text}' is not a mapping; use [PORT:]rxqN@QUEUE or txqN@QUEUE, such as txq0@wq0.1 or \
                 1:rxq@wq0.0+wq0.1"
            ))
        };
        let (ring, dma_queues) = text.split_once('@').ok_or_else(bad)?;
        let (port, ring) = match ring.split_once(':') {
            Some((port, ring)) => (Some(port.parse().map_err(|_| bad())?), ring),
            None => (None, ring),
        };
        let (rx, queue) = match (ring.strip_prefix("rxq"), ring.strip_prefix("txq")) {
            (Some(queue), _) => (true, queue),
            (_, Some(queue)) => (false, queue),
            _ => return Err(bad()),
        };
        let queue = if queue.is_empty() { None } else { Some(queue.parse().map_err(|_| bad())?) };
        let dma_queues: Vec<String> = dma_queues.split('+').map(str::to_owned).collect();
        if dma_queues.iter().any(String::is_empty) {
            return Err(bad());
        }
        Ok(RingMap { port, rx, queue, dma_queues })
    }
}

impl FromStr for Capture {
    type Err = ParseError;

    /// Parses `PORT:FILE`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parts = text.split_once(':').and_then(|(port, file)| Some((port.parse().ok()?, file)));
        match parts {
            Some((port, file)) if !file.is_empty() => Ok(Capture { port, file: file.into() }),
            _ => Err(ParseError(format!("'{text}' is not a port and a file; use PORT:FILE, such as 0:port0.pcap"))),
        }
    }
}

/// Parses which packets the device copies: `learned`, `all`, `off`, or a number of bytes.
///
/// # Errors
/// If the text is none of these.
pub fn parse_policy(text: &str) -> Result<CopyPolicy, ParseError> {
    match (text, text.parse()) {
        ("learned", _) => Ok(CopyPolicy::Learned),
        ("all", _) => Ok(CopyPolicy::Device),
        ("off", _) => Ok(CopyPolicy::Cpu),
        (_, Ok(bytes)) => Ok(CopyPolicy::From(bytes)),
        _ => Err(ParseError(format!("'{text}' is not a threshold; use learned, all, off, or a number of bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_path_with_options() {
        let socket = |text: &str| text.parse::<SocketPort>();
        let plain = SocketPort { path: "/tmp/a".into(), role: Role::Server, queues: 1 };
        assert_eq!(socket("/tmp/a").unwrap(), plain);
        assert_eq!(socket("/tmp/a,server").unwrap(), plain);
        assert_eq!(socket("/tmp/a,queues=4,client").unwrap(), SocketPort { role: Role::Client, queues: 4, ..plain });
        for text in ["", ",client", "a,queues=0", "a,queues=129", "a,mode", "a,"] {
            assert!(socket(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_map_names_rings_and_queues() {
        let map = |text: &str| text.parse::<RingMap>();
        let all = RingMap { port: None, rx: false, queue: None, dma_queues: vec!["wq0.1".into()] };
        assert_eq!(map("txq@wq0.1").unwrap(), all);
        let one = RingMap { port: Some(1), rx: true, queue: Some(3), dma_queues: vec!["wq0.1".into(), "wq1.0".into()] };
        assert_eq!(map("1:rxq3@wq0.1+wq1.0").unwrap(), one);
        for text in ["", "txq0", "q0@wq0.0", "x:rxq0@wq0.0", "rxqx@wq0.0", "rxq0@", "rxq0@wq0.0+"] {
            assert!(map(text).unwrap_err().to_string().contains("such as"), "{text}");
        }
    }

    #[test]
    fn thresholds_are_parsed() {
        let of = [
            ("512", CopyPolicy::From(512)),
            ("all", CopyPolicy::Device),
            ("off", CopyPolicy::Cpu),
            ("learned", CopyPolicy::Learned),
        ];
        for (text, policy) in of {
            assert_eq!(parse_policy(text), Ok(policy));
        }
        assert!(parse_policy("some").is_err());
    }

    #[test]
    fn a_capture_names_a_port_and_a_file() {
        assert_eq!("2:a:b".parse(), Ok(Capture { port: 2, file: "a:b".into() }));
        assert!("a.pcap".parse::<Capture>().is_err() && "0:".parse::<Capture>().is_err());
    }
}
