//! What the leases tell, decoded.
