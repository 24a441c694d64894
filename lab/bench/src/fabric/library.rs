//! A rank over telpher-fabric, without libfabric: `telpher bench fabric --program`.
//!
//! It has the tasks of `loops.h` that need no other library, and the same lines for the bench.
#![allow(unsafe_code, reason = "lends its buffers to the endpoint")]

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use telpher_fabric::{
    Address, Buffer, Completes, Completion, Config, Copier, Endpoint, PeerId, ProgressBy, ReceiveRequest, Segments,
    SendEnd, SendRequest, TagMatch,
};

/// Time after which a wait has failed. Source: that of the programs in C.
const LONGEST: Duration = Duration::from_secs(20);
/// Polls between two looks at the clock.
const POLLS: u32 = 1 << 16;
/// The longest message.
const ROOM: usize = 16 << 20;
/// Operations before the time counts. Source: that of the programs in C.
const WARM: u64 = 2;
const LINE: usize = 64;
const TAG: TagMatch = TagMatch { tag: 1, ignore: 0 };

/// Works on the tasks of the bench at `socket` as a rank, until the bench closes the connection.
///
/// # Errors
/// The bench is not there, a message fails, or has wrong bytes.
pub fn obey(socket: &Path, number: usize, cpu: usize) -> io::Result<()> {
    let stream = UnixStream::connect(socket)?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let mut bench = stream;
    let endpoint = Endpoint::open(Config::default(), Copier::cpu(), ProgressBy::Caller).map_err(io::Error::other)?;
    telpher_os::run_on(&[cpu])?;
    let address: String = endpoint.address().encode().iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(bench, "hello {number} {address} telpher-fabric {}", env!("CARGO_PKG_VERSION"))?;
    let Some(line) = lines.next().transpose()? else { return Ok(()) };
    let peer = line.strip_prefix("peer ").and_then(decode).ok_or_else(|| io::Error::other("not an address"))?;
    let peer = endpoint.insert_peer(&peer).map_err(io::Error::other)?;
    let mut rank = Rank::new(number, endpoint, peer);
    writeln!(bench, "ready")?;
    for line in lines {
        let line = line?;
        match rank.work(&line) {
            Ok((value, times)) => {
                let [wall, thread, process] = times.map(|time| time.as_nanos());
                writeln!(bench, "done {value:.3} {wall} {thread} {process}")?;
            }
            Err(error) => return writeln!(bench, "error rank {number}: {error}"),
        }
    }
    Ok(())
}

fn decode(text: &str) -> Option<Address> {
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    Address::decode(&bytes?)
}

/// One of two endpoints that exchange messages.
pub(super) struct Rank {
    number: usize,
    endpoint: Endpoint,
    peer: PeerId,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    done: Vec<Completion>,
    seed: u64,
    received: u64,
    sent: u64,
}

const SEND: u64 = 0;
const RECEIVE: u64 = 1;

/// Elapsed time, CPU time of this thread, and of the process.
fn times() -> [Duration; 3] {
    use rustix::time::ClockId::{Monotonic, ProcessCPUTime, ThreadCPUTime};
    [Monotonic, ThreadCPUTime, ProcessCPUTime].map(|clock| {
        // No clock runs before its epoch.
        Duration::try_from(rustix::time::clock_gettime(clock)).unwrap_or_default()
    })
}

fn since(begin: [Duration; 3]) -> [Duration; 3] {
    let now = times();
    std::array::from_fn(|clock| now[clock].saturating_sub(begin[clock]))
}

fn segments(bytes: &mut [u8]) -> io::Result<Segments> {
    // SAFETY: the buffers are those of `Rank`. They live as long as its endpoint, never move, and are touched only when
    // `settle` has seen all operations end. `bytes` itself is not used after this call.
    let buffer = unsafe { Buffer::vouch(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64) };
    Segments::new(&[buffer]).ok_or_else(|| io::Error::other("one buffer is too much"))
}

/// The 8 bytes at a place of a buffer, as in `control.h`.
fn word_at(place: usize, seed: u64) -> u64 {
    (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed.wrapping_mul(0xc2b2_ae3d_27d4_eb4f))
}

fn fill(bytes: &mut [u8], seed: u64) {
    bytes.chunks_exact_mut(8).enumerate().for_each(|(at, word)| word.copy_from_slice(&word_at(at, seed).to_ne_bytes()));
}

fn rewrite(bytes: &mut [u8]) {
    for line in bytes.chunks_mut(LINE) {
        let word = line.first_chunk_mut::<8>().expect("lengths are multiples of 8");
        *word = u64::from_ne_bytes(*word).wrapping_add(1).to_ne_bytes();
    }
}

fn check(bytes: &[u8], seed: u64, rewritten: u64) -> io::Result<()> {
    let is_wrong = |(at, word): (usize, &[u8])| {
        let added = if at % (LINE / 8) == 0 { rewritten } else { 0 };
        *word != word_at(at, seed).wrapping_add(added).to_ne_bytes()
    };
    match bytes.chunks_exact(8).enumerate().position(is_wrong) {
        Some(at) => Err(io::Error::other(format!("wrong bytes at {} of {}", 8 * at, bytes.len()))),
        None => Ok(()),
    }
}

impl Rank {
    pub(super) fn new(number: usize, endpoint: Endpoint, peer: PeerId) -> Rank {
        let (outgoing, incoming, done) = (vec![0; ROOM], vec![0; ROOM], Vec::with_capacity(64));
        Rank { number, endpoint, peer, outgoing, incoming, done, seed: 0, received: 0, sent: 0 }
    }

    fn work(&mut self, line: &str) -> io::Result<(f64, [Duration; 3])> {
        let words: Vec<&str> = line.split(' ').collect();
        let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
        let [len, rewritten, window, count] = numbers[..] else { return Err(not_a_task(line)) };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if count == 0 || len == 0 || !len.is_multiple_of(8) || len > ROOM {
            return Err(not_a_task(line));
        }
        match words[0] {
            "pingpong" => self.ping_pong(len, rewritten != 0, count),
            "stream" if rewritten == 0 => self.stream(len, window, count),
            _ => Err(not_a_task(line)),
        }
    }

    /// Exchanges messages. Returns the nanoseconds of half a round trip, and the times of this rank.
    pub(super) fn ping_pong(&mut self, len: usize, rewritten: bool, trips: u64) -> io::Result<(f64, [Duration; 3])> {
        self.seed += 1;
        let mut begin = times();
        fill(&mut self.outgoing[..len], self.seed);
        if self.number == 1 {
            self.receive(len)?;
        }
        for trip in 0..trips + WARM {
            if trip == WARM {
                begin = times();
            }
            if self.number == 0 {
                self.receive(len)?;
            } else {
                self.settle(0, 1)?;
                if trip + 1 < trips + WARM {
                    self.receive(len)?;
                }
            }
            if rewritten {
                rewrite(&mut self.outgoing[..len]);
            }
            self.send(len)?;
            self.settle(1, u64::from(self.number == 0))?;
        }
        let took = since(begin);
        check(&self.incoming[..len], self.seed, if rewritten { trips + WARM } else { 0 })?;
        Ok((took[0].as_secs_f64() * 1e9 / (2.0 * trips as f64), took))
    }

    fn stream(&mut self, len: usize, window: u64, windows: u64) -> io::Result<(f64, [Duration; 3])> {
        self.seed += 1;
        let mut begin = times();
        fill(&mut self.outgoing[..len], self.seed);
        for number in 0..windows + WARM {
            if number == WARM {
                begin = times();
            }
            if self.number == 0 {
                (0..window).try_for_each(|_| self.send(len))?;
                self.settle(window, 0)?;
                self.receive(8)?;
                self.settle(0, 1)?;
            } else {
                (0..window).try_for_each(|_| self.receive(len))?;
                self.settle(0, window)?;
                self.send(8)?;
                self.settle(1, 0)?;
            }
        }
        let took = since(begin);
        if self.number == 1 {
            check(&self.incoming[..len], self.seed, 0)?;
        }
        Ok((took[0].as_secs_f64() * 1e9 / (windows * window) as f64, took))
    }

    fn send(&mut self, len: usize) -> io::Result<()> {
        let request = SendRequest {
            to: self.peer,
            segments: segments(&mut self.outgoing[..len])?,
            tag: Some(TAG.tag),
            data: None,
            context: SEND,
            completes: Completes::Always,
            end: SendEnd::BufferFree,
            inject: false,
        };
        self.endpoint.send(request).map_err(io::Error::other)
    }

    fn receive(&mut self, len: usize) -> io::Result<()> {
        let request = ReceiveRequest {
            segments: segments(&mut self.incoming[..len])?,
            from: Some(self.peer),
            tag: Some(TAG),
            context: RECEIVE,
            completes: Completes::Always,
            many: None,
        };
        self.endpoint.receive(request).map_err(io::Error::other)
    }

    /// Waits for the end of this number of sends and of receives.
    fn settle(&mut self, sends: u64, receives: u64) -> io::Result<()> {
        let (mut polls, mut deadline) = (0_u32, None);
        while self.sent < sends || self.received < receives {
            self.endpoint.completions(&mut self.done, 16);
            for end in self.done.drain(..) {
                if let Err(failure) = end.result {
                    return Err(io::Error::other(format!("a message failed: {failure:?}")));
                }
                if end.context == SEND { self.sent += 1 } else { self.received += 1 }
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS) {
                let now = Instant::now();
                if *deadline.get_or_insert(now + LONGEST) < now {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the other rank is silent"));
                }
            }
        }
        self.sent -= sends;
        self.received -= receives;
        Ok(())
    }
}

fn not_a_task(line: &str) -> io::Error {
    io::Error::other(format!("not a task: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewritten_bytes_are_told_from_wrong_ones() {
        let mut bytes = vec![0; 200];
        fill(&mut bytes, 3);
        assert!(check(&bytes, 3, 0).is_ok() && check(&bytes, 4, 0).is_err());
        rewrite(&mut bytes);
        assert!(check(&bytes, 3, 1).is_ok());
        bytes[77] ^= 1;
        assert_eq!(check(&bytes, 3, 1).unwrap_err().to_string(), "wrong bytes at 72 of 200");
    }

    #[test]
    fn two_ranks_exchange_messages_of_every_kind() {
        let folder = crate::folder::Folder::new().unwrap();
        let socket = folder.file("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let cpus = telpher_os::allowed_cpus().unwrap();
        let ranks: Vec<_> = (0..2)
            .map(|number| {
                let (socket, cpu) = (socket.clone(), cpus[number % cpus.len()]);
                std::thread::spawn(move || obey(&socket, number, cpu))
            })
            .collect();
        let mut benches: Vec<_> = (0..2).map(|_| BufReader::new(listener.accept().unwrap().0)).collect();
        let hear = |bench: &mut BufReader<UnixStream>| {
            let mut line = String::new();
            bench.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let hellos: Vec<String> = benches.iter_mut().map(hear).collect();
        let address = |hello: &String| hello.split(' ').nth(2).unwrap().to_owned();
        for (bench, other) in benches.iter_mut().zip([&hellos[1], &hellos[0]]) {
            writeln!(bench.get_mut(), "peer {}", address(other)).unwrap();
            assert_eq!(hear(bench), "ready");
        }
        for task in ["pingpong 8 1 1 3", "pingpong 262144 0 1 2", "stream 8 0 16 2", "stream 65536 0 4 1"] {
            benches.iter_mut().for_each(|bench| writeln!(bench.get_mut(), "{task}").unwrap());
            for bench in &mut benches {
                let answer = hear(bench);
                assert!(answer.starts_with("done "), "{task}: {answer}");
            }
        }
        drop(benches);
        assert!(ranks.into_iter().all(|rank| rank.join().unwrap().is_ok()));
    }
}
