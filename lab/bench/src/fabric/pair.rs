//! Two ranks of a measured program, in their own processes: they wait for tasks at a socket.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time for a program to start, to answer, or to end. Source: chosen, more than the 20 seconds after which a program
/// ends itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the ranks find the bench.
pub(super) struct Rendezvous {
    listener: UnixListener,
    socket: PathBuf,
    output: PathBuf,
}

impl Rendezvous {
    /// Creates a socket with a name of its own in a folder.
    pub(super) fn new(folder: &Path) -> io::Result<Rendezvous> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the numbers matter.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = folder.join(format!("ranks-{number}"));
        let listener = UnixListener::bind(&socket)?;
        listener.set_nonblocking(true)?;
        Ok(Rendezvous { listener, socket, output: folder.join(format!("output-{number}")) })
    }

    /// Returns the path of the socket.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }
}

/// How a pair starts.
pub(super) struct Start {
    /// Its name, for errors.
    pub(super) name: &'static str,
    /// The beginning of the name that the program gives itself.
    pub(super) expected: &'static str,
    /// The commands: one for each rank, or one that starts both.
    pub(super) commands: Vec<Command>,
    /// Where the ranks find the bench.
    pub(super) place: Rendezvous,
}

/// Times of one rank during a task, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Times {
    /// Elapsed time.
    pub(super) wall: f64,
    /// CPU time of the thread that sends and receives.
    pub(super) thread: f64,
    /// CPU time of all threads.
    pub(super) process: f64,
}

/// The answer to a task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Answer {
    /// What rank 0 measured.
    pub(super) value: f64,
    /// The times of both ranks.
    pub(super) ranks: [Times; 2],
}

/// The running ranks. Dropping it ends them.
pub(super) struct Pair {
    name: &'static str,
    children: Vec<Child>,
    ranks: Vec<BufReader<UnixStream>>,
    output: PathBuf,
    label: String,
}

impl Pair {
    /// Starts the ranks and makes them known to each other.
    pub(super) fn start(start: Start) -> io::Result<Pair> {
        let Start { name, expected, commands, place } = start;
        let output = File::create(&place.output)?;
        let mut pair =
            Pair { name, children: Vec::new(), ranks: Vec::new(), output: place.output, label: String::new() };
        for mut command in commands {
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
            pair.children.push(command.spawn()?);
        }
        pair.introduce(&place.listener, expected).map_err(|error| pair.blame("starting", &error))?;
        Ok(pair)
    }

    /// Returns the name that the program gave itself.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Gives both ranks a task.
    pub(super) fn ask(&mut self, task: &str) -> io::Result<Answer> {
        let answer = self.say(&format!("{task}\n")).and_then(|()| {
            // If both fail, the second rank may have said why the first has waited in vain.
            let (first, second) = (self.hear(0), self.hear(1));
            let (first, second) = match (first, second) {
                (Err(lost), Err(reported)) if lost.kind() != io::ErrorKind::Other => return Err(reported),
                answers => (answers.0?, answers.1?),
            };
            let ((value, first), (_, second)) = (answer_of(&first)?, answer_of(&second)?);
            Ok(Answer { value, ranks: [first, second] })
        });
        answer.map_err(|error| self.blame(task, &error))
    }

    fn introduce(&mut self, listener: &UnixListener, expected: &str) -> io::Result<()> {
        let mut hellos: Vec<(usize, String, BufReader<UnixStream>)> = Vec::new();
        for _ in 0..2 {
            let mut rank = BufReader::new(self.accept(listener)?);
            let hello = line_of(&mut rank)?;
            let mut words = hello.splitn(4, ' ');
            let (Some("hello"), Some(Ok(number @ 0..2)), Some(address), Some(label)) =
                (words.next(), words.next().map(str::parse), words.next(), words.next())
            else {
                return Err(unexpected(&hello));
            };
            // MPICH aligns its name with spaces.
            self.label = label.split_whitespace().collect::<Vec<_>>().join(" ");
            hellos.push((number, address.to_owned(), rank));
        }
        if !self.label.starts_with(expected) {
            return Err(io::Error::other(format!("the program is of {}, not of {expected}", self.label)));
        }
        hellos.sort_unstable_by_key(|hello| hello.0);
        let [(0, first, one), (1, second, other)] =
            <[_; 2]>::try_from(hellos).map_err(|_| io::Error::other("two ranks are needed"))?
        else {
            return Err(io::Error::other("both ranks have the same number"));
        };
        self.ranks = vec![one, other];
        for (rank, address) in self.ranks.iter_mut().zip([second, first]) {
            rank.get_mut().write_all(format!("peer {address}\n").as_bytes())?;
        }
        for rank in 0..2 {
            let line = self.hear(rank)?;
            if line != "ready" {
                return Err(unexpected(&line));
            }
        }
        Ok(())
    }

    /// Waits for a rank's connection.
    fn accept(&mut self, listener: &UnixListener) -> io::Result<UnixStream> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    return Ok(stream);
                }
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => {}
            }
            for child in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    return Err(io::Error::other(format!("it ended at its start: {status}")));
                }
            }
            if Instant::now() >= deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "its ranks do not connect to the bench"));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        self.ranks.iter_mut().try_for_each(|rank| rank.get_mut().write_all(line.as_bytes()))
    }

    fn hear(&mut self, rank: usize) -> io::Result<String> {
        line_of(&mut self.ranks[rank])
    }

    /// Adds the peer, what it was doing, and the last line that it printed.
    fn blame(&self, what: &str, error: &io::Error) -> io::Error {
        let output = std::fs::read(&self.output).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let last = output.lines().rev().find(|line| line.chars().any(char::is_alphanumeric));
        let last = last.map(|line| format!("; its last line: {}", line.trim())).unwrap_or_default();
        io::Error::new(error.kind(), format!("{} ({what}): {error}{last}", self.name))
    }
}

/// Reads a line of a rank, without its end.
fn line_of(rank: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    match rank.read_line(&mut line) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without an answer")),
        Ok(_) => match line.trim_end().split_once(' ') {
            Some(("error", why)) => Err(io::Error::other(why.to_owned())),
            _ => Ok(line.trim_end().to_owned()),
        },
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {} s", PATIENCE.as_secs())))
        }
        Err(error) => Err(error),
    }
}

fn unexpected(line: &str) -> io::Error {
    io::Error::other(format!("an unexpected answer: {line}"))
}

fn answer_of(line: &str) -> io::Result<(f64, Times)> {
    let numbers = line.strip_prefix("done ").map(|numbers| numbers.split(' ').map(str::parse).collect());
    let numbers: Vec<f64> = numbers.and_then(Result::ok).ok_or_else(|| unexpected(line))?;
    match numbers[..] {
        [value, wall, thread, process] => Ok((value, Times { wall, thread, process })),
        _ => Err(unexpected(line)),
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // The end of their input ends the ranks.
        self.ranks.clear();
        let deadline = Instant::now() + PATIENCE;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() >= deadline {
                    // It may have ended by now.
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    /// Two ranks in Python, which answer each task with `answer`.
    fn ranks(folder: &Folder, answer: &str) -> io::Result<Pair> {
        let place = Rendezvous::new(folder.path())?;
        let program = format!(
            "import socket, sys\n\
             s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile('rw')\n\
             def say(line): f.write(line + '\\n'); f.flush()\n\
             say('hello ' + sys.argv[2] + ' a' + sys.argv[2] + ' sample 1.0')\n\
             assert f.readline() == 'peer a' + str(1 - int(sys.argv[2])) + '\\n'\n\
             say('ready')\n\
             for task in f: {answer}\n"
        );
        let command = |rank: usize| {
            let mut command = Command::new("python3");
            command.args(["-c", &program]).arg(place.socket()).arg(rank.to_string());
            command
        };
        // The second rank comes first.
        let commands = vec![command(1), command(0)];
        Pair::start(Start { name: "sample", expected: "sample", commands, place })
    }

    #[test]
    fn ranks_get_each_other_s_address_and_answer_tasks() {
        let folder = Folder::new().unwrap();
        let mut pair = ranks(&folder, "say('done ' + task.split()[1] + ' 10 9 ' + sys.argv[2])").unwrap();
        assert_eq!(pair.label(), "sample 1.0");
        let answer = pair.ask("pingpong 8").unwrap();
        let times = |process| Times { wall: 10.0, thread: 9.0, process };
        assert_eq!(answer, Answer { value: 8.0, ranks: [times(0.0), times(1.0)] });
    }

    #[test]
    fn errors_name_the_peer_the_task_and_its_last_line() {
        let folder = Folder::new().unwrap();
        let mut pair = ranks(&folder, "say('error rank 1: wrong bytes')").unwrap();
        let error = pair.ask("pingpong 8").unwrap_err().to_string();
        assert_eq!(error, "sample (pingpong 8): rank 1: wrong bytes");
        let mut pair = ranks(&folder, "sys.exit('its reason')").unwrap();
        let error = pair.ask("stream 8").unwrap_err().to_string();
        assert!(error.starts_with("sample (stream 8): it ended without an answer"), "{error}");
        let mut pair = ranks(&folder, "say('done 1 2')").unwrap();
        assert!(pair.ask("stream 8").unwrap_err().to_string().ends_with("an unexpected answer: done 1 2"));
    }

    #[test]
    fn a_program_that_ends_at_once_is_refused() {
        let folder = Folder::new().unwrap();
        let place = Rendezvous::new(folder.path()).unwrap();
        let start = Start { name: "sample", expected: "sample", commands: vec![Command::new("false")], place };
        let error = Pair::start(start).err().unwrap().to_string();
        assert!(error.starts_with("sample (starting): it ended at its start"), "{error}");
    }
}
