use super::*;
use crate::message::FEATURES;
use proptest::prelude::*;

fn session() -> Session {
    Session::new(Offer::of_pairs(2))
}

fn file() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

const AGREED: Features = Features::MRG_RXBUF.union(Features::PROTOCOL_FEATURES).union(Features::VERSION_1);

fn addresses(ring: u32) -> Request {
    let at = |part: u64| 0x1000 * (u64::from(ring) * 4 + part);
    let addresses = RingAddresses { descriptors: at(0), driver: at(1), device: at(2) };
    Request::SetRingAddresses(ring, addresses, None)
}

/// What frontends send about a ring before it runs.
fn set_up(session: &mut Session, ring: u32) {
    for request in [
        Request::SetRingSize(ring, 256),
        Request::SetRingBase(ring, 0),
        addresses(ring),
        Request::SetRingKick(ring, Some(file())),
    ] {
        session.accept(request).unwrap();
    }
}

fn number(session: &mut Session, request: Request) -> Option<u64> {
    session.accept(request).unwrap().answer
}

#[test]
fn get_requests_are_answered() {
    let mut session = session();
    assert_eq!(number(&mut session, Request::GetFeatures), Some(FEATURES.bits()));
    assert_eq!(number(&mut session, Request::GetProtocolFeatures), Some(0x1_b00f));
    assert_eq!(number(&mut session, Request::GetQueues), Some(2));
    assert_eq!(number(&mut session, Request::GetMemorySlots), Some(509));
    assert_eq!(number(&mut session, Request::SetStatus(0xf)), None);
    assert_eq!(number(&mut session, Request::GetStatus), Some(0xf));
    assert_eq!(number(&mut session, Request::SetOwner), None);
}

#[test]
fn features_not_offered_are_refused() {
    let mut session = session();
    for bit in (0..64).map(|bit| 1_u64 << bit) {
        let taken = session.accept(Request::SetFeatures(AGREED.bits() | bit)).is_ok();
        assert_eq!(taken, (AGREED | FEATURES).bits() & bit != 0, "{bit:#x}");
        let taken = session.accept(Request::SetProtocolFeatures(bit)).is_ok();
        assert_eq!(taken, ProtocolFeatures::all().bits() & bit != 0, "{bit:#x}");
    }
    let plain = Offer { protocol: ProtocolFeatures::empty(), ..Offer::of_pairs(1) };
    let mut session = Session::new(plain);
    let region = Region::default();
    let place = RecordPlace { rings: 1, size: 1, ..RecordPlace::default() };
    for request in [
        Request::GetQueues,
        Request::GetMemorySlots,
        Request::AddRegion(region, file()),
        Request::RemoveRegion(region),
        Request::SetLog(1, 0, file()),
        Request::GetRecord(place),
        Request::SetRecord(place, file()),
        Request::Reset,
        Request::GetStatus,
        Request::SetStatus(1),
        Request::Announce([0; 6]),
    ] {
        assert!(matches!(session.accept(request), Err(Refusal::NotOffered { .. })));
    }
}

#[test]
fn a_ring_runs_from_its_full_setup_until_get_vring_base() {
    let mut session = session();
    session.accept(Request::SetFeatures(AGREED.bits())).unwrap();
    for ring in 0..4 {
        assert_eq!(session.ring(ring), None);
        set_up(&mut session, u32::try_from(ring).unwrap());
        let setup = session.ring(ring).unwrap();
        assert_eq!((setup.size, setup.features), (256, AGREED));
        assert_eq!(setup.direction, if ring % 2 == 0 { Direction::Receive } else { Direction::Transmit });
    }
    let step = session.accept(Request::GetRingBase(2)).unwrap();
    assert!(matches!(step.change, Change::Stop(2)) && session.ring(2).is_none() && session.ring(3).is_some());
    let stopped = Outcome::Stopped(2, Base { available: 77, used: 77 });
    assert!(matches!(session.reply(None, stopped, false), Some(Reply::State { ring: 2, base: 77 })));
    session.accept(Request::SetRingKick(2, None)).unwrap();
    assert_eq!(session.ring(2).unwrap().base.available, 77);
}

#[test]
fn a_ring_is_always_enabled_without_protocol_features() {
    let mut session = session();
    session.accept(Request::SetFeatures(AGREED.bits())).unwrap();
    set_up(&mut session, 1);
    assert!(!session.is_enabled(1));
    session.accept(Request::EnableRing(1, true)).unwrap();
    assert!(session.is_enabled(1) && !session.is_enabled(0));
    session.accept(Request::ResetOwner).unwrap();
    assert!(!session.is_enabled(1));
    session.accept(Request::GetRingBase(1)).unwrap();
    session.accept(Request::SetFeatures(Features::VERSION_1.bits())).unwrap();
    assert!(session.is_enabled(1));
}

/// CVE-2020-10723: numbers were truncated to 16 bits before the check; CVE-2019-14818: running rings were set up again
/// repeatedly.
#[test]
fn hostile_ring_parameters_are_refused() {
    let mut session = session();
    for ring in [4, 255, 256, 0x1_0000, 0x1_0001, u32::MAX] {
        for request in [
            Request::SetRingSize(ring, 256),
            addresses(ring),
            Request::SetRingBase(ring, 0),
            Request::GetRingBase(ring),
            Request::SetRingKick(ring, None),
            Request::SetRingCall(ring, Some(file())),
            Request::SetRingError(ring, None),
            Request::EnableRing(ring, true),
        ] {
            assert_eq!(session.accept(request).unwrap_err(), Refusal::NoRing { ring, rings: 4 });
        }
    }
    for size in [0, 0x8001, 0xffff, 0x1_0000, 0x1_0100, u32::MAX] {
        let refused = session.accept(Request::SetRingSize(0, size)).unwrap_err();
        assert_eq!(refused, Refusal::RingSize { ring: 0, size });
    }
    assert!(matches!(session.accept(Request::SetRingBase(0, 0x1_0000)), Err(Refusal::RingBase { .. })));
    set_up(&mut session, 0);
    for request in [Request::SetRingSize(0, 128), Request::SetRingBase(0, 1)] {
        assert_eq!(session.accept(request).unwrap_err(), Refusal::Runs { ring: 0 });
    }
    assert_eq!(session.ring(0).unwrap().size, 256);
}

#[test]
fn only_the_log_feature_may_change_while_rings_run() {
    let mut session = session();
    session.accept(Request::SetFeatures(AGREED.bits())).unwrap();
    set_up(&mut session, 0);
    let packed = AGREED | Features::RING_PACKED;
    assert!(matches!(session.accept(Request::SetFeatures(packed.bits())), Err(Refusal::WhileRunning { .. })));
    assert_eq!(session.log(0), None);
    session.accept(Request::SetFeatures((AGREED | Features::LOG_ALL).bits())).unwrap();
    assert_eq!((session.log(0), session.ring(0).unwrap().features), (Some(None), AGREED));
    let addresses = session.ring(0).unwrap().addresses;
    session.accept(Request::SetRingAddresses(0, addresses, Some(0x5000))).unwrap();
    assert_eq!(session.log(0), Some(Some(0x5000)));
    session.accept(Request::SetFeatures(AGREED.bits())).unwrap();
    assert_eq!(session.log(0), None);
}

#[test]
fn a_packed_ring_resumes_at_its_available_index() {
    let mut session = session();
    session.accept(Request::SetFeatures((AGREED | Features::RING_PACKED).bits())).unwrap();
    // DPDK's virtio-user sends only the available index, QEMU both.
    for word in [0x0000_8003, 0x8003_8003] {
        session.accept(Request::SetRingBase(1, word)).unwrap();
        assert_eq!(session.base_of(1), Base { available: 0x8003, used: 0x8003 });
    }
    let stopped = Outcome::Stopped(1, Base { available: 0x8010, used: 0x8010 });
    assert!(matches!(session.reply(None, stopped, true), Some(Reply::State { ring: 1, base: 0x8010_8010 })));
}

#[test]
fn replies_are_sent_when_requested_and_negotiated() {
    let mut session = session();
    assert!(session.reply(None, Outcome::Done, true).is_none());
    session.accept(Request::SetProtocolFeatures(ProtocolFeatures::REPLY_ACK.bits())).unwrap();
    assert!(matches!(session.reply(None, Outcome::Done, true), Some(Reply::Number(0))));
    assert!(session.reply(None, Outcome::Done, false).is_none());
    assert!(matches!(session.reply(Some(5), Outcome::Done, false), Some(Reply::Number(5))));
    // SET_LOG_BASE always gets a reply: some frontends hang without it (rust-vmm/vhost #217).
    assert_eq!(number(&mut session, Request::SetLog(4096, 0, file())), None);
    assert!(matches!(session.reply(None, Outcome::Logs(4096, 8), false), Some(Reply::Log { len: 4096, offset: 8 })));
}

/// A request for the record of 65535 rings with 65535 descriptors filled 68 GB of memory in another backend.
#[test]
fn giant_records_are_refused() {
    let mut session = session();
    for (rings, size) in [(65535, 65535), (5, 256), (4, 32769), (0, 256), (4, 0)] {
        let place = RecordPlace { rings, size, ..RecordPlace::default() };
        let refused = Refusal::Record { rings, size, most: 4 };
        assert_eq!(session.accept(Request::GetRecord(place)).unwrap_err(), refused);
        assert_eq!(session.accept(Request::SetRecord(place, file())).unwrap_err(), refused);
    }
    let place = RecordPlace { rings: 4, size: 32768, ..RecordPlace::default() };
    assert!(matches!(session.accept(Request::GetRecord(place)).unwrap().change, Change::NewRecord(_)));
}

#[test]
fn a_reset_forgets_everything_but_the_memory() {
    let mut session = session();
    session.accept(Request::SetProtocolFeatures(ProtocolFeatures::all().bits())).unwrap();
    session.accept(Request::SetFeatures(AGREED.bits())).unwrap();
    set_up(&mut session, 0);
    session.accept(Request::SetStatus(7)).unwrap();
    assert!(matches!(session.accept(Request::Reset).unwrap().change, Change::Reset));
    assert_eq!((session.ring(0), session.features(), session.status()), (None, Features::empty(), 0));
    assert!(session.acknowledges(true));
}

/// Any request, with fields that are often nearly valid.
fn request() -> impl Strategy<Value = Request> {
    let ring = || prop_oneof![0_u32..5, Just(u32::MAX)];
    let word = || prop_oneof![0_u32..300, any::<u32>()];
    let bits = || prop_oneof![Just(AGREED.bits()), Just((AGREED | Features::RING_PACKED).bits()), any::<u64>()];
    let place = || (0_u16..6, any::<u16>()).prop_map(|(rings, size)| RecordPlace { rings, size, len: 9, offset: 9 });
    prop_oneof![
        bits().prop_map(Request::SetFeatures),
        any::<u64>().prop_map(Request::SetProtocolFeatures),
        (ring(), word()).prop_map(|(ring, word)| Request::SetRingSize(ring, word)),
        (ring(), word()).prop_map(|(ring, word)| Request::SetRingBase(ring, word)),
        ring().prop_map(addresses),
        ring().prop_map(|ring| Request::SetRingKick(ring, None)),
        ring().prop_map(Request::GetRingBase),
        (ring(), any::<bool>()).prop_map(|(ring, on)| Request::EnableRing(ring, on)),
        place().prop_map(Request::GetRecord),
        Just(()).prop_map(|()| Request::ResetOwner),
        Just(()).prop_map(|()| Request::Reset),
    ]
}

proptest! {
    #[test]
    fn any_order_of_requests_gives_valid_rings(requests in prop::collection::vec(request(), 0..60)) {
        let mut session = session();
        for request in requests {
            let before: Vec<_> = (0..4).map(|ring| session.ring(ring)).collect();
            let refused = session.accept(request).is_err();
            let after: Vec<_> = (0..4).map(|ring| session.ring(ring)).collect();
            prop_assert!(!refused || before == after);
            for setup in after.into_iter().flatten() {
                prop_assert!((1..=MOST_DESCRIPTORS).contains(&setup.size));
                prop_assert!(FEATURES.contains(setup.features));
            }
        }
    }
}
