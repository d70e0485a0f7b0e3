//! What the machine leaves to a server: memory, open files and processors.

mod control_group;
pub mod descriptors;
pub mod memory;
mod threads;

pub use self::{memory::MemoryBound, threads::Threads};
