//! The settings of a proxy about its users.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;
use tandem_files::{Fault, tokens::Secrets};
use tandem_node::proxy::{Access, JwtKeys, JwtRules, Known, UserRules};

use super::{Store, StoreError};
use crate::{
    files::{FileError, concealed, read_bounded, tokens},
    process::say,
};

/// The settings that the proxy runs with.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct UsersSetup {
    /// Serve clients that send one of the tokens in this file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
    /// Serve clients with a JSON Web Token that one of the keys in this file verifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks: Option<PathBuf>,
    /// Serve clients that show they have the private key of one of the public keys in this file (RFC 9729).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concealed_keys: Option<PathBuf>,
    /// The issuer that JSON Web Tokens must name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt_issuer: Option<String>,
    /// The audience that JSON Web Tokens must name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt_audience: Option<String>,
    /// The type that the header of JSON Web Tokens must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt_type: Option<String>,
    /// The claim that names the user's group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt_group_claim: Option<String>,
    /// The limits of users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub users_file: Option<PathBuf>,
    /// Where to keep what users have used in a month.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_store: Option<PathBuf>,
    /// Whether not to start without the store.
    pub require_usage_store: bool,
}

/// A guard against naming the wrong file.
const JWKS_LEN_MAX: u64 = 1_000_000;

impl UsersSetup {
    /// Users that are the holders of the tokens in a file.
    pub fn of_tokens(file: PathBuf) -> Self {
        Self { token_file: Some(file), ..Self::default() }
    }

    /// The setting that decides who may use the proxy, if there is one.
    pub fn access_setting(&self) -> Option<&'static str> {
        let Self { token_file, jwks, concealed_keys, .. } = self;
        let all = [(token_file, "token-file"), (jwks, "jwks"), (concealed_keys, "concealed-keys")];
        all.into_iter().find_map(|(file, name)| file.as_ref().map(|_| name))
    }

    /// Reads tokens and keys.
    pub fn access(&self) -> Result<Access, FileError> {
        let secrets = self.token_file.as_deref().map(tokens::read_all).transpose()?;
        let keys = self.keys()?.map(Arc::new);
        let concealed = self.concealed_keys.as_deref().map(concealed::read_users).transpose()?;
        if secrets.is_none() && keys.is_none() && concealed.is_none() {
            return Ok(Access::Anyone);
        }
        let Secrets { tokens, passwords } = secrets.unwrap_or_default();
        Ok(Access::Known(Known {
            tokens,
            keys,
            concealed: concealed.unwrap_or_default().into(),
            passwords: passwords.into(),
        }))
    }

    /// Warns of what an operator has perhaps not meant.
    pub fn warn(&self) {
        if self.jwks.is_some() && self.jwt_issuer.is_none() && self.jwt_audience.is_none() {
            say(
                "warning: without --jwt-issuer and --jwt-audience, every token that a key of --jwks has signed for a \
                 user opens the proxy, also one for another service",
            );
        }
    }

    fn keys(&self) -> Result<Option<JwtKeys>, FileError> {
        let Some(file) = &self.jwks else { return Ok(None) };
        let text = read_bounded(file, JWKS_LEN_MAX, fs::read_to_string)?;
        let rules = JwtRules {
            issuer: self.jwt_issuer.clone(),
            audience: self.jwt_audience.clone(),
            token_type: self.jwt_type.clone(),
            group_claim: self.jwt_group_claim.clone(),
        };
        let wrong = |error| FileError::Jwks { file: file.clone(), error };
        JwtKeys::parse(&text, rules).map(Some).map_err(wrong)
    }

    /// Reads the limits of users.
    pub fn rules(&self) -> Result<UserRules, FileError> {
        self.users_file.as_deref().map_or_else(|| Ok(UserRules::default()), read_rules)
    }

    /// Fails if the store is required and cannot be read. Another process may still write to it. A store that does
    /// not exist yet is none that is damaged. Fails in any case if this program has no stores.
    pub fn check_store(&self) -> Result<(), StoreError> {
        match &self.usage_store {
            Some(file) if cfg!(not(feature = "usage-store")) => Store::open_to_read(file).map(drop),
            Some(file) if self.require_usage_store && file.exists() => {
                Store::open_to_read(file)?.check_all()
            }
            _ => Ok(()),
        }
    }

    /// What a reload reads again, as a message calls it.
    pub fn reloaded(&self) -> impl Iterator<Item = &'static str> {
        let Self { token_file, jwks, concealed_keys, users_file, .. } = self;
        let files = [
            (token_file, "tokens"),
            (jwks, "JWK set"),
            (concealed_keys, "keys of users"),
            (users_file, "limits of users"),
        ];
        files.into_iter().filter_map(|(file, name)| file.as_ref().map(|_| name))
    }
}

/// Reads the limits of a file.
fn read_rules(file: &Path) -> Result<UserRules, FileError> {
    let text = read_bounded(file, tandem_files::users::FILE_LEN_MAX, fs::read_to_string)?;
    tandem_files::users::parse(&text).map_err(|Fault { line, reason }| FileError::InFile {
        file: file.to_owned(),
        line,
        key: None,
        seen: None,
        reason,
    })
}

#[cfg(all(test, feature = "usage-store"))]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_required_is_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.db");
        let check = |require_usage_store| {
            let usage_store = Some(file.clone());
            UsersSetup { usage_store, require_usage_store, ..Default::default() }.check_store()
        };
        check(true).unwrap();
        let store = Store::open(&file).unwrap();
        check(true).unwrap();
        drop(store);
        let text = fs::read(&file).unwrap();
        for (what, damaged) in [
            ("another file", b"this is no database, but it is long enough to be one".repeat(40)),
            ("half of it", text[..text.len() / 2].to_vec()),
        ] {
            fs::write(&file, damaged).unwrap();
            check(false).unwrap();
            let error = check(true).expect_err(what).to_string();
            assert!(error.contains("usage.db"), "{error}");
        }
    }
}
