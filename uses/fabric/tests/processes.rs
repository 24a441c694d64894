//! Endpoints in two processes. Each test runs this program once more, as the other process, which does what lines on
//! its standard input say and reports what happens on its standard output.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "forks, sends signals")]

#[path = "../../../ci/skip.rs"]
mod skip;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use telpher_fabric::address::ADDRESS_BYTES;
use telpher_fabric::entry::{Envelope, Message};
use telpher_fabric::{
    Address, Config, ConnectionId, Connector, ConnectorEvent, FabricError, Incoming, Outgoing, PushError, Segments,
};

/// Set in the environment of the other process.
const OTHER: &str = "TELPHER_FABRIC_TEST_OTHER";
/// A user that is not ours. Source: the overflow user of Linux.
const OTHER_USER: u32 = 65534;
/// Far more than any step takes; a test that waits so long has failed.
const LIMIT: Duration = Duration::from_secs(60);

fn hex(address: &Address) -> String {
    address.encode().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Address {
    let bytes: Vec<u8> =
        (0..ADDRESS_BYTES).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
    Address::decode(&bytes).unwrap()
}

fn message(tag: u64) -> Message {
    let envelope = Envelope { is_tagged: true, tag, data: None, len: 0 };
    Message::Eager { envelope, wants_answer: None }
}

/// What the other process does: connects, pushes, takes messages, and says so.
struct Other {
    connector: Connector,
    outgoing: HashMap<ConnectionId, Outgoing>,
    incoming: HashMap<ConnectionId, Incoming>,
}

impl Other {
    fn run() -> ! {
        let (sender, lines) = channel();
        std::thread::spawn(move || read_lines(std::io::stdin(), &sender));
        let connector = Connector::open(&Config::default()).unwrap();
        say(&format!("address {}", hex(&connector.address())));
        let mut other = Other { connector, outgoing: HashMap::new(), incoming: HashMap::new() };
        loop {
            match lines.try_recv() {
                Ok(line) => other.execute(&line),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => std::process::exit(0),
                Err(std::sync::mpsc::TryRecvError::Empty) => std::thread::sleep(Duration::from_micros(200)),
            }
            other.look();
        }
    }

    fn execute(&mut self, line: &str) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("connect", address) => match self.connector.connect(&from_hex(address)) {
                Ok(_) => {}
                Err(error) => say(&format!("refused {error:?}")),
            },
            ("push", tag) => {
                let tag = tag.parse().unwrap();
                self.outgoing.values_mut().for_each(|end| end.push(&message(tag), &Segments::default()).unwrap());
            }
            ("fork", _) => self.fork(),
            _ => panic!("{line}"),
        }
    }

    /// Forks a child that keeps all descriptors, reports what it may do, and stays until the test ends.
    fn fork(&mut self) {
        let to = self.connector.address();
        // SAFETY: the child uses no lock of another thread: the C library's allocator is prepared for forks, and the
        // calls below find out at once that they are in a child.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child > 0 {
            say(&format!("child {child}"));
            return;
        }
        let is_refused = matches!(self.connector.connect(&to), Err(FabricError::Forked));
        let cannot_push = self
            .outgoing
            .values_mut()
            .all(|end| matches!(end.push(&message(0), &Segments::default()), Err(PushError::Broken(_))));
        let cannot_take = self.outgoing.values_mut().all(|end| end.next_answer().is_err())
            && self.incoming.values_mut().all(|end| end.next_message().is_err());
        let mut events = Vec::new();
        self.connector.events(&mut events);
        self.connector.wake(ConnectionId(1));
        self.connector.close(ConnectionId(1));
        let has_ends = !self.outgoing.is_empty() && !self.incoming.is_empty();
        let is_right = is_refused && cannot_push && cannot_take && has_ends && events.is_empty();
        let line = if is_right { &b"> child refused\n"[..] } else { &b"> child WRONG\n"[..] };
        let mut byte = 0_u8;
        // SAFETY: writes a line, and reads single bytes into a local variable until the test closes the pipe.
        unsafe {
            libc::write(1, line.as_ptr().cast(), line.len());
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0);
        }
    }

    fn look(&mut self) {
        let mut events = Vec::new();
        self.connector.events(&mut events);
        for event in events {
            match event {
                ConnectorEvent::Connected { id, outgoing } => {
                    self.outgoing.insert(id, outgoing);
                    say("connected");
                }
                ConnectorEvent::Accepted { id, from, incoming } => {
                    self.incoming.insert(id, incoming);
                    say(&format!("accepted {}", hex(&from)));
                }
                ConnectorEvent::Refused { error, .. } => say(&format!("refused {error:?}")),
                ConnectorEvent::Died { .. } => say("died"),
                event => say(&format!("{event:?}")),
            }
        }
        for end in self.incoming.values_mut() {
            while let Some(arrived) = end.next_message().unwrap() {
                let Message::Eager { envelope, .. } = arrived.message() else { panic!() };
                say(&format!("message {}", envelope.tag));
            }
        }
    }
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // The parent may have ended.
    let _ = writeln!(output, "> {line}").and_then(|()| output.flush());
}

fn read_lines(from: impl std::io::Read, to: &Sender<String>) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        if to.send(line).is_err() {
            break;
        }
    }
}

/// The other process, seen from the test.
struct Peer {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    address: Address,
}

impl Peer {
    /// Starts this program again in the given test, possibly as another user.
    fn start(test: &str, user: Option<u32>) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(user) = user {
            // The other user may not be able to reach this program's folder.
            let copy = std::env::temp_dir().join(format!("telpher-fabric-test-{}", std::process::id()));
            std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
            command = Command::new(&copy);
            command.uid(user).gid(user);
        }
        command.args(["--exact", test, "--nocapture"]).env(OTHER, "1");
        command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (sender, lines) = channel();
        let output = process.stdout.take().unwrap();
        std::thread::spawn(move || read_lines(output, &sender));
        let input = process.stdin.take();
        let own = Address { boot: [0; 16], user: 0, process: 0, number: 0 };
        let mut peer = Peer { process, input, lines, address: own };
        peer.address = from_hex(&peer.expect("address "));
        if user.is_some() {
            // It runs, so the copy is not needed any more.
            let _ = std::fs::remove_file(command.get_program());
        }
        peer
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for the next line of the peer, which begins so; returns the rest.
    fn expect(&mut self, beginning: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LIMIT).unwrap_or_else(|error| panic!("no {beginning:?}: {error}"));
            // Lines of the test harness have no mark; one may precede the first line of the peer.
            let Some((_, line)) = line.split_once("> ") else { continue };
            let rest = line.strip_prefix(beginning);
            return rest.unwrap_or_else(|| panic!("{line:?} instead of {beginning:?}")).to_owned();
        }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.process.id().cast_signed(), signal) }, 0);
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether this is the other process of a test, after it has done its work.
fn is_other() {
    if std::env::var_os(OTHER).is_some() {
        Other::run();
    }
}

/// Waits for the next event.
fn next_event(of: &Connector) -> ConnectorEvent {
    let end = Instant::now() + LIMIT;
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(Instant::now() < end, "no event");
        std::thread::sleep(Duration::from_micros(200));
        of.events(&mut events);
    }
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

/// Waits until as many connections have ended, and nothing else happens.
fn deaths(of: &Connector, count: usize) -> Vec<ConnectionId> {
    let end = Instant::now() + LIMIT;
    let (mut died, mut events) = (Vec::new(), Vec::new());
    while died.len() < count {
        assert!(Instant::now() < end, "only {died:?} have ended");
        of.events(&mut events);
        died.extend(events.drain(..).map(|event| match event {
            ConnectorEvent::Died { id } => id,
            event => panic!("{event:?}"),
        }));
        std::thread::sleep(Duration::from_micros(200));
    }
    died
}

/// Connects to the peer.
fn connect(here: &Connector, peer: &mut Peer) -> (ConnectionId, Outgoing) {
    here.connect(&peer.address).unwrap();
    peer.expect("accepted ");
    match next_event(here) {
        ConnectorEvent::Connected { id, outgoing } => (id, outgoing),
        event => panic!("{event:?}"),
    }
}

/// Lets the peer connect.
fn accept(here: &Connector, peer: &mut Peer) -> (ConnectionId, Incoming) {
    peer.tell(&format!("connect {}", hex(&here.address())));
    peer.expect("connected");
    match next_event(here) {
        ConnectorEvent::Accepted { id, from, incoming } => {
            assert_eq!((from, from.process), (peer.address, peer.process.id()));
            (id, incoming)
        }
        event => panic!("{event:?}"),
    }
}

/// Waits for a message and returns its tag.
fn pull(incoming: &mut Incoming) -> u64 {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(arrived) = incoming.next_message().unwrap() {
            let Message::Eager { envelope, .. } = arrived.message() else { panic!() };
            return envelope.tag;
        }
        assert!(Instant::now() < end, "no message");
        std::thread::yield_now();
    }
}

/// Returns whether the kernel still has the socket of an address.
fn has_socket(address: &Address) -> bool {
    std::fs::read_to_string("/proc/net/unix").unwrap().contains(&format!("{:016x}", address.number))
}

#[test]
fn two_processes_exchange_messages() {
    is_other();
    let here = Connector::open(&Config::default()).unwrap();
    let mut peer = Peer::start("two_processes_exchange_messages", None);
    let (_, mut outgoing) = connect(&here, &mut peer);
    let (_, mut incoming) = accept(&here, &mut peer);
    for tag in 0..100 {
        outgoing.push(&message(tag), &Segments::default()).unwrap();
        peer.expect(&format!("message {tag}"));
        peer.tell(&format!("push {}", tag + 1000));
        assert_eq!(pull(&mut incoming), tag + 1000);
    }
}

#[test]
fn a_killed_peer_is_noticed_and_leaves_nothing() {
    is_other();
    let here = Connector::open(&Config::default()).unwrap();
    let mut peer = Peer::start("a_killed_peer_is_noticed_and_leaves_nothing", None);
    let (there, _outgoing) = connect(&here, &mut peer);
    let (back, mut incoming) = accept(&here, &mut peer);
    assert!(has_socket(&peer.address));
    peer.tell("push 7");
    assert_eq!(pull(&mut incoming), 7);
    peer.kill();
    let mut died = deaths(&here, 2);
    died.sort();
    assert_eq!(died, [there, back]);
    assert!(!has_socket(&peer.address));
    here.connect(&peer.address).unwrap();
    let event = next_event(&here);
    let ConnectorEvent::Refused { error: FabricError::Unreachable { .. }, .. } = event else { panic!("{event:?}") };
    assert!(here.stats().died == 2);
}

#[test]
fn a_stopped_peer_is_not_dead() {
    is_other();
    let here = Connector::open(&Config::default()).unwrap();
    let mut peer = Peer::start("a_stopped_peer_is_not_dead", None);
    let (_, mut outgoing) = connect(&here, &mut peer);
    peer.signal(libc::SIGSTOP);
    let mut status = 0;
    // SAFETY: our own child, and a local variable for its status. Waits until it has stopped.
    let waited = unsafe { libc::waitpid(peer.process.id().cast_signed(), &raw mut status, libc::WUNTRACED) };
    assert!(waited > 0 && libc::WIFSTOPPED(status));
    outgoing.push(&message(1), &Segments::default()).unwrap();
    let second = here.connect(&peer.address).unwrap();
    // The helper thread serves others meanwhile, and reports no death.
    let third = Connector::open(&Config::default()).unwrap();
    third.connect(&here.address()).unwrap();
    assert!(matches!(next_event(&here), ConnectorEvent::Accepted { .. }));
    assert!(matches!(next_event(&third), ConnectorEvent::Connected { .. }));
    assert_eq!(here.stats().died, 0);
    peer.signal(libc::SIGCONT);
    assert!(matches!(next_event(&here), ConnectorEvent::Connected { id, .. } if id == second));
    let mut lines = [peer.expect(""), peer.expect("")];
    lines.sort();
    assert!(lines[0].starts_with("accepted ") && lines[1] == "message 1", "{lines:?}");
}

#[test]
fn other_users_are_refused_in_both_directions() {
    is_other();
    const NAME: &str = "other_users_are_refused_in_both_directions";
    if !rustix::process::geteuid().is_root() {
        return skip::skip(NAME, "only root can start a process of another user");
    }
    let here = Connector::open(&Config::default()).unwrap();
    let mut peer = Peer::start(NAME, Some(OTHER_USER));
    assert_eq!(peer.address.user, OTHER_USER);
    assert!(matches!(here.connect(&peer.address), Err(FabricError::OtherUser { .. })));
    peer.tell(&format!("connect {}", hex(&here.address())));
    peer.expect("refused OtherUser");
    // An address that lies about its user is found out by the kernel's credentials, on both sides.
    let ours = Address { user: here.address().user, ..peer.address };
    here.connect(&ours).unwrap();
    let event = next_event(&here);
    assert!(matches!(event, ConnectorEvent::Refused { error: FabricError::OtherUser { .. }, .. }), "{event:?}");
    let theirs = Address { user: OTHER_USER, ..here.address() };
    peer.tell(&format!("connect {}", hex(&theirs)));
    peer.expect("refused OtherUser");
    assert_eq!(here.stats().accepted, 0);
}

#[test]
fn a_peer_whose_child_keeps_its_sockets_is_noticed() {
    is_other();
    let here = Connector::open(&Config::default()).unwrap();
    let mut peer = Peer::start("a_peer_whose_child_keeps_its_sockets_is_noticed", None);
    let (id, _outgoing) = connect(&here, &mut peer);
    accept(&here, &mut peer);
    peer.tell("fork");
    let mut lines = [peer.expect("child "), peer.expect("child ")];
    lines.sort();
    assert_eq!(lines[1], "refused");
    lines[0].parse::<u32>().unwrap();
    peer.kill();
    assert!(deaths(&here, 2).contains(&id));
    // The child still has the listening socket, and does not accept.
    assert!(has_socket(&peer.address));
    here.connect(&peer.address).unwrap();
    let event = next_event(&here);
    assert!(matches!(event, ConnectorEvent::Refused { error: FabricError::Unreachable { .. }, .. }), "{event:?}");
}
