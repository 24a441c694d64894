//! A server that is killed keeps what it has acknowledged.

use super::{TestFile, serve, ways};
use crate::Client;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use telpher_nvmf::command::{Submission, io};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::file::{FileEngine, FileOptions};
use telpher_nvmf::initiator::requests as commands;
use telpher_nvmf::initiator::{HostEvent, Transfer};
use telpher_os::Random;

/// For the child: the engine, whether it uses O_DIRECT, and the file.
const CHILD: &str = "TELPHER_NVMF_TEST_CHILD";

/// The namespace, in sectors of 512 bytes; the commands use blocks of 8 sectors.
const SECTORS: u64 = super::SIZE / 512;
const DEPTH: usize = 32;

/// Serves the file until the parent ends or kills this process.
fn serve_for_the_parent(child: &str) {
    let mut words = child.splitn(3, ' ');
    let engine = if words.next() == Some("uring") { FileEngine::Uring } else { FileEngine::Threads };
    let direct = words.next() == Some("direct");
    let running = serve(Path::new(words.next().unwrap()), FileOptions { engine, threads: 3, direct });
    println!("serves at {}", running.address);
    let _ = std::io::stdin().read(&mut [0]);
}

/// The process that serves; killed when dropped.
struct Served {
    child: Child,
    address: SocketAddr,
}

impl Served {
    fn start(test: &str, options: FileOptions, file: &Path) -> Served {
        let engine = if options.engine == FileEngine::Uring { "uring" } else { "threads" };
        let access = if options.direct { "direct" } else { "cache" };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, format!("{engine} {access} {}", file.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.map(Result::unwrap).find_map(|line| Some(line.split_once("serves at ")?.1.to_owned()));
        Served { child, address: address.expect("the child serves").parse().unwrap() }
    }

    fn connect(&self) -> (Client, Client) {
        let digests = Digests { header: true, data: true };
        let mut admin = Client::new(self.address, digests);
        let controller = admin.connect(0, 0xffff);
        admin.ok(commands::enable(2), Transfer::None);
        let mut client = Client::new(self.address, digests);
        client.connect(1, controller);
        (admin, client)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A write of one sector. Times count the events of this test.
#[derive(Clone, Copy)]
struct SectorWrite {
    /// What the sector has afterwards.
    generation: u64,
    /// When the command was sent, which no other was.
    sent: u64,
    acknowledged: Option<u64>,
}

/// What each sector may have.
struct Expected {
    sectors: Vec<Vec<SectorWrite>>,
    now: u64,
    /// The commands that are open: their sectors, and when they were sent.
    open: HashMap<u16, (std::ops::Range<u64>, u64)>,
}

impl Expected {
    fn new() -> Expected {
        let zeroes = SectorWrite { generation: 0, sent: 0, acknowledged: Some(0) };
        Expected { sectors: vec![vec![zeroes]; usize::try_from(SECTORS).unwrap()], now: 0, open: HashMap::new() }
    }

    fn of(&mut self, sectors: std::ops::Range<u64>) -> &mut [Vec<SectorWrite>] {
        &mut self.sectors[usize::try_from(sectors.start).unwrap()..usize::try_from(sectors.end).unwrap()]
    }

    fn send(&mut self, cid: u16, sectors: std::ops::Range<u64>, generation: u64) {
        self.now += 1;
        let sent = self.now;
        for writes in self.of(sectors.clone()) {
            writes.push(SectorWrite { generation, sent, acknowledged: None });
        }
        self.open.insert(cid, (sectors, sent));
    }

    fn acknowledge(&mut self, cid: u16) {
        self.now += 1;
        let now = self.now;
        let (sectors, sent) = self.open.remove(&cid).unwrap();
        for writes in self.of(sectors) {
            // An acknowledged write replaces those that were acknowledged before it was sent.
            writes.retain(|write| write.acknowledged.is_none_or(|at| at > sent));
            for write in writes.iter_mut().filter(|write| write.sent == sent) {
                write.acknowledged = Some(now);
            }
        }
    }

    /// Checks the bytes of the whole namespace, which are the only ones to expect from now on.
    fn check(&mut self, bytes: &[u8], run: &str) {
        self.open.clear();
        self.now += 1;
        let now = self.now;
        for ((number, found), writes) in (0..).zip(bytes.chunks(512)).zip(&mut self.sectors) {
            let generation = u64::from_le_bytes(found[8..16].try_into().unwrap());
            assert!(found == sector(number, generation), "{run}: sector {number} is damaged: {:?}", &found[..16]);
            let allowed: Vec<u64> = writes.iter().map(|write| write.generation).collect();
            assert!(allowed.contains(&generation), "{run}: sector {number} has {generation}, not one of {allowed:?}");
            *writes = vec![SectorWrite { generation, sent: now, acknowledged: Some(now) }];
        }
    }
}

/// Each sector has its number and the generation of its write; before the first write, it has zeroes.
fn sector(number: u64, generation: u64) -> Vec<u8> {
    if generation == 0 {
        return vec![0; 512];
    }
    [number.to_le_bytes(), generation.to_le_bytes()].concat().repeat(32)
}

/// Sends the next command: mostly a write of random blocks, sometimes a flush or Write Zeroes.
fn send(client: &mut Client, cid: u16, random: &mut Random, expected: &mut Expected, generation: u64) {
    let most = if random.below(2) == 0 { 2 } else { 32 };
    let blocks = 1 + random.below(most);
    let first = random.below(SECTORS / 8 - blocks);
    let sectors = first * 8..(first + blocks) * 8;
    let blocks = u32::try_from(blocks).unwrap();
    match random.below(16) {
        0 => {
            expected.send(cid, 0..0, generation);
            client.host.send(Submission::new(io::FLUSH, cid, 1), Transfer::None);
        }
        1 => {
            expected.send(cid, sectors, 0);
            client.host.send(commands::blocks(io::WRITE_ZEROES, cid, 1, first, blocks), Transfer::None);
        }
        other => {
            let data: Vec<u8> = sectors.clone().flat_map(|number| sector(number, generation)).collect();
            expected.send(cid, sectors, generation);
            let mut write = commands::blocks(io::WRITE, cid, 1, first, blocks);
            if other < 5 {
                write.set_dword(12, write.dword(12) | 1 << 30);
            }
            let transfer = if blocks <= 2 { Transfer::InCapsule(data) } else { Transfer::OnRequest(data) };
            client.host.send(write, transfer);
        }
    }
}

#[test]
fn a_killed_server_keeps_what_it_has_acknowledged() {
    let test = "file::crash::a_killed_server_keeps_what_it_has_acknowledged";
    if let Ok(child) = std::env::var(CHILD) {
        return serve_for_the_parent(&child);
    }
    for options in ways() {
        let file = TestFile::new("crash");
        let mut expected = Expected::new();
        let mut generation = 0;
        for round in 0..4_u64 {
            let run = format!("{options:?}, round {round}");
            let mut random = Random::new(round);
            let mut served = Served::start(test, options, &file.0);
            let (_admin, mut client) = served.connect();
            let read = |client: &mut Client, at: u64| {
                let command = commands::blocks(io::READ, 900, 1, at / 8, 32);
                client.ok(command, Transfer::ToHost(128 << 10)).1
            };
            let bytes: Vec<u8> = (0..SECTORS).step_by(256).flat_map(|at| read(&mut client, at)).collect();
            expected.check(&bytes, &run);
            if round == 3 {
                break;
            }
            let mut free: Vec<u16> = (0..u16::try_from(DEPTH).unwrap()).collect();
            let mut answers = 100 + random.below(200);
            while answers > 0 {
                while let Some(cid) = free.pop() {
                    generation += 1;
                    send(&mut client, cid, &mut random, &mut expected, generation);
                }
                let event = client.wait();
                let HostEvent::Completed { completion, .. } = event else { panic!("{event:?}") };
                assert!(completion.status().is_success(), "{run}: {completion:?}");
                expected.acknowledge(completion.cid.get());
                free.push(completion.cid.get());
                answers -= 1;
            }
            // Commands are open. The server may have executed any of them, or a part.
            served.kill();
        }
    }
}
