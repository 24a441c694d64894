//! Statistics equal the workload.

use crate::client::Client;
use crate::{NQN, Served, one};
use serde_json::json;
use telpher_nvmf::command::io;
use telpher_nvmf::digest::{Digests, digest};
use telpher_nvmf::initiator::{Transfer, requests};
use telpher_nvmf::status::Status;
use telpher_nvmf_run::{Statistics, ask};

const BOTH: Digests = Digests { header: true, data: true };

#[test]
fn counters_equal_the_workload() {
    let served = Served::new(&one("{\"backend\": \"memory:8m\"}", ""));
    let (mut admin, controller) = Client::admin(served.address, NQN, BOTH);
    let mut queue = Client::queue(served.address, NQN, BOTH, controller, 1);
    for number in 0..5 {
        queue.write(1, number * 8, 8, &[3; 32768]);
    }
    for number in 0..3_u16 {
        let write = requests::blocks(io::WRITE, 30 + number, 1, number.into(), 1);
        queue.ok(write, Transfer::InCapsule(vec![4; 4096]));
    }
    for number in 0..7 {
        queue.read(1, number, 2, 8192);
    }
    // Beyond the end.
    queue.host.send(requests::blocks(io::READ, 20, 1, 5000, 1), Transfer::ToHost(4096));
    assert_eq!(queue.completion().0, Status::LBA_RANGE.do_not_retry());
    let statistics = served.running().statistics().unwrap();
    let subsystem = &statistics.subsystems[0];
    assert_eq!((subsystem.nqn.as_str(), subsystem.controllers.len()), (NQN, 1));
    let [first, second] = &subsystem.controllers[0].queues[..] else { panic!("{statistics:?}") };
    assert_eq!((first.qid, second.qid, second.header_digest, second.data_digest), (0, 1, true, true));
    assert_eq!((second.entries, second.open_commands), (64, 0));
    let total = &second.total;
    assert_eq!((total.reads, total.writes, total.failed_commands), (8, 8, 1));
    // Connect is a command, too.
    assert_eq!((total.commands, total.in_capsule, total.in_capsule_percent), (17, 3, Some(37.5)));
    assert_eq!(total.bytes_read, 7 * 8192);
    assert_eq!(total.bytes_written, 5 * 32768 + 3 * 4096 + 1024);
    assert_eq!((total.r2ts, total.fatal_errors, total.data_digest_errors), (5, 0, 0));
    assert_eq!(total.digests.by_cpu, 5 + 3 + 7);
    assert_eq!(total.digests.bytes, 5 * 32768 + 3 * 4096 + 7 * 8192);
    assert_eq!(total.read_latency.histogram.iter().sum::<u64>(), 7);
    assert_eq!(total.write_latency.histogram.iter().sum::<u64>(), 8);
    assert!(total.read_latency.p99_us >= total.read_latency.p50_us);
    let group = &statistics.poll_groups[0];
    assert_eq!((group.admin_qpairs, group.io_qpairs, group.completed_nvme_io), (1, 1, 15));
    assert_eq!((group.current_admin_qpairs, group.current_io_qpairs, group.connections), (1, 1, 2));
    // A connection that has ended counts in its subsystem and in the total.
    drop(queue);
    while served.running().statistics().unwrap().poll_groups[0].connections > 1 {}
    let later = served.running().statistics().unwrap();
    assert_eq!(later.subsystems[0].total.reads, 8);
    assert_eq!(later.subsystems[0].controllers[0].queues.len(), 1);
    assert_eq!(later.total.writes, 8);
    admin.keep_alive();
}

#[test]
fn the_control_socket_returns_the_statistics_as_json_and_text_is_made_of_it() {
    let served = Served::new(&one("{\"backend\": \"memory:1m\"}", ", \"loops\": 2"));
    let (_admin, controller) = Client::admin(served.address, NQN, BOTH);
    let mut queue = Client::queue(served.address, NQN, BOTH, controller, 1);
    queue.write(1, 0, 8, &[3; 32768]);
    let result = ask(served.socket(), &json!({"command": "statistics"})).unwrap();
    let statistics: Statistics = serde_json::from_value(result).unwrap();
    assert_eq!((statistics.total.writes, statistics.poll_groups.len()), (1, 2));
    let text = statistics.text();
    assert!(text.contains("0 reads, 0 B to hosts; 1 writes, 33 KiB from hosts"), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn wrong_digests_are_counted_where_they_belong() {
    let served = Served::new(&one("{\"backend\": \"memory:1m\"}", ""));
    let (_admin, controller) = Client::admin(served.address, NQN, BOTH);
    let mut queue = Client::queue(served.address, NQN, BOTH, controller, 1);
    // A write in a capsule whose data digest is damaged on its way.
    queue.host.send(requests::blocks(io::WRITE, 5, 1, 0, 1), Transfer::InCapsule(vec![9; 4096]));
    let mut bytes = queue.host.take_output();
    let end = bytes.len() - 4;
    assert_eq!(bytes[end..], digest(&[9; 4096]).to_le_bytes());
    bytes[end] ^= 1;
    queue.host.send_raw(&bytes);
    assert_eq!(queue.completion().0, Status::TRANSIENT_TRANSPORT_ERROR);
    // A capsule whose header digest is damaged ends the connection.
    queue.host.send(requests::blocks(io::READ, 6, 1, 0, 1), Transfer::ToHost(4096));
    let mut bytes = queue.host.take_output();
    *bytes.last_mut().unwrap() ^= 1;
    queue.host.send_raw(&bytes);
    let event = queue.wait();
    assert!(matches!(event, telpher_nvmf::initiator::HostEvent::Terminated { fes: 3, .. }), "{event:?}");
    let total = served.running().statistics().unwrap().total;
    assert_eq!((total.data_digest_errors, total.header_digest_errors, total.fatal_errors), (1, 1, 1));
    assert_eq!(total.write_latency.histogram.iter().sum::<u64>(), 0, "the write did not succeed");
    let log = served.log.lock().unwrap();
    assert!(log.iter().any(|line| line.starts_with("Warning") && line.contains("FES 03h")), "{log:?}");
}

#[test]
fn digests_by_a_device_are_counted_with_their_batches() {
    let config =
        one("{\"backend\": \"memory:8m\"}", ", \"digests\": {\"device\": \"model:spr\", \"threshold\": \"16k\"}");
    let served = Served::new(&config);
    let (_admin, controller) = Client::admin(served.address, NQN, BOTH);
    let mut queue = Client::queue(served.address, NQN, BOTH, controller, 1);
    queue.write(1, 0, 32, &[5; 131_072]);
    assert!(queue.read(1, 0, 32, 131_072) == [5; 131_072]);
    queue.write(1, 0, 1, &[6; 4096]);
    let statistics = served.running().statistics().unwrap();
    let digests = statistics.total.digests;
    assert_eq!((digests.by_device, digests.by_cpu, digests.by_fallback), (2, 1, 0), "{statistics:?}");
    // In an empty namespace, the blocks of the write are neighbours: it is one operation, and so is the read.
    let group = &statistics.poll_groups[0];
    assert_eq!((group.device_batches, group.mean_batch), (2, Some(1.0)), "{group:?}");
}
