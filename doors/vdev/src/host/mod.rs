//! Files, leases and boards; the answers to what guests ask.
