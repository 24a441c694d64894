//! VERSION: what both sides can do, as JSON text behind two version numbers.

use crate::wire::{MOST_DATA, MOST_FILES};
use serde_json::{Value, json};
use telpher_vhost::MOST_REGIONS;

/// Bytes of data in a message of a client that does not say how many it takes. Source: libvfio-user,
/// `VFIO_USER_DEFAULT_MAX_DATA_XFER_SIZE`.
const DEFAULT_DATA: u64 = 1 << 20;

/// What the client can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Client {
    /// The most bytes of data that it takes in a message.
    pub(crate) most_data: u32,
}

/// Reads a client's capabilities: JSON that ends with a zero byte, or nothing. `None` if they are not that.
pub(crate) fn client(major: u16, text: &[u8]) -> Option<Client> {
    if major != 0 {
        return None;
    }
    let text = match text {
        [] | [0] => b"{}",
        [json @ .., 0] => json,
        _ => return None,
    };
    let parsed: Value = serde_json::from_slice(text).ok().filter(Value::is_object)?;
    let most_data = match parsed.pointer("/capabilities/max_data_xfer_size") {
        None => DEFAULT_DATA,
        Some(given) => given.as_u64().filter(|bytes| *bytes > 0)?,
    };
    Some(Client { most_data: u32::try_from(most_data).unwrap_or(MOST_DATA).min(MOST_DATA) })
}

/// Returns the body of the answer: version 0.0, and what this server can do. QEMU refuses a server that answers another
/// minor version, also if it is the one that the client offered.
pub(crate) fn answer() -> Vec<u8> {
    let capabilities = json!({ "capabilities": {
        "max_msg_fds": MOST_FILES,
        "max_data_xfer_size": MOST_DATA,
        "max_dma_maps": MOST_REGIONS,
        "pgsizes": telpher_mem::PAGE_BYTES,
    }});
    let mut body = vec![0; 4];
    body.extend(capabilities.to_string().as_bytes());
    body.push(0);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_name_their_limit_or_have_the_default() {
        let most = |text: &[u8]| client(0, text).map(|client| client.most_data);
        assert_eq!(most(b""), Some(1 << 20));
        assert_eq!(most(b"{}\0"), Some(1 << 20));
        assert_eq!(most(b"{\"capabilities\":{\"max_data_xfer_size\":4096}}\0"), Some(4096));
        assert_eq!(most(b"{\"capabilities\":{\"max_data_xfer_size\":99999999999}}\0"), Some(MOST_DATA));
    }

    #[test]
    fn other_texts_are_refused() {
        let deep = [vec![b'['; 10_000], vec![0]].concat();
        for text in [&b"{}"[..], b"[]\0", b"{\"capabilities\":{\"max_data_xfer_size\":0}}\0", b"\xff\0", &deep] {
            assert_eq!(client(0, text), None);
        }
        assert_eq!(client(1, b"{}\0"), None);
    }

    #[test]
    fn the_answer_is_version_0_0_and_json_that_ends_with_zero() {
        let body = answer();
        assert_eq!(body[..4], [0; 4]);
        let parsed: Value = serde_json::from_slice(&body[4..body.len() - 1]).unwrap();
        assert_eq!((body.last(), parsed["capabilities"]["pgsizes"].as_u64()), (Some(&0), Some(4096)));
    }
}
