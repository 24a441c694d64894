//! This crate as the backend: a small switch in a process of its own, controlled like testpmd, so that it can be killed
//! like testpmd.
//!
//! The process is another instance of this test program; environment variables describe the ports and make one test
//! become the switch.

use crate::backend::{Copies, Endpoint, Socket};
use crate::peer_slot::PeerSlot;
use crate::switch::{PortAt, Switch};
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;
use telpher_vhost::peers::{Counts, Terminal, Work};

/// The test that becomes the switch, and its environment variables: the copy path, a file for stored numbers, and a
/// line per port.
const SWITCH: &str = "telpher::tests::a_switch_answers_commands";
const PORTS: &str = "TELPHER_PEERS_PORTS";
const PROMPT: &str = "switch> ";
const SOON: Duration = Duration::from_secs(60);

/// The switch's process.
#[derive(Debug)]
pub(crate) struct Telpher {
    terminal: Terminal,
}

impl Telpher {
    /// A switch with a port at each socket.
    pub(crate) fn start(copies: Copies, slot: &PeerSlot, sockets: &[Socket]) -> Telpher {
        let mut ports = format!("{}\n{}", copies.name(), slot.file("kept").display());
        for Socket { path, queues, client, .. } in sockets {
            ports += &format!("\n{} {queues} {}", u8::from(*client), path.display());
        }
        let program = std::env::current_exe().expect("this program has a file");
        let mut words = vec!["-c".to_owned(), slot.cpus()[0].to_string(), "env".to_owned(), format!("{PORTS}={ports}")];
        words.push(program.to_str().expect("a path of UTF-8").to_owned());
        words.extend(["--exact", SWITCH, "--nocapture"].map(str::to_owned));
        let mut terminal = Terminal::start("telpher", "taskset", &words).expect("a terminal");
        terminal.until(PROMPT, SOON).unwrap_or_else(|error| panic!("{error}"));
        Telpher { terminal }
    }

    fn command(&mut self, command: &str) -> String {
        let answer = self.terminal.line(command).and_then(|()| self.terminal.until(PROMPT, SOON));
        answer.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The packet counters, and how many packets of the previous switch came back.
    fn counters(&mut self) -> [u64; 6] {
        let answer = self.command("tell");
        let numbers: Vec<u64> = answer.split_whitespace().flat_map(str::parse).collect();
        numbers.try_into().unwrap_or_else(|_| panic!("six numbers, not {answer:?}"))
    }
}

impl Endpoint for Telpher {
    fn work(&mut self, work: Work) {
        let answer = match work {
            Work::Source(len) => self.command(&format!("source {len}")),
            Work::Sink => self.command("sink"),
            Work::Begin(len) => self.command(&format!("begin {len}")),
            Work::Echo => self.command("echo"),
            Work::Hand => self.command("hand"),
            Work::Numbered(_) | Work::Return => panic!("that is what guests do"),
        };
        assert_eq!(answer, "");
    }

    fn rest(&mut self) {
        assert_eq!(self.command("rest"), "");
    }

    fn counts(&mut self) -> Counts {
        let [received, received_bytes, sent, sent_bytes, errors, _] = self.counters();
        Counts { received, received_bytes, sent, sent_bytes, errors }
    }

    fn earlier(&mut self) -> u64 {
        self.counters()[5]
    }

    fn kill(&mut self) {
        self.terminal.kill();
    }

    fn runs(&mut self) -> bool {
        self.terminal.runs()
    }
}

/// The main function of the switch's process: reads commands until its input ends.
fn switch(ports: &str) {
    let mut lines = ports.lines();
    let copies = Copies::named(lines.next().expect("the copy path"));
    let kept = Path::new(lines.next().expect("a file"));
    let ports: Vec<_> = lines.map(port).collect();
    let switch = Switch::start(copies, kept, &ports);
    ask("");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let (word, number) = line.split_once(' ').unwrap_or((&line, ""));
        let len = || number.parse().expect("a length");
        match word {
            "source" => switch.work(Work::Source(len())),
            "sink" => switch.work(Work::Sink),
            "begin" => switch.work(Work::Begin(len())),
            "echo" => switch.work(Work::Echo),
            "hand" => switch.work(Work::Hand),
            "rest" => switch.rest(),
            "tell" => {}
            other => panic!("no command {other:?}"),
        }
        // The command has been executed when it is answered.
        let (Counts { received, received_bytes, sent, sent_bytes, errors }, earlier) = switch.tell();
        let counts = format!("{received} {received_bytes} {sent} {sent_bytes} {errors} {earlier}");
        ask(if word == "tell" { &counts } else { "" });
    }
}

fn port(line: &str) -> PortAt<'_> {
    let mut words = line.splitn(3, ' ');
    let [client, pairs, path] = std::array::from_fn(|_| words.next().expect("three words"));
    PortAt { path: Path::new(path), pairs: pairs.parse().expect("a number"), client: client == "1" }
}

/// Answers a command and prints the prompt.
fn ask(answer: &str) {
    print!("{answer}{PROMPT}");
    std::io::stdout().flush().expect("a terminal");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_answers_commands() {
        if let Ok(ports) = std::env::var(PORTS) {
            return switch(&ports);
        }
        let slot = PeerSlot::take();
        for copies in Copies::ALL {
            let mut telpher = Telpher::start(copies, &slot, &[Socket::new(&slot, "socket")]);
            assert!(slot.file("socket").exists());
            telpher.work(Work::Source(64));
            telpher.rest();
            assert_eq!((telpher.counts(), telpher.earlier()), (Counts::default(), 0));
            assert!(telpher.runs());
        }
    }
}
