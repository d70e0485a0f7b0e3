//! Plain counters of a node; `tandem-net` exports them.
