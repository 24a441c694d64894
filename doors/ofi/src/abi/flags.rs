//! Capabilities, flags, orders and enumerations (`rdma/fabric.h`, `rdma/fi_domain.h`, `rdma/fi_eq.h`).

// Capabilities; the first four also say in a completion which operation ended.
pub(crate) const MSG: u64 = 1 << 1;
pub(crate) const RMA: u64 = 1 << 2;
pub(crate) const TAGGED: u64 = 1 << 3;
pub(crate) const ATOMIC: u64 = 1 << 4;
pub(crate) const READ: u64 = 1 << 8;
pub(crate) const WRITE: u64 = 1 << 9;
pub(crate) const RECV: u64 = 1 << 10;
pub(crate) const SEND: u64 = 1 << 11;
pub(crate) const REMOTE_READ: u64 = 1 << 12;
pub(crate) const REMOTE_WRITE: u64 = 1 << 13;
pub(crate) const MULTI_RECV: u64 = 1 << 16;
pub(crate) const HMEM: u64 = 1 << 47;
pub(crate) const LOCAL_COMM: u64 = 1 << 51;
pub(crate) const REMOTE_COMM: u64 = 1 << 52;
pub(crate) const RMA_EVENT: u64 = 1 << 56;
pub(crate) const SOURCE: u64 = 1 << 57;
pub(crate) const DIRECTED_RECV: u64 = 1 << 59;

// Flags of operations and completions.
pub(crate) const REMOTE_CQ_DATA: u64 = 1 << 17;
pub(crate) const MORE: u64 = 1 << 18;
pub(crate) const PEEK: u64 = 1 << 19;
pub(crate) const COMPLETION: u64 = 1 << 24;
pub(crate) const INJECT: u64 = 1 << 25;
pub(crate) const INJECT_COMPLETE: u64 = 1 << 26;
pub(crate) const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(crate) const DELIVERY_COMPLETE: u64 = 1 << 28;
pub(crate) const MATCH_COMPLETE: u64 = 1 << 31;
pub(crate) const DISCARD: u64 = 1 << 58;
pub(crate) const CLAIM: u64 = 1 << 59;

/// A flag of binding: only operations that ask for a completion, and those that fail, have one.
pub(crate) const SELECTIVE_COMPLETION: u64 = 1 << 59;

/// A flag of `fi_getinfo`: node and service name this side.
pub(crate) const GETINFO_SOURCE: u64 = SOURCE;

/// A flag of inserting addresses: the context is an array of error numbers.
pub(crate) const SYNC_ERR: u64 = 1 << 58;

/// Messages are matched in the order of their sends.
pub(crate) const ORDER_SAS: u64 = 1 << 8;

/// Atomic operations on a peer are done in the order of their calls: reads after reads, reads after writes and so on.
pub(crate) const ORDER_ATOMIC: u64 = 0xf << 36;

/// A flag of queries: the atomic operation returns the elements before; and it also compares.
pub(crate) const FETCH_ATOMIC: u64 = 1 << 58;
pub(crate) const COMPARE_ATOMIC: u64 = 1 << 59;

/// Numbers with this bit belong to a provider: protocols, address formats.
pub(crate) const PROVIDER_SPECIFIC: u32 = 1 << 31;

/// A peer that is not in the address vector; as the source of a receive: any peer.
pub(crate) const ADDRESS_UNSPECIFIED: u64 = u64::MAX;

/// The tag format without reserved bits that libfabric's own providers report.
pub(crate) const TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;

// Endpoint types.
pub(crate) const EP_UNSPEC: i32 = 0;
pub(crate) const EP_RDM: i32 = 3;

// Threading.
pub(crate) const THREAD_SAFE: i32 = 1;
pub(crate) const THREAD_MOST: i32 = 5;

// Progress. 3 is version 2's "control progress in the calls for data progress".
pub(crate) const PROGRESS_AUTO: i32 = 1;
pub(crate) const PROGRESS_MANUAL: i32 = 2;
pub(crate) const PROGRESS_MOST: i32 = 3;

// Resource management.
pub(crate) const RM_ENABLED: i32 = 2;

// Address vectors.
pub(crate) const AV_MAP: i32 = 1;
pub(crate) const AV_TABLE: i32 = 2;

// Memory registration modes of versions before 1.5.
pub(crate) const MR_BASIC: i32 = 1;
pub(crate) const MR_SCALABLE: i32 = 2;

// Modes of later versions: the addresses of a region are virtual, its memory is mapped when it is registered, and the
// provider chooses its key.
pub(crate) const MR_VIRT_ADDR: i32 = 1 << 4;
pub(crate) const MR_ALLOCATED: i32 = 1 << 5;
pub(crate) const MR_PROV_KEY: i32 = 1 << 6;

// Formats of completion queues.
pub(crate) const CQ_UNSPEC: i32 = 0;
pub(crate) const CQ_CONTEXT: i32 = 1;
pub(crate) const CQ_MSG: i32 = 2;
pub(crate) const CQ_DATA: i32 = 3;
pub(crate) const CQ_TAGGED: i32 = 4;

// Wait objects.
pub(crate) const WAIT_NONE: i32 = 0;
pub(crate) const WAIT_UNSPEC: i32 = 1;
pub(crate) const WAIT_YIELD: i32 = 5;

// Classes of objects.
pub(crate) const CLASS_FABRIC: usize = 1;
pub(crate) const CLASS_DOMAIN: usize = 2;
pub(crate) const CLASS_EP: usize = 3;
pub(crate) const CLASS_AV: usize = 11;
pub(crate) const CLASS_MR: usize = 12;
pub(crate) const CLASS_EQ: usize = 13;
pub(crate) const CLASS_CQ: usize = 14;
pub(crate) const CLASS_CNTR: usize = 15;

// Commands of `fi_control`.
pub(crate) const GET_WAIT_OBJECT: i32 = 16;
pub(crate) const ENABLE: i32 = 6;

// Options of endpoints.
pub(crate) const OPT_ENDPOINT: i32 = 0;
pub(crate) const OPT_MIN_MULTI_RECV: i32 = 0;
pub(crate) const OPT_CM_DATA_SIZE: i32 = 1;

/// The first version whose error entries have a size for their details: 1.5.
pub(crate) const VERSION_WITH_SIZES: u32 = 1 << 16 | 5;

/// The version of the interface that this provider follows: 2.6. Cores of 1.17 and 2.5 take it, too.
pub(crate) const VERSION: u32 = 2 << 16 | 6;
