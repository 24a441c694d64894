//! What the provider answers to `fi_getinfo`: hints in, an offer or the reason for none out.

use crate::abi::flags as f;
use crate::limits;
use telpher_fabric::Address;
use telpher_fabric::buffer::MOST_SEGMENTS;

/// The name of the provider, its fabric and its domain.
pub(crate) const NAME: &str = "telpher";

/// The format of an encoded [`Address`]. Source: chosen; the bit says that it is ours.
pub(crate) const ADDRESS_FORMAT: u32 = f::PROVIDER_SPECIFIC | 0x7e1f;

/// The protocol of the endpoints. Source: chosen, like the format.
pub(crate) const PROTOCOL: u32 = f::PROVIDER_SPECIFIC | 0x7e1f;

/// Capabilities without which an application has no use for an endpoint.
const PRIMARY: u64 = MESSAGES | ACCESSES;
/// Those of messages.
const MESSAGES: u64 = f::MSG | f::TAGGED;
/// Those of accesses to the memory of peers.
pub(crate) const ACCESSES: u64 = f::RMA | f::ATOMIC;
/// Directions of messages; without any, an application gets both.
pub(crate) const DIRECTIONS: u64 = f::SEND | f::RECV;
/// Directions of accesses; without any, an application gets all.
pub(crate) const ACCESS_DIRECTIONS: u64 = f::READ | f::WRITE | f::REMOTE_READ | f::REMOTE_WRITE;
/// Capabilities that every answer has, because they cost nothing.
const ALWAYS: u64 = f::LOCAL_COMM | f::REMOTE_COMM | f::MULTI_RECV | f::SOURCE;
/// All capabilities.
pub(crate) const ALL: u64 = PRIMARY | DIRECTIONS | ACCESS_DIRECTIONS | ALWAYS | f::DIRECTED_RECV | f::RMA_EVENT;

const TX_CAPS: u64 = PRIMARY | f::SEND | f::READ | f::WRITE;
const RX_CAPS: u64 =
    PRIMARY | f::RECV | f::REMOTE_READ | f::REMOTE_WRITE | f::MULTI_RECV | f::SOURCE | f::DIRECTED_RECV | f::RMA_EVENT;
const DOMAIN_CAPS: u64 = f::LOCAL_COMM | f::REMOTE_COMM;

/// Flags that may be the default of all sends.
pub(crate) const TX_OP_FLAGS: u64 =
    f::COMPLETION | f::INJECT | f::INJECT_COMPLETE | f::TRANSMIT_COMPLETE | f::DELIVERY_COMPLETE | f::MATCH_COMPLETE;
/// Flags that may be the default of all receives.
pub(crate) const RX_OP_FLAGS: u64 = f::COMPLETION | f::MULTI_RECV;

/// What an application asks for. Zero and `None` leave the choice to the provider.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hints {
    /// Capabilities.
    pub(crate) caps: u64,
    /// The format of addresses.
    pub(crate) addr_format: u32,
    /// True if the application names this side's address.
    pub(crate) names_source: bool,
    /// True if the application names a host or a service.
    pub(crate) names_node: bool,
    /// True if the application accepts a connection request.
    pub(crate) accepts_request: bool,
    /// The peer's address, as bytes.
    pub(crate) peer: Option<Vec<u8>>,
    /// What sends need.
    pub(crate) tx: Option<DirectionHints>,
    /// What receives need.
    pub(crate) rx: Option<DirectionHints>,
    /// What the endpoint needs.
    pub(crate) ep: Option<EpHints>,
    /// What the domain needs.
    pub(crate) domain: Option<DomainHints>,
    /// The fabric's name.
    pub(crate) fabric: Option<String>,
    /// The provider's name, as the application gave it.
    pub(crate) provider: Option<String>,
}

/// What an application needs of sends or of receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DirectionHints {
    pub(crate) caps: u64,
    pub(crate) op_flags: u64,
    pub(crate) msg_order: u64,
    pub(crate) comp_order: u64,
    /// Bytes of messages whose buffer is free when the call returns; sends only.
    pub(crate) inject_size: usize,
    /// Operations under way.
    pub(crate) size: usize,
    pub(crate) iov_limit: usize,
    /// Segments of remote memory; sends only.
    pub(crate) rma_iov_limit: usize,
}

/// What an application needs of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EpHints {
    pub(crate) kind: i32,
    pub(crate) protocol: u32,
    pub(crate) protocol_version: u32,
    pub(crate) max_msg_size: usize,
    /// The largest of the three sizes up to which remote accesses are ordered.
    pub(crate) max_order_size: usize,
    pub(crate) mem_tag_format: u64,
    pub(crate) tx_ctx_cnt: usize,
    pub(crate) rx_ctx_cnt: usize,
    pub(crate) auth_key_size: usize,
}

/// What an application needs of a domain.
#[derive(Clone, Debug, Default)]
pub(crate) struct DomainHints {
    pub(crate) name: Option<String>,
    pub(crate) threading: i32,
    pub(crate) control_progress: i32,
    pub(crate) data_progress: i32,
    pub(crate) resource_mgmt: i32,
    pub(crate) av_type: i32,
    pub(crate) mr_mode: i32,
    pub(crate) mr_key_size: usize,
    pub(crate) cq_data_size: usize,
    /// The largest number of queues, endpoints or counters.
    pub(crate) objects: usize,
    /// The largest number of contexts of an endpoint in one direction.
    pub(crate) contexts_of_ep: usize,
    /// The larger number of contexts that endpoints share.
    pub(crate) shared_contexts: usize,
    pub(crate) mr_iov_limit: usize,
    pub(crate) caps: u64,
    pub(crate) auth_key_size: usize,
    pub(crate) max_err_data: usize,
}

/// The answer. What is not listed is the same in every answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) caps: u64,
    pub(crate) tx_caps: u64,
    pub(crate) rx_caps: u64,
    pub(crate) domain_caps: u64,
    pub(crate) tx_op_flags: u64,
    pub(crate) rx_op_flags: u64,
    pub(crate) msg_order: u64,
    /// Up to this many bytes remote accesses are ordered as `msg_order` says.
    pub(crate) max_order_size: usize,
    pub(crate) tx_size: usize,
    pub(crate) rx_size: usize,
    pub(crate) threading: i32,
    pub(crate) control_progress: i32,
    pub(crate) data_progress: i32,
    pub(crate) av_type: i32,
    pub(crate) mr_mode: i32,
    pub(crate) mem_tag_format: u64,
    pub(crate) peer: Option<Vec<u8>>,
}

/// Why the provider offers nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the program asks for {}, which telpher does not have", names(*.0))]
    Capabilities(u64),
    #[error("the program asks for another type of endpoint than FI_EP_RDM")]
    EndpointType,
    #[error("the program asks for the {what} {asked:?}; telpher's is \"telpher\"")]
    Name { what: &'static str, asked: String },
    #[error("the program names a host or an address, but telpher's endpoints have addresses only once they are open")]
    NamesAddress,
    #[error("the program asks for another format of addresses or another protocol")]
    Format,
    #[error("the program asks for {what} of {asked:#x}; telpher has at most {limit:#x}")]
    Limit { what: &'static str, asked: u64, limit: u64 },
    #[error("the program asks for a {what} with the number {asked}, which telpher does not know")]
    Unknown { what: &'static str, asked: i32 },
}

/// Lists capabilities by their names.
fn names(caps: u64) -> String {
    const NAMES: [(u64, &str); 9] = [
        (f::MSG, "FI_MSG"),
        (f::RMA, "FI_RMA"),
        (f::TAGGED, "FI_TAGGED"),
        (f::ATOMIC, "FI_ATOMIC"),
        (1 << 5, "FI_MULTICAST"),
        (1 << 6, "FI_COLLECTIVE"),
        (f::HMEM, "FI_HMEM"),
        (1 << 58, "FI_NAMED_RX_CTX"),
        (1 << 50, "FI_SOURCE_ERR"),
    ];
    let mut known: Vec<String> =
        NAMES.iter().filter(|(bit, _)| caps & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
    let rest = NAMES.iter().fold(caps, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        known.push(format!("the capabilities {rest:#x}"));
    }
    known.join(" and ")
}

/// Refuses `asked` above `limit`.
fn within(what: &'static str, asked: usize, limit: usize) -> Result<(), Refusal> {
    if asked > limit {
        return Err(Refusal::Limit { what, asked: asked as u64, limit: limit as u64 });
    }
    Ok(())
}

/// Refuses bits beyond those of `all`.
fn bits(what: &'static str, asked: u64, all: u64) -> Result<(), Refusal> {
    if asked & !all != 0 {
        return Err(Refusal::Limit { what, asked, limit: all });
    }
    Ok(())
}

/// Refuses numbers of an enumeration beyond `most`.
fn known(what: &'static str, asked: i32, most: i32) -> Result<(), Refusal> {
    if !(0..=most).contains(&asked) {
        return Err(Refusal::Unknown { what, asked });
    }
    Ok(())
}

/// Refuses another name than ours.
fn named(what: &'static str, asked: Option<&str>) -> Result<(), Refusal> {
    match asked {
        Some(asked) if asked != NAME => Err(Refusal::Name { what, asked: asked.into() }),
        _ => Ok(()),
    }
}

/// Refuses capabilities that the provider does not have.
fn capabilities(asked: u64) -> Result<(), Refusal> {
    if asked & !ALL != 0 {
        return Err(Refusal::Capabilities(asked & !ALL));
    }
    Ok(())
}

/// Answers a call of `fi_getinfo`; without hints, with everything.
pub(crate) fn offer(hints: Option<&Hints>) -> Result<Offer, Refusal> {
    let default = Hints::default();
    let hints = hints.unwrap_or(&default);
    endpoint(hints.ep.as_ref())?;
    capabilities(hints.caps)?;
    let caps = caps_of(hints.caps);
    if let Some(asked) = hints.provider.as_deref()
        // The core has applied a list of excluded providers ("^shm") itself.
        && !asked.starts_with('^')
        && !asked.to_ascii_lowercase().contains(NAME)
    {
        return Err(Refusal::Name { what: "provider", asked: asked.into() });
    }
    named("fabric", hints.fabric.as_deref())?;
    if hints.addr_format != 0 && hints.addr_format != ADDRESS_FORMAT {
        return Err(Refusal::Format);
    }
    let peer_is_ours = hints.peer.as_deref().is_none_or(|bytes| Address::decode(bytes).is_some());
    if hints.names_source || hints.names_node || hints.accepts_request || !peer_is_ours {
        return Err(Refusal::NamesAddress);
    }
    let tx = hints.tx.unwrap_or_default();
    direction(&tx, TX_OP_FLAGS)?;
    within("fi_tx_attr.inject_size", tx.inject_size, limits::inject_bytes())?;
    within("fi_tx_attr.rma_iov_limit", tx.rma_iov_limit, limits::REMOTE_RANGES)?;
    let rx = hints.rx.unwrap_or_default();
    direction(&rx, RX_OP_FLAGS)?;
    let unasked = DomainHints::default();
    let domain_hints = hints.domain.as_ref().unwrap_or(&unasked);
    domain(domain_hints)?;
    let or = |asked: i32, own: i32| if asked == 0 { own } else { asked };
    let mr_mode = match domain_hints.mr_mode {
        mode @ (f::MR_BASIC | f::MR_SCALABLE) => mode,
        // Messages need no registered memory, so nothing of what the application can do is required.
        _ if caps & ACCESSES == 0 => 0,
        mode => mode & (f::MR_VIRT_ADDR | f::MR_ALLOCATED | f::MR_PROV_KEY),
    };
    let has_atomics = caps & f::ATOMIC != 0;
    // An access should not wait until the program at the other end makes a call.
    let asks_for_accesses = hints.caps & ACCESSES != 0;
    let data_progress = if asks_for_accesses { f::PROGRESS_AUTO } else { f::PROGRESS_MANUAL };
    Ok(Offer {
        caps,
        tx_caps: caps & TX_CAPS,
        rx_caps: caps & RX_CAPS,
        domain_caps: DOMAIN_CAPS,
        tx_op_flags: tx.op_flags,
        rx_op_flags: rx.op_flags,
        // An order that was asked for and has no operations is kept in vain.
        msg_order: f::ORDER_SAS | tx.msg_order | rx.msg_order | if has_atomics { f::ORDER_ATOMIC } else { 0 },
        max_order_size: if has_atomics { limits::atomic_bytes() } else { 0 },
        tx_size: limits::OPERATIONS.max(tx.size),
        rx_size: limits::OPERATIONS.max(rx.size),
        threading: or(domain_hints.threading, f::THREAD_SAFE),
        control_progress: or(domain_hints.control_progress, f::PROGRESS_AUTO),
        data_progress: or(domain_hints.data_progress, data_progress),
        av_type: or(domain_hints.av_type, f::AV_TABLE),
        mr_mode,
        mem_tag_format: match hints.ep.map_or(0, |ep| ep.mem_tag_format) {
            0 => f::TAG_GENERIC,
            // All 64 bits are compared, so that any division into fields works.
            asked => asked,
        },
        peer: hints.peer.clone(),
    })
}

/// Completes the capabilities that an application asks for.
fn caps_of(asked: u64) -> u64 {
    if asked == 0 {
        return ALL;
    }
    let primary = match asked & (DIRECTIONS | ACCESS_DIRECTIONS) {
        _ if asked & PRIMARY != 0 => 0,
        // Whatever has the directions that it names.
        directions => {
            let messages = if directions & DIRECTIONS != 0 || directions == 0 { MESSAGES } else { 0 };
            let accesses = if directions & ACCESS_DIRECTIONS != 0 || directions == 0 { ACCESSES } else { 0 };
            messages | accesses
        }
    };
    let caps = asked | primary;
    let sends = if caps & MESSAGES != 0 && caps & DIRECTIONS == 0 { DIRECTIONS } else { 0 };
    let accesses = if caps & ACCESSES != 0 && caps & ACCESS_DIRECTIONS == 0 { ACCESS_DIRECTIONS } else { 0 };
    caps | sends | accesses | ALWAYS
}

fn direction(hints: &DirectionHints, op_flags: u64) -> Result<(), Refusal> {
    capabilities(hints.caps)?;
    bits("default flags of operations", hints.op_flags, op_flags)?;
    bits("an order of messages", hints.msg_order, f::ORDER_SAS | f::ORDER_ATOMIC)?;
    // Short messages overtake long ones.
    bits("an order of completions", hints.comp_order, 0)?;
    within("a number of operations under way", hints.size, limits::MOST_OPERATIONS)?;
    within("a number of segments", hints.iov_limit, MOST_SEGMENTS)
}

fn endpoint(hints: Option<&EpHints>) -> Result<(), Refusal> {
    let Some(hints) = hints else { return Ok(()) };
    if ![f::EP_UNSPEC, f::EP_RDM].contains(&hints.kind) {
        return Err(Refusal::EndpointType);
    }
    if hints.protocol != 0 && (hints.protocol != PROTOCOL || hints.protocol_version > limits::PROTOCOL_VERSION) {
        return Err(Refusal::Format);
    }
    within("fi_ep_attr.max_msg_size", hints.max_msg_size, limits::MESSAGE_BYTES)?;
    within("a size of ordered remote accesses", hints.max_order_size, limits::atomic_bytes())?;
    within("fi_ep_attr.tx_ctx_cnt", hints.tx_ctx_cnt, 1)?;
    within("fi_ep_attr.rx_ctx_cnt", hints.rx_ctx_cnt, 1)?;
    within("fi_ep_attr.auth_key_size", hints.auth_key_size, 0)
}

fn domain(hints: &DomainHints) -> Result<(), Refusal> {
    named("domain", hints.name.as_deref())?;
    known("threading model", hints.threading, f::THREAD_MOST)?;
    known("kind of control progress", hints.control_progress, f::PROGRESS_MOST)?;
    known("kind of data progress", hints.data_progress, f::PROGRESS_MOST)?;
    known("resource management", hints.resource_mgmt, f::RM_ENABLED)?;
    known("type of address vector", hints.av_type, f::AV_TABLE)?;
    within("fi_domain_attr.mr_key_size", hints.mr_key_size, size_of::<u64>())?;
    within("fi_domain_attr.cq_data_size", hints.cq_data_size, size_of::<u64>())?;
    within("a number of objects", hints.objects, limits::OBJECTS)?;
    within("a number of contexts", hints.contexts_of_ep, 1)?;
    within("a number of shared contexts", hints.shared_contexts, 0)?;
    within("fi_domain_attr.mr_iov_limit", hints.mr_iov_limit, MOST_SEGMENTS)?;
    bits("domain capabilities", hints.caps, DOMAIN_CAPS)?;
    within("fi_domain_attr.auth_key_size", hints.auth_key_size, 0)?;
    within("fi_domain_attr.max_err_data", hints.max_err_data, 0)
}

#[cfg(test)]
mod tests;
