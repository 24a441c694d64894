//! `[[node]]`, `[memory]` and `[cache]`: memory nodes and caches.

use super::ProfileError;
use super::section::Section;
use crate::machine::{CacheCosts, MemoryCosts, Node};

/// The memory nodes, in the order of their numbers.
pub(super) fn nodes(root: &Section<'_>) -> Result<Vec<Node>, ProfileError> {
    let list = root.list("node")?;
    // Each node has a tile of its own unless the profile names one.
    list.into_iter().enumerate().map(|(number, section)| node(section, number)).collect()
}

fn node(section: Section<'_>, number: usize) -> Result<Node, ProfileError> {
    let read = section.rate("read_gb_s")?;
    let node = Node {
        read,
        write: section.rate("write_gb_s")?,
        core_read: section.rate_if_there("core_read_gb_s")?.unwrap_or(read),
        latency: section.nanos("latency_ns")?,
        write_latency: section.nanos("write_latency_ns")?,
        socket: index(&section, "socket", 7)?,
        tile: if section.has("tile") { index(&section, "tile", 1023)? } else { 1024 + number },
    };
    section.end()?;
    Ok(node)
}

fn index(section: &Section<'_>, key: &str, most: u32) -> Result<usize, ProfileError> {
    // Cannot fail: at most 1023.
    section.count(key, 0..=most, "to name it").map(|number| usize::try_from(number).unwrap_or(0))
}

pub(super) fn memory(section: Section<'_>) -> Result<MemoryCosts, ProfileError> {
    let costs = MemoryCosts {
        queue: section.nanos("queue_ns")?,
        core_in_flight: section.count("core_in_flight_bytes", 64..=1 << 20, "bytes")?,
        tile: section.rate_if_there("tile_gb_s")?,
        directory: section.count("directory_256th", 0..=256, "parts of 256")?,
    };
    section.end()?;
    Ok(costs)
}

pub(super) fn cache(section: Section<'_>) -> Result<CacheCosts, ProfileError> {
    let costs = CacheCosts {
        l1: section.count("l1_kib", 1..=1 << 20, "KiB")? << 10,
        l2: section.count("l2_kib", 1..=1 << 20, "KiB")? << 10,
        llc: section.count("llc_mib", 1..=1 << 16, "MiB")? << 20,
        ways: section.count("ways", 1..=64, "ways")?,
        ddio_ways: section.count("ddio_ways", 1..=64, "ways")?,
        l2_latency: section.nanos("l2_ns")?,
        llc_latency: section.nanos("llc_ns")?,
        spill: section.nanos("spill_ns")?,
    };
    if costs.ddio_ways > costs.ways {
        return Err(section.wrong("ddio_ways", format!("is {}, and there are {}", costs.ddio_ways, costs.ways)));
    }
    section.end()?;
    Ok(costs)
}
