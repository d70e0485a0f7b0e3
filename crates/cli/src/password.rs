//! `tandem generate password`: the hash of a password, for the token file of a proxy.

use std::io::{self, BufRead, IsTerminal, Read};

use tandem_node::password::{NamedPassword, PasswordHash};
use tandem_server::tls::random;

use crate::error::{CliError, PasswordFault};

/// The most bytes of a line of the standard input.
const LINE_MAX: u64 = 1000;

/// Asks for a user's password, and returns the line of a token file.
pub(crate) fn line(name: &str) -> Result<String, CliError> {
    let password = read(name)?;
    let hash = PasswordHash::of(&password, random()?).map_err(PasswordFault::Password)?;
    let named = NamedPassword::new(name, hash.clone()).map_err(PasswordFault::Name)?;
    Ok(format!("{} {}", named.name(), hash.reveal()))
}

/// The password: twice from the terminal without an echo, or the first line of the standard input.
fn read(name: &str) -> Result<String, PasswordFault> {
    if io::stdin().is_terminal() {
        let ask = |prompt: String| rpassword::prompt_password(prompt).map_err(PasswordFault::Input);
        let first = ask(format!("Password for {name}: "))?;
        let again = ask("The same again: ".to_owned())?;
        return if first == again { Ok(first) } else { Err(PasswordFault::Different) };
    }
    let mut line = String::new();
    io::stdin().lock().take(LINE_MAX).read_line(&mut line).map_err(PasswordFault::Input)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
