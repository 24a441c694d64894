//! Words that are read, and words that are refused with a sentence.

use super::*;
use std::time::Duration;
use telpher_mover::{Hint, OnFault, Route, Threshold};
use telpher_switch::{Full, Mode};
use telpher_tier::{HeapOptions, ManagerOptions, Mechanism, SourceKind, TierId};
use telpher_vhost::CopyPolicy;

fn parse(of: Of, text: &str) -> Result<Options, String> {
    Options::parse(of, text).map_err(|failure| match failure {
        Failure::Refused(refusal) => refusal.to_string(),
        other => format!("{other:?}"),
    })
}

#[test]
fn words_set_the_movers_settings_and_those_of_this_door() {
    let text = "threshold=1 threshold=16k route=first queues=0,2-3";
    let Options { policy, queues, .. } = parse(Of::Mover, text).unwrap();
    let expected = Policy { threshold: Threshold::all(16 << 10), route: Route::First, ..Policy::default() };
    assert_eq!((policy, queues), (expected, Some(vec![0, 2, 3])));
    let text = "order=arrival bursts=off deadline=10ms hint=memory on-fault=block linger=2s";
    let Options { channel, .. } = parse(Of::Channel, text).unwrap();
    let expected = ChannelPolicy {
        order: Order::Arrival,
        bursts: false,
        deadline: Some(Duration::from_millis(10)),
        hint: Hint::Memory,
        on_fault: OnFault::Block,
        linger: Duration::from_secs(2),
        patience: ChannelPolicy::default().patience,
        limit: ChannelPolicy::default().limit,
    };
    assert_eq!(channel, expected);
    assert_eq!(parse(Of::Device, " runner=threaded ").unwrap().open.runner, Runner::Threaded);
    assert_eq!(parse(Of::Device, "runner=auto").unwrap().open.runner, Runner::Auto);
    assert_eq!(parse(Of::Device, "").unwrap().open.runner, Runner::Auto);
    assert_eq!(parse(Of::Channel, "").unwrap().channel, ChannelPolicy::default());
}

#[test]
fn a_tuning_file_comes_before_the_words() {
    let file = std::env::temp_dir().join(format!("telpher-capi-{}.toml", std::process::id()));
    let text = "version = 1\n[machine]\ncpu = \"any\"\ndevice = \"cpu\"\nin-flight = 1\n\
                [policy]\ncapacity = \"77\"\nroute = \"first\"\n[measured]\n";
    std::fs::write(&file, text).unwrap();
    let words = format!("route=local tuning={}", file.display());
    let parsed = parse(Of::Mover, &words);
    std::fs::remove_file(&file).unwrap();
    let Options { policy, tuning, .. } = parsed.unwrap();
    assert_eq!((policy.capacity, policy.route, tuning.is_some()), (77, Route::Local, true));
    assert!(parse(Of::Mover, "tuning=none").unwrap().tuning.is_none());
    let error = Options::parse(Of::Mover, "tuning=/no/such/file.toml").unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT);
}

#[test]
fn what_is_wrong_is_told_with_what_is_accepted() {
    for (of, text, said) in [
        (Of::Mover, "colour=red", "a mover has queues, tuning, threshold"),
        (Of::Device, "threshold=1", "a device has runner"),
        (Of::Channel, "capacity=9", "a channel has order, bursts, deadline"),
        (Of::Mover, "threshold", "key=value"),
        (Of::Mover, "threshold=", "it takes a size"),
        (Of::Mover, "linger=5", "it takes a time"),
        (Of::Mover, "queues=3-1", "takes a list"),
        (Of::Mover, "queues=0-99999999999", "takes a list"),
        (Of::Channel, "deadline=soon", "takes a time"),
        (Of::Channel, "order=random", "takes submitted or arrival"),
        (Of::Cache, "threshold=1", "a cache has placement, eviction, in-flight"),
        (Of::Cache, "placement=far", "takes near, fixed:TIER or interleaved:SIZE"),
        (Of::Cache, "placement=fixed", "takes near"),
        (Of::Cache, "placement=fixed:-1", "takes near"),
        (Of::Cache, "placement=interleaved:0", "takes near"),
        (Of::Cache, "placement=interleaved:always", "takes near"),
        (Of::Cache, "placement=interleaved:copy=4k", "takes near"),
        (Of::Cache, "eviction=lru", "takes least-recently-used"),
        (Of::Cache, "in-flight=0", "takes a number from 1 on"),
        (Of::Port, "in-flight=1", "a port has pairs, without, drain-timeout"),
        (Of::Port, "pairs=0", "takes a number from 1 to 128"),
        (Of::Port, "pairs=129", "takes a number from 1 to 128"),
        (Of::Port, "without=mq,colour", "takes a list of VirtIO features"),
        (Of::Port, "drain-timeout=5", "takes a time"),
        (Of::Heap, "pairs=1", "a heap has home, batch, spare, shadow, mechanism, retry-timeout"),
        (Of::Heap, "home=slow", "takes a tier's number"),
        (Of::Heap, "home=256", "takes a tier's number"),
        (Of::Heap, "batch=0", "takes a number from 1 to 65536"),
        (Of::Heap, "batch=65537", "takes a number from 1 to 65536"),
        (Of::Heap, "spare=some", "takes a size"),
        (Of::Heap, "shadow=", "takes a size"),
        (Of::Heap, "mechanism=remap", "takes exchange or move-pages"),
        (Of::Heap, "retry-timeout=5", "takes a time"),
        (Of::Manager, "patience=5s", "a manager has source, moves, pass, window, residence, rate"),
        (Of::Manager, "source=perf-ect", "takes auto, damon, traps, windows or perf"),
        (Of::Manager, "moves=yes", "takes on or off"),
        (Of::Manager, "pass=5", "takes a time"),
        (Of::Manager, "window=soon", "takes a time"),
        (Of::Manager, "residence=", "takes a time"),
        (Of::Manager, "rate=0", "takes a size"),
        (Of::Switch, "pairs=1", "a switch has forward, burst, retry, size, flows, threads, cpus, buffers, longest"),
        (Of::Switch, "forward=learned", "takes io, mac, rxonly, txonly or flowgen"),
        (Of::Switch, "burst=513", "takes a number from 1 to 512"),
        (Of::Switch, "retry=5", "takes a time"),
        (Of::Switch, "size=63", "takes a size from 64 to 9216"),
        (Of::Switch, "flows=0", "takes a number from 1 to 32768"),
        (Of::Switch, "threads=0", "takes a number from 1 to 1024"),
        (Of::Switch, "cpus=a", "takes a list"),
        (Of::Switch, "buffers=1", "takes a number from 4096"),
        (Of::Switch, "longest=64k", "takes a size from 64 to 65535"),
        (Of::Switch, "captured=0", "takes a size"),
        (Of::Switch, "queues=1-0", "takes a list"),
        (Of::Switch, "threshold=some", "takes a size such as 512, or learned"),
        (Of::Switch, "in-flight=0", "takes a number from 1 to 32768"),
    ] {
        let error = parse(of, text).unwrap_err();
        assert!(error.contains(said) && error.contains(text), "{text}: {error}");
    }
}

#[test]
fn words_set_a_caches_policies() {
    let CacheOptions { placement, eviction, in_flight } =
        parse(Of::Cache, "placement=interleaved:2m eviction=largest in-flight=7").unwrap().cache;
    assert!(matches!(placement, Placement::Interleaved { bytes: 2_097_152 }), "{placement:?}");
    assert!(matches!(eviction, Eviction::Largest) && in_flight == Some(7));
    let CacheOptions { placement, eviction, in_flight } =
        parse(Of::Cache, "placement=interleaved:64 placement=fixed:3 eviction=first-come").unwrap().cache;
    assert!(matches!(placement, Placement::Fixed(3)) && matches!(eviction, Eviction::FirstCome));
    assert_eq!(in_flight, None);
    let CacheOptions { placement, eviction, .. } = parse(Of::Cache, "").unwrap().cache;
    assert!(matches!(placement, Placement::Near) && matches!(eviction, Eviction::LeastRecentlyUsed));
    assert!(matches!(parse(Of::Cache, "placement=near").unwrap().cache.placement, Placement::Near));
}

#[test]
fn words_set_what_a_port_offers() {
    let port = parse(Of::Port, "pairs=128 without=ring_packed,event_idx drain-timeout=20ms").unwrap().port;
    assert_eq!((port.offer.rings, port.drain_timeout), (256, Duration::from_millis(20)));
    let offered = PortOptions::default().offer.features;
    assert_eq!(offered - port.offer.features, Features::RING_PACKED | Features::EVENT_IDX);
    assert_eq!(parse(Of::Port, "").unwrap().port.offer.rings, 2);
}

#[test]
fn words_set_what_a_heap_does() {
    let tier = || telpher_tier::TierOptions { name: String::new(), node: None, bytes: 0 };
    let mut heap = HeapOptions::new(vec![tier(), tier()]);
    let was = heap.clone();
    parse(Of::Heap, "").unwrap().heap.change(&mut heap);
    assert_eq!((heap.home, heap.batch, heap.spare_bytes), (was.home, was.batch, was.spare_bytes));
    assert_eq!((heap.shadow_bytes, heap.mechanism, heap.retry_timeout), (0, None, was.retry_timeout));
    let text = "home=0 batch=65536 spare=0 shadow=16m mechanism=move-pages retry-timeout=20ms";
    parse(Of::Heap, text).unwrap().heap.change(&mut heap);
    assert_eq!((heap.home, heap.batch, heap.spare_bytes), (TierId(0), 65_536, 0));
    assert_eq!((heap.shadow_bytes, heap.mechanism), (16 << 20, Some(Mechanism::MovePages)));
    assert_eq!(heap.retry_timeout, Duration::from_millis(20));
}

#[test]
fn words_set_what_a_manager_does() {
    let tier = || telpher_tier::TierOptions { name: String::new(), node: None, bytes: 0 };
    let policy = || telpher_tier::policy::PolicyOptions::new(&HeapOptions::new(vec![tier(), tier()]));
    let [one, other, third] = [1, 2, 3].map(Duration::from_millis);
    let was = ManagerOptions { sources: None, policy: policy(), moves: true, pass: one, window: one, share: 0.5 };
    let mut manager = was.clone();
    parse(Of::Manager, "").unwrap().manager.change(&mut manager);
    assert_eq!(manager, was);
    let text = "source=damon moves=off pass=2ms window=3ms residence=1ms rate=4m";
    parse(Of::Manager, text).unwrap().manager.change(&mut manager);
    let mut policy = policy();
    (policy.residence, policy.bytes_per_second) = (one, 4 << 20);
    assert_eq!(
        manager,
        ManagerOptions {
            sources: Some(vec![SourceKind::Damon]),
            policy,
            moves: false,
            pass: other,
            window: third,
            share: 0.5,
        }
    );
    parse(Of::Manager, "source=windows source=auto").unwrap().manager.change(&mut manager);
    assert_eq!(manager.sources, Some(vec![SourceKind::Damon]), "as it was");
}

#[test]
fn the_help_has_every_key() {
    let help = help();
    for of in Of::ALL {
        assert!(keys(of).all(|(name, takes, _)| help.contains(&format!("  {name}: ")) && help.contains(takes)));
    }
}

#[test]
fn words_configure_a_switch() {
    let text = "forward=mac burst=64 retry=2s size=1500 flows=3 buffers=8192 longest=9k captured=96 queues=1 \
                threshold=512 in-flight=7 threads=9 cpus=2,4-5";
    let words = parse(Of::Switch, text).unwrap().packet_switch;
    let settings = words.config.settings;
    assert_eq!((settings.mode, settings.burst, settings.len, settings.flows), (Mode::Mac, 64, 1500, 3));
    assert_eq!((settings.full, settings.retry_for), (Full::Retry, Duration::from_secs(2)));
    assert_eq!((words.config.buffers, words.config.longest, words.config.captured_bytes), (8192, 9216, 96));
    assert_eq!((words.config.threads, &words.config.cpus[..]), (3, &[2, 4, 5][..]));
    assert_eq!((words.queues, words.in_flight), (Some(vec![1]), 7));
    assert!(matches!(words.copies, CopyPolicy::From(512)), "{:?}", words.copies);
    let words = parse(Of::Switch, "retry=1s retry=none threshold=off").unwrap().packet_switch;
    assert!(words.config.settings.full == Full::Drop && matches!(words.copies, CopyPolicy::Cpu));
    assert!(matches!(parse(Of::Switch, "").unwrap().packet_switch.copies, CopyPolicy::Learned));
}
