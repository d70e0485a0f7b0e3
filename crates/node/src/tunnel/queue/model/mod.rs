//! A model of what surrounds a queue.

pub(super) mod below;
