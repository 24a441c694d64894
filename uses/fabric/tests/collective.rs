//! Groups whose members are processes. Each test runs this program again for each member; it exchanges bytes through
//! the pipes to the test until the group is formed, and does what lines on its standard input say.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "sends signals, and lends vectors to a group")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use telpher_fabric::collective::{EXCHANGE_BYTES, Exchange, ExchangeBytes, Formed, Group, GroupError, Reduction, form};
use telpher_fabric::{Buffer, Number};

/// Set in the environment of a member: its rank and the number of ranks.
const MEMBER: &str = "TELPHER_FABRIC_TEST_MEMBER";
/// Far more than any step takes; a test that waits so long has failed.
const LIMIT: Duration = Duration::from_secs(60);
/// Numbers of an operation, around those from which it proceeds otherwise.
const COUNTS: [usize; 9] = [1, 500, 2047, 2048, 2049, 8192, 20_000, 65_537, 200_000];

/// What a member contributes: sums of thirds depend on the order of the additions.
fn contribution(rank: usize, count: usize) -> Vec<f64> {
    (0..count).map(|at| ((at * 7 + rank * 5) % 11) as f64 / 3.0).collect()
}

fn buffer(numbers: &mut [f64]) -> Buffer {
    // SAFETY: the callers use the numbers only after the operation.
    unsafe { Buffer::vouch(numbers.as_mut_ptr().expose_provenance() as u64, size_of_val(numbers) as u64) }
}

const SUM: (Reduction, Number) = (Reduction::Sum, Number::F64);

/// Calls each operation with each length, and checks the results.
fn run_operations(group: &mut Group) -> Result<(), GroupError> {
    let (rank, ranks) = (group.rank(), group.ranks());
    let idle: &mut dyn FnMut() = &mut || ();
    for count in COUNTS {
        let all: Vec<Vec<f64>> = (0..ranks).map(|rank| contribution(rank, count)).collect();
        let sum: Vec<f64> = (0..count).map(|at| (1..ranks).fold(all[0][at], |sum, rank| sum + all[rank][at])).collect();
        let root = count % ranks;
        let (mut from, mut to) = (all[rank].clone(), vec![0.0; count]);
        group.all_reduce(SUM, buffer(&mut from), buffer(&mut to), idle)?;
        assert!(to == sum, "AllReduce of {count}");
        to.fill(0.0);
        let receives = (rank == root).then(|| buffer(&mut to));
        group.reduce(SUM, root, buffer(&mut from), receives, idle)?;
        assert!(if rank == root { to == sum } else { to.iter().all(|number| *number == 0.0) }, "Reduce of {count}");
        to.clone_from(&from);
        group.broadcast(root, buffer(&mut to), idle)?;
        assert!(to == all[root], "broadcast of {count}");
        let mut gathered = vec![0.0; count * ranks];
        group.all_gather(buffer(&mut from), buffer(&mut gathered), idle)?;
        assert!(gathered == all.concat(), "AllGather of {count}");
    }
    Ok(())
}

/// Exchanges bytes through the test.
struct Pipes {
    ranks: usize,
}

impl Exchange for Pipes {
    type Error = std::io::Error;

    fn all_gather(&mut self, own: &ExchangeBytes) -> std::io::Result<Vec<ExchangeBytes>> {
        say(&format!("exchange {}", hex(own)));
        let line = read_line().ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let bytes = from_hex(&line);
        assert_eq!(bytes.len(), self.ranks * EXCHANGE_BYTES);
        Ok(bytes.as_chunks().0.to_vec())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn read_line() -> Option<String> {
    let mut line = String::new();
    let len = std::io::stdin().lock().read_line(&mut line).ok()?;
    (len > 0).then(|| line.trim_end().to_owned())
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // The test may have ended.
    let _ = writeln!(output, "> {line}").and_then(|()| output.flush());
}

/// Does what the test says, if this process is a member.
fn is_member() {
    let Ok(member) = std::env::var(MEMBER) else { return };
    let (rank, ranks) = member.split_once(' ').unwrap();
    let (rank, ranks) = (rank.parse().unwrap(), ranks.parse().unwrap());
    let Formed::Group(mut group) = form(rank, ranks, true, &mut Pipes { ranks }).unwrap() else { panic!("refused") };
    say("formed");
    while let Some(line) = read_line() {
        let result = match line.as_str() {
            "operations" => run_operations(&mut group),
            "fork" => fork(&mut group),
            // An operation after another, until one fails.
            _ => loop {
                if let Err(error) = run_operations(&mut group) {
                    break Err(error);
                }
            },
        };
        say(&format!("{result:?}"));
    }
    std::process::exit(0);
}

/// Forks a child that tries to use the group and stays until the test ends.
fn fork(group: &mut Group) -> Result<(), GroupError> {
    // SAFETY: this program has no threads that hold locks the child needs.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child > 0 {
        return Ok(());
    }
    let is_refused = run_operations(group) == Err(GroupError::Forked);
    let line = if is_refused { &b"> child refused\n"[..] } else { &b"> child WRONG\n"[..] };
    let mut byte = 0_u8;
    // SAFETY: writes a line, and reads single bytes into a local variable until the test closes the pipe.
    unsafe {
        libc::write(1, line.as_ptr().cast(), line.len());
        while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
        libc::_exit(0);
    }
}

/// A member, seen from the test.
struct Member {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Member {
    fn start(test: &str, rank: usize, ranks: usize) -> Member {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(MEMBER, format!("{rank} {ranks}"));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let input = process.stdin.take().unwrap();
        Member { process, input, lines }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Waits for the next line of the member.
    fn line(&self) -> String {
        loop {
            let line = self.lines.recv_timeout(LIMIT).expect("a line of the member");
            // Lines of the test harness have no mark; one may precede the first line of the member.
            if let Some((_, line)) = line.split_once("> ") {
                return line.to_owned();
            }
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

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts members, and passes on what they exchange until they have a group.
fn members(test: &str, ranks: usize) -> Vec<Member> {
    let mut members: Vec<Member> = (0..ranks).map(|rank| Member::start(test, rank, ranks)).collect();
    loop {
        let lines: Vec<String> = members.iter().map(Member::line).collect();
        if lines.iter().all(|line| line == "formed") {
            return members;
        }
        let all: String = lines.iter().map(|line| line.strip_prefix("exchange ").expect("an exchange")).collect();
        members.iter_mut().for_each(|member| member.tell(&all));
    }
}

#[test]
fn processes_get_the_results_by_rank() {
    is_member();
    // Eight members are more than most machines of tests have cores.
    for ranks in [2, 3, 8] {
        let mut members = members("processes_get_the_results_by_rank", ranks);
        for _ in 0..2 {
            members.iter_mut().for_each(|member| member.tell("operations"));
            members.iter().for_each(|member| assert_eq!(member.line(), "Ok(())"));
        }
    }
}

#[test]
fn a_killed_member_ends_the_operations_of_the_others() {
    is_member();
    // Each time at another moment.
    for pause in 0..10 {
        let mut members = members("a_killed_member_ends_the_operations_of_the_others", 3);
        members.iter_mut().for_each(|member| member.tell("for ever"));
        std::thread::sleep(Duration::from_micros(700 * pause));
        let started = Instant::now();
        members[1].kill();
        for rank in [0, 2] {
            let line = members[rank].line();
            assert!(["Err(Ended { rank: 1 })", "Err(Failed)"].contains(&line.as_str()), "{line}");
            members[rank].tell("operations");
            assert_eq!(members[rank].line(), "Err(Unusable)");
        }
        assert!(started.elapsed() < LIMIT);
    }
}

#[test]
fn a_stopped_member_is_not_dead() {
    is_member();
    let mut members = members("a_stopped_member_is_not_dead", 2);
    members[1].signal(libc::SIGSTOP);
    let mut status = 0;
    // SAFETY: our own child, and a local variable for its status. Waits until it has stopped.
    let waited = unsafe { libc::waitpid(members[1].process.id().cast_signed(), &raw mut status, libc::WUNTRACED) };
    assert!(waited > 0 && libc::WIFSTOPPED(status));
    members.iter_mut().for_each(|member| member.tell("operations"));
    // Many times the period in which a member looks at the others; a false alarm would arrive now.
    assert!(members[0].lines.recv_timeout(Duration::from_millis(200)).is_err());
    members[1].signal(libc::SIGCONT);
    members.iter().for_each(|member| assert_eq!(member.line(), "Ok(())"));
}

#[test]
fn a_killed_member_whose_child_lives_is_dead() {
    is_member();
    let mut members = members("a_killed_member_whose_child_lives_is_dead", 2);
    members[1].tell("fork");
    let mut lines = [members[1].line(), members[1].line()];
    lines.sort();
    assert_eq!(lines, ["Ok(())", "child refused"]);
    members[0].tell("for ever");
    members[1].kill();
    assert_eq!(members[0].line(), "Err(Ended { rank: 1 })");
}
