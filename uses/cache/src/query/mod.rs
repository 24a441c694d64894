//! Query-driven prefetching: a query's plan says which columns later stages need; they are fetched ahead while the first stage runs
//! (Fürst's thesis, §2.2, §5.2, §6.1).
//!
//! ```text
//! Plan ─► columns of SCAN, columns of AGGREGATE ─► Shape: groups × chunks × threads ─► Worker: what one of the threads does, step by step
//!                                                                                        │
//!                                     threads of this machine, or simulated ones ◄── Ground ──┘
//! ```

mod pipeline;

pub use pipeline::{Chunk, Ground, Part, Role, Shape, Worker};
