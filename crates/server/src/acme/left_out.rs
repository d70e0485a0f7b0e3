//! In place of the renewals, in a program that was built without the feature `acme`.

use std::{convert::Infallible, io};

use crate::{process::SystemError, tls::AcmeSetup};

/// Gets certificates, which this program cannot.
#[derive(Debug)]
pub(crate) struct Renewals(Infallible);

impl Renewals {
    /// Fails.
    pub(crate) fn start(_: &AcmeSetup) -> Result<Self, SystemError> {
        let error = io::Error::other("this program was built without the feature acme");
        Err(SystemError { what: "get certificates", error })
    }
}
