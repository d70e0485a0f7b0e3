//! Servers: one function for all roles ([`serve()`]), and the same for programs that embed a server ([`Embedded`]).

mod changes;
mod embedded;
mod gate;
mod obey;
mod orders;
mod prepared;
pub(crate) mod pulse;
mod run;

pub use self::{
    embedded::Embedded,
    prepared::{Prepared, serve},
};
