//! The end of a server, and its restart.

use crate::client::Client;
use crate::{NQN, Served, not_hurried, one};
use serde_json::json;
use std::io::Read;
use std::sync::Arc;
use telpher_nvmf::command::io;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::{HostEvent, Transfer, requests};
use telpher_nvmf_run::ask;

const DISK: &str = "{\"backend\": \"file:FOLDER/disk,size=8m\"}";

#[test]
fn accepted_commands_complete_and_later_ones_get_no_answer() {
    let mut served = Served::new(&one(DISK, ""));
    let (mut admin, controller) = Client::admin(served.address, NQN, Digests::default());
    let mut queue = Client::queue(served.address, NQN, Digests::default(), controller, 1);
    // A write that has been accepted, and whose data the host has not sent yet.
    let write = requests::blocks(io::WRITE, 5, 1, 0, 32);
    queue.host.send(write, Transfer::OnRequest(vec![8; 131_072]));
    queue.flush();
    let mut header = [0; 24];
    queue.socket.read_exact(&mut header).unwrap(); // the R2T
    let running = served.running.take().unwrap();
    let stopped = std::thread::spawn(move || running.stop(not_hurried));
    // The listener closes when the loop begins to finish.
    while std::net::TcpStream::connect(served.address).is_ok() {}
    // Commands after that get no answer.
    admin.host.send(requests::identify(6, 1, 0).0, Transfer::ToHost(4096));
    admin.flush();
    queue.host.receive(&header).unwrap();
    let event = queue.wait();
    let HostEvent::Completed { completion, .. } = event else { panic!("{event:?}") };
    assert!(completion.status().is_success());
    stopped.join().unwrap().unwrap();
    let mut rest = Vec::new();
    queue.socket.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "no C2HTermReq");
    admin.socket.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "no answer");
    let written = std::fs::read(served.folder.0.join("disk")).unwrap();
    assert!(written[..131_072] == [8; 131_072]);
}

/// The admin queue and the I/O queue are in two loops. The first one has no commands, and ends with the other one.
#[test]
fn an_accepted_command_completes_although_the_loop_of_the_admin_queue_has_none() {
    let mut served = Served::new(&one(DISK, ", \"loops\": 2"));
    let (admin, controller) = Client::admin(served.address, NQN, Digests::default());
    let mut queue = Client::queue(served.address, NQN, Digests::default(), controller, 1);
    queue.host.send(requests::blocks(io::WRITE, 5, 1, 0, 32), Transfer::OnRequest(vec![8; 131_072]));
    queue.flush();
    let mut header = [0; 24];
    queue.socket.read_exact(&mut header).unwrap(); // the R2T
    let control = served.socket().to_path_buf();
    let running = served.running.take().unwrap();
    let stopped = std::thread::spawn(move || running.stop(not_hurried));
    // The listener closes when the first loop begins to finish. If it had ended, it would not answer.
    while std::net::TcpStream::connect(served.address).is_ok() {}
    ask(&control, &json!({"command": "statistics"})).expect("both loops answer");
    queue.host.receive(&header).unwrap();
    assert!(queue.completion().0.is_success());
    stopped.join().unwrap().unwrap();
    queue.wait_for_close();
    admin.wait_for_close();
    assert!(std::fs::read(served.folder.0.join("disk")).unwrap()[..131_072] == [8; 131_072]);
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let mut served = Served::new(&one("{\"backend\": \"memory:8m\"}", ""));
    let (_admin, controller) = Client::admin(served.address, NQN, Digests::default());
    let mut queue = Client::queue(served.address, NQN, Digests::default(), controller, 1);
    queue.host.send(requests::blocks(io::WRITE, 5, 1, 0, 32), Transfer::OnRequest(vec![8; 131_072]));
    queue.flush();
    queue.socket.read_exact(&mut [0; 24]).unwrap();
    // The host never sends the data, so the loop would wait for it.
    let before = std::time::Instant::now();
    let error = served.running.take().unwrap().stop(|| true).unwrap_err();
    assert_eq!(error.to_string(), "not flushed at the end: a second signal came");
    assert!(before.elapsed() < telpher_nvmf_run::STOP_WITHIN);
    queue.wait_for_close();
}

#[test]
fn a_restarted_server_has_the_port_the_data_and_the_identifiers() {
    let config = one(&format!("{DISK}, {{\"backend\": \"null:1m\", \"nsid\": 7}}"), "");
    let mut served = Served::new(&config);
    let identifiers = |served: &Served| {
        let (mut admin, controller) = Client::admin(served.address, NQN, Digests::default());
        let pages = [(1, 0), (0, 1), (3, 1), (0, 7), (3, 7)].map(|(structure, nsid)| {
            let (command, transfer) = requests::identify(9, structure, nsid);
            let mut page = admin.ok(command, transfer).1;
            if structure == 1 {
                page[78..80].fill(0); // CNTLID
            }
            page
        });
        (Client::queue(served.address, NQN, Digests::default(), controller, 1), admin, pages)
    };
    let (mut queue, admin, before) = identifiers(&served);
    queue.write(1, 3, 8, &[6; 32768]);
    served.stop();
    queue.wait_for_close();
    admin.wait_for_close();
    let again = Served::at(served.address, &config, Arc::clone(&served.folder)).unwrap();
    let (mut queue, _admin, after) = identifiers(&again);
    assert!(before == after);
    assert_ne!(before[1], before[3]);
    assert!(queue.read(1, 3, 8, 32768) == [6; 32768]);
}
