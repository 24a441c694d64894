//! Packets between a backend and a guest with DPDK's driver: each arrives once, intact, whatever was negotiated.

use crate::backend::{Backend, Copies, with_each_backend};
use crate::pair::{LENGTHS, Pair};
use crate::skip::skip;
use telpher_vhost::peers::{Memory, Virtio};

/// All directions, with the negotiated features.
fn flows(test: &str, kind: Backend, virtio: Virtio) {
    if let Some(mut pair) = Pair::start(test, kind, virtio) {
        pair.every_way();
    }
}

with_each_backend! {
    fn packets_flow_over_a_split_ring(kind: Backend) {
        flows("packets_flow_over_a_split_ring", kind, Virtio::SPLIT);
    }

    fn packets_flow_over_a_packed_ring(kind: Backend) {
        flows("packets_flow_over_a_packed_ring", kind, Virtio::PACKED);
    }

    fn packets_flow_over_a_split_ring_in_order(kind: Backend) {
        flows("packets_flow_over_a_split_ring_in_order", kind, Virtio { in_order: true, ..Virtio::SPLIT });
    }

    fn packets_flow_over_a_packed_ring_in_order(kind: Backend) {
        let virtio = Virtio { in_order: true, mergeable: false, ..Virtio::PACKED };
        flows("packets_flow_over_a_packed_ring_in_order", kind, virtio);
    }

    fn packets_flow_without_mergeable_buffers(kind: Backend) {
        let virtio = Virtio { mergeable: false, ..Virtio::SPLIT };
        flows("packets_flow_without_mergeable_buffers", kind, virtio);
    }

    fn packets_flow_to_a_vector_driver_over_a_split_ring(kind: Backend) {
        let virtio = Virtio { mergeable: false, vectorised: true, ..Virtio::SPLIT };
        flows("packets_flow_to_a_vector_driver_over_a_split_ring", kind, virtio);
    }

    fn packets_flow_to_a_vector_driver_over_a_packed_ring(kind: Backend) {
        let test = "packets_flow_to_a_vector_driver_over_a_packed_ring";
        let has = std::arch::is_x86_feature_detected!("avx512bw") && std::arch::is_x86_feature_detected!("avx512vl");
        if !has {
            return skip(test, "this processor has no AVX-512");
        }
        flows(test, kind, Virtio { in_order: true, mergeable: false, vectorised: true, ..Virtio::PACKED });
    }

    fn packets_flow_over_a_packed_ring_of_1000(kind: Backend) {
        flows("packets_flow_over_a_packed_ring_of_1000", kind, Virtio { ring: 1000, ..Virtio::PACKED });
    }

    fn packets_flow_over_huge_pages(kind: Backend) {
        let pair = Pair::with_memory("packets_flow_over_huge_pages", kind, Virtio::SPLIT, Memory::Huge);
        let Some(mut pair) = pair else { return };
        pair.every_way();
    }

    fn packets_flow_over_two_queue_pairs(kind: Backend) {
        for virtio in [Virtio::SPLIT, Virtio::PACKED] {
            let virtio = Virtio { queues: 2, ..virtio };
            let Some(mut pair) = Pair::start("packets_flow_over_two_queue_pairs", kind, virtio) else { return };
            pair.send(LENGTHS[0]);
            pair.take(LENGTHS[0]);
            pair.around(LENGTHS[1]);
            // Both queues were used, and no third.
            assert_eq!(pair.guest.0.queues_used(), 2);
        }
    }
}

#[test]
fn packets_flow_in_order_on_every_copy_path() {
    for virtio in [Virtio::SPLIT, Virtio::PACKED] {
        flows("packets_flow_in_order_on_every_copy_path", Backend::Telpher(Copies::CopyPolicy), virtio);
    }
}
