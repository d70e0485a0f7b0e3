//! The users of a proxy: the file with their limits, the store of what they have used, and `tandem users`.

mod command;
mod keeper;
mod settings;
mod store;
mod successor;

pub(crate) use self::{
    command::UsersCommand,
    keeper::{Keeper, say_unusable},
    settings::{UsersSettings, UsersSetup},
    store::StoreError,
};
