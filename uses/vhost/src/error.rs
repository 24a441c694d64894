//! Why something of a backend could not be made.

use telpher_mover::ChannelError;

/// Why a lane could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a lane to a DMA queue")]
pub struct LaneError(#[source] pub ChannelError);
