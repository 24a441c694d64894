//! The control socket.

use crate::client::{Client, HOST};
use crate::{NQN, Served, one};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use telpher_nvmf::command::{Submission, admin, io};
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::{Transfer, requests};
use telpher_nvmf::status::Status;
use telpher_nvmf_run::{AskError, NvmfRunError, ask};

fn refused(served: &Served, request: &Value) -> String {
    match ask(served.socket(), request) {
        Err(AskError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn namespaces_are_added_resized_and_removed_under_use() {
    let served = Served::new(&one("{\"backend\": \"memory:1m\"}", ""));
    let (mut admin, controller) = Client::admin(served.address, NQN, Digests::default());
    admin.ok(requests::set_feature(3, 0x0b, 0x100), Transfer::None);
    let mut queue = Client::queue(served.address, NQN, Digests::default(), controller, 1);
    let event = |admin: &mut Client, request: Value| {
        admin.host.send(Submission::new(admin::EVENT_REQUEST, 4, 0), Transfer::None);
        admin.flush();
        admin.keep_alive();
        let result = ask(served.socket(), &request).unwrap();
        assert_eq!(admin.completion().1, 0x0004_0002);
        // Reading the log allows the next event.
        let (command, transfer) = requests::log_page(5, 4, 0, 4096);
        let (_, changed) = admin.ok(command, transfer);
        (result, changed[0])
    };
    let file = format!("file:{},size=1m", served.folder.0.join("disk").display());
    let added = event(&mut admin, json!({"command": "add-namespace", "namespace": {"backend": file}}));
    assert_eq!(added, (json!({"nsid": 2}), 2));
    queue.write(2, 255, 1, &[7; 4096]);
    assert_eq!(queue.read(2, 255, 1, 4096), [7; 4096]);
    let resized = event(&mut admin, json!({"command": "resize-namespace", "nsid": 2, "size": "512k"}));
    assert_eq!(resized, (json!({"nsid": 2, "bytes": 524_288}), 2));
    queue.host.send(requests::blocks(io::READ, 20, 2, 255, 1), Transfer::ToHost(4096));
    assert_eq!(queue.completion().0, Status::LBA_RANGE.do_not_retry());
    let removed = event(&mut admin, json!({"command": "remove-namespace", "nsid": 2, "subsystem": NQN}));
    assert_eq!(removed, (json!({"nsid": 2}), 2));
    queue.host.send(requests::blocks(io::READ, 21, 2, 0, 1), Transfer::ToHost(4096));
    assert_eq!(queue.completion().0, Status::INVALID_NAMESPACE.do_not_retry());
}

#[test]
fn hosts_are_allowed_and_refused() {
    let hosts = format!("{{\"subsystems\": [{{\"nqn\": \"{NQN}\", \"hosts\": []}}]}}");
    let served = Served::new(&hosts);
    let connect = || Client::new(served.address, Digests::default()).try_connect(NQN, 0, 0xffff).0;
    assert_eq!(connect(), Status::INVALID_HOST.do_not_retry());
    // The loop sends the answer before the line of the log, and the report after both.
    assert_eq!(served.running().statistics().unwrap().poll_groups[0].refused_hosts, 1);
    assert!(served.log.lock().unwrap().iter().any(|line| line.contains("was refused: host") && line.contains(HOST)));
    let added = ask(served.socket(), &json!({"command": "add-host", "host": HOST})).unwrap();
    assert_eq!(added, json!({"hosts": [HOST]}));
    assert!(connect().is_success());
    ask(served.socket(), &json!({"command": "remove-host", "host": HOST})).unwrap();
    assert_eq!(connect(), Status::INVALID_HOST.do_not_retry());
    let again = refused(&served, &json!({"command": "remove-host", "host": HOST}));
    assert_eq!(again, format!("{HOST} is not in the list of {NQN}"));
    assert_eq!(served.running().statistics().unwrap().poll_groups[0].refused_hosts, 2);
}

#[test]
fn requests_that_make_no_sense_are_refused_with_a_sentence() {
    let served = Served::new(&one("{\"backend\": \"null:1m\"}", ""));
    let cases = [
        (json!({}), "there is no command ''"),
        (json!({"command": "stop"}), "there is no command 'stop'"),
        (json!({"comand": "show"}), "unknown key 'comand'; the nearest known key is 'command'"),
        (json!([]), "an object with the keys command, subsystem"),
        (json!({"command": "add-namespace"}), "the request needs 'namespace'"),
        (json!({"command": "add-namespace", "namespace": {}}), "a namespace needs the key 'backend'"),
        (json!({"command": "add-namespace", "namespace": {"nsid": 1, "backend": "null:1m"}}), "namespace 1 exists"),
        (
            json!({"command": "add-namespace", "namespace": {"backend": "file:/nonexistent"}}),
            "cannot open /nonexistent",
        ),
        (json!({"command": "remove-namespace", "nsid": 9}), "there is no namespace 9"),
        (json!({"command": "remove-namespace"}), "the request needs 'nsid'"),
        (json!({"command": "resize-namespace", "nsid": 1, "size": 1}), "less than one block"),
        (json!({"command": "add-namespace", "namespace": {"backend": "memory:1000000t"}}), "the namespace would take"),
        (json!({"command": "show", "subsystem": 7}), "subsystem: invalid type"),
        (json!({"command": "add-host", "host": HOST}), "any host may use"),
        (json!({"command": "remove-namespace", "subsystem": "nqn.2026-01.x", "nsid": 1}), "there is no subsystem"),
    ];
    for (request, expected) in cases {
        let error = refused(&served, &request);
        assert!(error.contains(expected), "{request}: {error}");
    }
    let shown = ask(served.socket(), &json!({"command": "show"})).unwrap();
    assert_eq!(shown["subsystems"][0]["namespaces"][0]["backend"], "null:1m");
    assert_eq!(shown["subsystems"][0]["hosts"], Value::Null);
}

#[test]
fn hostile_clients_get_no_answer_and_delay_no_other() {
    let served = Served::new("{}");
    let connect = || UnixStream::connect(served.socket()).unwrap();
    // These stay connected and send nothing.
    let _silent: Vec<UnixStream> = (0..8).map(|_| connect()).collect();
    let mut long = connect();
    // The server stops to read at some point, and closes.
    let written = (0..4096).try_for_each(|_| long.write_all(&[b'x'; 4096]));
    assert!(written.is_err_and(|error| [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind())));
    let mut cut = connect();
    cut.write_all(b"{\"command\": ").unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    assert_eq!(cut.read(&mut [0; 64]).unwrap(), 0);
    let mut binary = connect();
    binary.write_all(&[0xff, 0, b'\n']).unwrap();
    let mut answer = String::new();
    binary.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("{\"error\":"), "{answer}");
    let deep = "[".repeat(60_000);
    let mut nested = connect();
    nested.write_all(format!("{deep}\n").as_bytes()).unwrap();
    answer.clear();
    nested.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("{\"error\":"), "{answer}");
    ask(served.socket(), &json!({"command": "show"})).unwrap();
}

#[test]
fn the_socket_belongs_to_one_server_and_one_user() {
    let mut served = Served::new("{}");
    let path = served.socket().to_owned();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let second = Served::at("127.0.0.1:0".parse().unwrap(), "{}", std::sync::Arc::clone(&served.folder));
    assert!(matches!(second.err(), Some(NvmfRunError::Control { .. })));
    served.stop();
    assert!(!path.exists());
    assert!(matches!(ask(&path, &json!({})), Err(AskError::Connect { .. })));
    // The socket of a server that was killed is replaced, and a file of another kind is not.
    drop(UnixListener::bind(&path).unwrap());
    let third = Served::at("127.0.0.1:0".parse().unwrap(), "{}", std::sync::Arc::clone(&served.folder)).unwrap();
    ask(third.socket(), &json!({"command": "show"})).unwrap();
    drop(third);
    std::fs::write(&path, "text").unwrap();
    let fourth = Served::at("127.0.0.1:0".parse().unwrap(), "{}", std::sync::Arc::clone(&served.folder));
    assert!(matches!(fourth.err(), Some(NvmfRunError::Control { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
}
