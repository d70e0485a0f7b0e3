//! `tandem generate password`: the hash of a password, for the token file of a proxy.

use tandem_node::password::{NamedPassword, PasswordHash};
use tandem_server::tls::random;

use crate::{
    ask,
    error::{CliError, PasswordFault},
};

/// The most bytes of a line of the standard input.
const LINE_MAX: u64 = 1000;

/// Asks for a user's password, and returns the line of a token file.
pub(crate) fn line(name: &str) -> Result<String, CliError> {
    let password = read(name)?;
    let hash = PasswordHash::of(&password, random()?).map_err(PasswordFault::Password)?;
    let named = NamedPassword::new(name, hash.clone()).map_err(PasswordFault::Name)?;
    Ok(format!("{} {}", named.name(), hash.reveal()))
}

/// The password. A person types it twice.
fn read(name: &str) -> Result<String, PasswordFault> {
    let line = |prompt: &str| ask::line(prompt, LINE_MAX).map_err(PasswordFault::Input);
    let password = line(&format!("Password for {name}: "))?;
    if ask::is_on_terminal() && line("The same again: ")? != password {
        return Err(PasswordFault::Different);
    }
    Ok(password)
}
