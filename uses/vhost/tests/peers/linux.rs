//! Linux in QEMU at the other end: interrupts, memory hot-plug, and migration to another machine.

use crate::backend::{Backend, Endpoint, Socket, with_each_backend};
use crate::guest::Image;
use crate::peer_slot::PeerSlot;
use crate::qemu::{Machine, Qemu};
use crate::skip::skip;
use std::time::{Duration, Instant};
use telpher_vhost::peers::Work;

/// Guests at a backend. Fields are dropped in this order.
struct Guests {
    guest: Qemu,
    /// The second of two guests.
    other: Option<Qemu>,
    backend: Box<dyn Endpoint>,
    image: &'static Image,
    kind: Backend,
    sockets: Vec<Socket>,
    slot: PeerSlot,
}

/// The configuration of the guests.
#[derive(Clone, Copy, Default)]
struct Wanted {
    packed: bool,
    client: bool,
    /// A socket for a second machine.
    second: bool,
    /// A second guest there, which exchanges packets with the first. Without it the backend answers pings.
    two: bool,
}

impl Guests {
    /// Booted guests; `None`, with a message, if they cannot run here.
    fn start(test: &str, kind: Backend, wanted: Wanted) -> Option<Guests> {
        let missing = crate::qemu::missing().or_else(|| kind.missing());
        let slot = PeerSlot::take();
        let image = missing.map_or_else(|| Image::get(&slot), Err);
        let image = image.map_err(|why| skip(test, &why)).ok()?;
        let names: &[&str] = if wanted.second || wanted.two { &["first", "second"] } else { &["first"] };
        let sockets: Vec<Socket> =
            names.iter().map(|name| Socket { client: wanted.client, ..Socket::new(&slot, name) }).collect();
        let mut backend = kind.start(&slot, &sockets);
        backend.work(if wanted.two { Work::Hand } else { Work::Echo });
        let machine = Machine { name: "guest", address: 2, socket: &sockets[0], packed: wanted.packed, incoming: None };
        let mut guest = Qemu::start(&slot, image, &machine);
        let mut other = None;
        if wanted.two {
            // They boot at the same time, one with each ring layout.
            let machine = Machine { name: "other", address: 3, socket: &sockets[1], packed: !wanted.packed, ..machine };
            other = Some(Qemu::start(&slot, image, &machine));
        }
        guest.up();
        other.iter_mut().for_each(Qemu::up);
        Some(Guests { guest, other, backend, image, kind, sockets, slot })
    }

    /// Kills the backend and starts another.
    fn another_backend(&mut self) {
        self.backend.kill();
        self.backend = self.kind.start(&self.slot, &self.sockets);
        self.backend.work(Work::Echo);
    }

    /// The number of damaged packets that either side has found.
    fn damaged(&mut self) -> u64 {
        self.guest.damaged() + self.backend.counts().errors
    }
}

/// Pings, each as soon as the previous one is answered, and some long ones; all must be answered.
const PING: &str = "ping -q -A -c 300 10.0.0.1 && ping -q -A -c 20 -s 1400 10.0.0.1";
/// Repeated until one is answered.
const UNTIL_PING: &str = "until ping -q -c 1 -W 1 10.0.0.1; do :; done";

fn expect_answers(output: &str) {
    let answers = [300, 20].map(|count| format!("{count} packets transmitted, {count} packets received"));
    assert!(answers.iter().all(|answer| output.contains(answer)) && !output.contains("duplicates"), "{output}");
}

/// Starts to ping 50 times a second, until [`stop_pinging`].
fn begin_pinging(guest: &mut Qemu) {
    guest.run("ping -q -i 0.02 10.0.0.1 >/pings & pings=$!");
}

/// The number of unanswered pings since [`begin_pinging`]; one more may be in flight. None was answered twice.
fn stop_pinging(guest: &mut Qemu) -> u64 {
    let output = guest.run("kill -INT $pings; wait $pings; cat /pings");
    let number = |word: &str| {
        let number =
            output.split_once(word).and_then(|(before, _)| before.split_whitespace().last()?.parse::<u64>().ok());
        number.unwrap_or_else(|| panic!("no {word:?} in {output}"))
    };
    let (sent, answered) = (number(" packets transmitted"), number(" packets received"));
    assert!(sent > 0 && answered <= sent && !output.contains("duplicates"), "{output}");
    (sent - answered).saturating_sub(1)
}

/// Answers in flight when a machine stops: DPDK's backend loses them. This crate's keeps them until they can be
/// delivered.
fn lost_standing(kind: Backend) -> u64 {
    if kind == Backend::Dpdk { 4 } else { 0 }
}

/// Pings while something else happens. At most `lost` are unanswered.
fn meanwhile(guests: &mut Guests, lost: u64, happens: impl FnOnce(&mut Guests)) {
    begin_pinging(&mut guests.guest);
    happens(guests);
    expect_answers(&guests.guest.run(PING));
    let unanswered = stop_pinging(&mut guests.guest);
    assert!(unanswered <= lost, "{unanswered} pings were not answered");
    assert_eq!(guests.damaged(), 0);
}

/// Sends the machine's monitor a command without output.
fn tell(guest: &mut Qemu, commands: &[&str]) {
    for command in commands {
        let output = guest.monitor(command);
        assert!(!output.contains("Error"), "{command}: {output}");
    }
}

/// Removes a memory device; its guest releases it in its own time.
fn take_memory(guest: &mut Qemu, name: &str) {
    tell(guest, &[&format!("device_del {name}")]);
    let deadline = Instant::now() + Duration::from_secs(10);
    while guest.monitor("info memory-devices").contains(&format!("\"{name}\"")) {
        assert!(Instant::now() < deadline, "{name} is still there");
        std::thread::yield_now();
    }
}

/// Makes `to` fetch a random file of 8 MiB from `from`.
fn fetch(from: &mut Qemu, at: u8, to: &mut Qemu) {
    from.run("dd if=/dev/urandom of=/file bs=1M count=8 && httpd -p 5000 -h /");
    to.run(&format!("wget -q -O /got http://10.0.0.{at}:5000/file"));
    let sum = from.run("md5sum </file");
    assert_eq!((to.run("md5sum </got"), sum.trim().len()), (sum, "0123456789abcdef0123456789abcdef  -".len()));
}

with_each_backend! {
    fn linux_pings(kind: Backend) {
        let Some(mut guests) = Guests::start("linux_pings", kind, Wanted::default()) else { return };
        expect_answers(&guests.guest.run(PING));
        // Its driver is unbound and bound again.
        let device = guests.guest.run("cd /sys/bus/virtio/drivers/virtio_net && echo virtio*").trim().to_owned();
        guests.guest.run(&format!("echo {device} >unbind && echo {device} >bind"));
        guests.guest.give_address();
        expect_answers(&guests.guest.run(PING));
        assert_eq!(guests.damaged(), 0);
    }

    fn linux_pings_over_packed_rings(kind: Backend) {
        let wanted = Wanted { packed: true, ..Wanted::default() };
        let Some(mut guests) = Guests::start("linux_pings_over_packed_rings", kind, wanted) else { return };
        // VIRTIO_F_RING_PACKED, feature 34.
        let features = guests.guest.run("cat /sys/bus/virtio/devices/virtio0/features");
        assert_eq!(features.trim().as_bytes().get(34), Some(&b'1'), "{features}");
        expect_answers(&guests.guest.run(PING));
        assert_eq!(guests.damaged(), 0);
    }

    fn two_linux_guests_exchange_files(kind: Backend) {
        let wanted = Wanted { two: true, ..Wanted::default() };
        let Some(mut guests) = Guests::start("two_linux_guests_exchange_files", kind, wanted) else { return };
        let other = guests.other.as_mut().expect("asked for");
        fetch(&mut guests.guest, 2, other);
        fetch(other, 3, &mut guests.guest);
        assert_eq!(guests.guest.damaged() + other.damaged(), 0);
    }

    fn memory_is_added_and_removed_while_linux_pings(kind: Backend) {
        let test = "memory_is_added_and_removed_while_linux_pings";
        let Some(mut guests) = Guests::start(test, kind, Wanted::default()) else { return };
        meanwhile(&mut guests, 0, |Guests { guest, .. }| {
            // The guest uses this memory for itself: all it had lies below 4 GiB, so packets are placed here first.
            guest.run("echo online_kernel >/sys/devices/system/memory/auto_online_blocks");
            tell(guest, &[
                "object_add memory-backend-memfd,id=more,size=128M,share=on",
                "device_add pc-dimm,id=dimm,memdev=more",
            ]);
            // In KiB: more than it had.
            guest.run("while read -r name total unit </proc/meminfo; [ $total -lt 262144 ]; do :; done");
            // The guest does not use this memory, so it can release it.
            guest.run("echo offline >/sys/devices/system/memory/auto_online_blocks");
            tell(guest, &[
                "object_add memory-backend-memfd,id=spare,size=128M,share=on",
                "device_add pc-dimm,id=brief,memdev=spare",
            ]);
            guest.run("until grep -q offline /sys/devices/system/memory/memory*/state; do :; done");
            take_memory(guest, "brief");
        });
    }

    fn linux_pings_while_its_memory_is_written_to_a_file(kind: Backend) {
        let test = "linux_pings_while_its_memory_is_written_to_a_file";
        let Some(mut guests) = Guests::start(test, kind, Wanted::default()) else { return };
        meanwhile(&mut guests, lost_standing(kind), |guests| {
            guests.guest.migrate("exec:cat >/dev/null");
            // Its migration is complete, so it has stopped; no other machine continues it.
            guests.guest.monitor("cont");
        });
    }

    fn linux_migrates_to_another_machine_and_keeps_pinging(kind: Backend) {
        let test = "linux_migrates_to_another_machine_and_keeps_pinging";
        let wanted = Wanted { second: true, ..Wanted::default() };
        let Some(mut guests) = Guests::start(test, kind, wanted) else { return };
        let way = guests.slot.file("way");
        let machine = Machine { name: "second", address: 2, socket: &guests.sockets[1], packed: false, incoming: Some(way.clone()) };
        let mut second = Qemu::start(&guests.slot, guests.image, &machine);
        guests.guest.run("carried=along");
        begin_pinging(&mut guests.guest);
        guests.guest.migrate(&format!("unix:{}", way.display()));
        second.has_arrived();
        let unanswered = stop_pinging(&mut second);
        assert!(unanswered <= lost_standing(kind), "{unanswered} pings were not answered");
        assert_eq!(second.run("echo $carried"), "along\n");
        expect_answers(&second.run(PING));
        assert_eq!(second.damaged() + guests.backend.counts().errors, 0);
    }

    fn linux_continues_when_the_backend_is_replaced(kind: Backend) {
        const KILLS: u64 = 3;
        let test = "linux_continues_when_the_backend_is_replaced";
        let wanted = Wanted { client: true, ..Wanted::default() };
        let Some(mut guests) = Guests::start(test, kind, wanted) else { return };
        begin_pinging(&mut guests.guest);
        let mut away = Duration::ZERO;
        for _ in 0..KILLS {
            expect_answers(&guests.guest.run(PING));
            assert_eq!(guests.backend.counts().errors, 0);
            let killed = Instant::now();
            guests.another_backend();
            guests.guest.run(UNTIL_PING);
            away += killed.elapsed();
        }
        expect_answers(&guests.guest.run(PING));
        let lost = stop_pinging(&mut guests.guest);
        println!("{KILLS} backends were killed; there was none for {away:?}, and {lost} pings were not answered");
        // Those without a backend, and those that a backend held when it was killed.
        assert!(lost <= u64::try_from(away.as_millis()).unwrap_or(0) / 20 + 2 * KILLS, "{lost} pings were not answered");
        assert_eq!(guests.damaged(), 0);
    }

    fn a_killed_linux_guest_is_replaced(kind: Backend) {
        let test = "a_killed_linux_guest_is_replaced";
        let Some(mut guests) = Guests::start(test, kind, Wanted::default()) else { return };
        begin_pinging(&mut guests.guest);
        expect_answers(&guests.guest.run(PING));
        guests.guest.kill();
        let machine = Machine { name: "another", address: 4, socket: &guests.sockets[0], packed: true, incoming: None };
        guests.guest = Qemu::start(&guests.slot, guests.image, &machine);
        guests.guest.up();
        expect_answers(&guests.guest.run(PING));
        assert!(guests.backend.runs());
        assert_eq!(guests.damaged(), 0);
    }
}
