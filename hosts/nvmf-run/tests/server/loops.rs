//! Several loops, and loops without work.

use crate::client::Client;
use crate::{NQN, Served, one};
use std::net::TcpStream;
use std::time::Duration;
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
    let before = wakeups();
    // No event is awaited: the test is that none comes.
    std::thread::sleep(Duration::from_secs(1));
    let woken: Vec<u64> = wakeups().iter().zip(before).map(|(after, before)| after - before).collect();
    // Once for the report itself.
    assert_eq!(woken, [1, 1]);
}
