//! Whole servers: a proxy or an origin from its settings to its end, with its certificate, its users, what operators
//! see of it, and another process that takes over from it.
//!
//! [`serve()`] runs a server as a program of its own, and [`Embedded`] in another program. A [`Setup`] says what
//! servers of all roles have, and a [`Role`](role::Role) what only [proxies](role::ProxyRole) or
//! [origins](role::OriginRole) have.

mod acme;
pub mod admin;
pub mod capacity;
mod error;
pub mod files;
pub mod fleet;
pub mod pause;
pub mod process;
pub mod role;
mod serve;
mod setup;
pub mod site;
mod takeover;
pub mod tls;
pub mod transport;
pub mod users;

pub use self::{
    error::{ServeError, SetupError},
    serve::{Embedded, Prepared, serve},
    setup::Setup,
    takeover::TakeOverError,
};
