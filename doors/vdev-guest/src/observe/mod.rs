//! What watches and disturbs the replicas: trace, check, inject.
