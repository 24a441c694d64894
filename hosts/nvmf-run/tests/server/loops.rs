//! Several loops, and loops without work.

use crate::client::Client;
use crate::skip;
use crate::{NQN, Served, one};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use telpher_nvmf::digest::Digests;

fn connections(served: &Served) -> Vec<u64> {
    served.running().statistics().unwrap().poll_groups.iter().map(|group| group.connections).collect()
}

#[test]
fn connections_are_divided_by_load_and_serve_one_controller() {
    let served = Served::new(&one("{\"backend\": \"memory:8m\"}", ", \"loops\": 4"));
    let (_admin, controller) = Client::admin(served.address, NQN, Digests::default());
    let mut queues: Vec<Client> = (1..=7)
        .map(|qid| Client::queue(served.address, NQN, Digests { header: false, data: true }, controller, qid))
        .collect();
    assert_eq!(connections(&served), [2, 2, 2, 2]);
    for (index, queue) in (0_u8..).zip(&mut queues) {
        queue.write(1, u64::from(index) * 8, 8, &[index; 32768]);
    }
    for (index, queue) in (0_u8..).zip(queues.iter_mut().rev()) {
        assert!(queue.read(1, u64::from(index) * 8, 8, 32768) == [index; 32768]);
    }
    // New connections go where connections have ended.
    queues.truncate(1);
    while connections(&served).iter().sum::<u64>() > 2 {}
    let _more: Vec<Client> =
        (2..=7).map(|qid| Client::queue(served.address, NQN, Digests::default(), controller, qid)).collect();
    assert_eq!(connections(&served), [2, 2, 2, 2]);
}

#[test]
fn hosts_connect_by_ipv6() {
    let listener = TcpListener::bind("[::1]:0");
    let Ok(address) = listener.and_then(|listener| listener.local_addr()) else {
        return skip::skip("hosts_connect_by_ipv6", "this machine has no IPv6");
    };
    let config = one("{\"backend\": \"memory:1m\"}", "");
    let served = Served::at(address, &config, std::sync::Arc::new(crate::TestFolder::new())).unwrap();
    let (_admin, controller) = Client::admin(served.address, NQN, Digests::default());
    let mut queue = Client::queue(served.address, NQN, Digests::default(), controller, 1);
    queue.write(1, 0, 1, &[6; 4096]);
    assert_eq!(queue.read(1, 0, 1, 4096), [6; 4096]);
}

#[test]
fn the_limit_of_connections_is_for_all_loops_together() {
    let served = Served::new(&one("", ", \"loops\": 2, \"limits\": {\"connections\": 3}"));
    let _three: Vec<Client> = (0..3).map(|_| Client::new(served.address, Digests::default())).collect();
    let mut refused = TcpStream::connect(served.address).unwrap();
    assert_eq!(std::io::Read::read(&mut refused, &mut [0; 8]).unwrap(), 0);
    let groups = served.running().statistics().unwrap().poll_groups;
    assert_eq!(groups.iter().map(|group| group.refused_connections).sum::<u64>(), 1);
}

#[test]
fn idle_connections_do_not_wake_up_a_loop() {
    let served = Served::new(&one("{\"backend\": \"memory:8m\"}", ", \"loops\": 2"));
    let (_admin, controller) = Client::admin(served.address, NQN, Digests::default());
    let mut idle: Vec<Client> = (1..=127)
        .map(|qid| Client::queue(served.address, NQN, Digests { header: true, data: true }, controller, qid))
        .collect();
    let (_second, other) = Client::admin(served.address, NQN, Digests::default());
    idle.extend((1..=127).map(|qid| Client::queue(served.address, NQN, Digests::default(), other, qid)));
    for queue in &mut idle {
        queue.write(1, 0, 1, &[1; 4096]);
    }
    let wakeups = || -> Vec<u64> {
        served.running().statistics().unwrap().poll_groups.iter().map(|group| group.wakeups).collect()
    };
    assert_eq!(connections(&served), [128, 128]);
    // What the connections have begun may still end. After that, each report wakes each loop once, and nothing else
    // does. (A test of the loop itself makes sure that it has no time-out soon.)
    let (mut calm, end) = (0, Instant::now() + Duration::from_secs(60));
    let mut before = wakeups();
    while calm < 100 {
        let after = wakeups();
        calm = if after.iter().zip(&before).all(|(after, before)| after - before == 1) { calm + 1 } else { 0 };
        assert!(Instant::now() < end, "the loops do not calm down: {before:?} {after:?}");
        before = after;
    }
}
