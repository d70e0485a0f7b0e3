//! Certificates from a certificate authority that speaks ACME (RFC 8555), such as Let's Encrypt
//! ([ADR 54](../../../../docs/design/adr/0054-certificates-by-acme.md)).
//!
//! A thread of its own gets them and writes a file. The server reads that file when it changes, as it does with all
//! files of certificates, so that an error here costs no connection.

#[cfg(feature = "acme")]
mod folder;
#[cfg(not(feature = "acme"))]
mod left_out;
#[cfg(feature = "acme")]
mod order;
#[cfg(feature = "acme")]
mod renewals;

#[cfg(not(feature = "acme"))]
pub(crate) use self::left_out::Renewals;
#[cfg(feature = "acme")]
pub(crate) use self::renewals::Renewals;
use crate::{process::say, tls::ServerTlsSetup};

/// Begins to renew a certificate, if that is the server's task. What is returned ends it.
pub(crate) fn renewals(tls: &ServerTlsSetup) -> Option<Renewals> {
    let ServerTlsSetup::Acme(acme) = tls else { return None };
    match Renewals::start(acme) {
        Ok(renewals) => Some(renewals),
        Err(error) => {
            say(format_args!("error: the certificate is not renewed: {error}"));
            None
        }
    }
}
