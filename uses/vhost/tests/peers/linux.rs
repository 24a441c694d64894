//! Linux in QEMU at the other end: interrupts, memory that comes and goes, and a guest that moves to another machine.

use crate::backend::{Backend, Side, Socket, with_each_backend};
use crate::guest::Image;
use crate::qemu::{Machine, Qemu};
use crate::room::Room;
use crate::skip::skip;
use std::time::{Duration, Instant};
use telpher_vhost::peers::Work;

/// Guests at a backend that answers them. Dropped in this order.
struct Guests {
    guest: Qemu,
    backend: Box<dyn Side>,
    image: &'static Image,
    who: Backend,
    sockets: Vec<Socket>,
    room: Room,
}

/// What a guest is to have.
#[derive(Clone, Copy, Default)]
struct Wanted {
    packed: bool,
    client: bool,
    /// A second machine may come.
    second: bool,
}

impl Guests {
    /// A guest that is up; `None`, and said, where it cannot run.
    fn start(test: &str, who: Backend, wanted: Wanted) -> Option<Guests> {
        let missing = crate::qemu::missing().or_else(|| who.missing());
        let room = Room::take();
        let image = missing.map_or_else(|| Image::get(&room), Err);
        let image = image.map_err(|why| skip(test, &why)).ok()?;
        let names: &[&str] = if wanted.second { &["first", "second"] } else { &["first"] };
        let sockets: Vec<Socket> =
            names.iter().map(|name| Socket { client: wanted.client, ..Socket::new(&room, name) }).collect();
        let backend = answering(who, &room, &sockets);
        let machine = Machine { name: "guest", socket: &sockets[0], packed: wanted.packed, incoming: None };
        let guest = Qemu::start(&room, image, &machine);
        Some(Guests { guest, backend, image, who, sockets, room })
    }
}

fn answering(who: Backend, room: &Room, sockets: &[Socket]) -> Box<dyn Side> {
    let mut backend = who.start(room, sockets);
    backend.work(Work::Echo);
    backend
}

/// Pings, each as soon as the one before is answered, and some long ones; all are answered.
const PING: &str = "ping -q -A -c 300 10.0.0.1 && ping -q -A -c 20 -s 1400 10.0.0.1";

fn expect_answers(said: &str) {
    let answers = [300, 20].map(|count| format!("{count} packets transmitted, {count} packets received"));
    assert!(answers.iter().all(|answer| said.contains(answer)), "{said}");
}

/// Begins to ping 50 times a second, until [`stop_pinging`].
fn begin_pinging(guest: &mut Qemu) {
    guest.run("ping -q -i 0.02 10.0.0.1 >/pings & pings=$!");
}

/// All pings since [`begin_pinging`] have been answered but for `lost` at most, and the one that may be on its way.
fn stop_pinging(guest: &mut Qemu, lost: u64) {
    let said = guest.run("kill -INT $pings; wait $pings; cat /pings");
    let number = |word: &str| {
        let number =
            said.split_once(word).and_then(|(before, _)| before.split_whitespace().last()?.parse::<u64>().ok());
        number.unwrap_or_else(|| panic!("no {word:?} in {said}"))
    };
    let (sent, answered) = (number(" packets transmitted"), number(" packets received"));
    assert!(sent > 10 && answered + lost + 1 >= sent && answered <= sent, "{said}");
}

/// Answers that are on their way when a machine stands still may be lost, as on any network.
const LOST_STANDING: u64 = 4;

/// Pings while something else happens.
fn meanwhile(guests: &mut Guests, lost: u64, happens: impl FnOnce(&mut Guests)) {
    begin_pinging(&mut guests.guest);
    happens(guests);
    expect_answers(&guests.guest.run(PING));
    stop_pinging(&mut guests.guest, lost);
}

/// Waits until the machine has these memory devices; empty for none.
fn await_memory(guest: &mut Qemu, wanted: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let said = guest.monitor("info memory-devices");
        if if wanted.is_empty() { !said.contains("Memory device") } else { said.contains(wanted) } {
            return;
        }
        assert!(Instant::now() < deadline, "{wanted:?}: {said}");
        std::thread::yield_now();
    }
}

with_each_backend! {
    fn linux_pings(who: Backend) {
        let Some(mut guests) = Guests::start("linux_pings", who, Wanted::default()) else { return };
        expect_answers(&guests.guest.run(PING));
        // Its driver goes and comes again.
        let device = guests.guest.run("cd /sys/bus/virtio/drivers/virtio_net && echo virtio*").trim().to_owned();
        guests.guest.run(&format!("echo {device} >unbind && echo {device} >bind"));
        guests.guest.run("ip address add 10.0.0.2/24 dev eth0 && ip link set eth0 up");
        expect_answers(&guests.guest.run(PING));
    }

    fn linux_pings_over_packed_rings(who: Backend) {
        let wanted = Wanted { packed: true, ..Wanted::default() };
        let Some(mut guests) = Guests::start("linux_pings_over_packed_rings", who, wanted) else { return };
        // VIRTIO_F_RING_PACKED, feature 34.
        let features = guests.guest.run("cat /sys/bus/virtio/devices/virtio0/features");
        assert_eq!(features.trim().as_bytes().get(34), Some(&b'1'), "{features}");
        expect_answers(&guests.guest.run(PING));
    }

    fn memory_comes_and_goes_while_linux_pings(who: Backend) {
        let test = "memory_comes_and_goes_while_linux_pings";
        let Some(mut guests) = Guests::start(test, who, Wanted::default()) else { return };
        meanwhile(&mut guests, 0, |guests| {
            for command in ["object_add memory-backend-memfd,id=more,size=128M,share=on", "device_add pc-dimm,id=dimm,memdev=more"] {
                let said = guests.guest.monitor(command);
                assert!(!said.contains("Error"), "{said}");
            }
            // With the command's answer the backend has been told; the guest lets the memory go in its own time.
            await_memory(&mut guests.guest, "\"dimm\"");
            guests.guest.monitor("device_del dimm");
            await_memory(&mut guests.guest, "");
        });
        expect_answers(&guests.guest.run(PING));
    }

    fn linux_pings_while_its_memory_is_written_to_a_file(who: Backend) {
        let test = "linux_pings_while_its_memory_is_written_to_a_file";
        let Some(mut guests) = Guests::start(test, who, Wanted::default()) else { return };
        meanwhile(&mut guests, LOST_STANDING, |guests| {
            guests.guest.migrate("exec:cat >/dev/null");
            // It was written whole and so stands still; nobody else goes on with it.
            guests.guest.monitor("cont");
        });
    }

    fn linux_moves_to_another_machine_and_goes_on_pinging(who: Backend) {
        let test = "linux_moves_to_another_machine_and_goes_on_pinging";
        let wanted = Wanted { second: true, ..Wanted::default() };
        let Some(mut guests) = Guests::start(test, who, wanted) else { return };
        let way = guests.room.file("way");
        let machine = Machine { name: "second", socket: &guests.sockets[1], packed: false, incoming: Some(way.clone()) };
        let mut second = Qemu::start(&guests.room, guests.image, &machine);
        guests.guest.run("carried=along");
        begin_pinging(&mut guests.guest);
        guests.guest.migrate(&format!("unix:{}", way.display()));
        stop_pinging(&mut second, LOST_STANDING);
        assert_eq!(second.run("echo $carried"), "along\n");
        expect_answers(&second.run(PING));
    }

    fn linux_goes_on_when_another_backend_comes(who: Backend) {
        let test = "linux_goes_on_when_another_backend_comes";
        let wanted = Wanted { client: true, ..Wanted::default() };
        let Some(mut guests) = Guests::start(test, who, wanted) else { return };
        expect_answers(&guests.guest.run(PING));
        guests.backend.kill();
        guests.backend = answering(guests.who, &guests.room, &guests.sockets);
        // Some are lost until it has come.
        guests.guest.run("until ping -q -c 1 -W 1 10.0.0.1; do :; done");
        expect_answers(&guests.guest.run(PING));
    }
}
