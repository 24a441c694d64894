use super::*;

/// The hints of Open MPI 4.1.4's layer for tagged messages, printed from its call.
fn open_mpi_4() -> Hints {
    Hints {
        caps: f::TAGGED | f::LOCAL_COMM | f::REMOTE_COMM | f::DIRECTED_RECV,
        tx: Some(DirectionHints { op_flags: f::COMPLETION, msg_order: f::ORDER_SAS, ..DirectionHints::default() }),
        rx: Some(DirectionHints { op_flags: f::COMPLETION, ..DirectionHints::default() }),
        ep: Some(EpHints { kind: f::EP_RDM, ..EpHints::default() }),
        domain: Some(DomainHints {
            threading: 3,
            av_type: f::AV_MAP,
            cq_data_size: 4,
            resource_mgmt: f::RM_ENABLED,
            ..DomainHints::default()
        }),
        ..Hints::default()
    }
}

/// Those of MPICH 5.0.2's second call: the capabilities are those of the answer to the first one, without hints.
fn mpich_5() -> Hints {
    Hints {
        caps: offer(None).unwrap().caps,
        tx: Some(DirectionHints {
            op_flags: f::COMPLETION | f::DELIVERY_COMPLETE,
            msg_order: f::ORDER_SAS | f::ORDER_ATOMIC,
            ..DirectionHints::default()
        }),
        ep: Some(EpHints { kind: f::EP_RDM, ..EpHints::default() }),
        domain: Some(DomainHints {
            threading: 3,
            control_progress: f::PROGRESS_MANUAL,
            data_progress: f::PROGRESS_MANUAL,
            av_type: f::AV_TABLE,
            mr_mode: 1 << 9,
            cq_data_size: 4,
            resource_mgmt: f::RM_ENABLED,
            ..DomainHints::default()
        }),
        ..Hints::default()
    }
}

/// Those of Open MPI 4.1.4's layer for one-sided operations.
fn open_mpi_4_one_sided() -> Hints {
    Hints {
        caps: f::RMA | f::ATOMIC,
        tx: Some(DirectionHints { op_flags: f::DELIVERY_COMPLETE, ..DirectionHints::default() }),
        ep: Some(EpHints { kind: f::EP_RDM, ..EpHints::default() }),
        domain: Some(DomainHints {
            mr_mode: f::MR_VIRT_ADDR | f::MR_ALLOCATED | f::MR_PROV_KEY,
            ..DomainHints::default()
        }),
        ..Hints::default()
    }
}

/// Changes the domain's hints.
fn with_domain(change: impl FnOnce(&mut DomainHints)) -> Hints {
    let mut domain = DomainHints::default();
    change(&mut domain);
    Hints { domain: Some(domain), ..Hints::default() }
}

/// Changes the endpoint's hints.
fn with_ep(change: impl FnOnce(&mut EpHints)) -> Hints {
    let mut ep = EpHints::default();
    change(&mut ep);
    Hints { ep: Some(ep), ..Hints::default() }
}

/// Changes the hints for sends.
fn with_tx(change: impl FnOnce(&mut DirectionHints)) -> Hints {
    let mut tx = DirectionHints::default();
    change(&mut tx);
    Hints { tx: Some(tx), ..Hints::default() }
}

#[test]
fn without_hints_everything_is_offered() {
    let all = offer(None).unwrap();
    assert_eq!(all.caps, ALL);
    assert_eq!((all.threading, all.data_progress), (f::THREAD_SAFE, f::PROGRESS_MANUAL));
    assert_eq!(offer(Some(&Hints::default())), Ok(all));
}

#[test]
fn the_hints_of_mpis_are_answered_with_the_values_that_they_compare() {
    let answer = offer(Some(&open_mpi_4())).unwrap();
    assert_eq!((answer.threading, answer.av_type, answer.mr_mode), (3, f::AV_MAP, 0));
    assert_eq!(answer.caps & f::DIRECTED_RECV, f::DIRECTED_RECV);
    assert_eq!(answer.caps & (f::SEND | f::RECV), f::SEND | f::RECV, "without a direction, both");
    assert_eq!(answer.caps & f::MSG, 0, "not asked for");

    let answer = offer(Some(&open_mpi_4_one_sided())).unwrap();
    assert_eq!(answer.caps & (DIRECTIONS | ACCESS_DIRECTIONS), ACCESS_DIRECTIONS);
    assert_eq!(answer.mr_mode, f::MR_VIRT_ADDR | f::MR_ALLOCATED | f::MR_PROV_KEY);
    assert_eq!(answer.data_progress, f::PROGRESS_AUTO, "an access does not wait for calls of the peer");

    let answer = offer(Some(&mpich_5())).unwrap();
    assert_eq!((answer.threading, answer.av_type, answer.data_progress), (3, f::AV_TABLE, f::PROGRESS_MANUAL));
    assert_eq!(answer.tx_op_flags, f::COMPLETION | f::DELIVERY_COMPLETE);
    assert_eq!(answer.mr_mode, 0);
}

#[test]
fn every_combination_of_capabilities_has_what_was_asked_or_is_refused() {
    let bits = [
        f::MSG,
        f::TAGGED,
        f::SEND,
        f::RECV,
        f::MULTI_RECV,
        f::SOURCE,
        f::DIRECTED_RECV,
        f::REMOTE_COMM,
        f::RMA,
        f::READ,
        f::REMOTE_WRITE,
        f::RMA_EVENT,
        f::HMEM,
    ];
    for choice in 1_u32..1 << bits.len() {
        let chosen = bits.iter().enumerate().filter(|(place, _)| choice >> place & 1 == 1);
        let caps = chosen.fold(0, |caps, (_, bit)| caps | bit);
        let answer = offer(Some(&Hints { caps, ..Hints::default() }));
        let missing = caps & f::HMEM;
        if missing != 0 {
            assert_eq!(answer, Err(Refusal::Capabilities(missing)), "{caps:#x}");
            continue;
        }
        let answer = answer.unwrap();
        assert_eq!(answer.caps & caps, caps, "{caps:#x}");
        assert_ne!(answer.caps & PRIMARY, 0, "{caps:#x}");
        assert!(answer.caps & MESSAGES == 0 || answer.caps & DIRECTIONS != 0, "{caps:#x}");
        assert!(answer.caps & ACCESSES == 0 || answer.caps & ACCESS_DIRECTIONS != 0, "{caps:#x}");
        // Programs may pass any source if they did not ask for this.
        assert_eq!(answer.caps & f::DIRECTED_RECV, caps & f::DIRECTED_RECV, "{caps:#x}");
        assert_eq!(answer.rx_caps & f::RMA_EVENT, caps & f::RMA_EVENT, "{caps:#x}");
        assert_eq!(answer.tx_caps & !answer.caps, 0, "{caps:#x}");
        assert_eq!(answer.rx_caps & !answer.caps, 0, "{caps:#x}");
        // The answer is a valid hint, and is answered by itself.
        assert_eq!(offer(Some(&Hints { caps: answer.caps, ..Hints::default() })).unwrap().caps, answer.caps);
    }
}

#[test]
fn each_value_that_an_application_compares_is_the_one_it_asked_for() {
    for threading in 1..=f::THREAD_MOST {
        assert_eq!(offer(Some(&with_domain(|d| d.threading = threading))).unwrap().threading, threading);
    }
    for progress in 1..=f::PROGRESS_MOST {
        let answer = offer(Some(&with_domain(|d| d.data_progress = progress))).unwrap();
        assert_eq!((answer.data_progress, answer.control_progress), (progress, f::PROGRESS_AUTO));
    }
    for kind in [f::AV_MAP, f::AV_TABLE] {
        assert_eq!(offer(Some(&with_domain(|d| d.av_type = kind))).unwrap().av_type, kind);
    }
    // The modes of old versions are values, those of newer ones are bits of what the application can do.
    let all = f::MR_VIRT_ADDR | f::MR_ALLOCATED | f::MR_PROV_KEY;
    let modes =
        [(0, 0), (f::MR_BASIC, f::MR_BASIC), (f::MR_SCALABLE, f::MR_SCALABLE), (all, all), (1 << 9 | 1 << 2, 0)];
    for (asked, answered) in modes {
        assert_eq!(offer(Some(&with_domain(|d| d.mr_mode = asked))).unwrap().mr_mode, answered);
    }
    // Messages need no registered memory.
    let messages = Hints { caps: f::MSG, ..with_domain(|d| d.mr_mode = all) };
    assert_eq!(offer(Some(&messages)).unwrap().mr_mode, 0);
    assert_eq!(offer(Some(&with_tx(|tx| tx.size = 60_000))).unwrap().tx_size, 60_000);
    assert_eq!(offer(Some(&with_ep(|ep| ep.mem_tag_format = 0xff00))).unwrap().mem_tag_format, 0xff00);
}

#[test]
fn hints_beyond_what_the_provider_has_are_refused() {
    let refused = [
        // ofi_rxm and ofi_rxd layer themselves over every provider that accepts these.
        with_ep(|ep| ep.kind = 1),
        with_ep(|ep| ep.kind = 2),
        with_ep(|ep| ep.protocol = 7),
        with_ep(|ep| ep.max_msg_size = usize::MAX),
        with_ep(|ep| ep.max_order_size = limits::atomic_bytes() + 1),
        with_ep(|ep| ep.tx_ctx_cnt = 2),
        with_ep(|ep| ep.rx_ctx_cnt = usize::MAX),
        with_ep(|ep| ep.auth_key_size = 1),
        with_tx(|tx| tx.caps = f::HMEM),
        with_tx(|tx| tx.op_flags = 1 << 40),
        with_tx(|tx| tx.msg_order = f::ORDER_SAS | 1),
        with_tx(|tx| tx.comp_order = 1),
        with_tx(|tx| tx.inject_size = limits::inject_bytes() + 1),
        with_tx(|tx| tx.size = limits::MOST_OPERATIONS + 1),
        with_tx(|tx| tx.iov_limit = MOST_SEGMENTS + 1),
        with_tx(|tx| tx.rma_iov_limit = limits::REMOTE_RANGES + 1),
        with_domain(|d| d.name = Some("eth0".into())),
        with_domain(|d| d.threading = 99),
        with_domain(|d| d.data_progress = -1),
        with_domain(|d| d.av_type = 3),
        with_domain(|d| d.cq_data_size = 9),
        with_domain(|d| d.objects = limits::OBJECTS + 1),
        with_domain(|d| d.contexts_of_ep = 2),
        with_domain(|d| d.shared_contexts = 1),
        with_domain(|d| d.caps = 1 << 53),
        Hints { addr_format: 2, ..Hints::default() },
        Hints { names_source: true, ..Hints::default() },
        Hints { names_node: true, ..Hints::default() },
        Hints { accepts_request: true, ..Hints::default() },
        Hints { peer: Some(vec![1; 16]), ..Hints::default() },
        Hints { fabric: Some("shm".into()), ..Hints::default() },
        Hints { provider: Some("shm".into()), ..Hints::default() },
    ];
    for hints in refused {
        let refusal = offer(Some(&hints)).expect_err(&format!("{hints:?}"));
        assert!(refusal.to_string().starts_with("the program "), "{refusal}");
    }
    for accepted in ["telpher", "Telpher", "telpher;ofi_mrail", "^shm"] {
        assert!(offer(Some(&Hints { provider: Some(accepted.into()), ..Hints::default() })).is_ok(), "{accepted}");
    }
}

#[test]
fn a_refusal_names_what_is_missing() {
    let hints = Hints { caps: f::RMA | f::HMEM | 1 << 60, ..Hints::default() };
    let text = offer(Some(&hints)).unwrap_err().to_string();
    assert_eq!(
        text,
        "the program asks for FI_HMEM and the capabilities 0x1000000000000000, which telpher does not have"
    );
}
