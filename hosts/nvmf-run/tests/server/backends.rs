//! The backends of namespaces, as a configuration chooses them.

use crate::client::Client;
use crate::{NQN, Served, TestFolder, one};
use serde_json::{Value, json};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use telpher_nvmf::command::io;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::{Transfer, requests};
use telpher_nvmf::status::Status;
use telpher_nvmf_run::ask;

/// Bytes of a transfer.
const LEN: usize = 128 << 10;

fn connect(served: &Served) -> (Client, Client) {
    let (admin, controller) = Client::admin(served.address, NQN, Digests { header: true, data: true });
    let queue = Client::queue(served.address, NQN, Digests { header: true, data: true }, controller, 1);
    (admin, queue)
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at / 11 + seed).to_le_bytes()[0]).collect()
}

/// What `show` says of the first namespace.
fn shown(served: &Served) -> (Value, Value) {
    let shown = ask(served.socket(), &json!({"command": "show"})).unwrap();
    (shown["subsystems"][0]["namespaces"][0].clone(), shown["files"].clone())
}

#[test]
fn each_backend_keeps_what_is_written_with_and_without_protection() {
    let backends = ["memory:4m", "memory:4m,pages=transparent", "file:FOLDER/disk,size=4m"];
    for backend in backends {
        for protection in ["none", "insert-strip"] {
            for block in [512, 4096] {
                let namespace =
                    json!({"backend": backend, "block_bytes": block, "protection": protection, "application_tag": 77});
                let served = Served::new(&one(&namespace.to_string(), ""));
                let (_admin, mut queue) = connect(&served);
                let blocks = u32::try_from(LEN).unwrap() / block;
                queue.write(1, 3, blocks, &pattern(5));
                assert!(queue.read(1, 3, blocks, u32::try_from(LEN).unwrap()) == pattern(5), "{namespace}");
                let (shown, _) = shown(&served);
                assert_eq!((&shown["bytes"], &shown["protected"]), (&json!(4 << 20), &json!(protection != "none")));
            }
        }
    }
}

#[test]
fn damage_of_a_protected_file_is_reported_to_the_host() {
    let namespace = json!({"backend": "file:FOLDER/disk,size=1m", "protection": "insert-strip"});
    let served = Served::new(&one(&namespace.to_string(), ""));
    let (_admin, mut queue) = connect(&served);
    queue.write(1, 0, 32, &pattern(1));
    let disk = std::fs::OpenOptions::new().write(true).open(served.folder.0.join("disk")).unwrap();
    disk.write_all_at(&[0xee; 3], 7 * 4104 + 100).unwrap();
    queue.host.send(requests::blocks(io::READ, 9, 1, 0, 32), Transfer::ToHost(LEN.try_into().unwrap()));
    assert_eq!(queue.completion().0, Status::GUARD_CHECK);
    assert!(queue.read(1, 8, 24, 24 * 4096) == pattern(1)[8 * 4096..]);
}

/// A file in memory is found again by the next server; so is the one of which another process has a descriptor.
#[test]
fn a_file_in_memory_outlives_its_server() {
    let folder = std::path::Path::new("/dev/shm").join(format!("telpher-nvmf-run-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let _folder = TestFolder(folder.clone());
    let namespace = json!({"backend": format!("memory-file:{},size=2m", folder.join("disk").display())});
    let mut served = Served::new(&one(&namespace.to_string(), ""));
    let (_admin, mut queue) = connect(&served);
    queue.write(1, 100, 32, &pattern(9));
    served.stop();
    // Without a size, the file must exist.
    let namespace = json!({"backend": format!("memory-file:{}", folder.join("disk").display())});
    let served = Served::new(&one(&namespace.to_string(), ""));
    let (_admin, mut queue) = connect(&served);
    assert!(queue.read(1, 100, 32, LEN.try_into().unwrap()) == pattern(9));
    let other = one("{\"backend\": \"memory-file:FOLDER/none\"}", "");
    let refused = Served::at("127.0.0.1:0".parse().unwrap(), &other, Arc::new(TestFolder::new()));
    let text = telpher_os::chain(&refused.err().unwrap());
    assert!(text.contains("none") && text.contains("No such file"), "{text}");
}

#[test]
fn the_way_to_use_files_is_chosen_and_shown() {
    let disk = "{\"backend\": \"file:FOLDER/disk,size=1m\"}";
    let served = Served::new(&one(disk, ", \"file_engine\": \"threads\", \"file_threads\": 3, \"file_direct\": false"));
    let (shown, files) = shown(&served);
    assert_eq!((shown["access"].as_str(), files.as_str()), (Some("page cache"), Some("3 threads read and write")));
}

#[test]
fn the_way_to_use_sockets_is_chosen_and_shown() {
    let served = Served::new(&one("{\"backend\": \"memory:1m\"}", ", \"socket_engine\": \"epoll\""));
    let shown = ask(served.socket(), &json!({"command": "show"})).unwrap();
    assert_eq!(shown["sockets"], "epoll, recv and writev move the bytes of sockets");
    let statistics = served.running().statistics().unwrap();
    assert_eq!(statistics.poll_groups[0].socket_engine, "epoll");
    assert!(statistics.text().ends_with("sockets: loop_0 by epoll\n"), "{}", statistics.text());
}
