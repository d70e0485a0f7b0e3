//! The settings of a proxy about its users.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;
use tandem_files::Fault;
use tandem_node::proxy::{Access, JwtKeys, JwtRules, UserRules};

use super::store::{Store, StoreError};
use crate::{
    error::{ConfigError, FileError},
    text, tokens,
};

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct UsersSettings {
    /// Serve clients that send one of the tokens in this file, which has TOKEN or NAME TOKEN on each
    /// line; logs show the name of a flow's token
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// Serve clients that send a JSON Web Token whose signature one of the keys in this file verifies
    ///
    /// The file is a JWK Set (RFC 7517) with RSA keys, or keys of P-256, P-384 or Ed25519. The user's name is
    /// the claim `sub`, and a token needs the claim `exp`. Flows end when their token expires.
    #[arg(long, value_name = "FILE", env = "TANDEM_JWKS")]
    jwks: Option<PathBuf>,

    /// Issuer (`iss`) that JSON Web Tokens must name [default: any]
    #[arg(long, value_name = "NAME", env = "TANDEM_JWT_ISSUER")]
    jwt_issuer: Option<String>,

    /// Audience (`aud`) that JSON Web Tokens must name; without it they must have none
    #[arg(long, value_name = "NAME", env = "TANDEM_JWT_AUDIENCE")]
    jwt_audience: Option<String>,

    /// Type (`typ`) that the header of JSON Web Tokens must have, such as at+jwt (RFC 9068) [default: at+jwt, JWT or
    /// none]
    #[arg(long, value_name = "TYPE", env = "TANDEM_JWT_TYPE")]
    jwt_type: Option<String>,

    /// Claim of JSON Web Tokens that names the user's group in the users file
    #[arg(long, value_name = "CLAIM", env = "TANDEM_JWT_GROUP_CLAIM")]
    jwt_group_claim: Option<String>,

    /// TOML file with the limits of users, in its tables default, group.NAME and user.NAME
    #[arg(long, value_name = "FILE", env = "TANDEM_USERS_FILE")]
    users_file: Option<PathBuf>,

    /// File in which to keep what users have used in a month; `tandem users` prints it
    #[arg(long, value_name = "FILE", env = "TANDEM_USAGE_STORE")]
    usage_store: Option<PathBuf>,

    /// Do not start without the usage store, rather than count from zero, when it is damaged or cannot be opened
    #[arg(long, value_name = "BOOL", env = "TANDEM_REQUIRE_USAGE_STORE",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    require_usage_store: Option<bool>,
}

/// The settings that the proxy runs with.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct UsersSetup {
    #[serde(skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwks: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt_issuer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt_audience: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jwt_group_claim: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    users_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage_store: Option<PathBuf>,
    pub(crate) require_usage_store: bool,
}

impl TryFrom<UsersSettings> for UsersSetup {
    type Error = ConfigError;

    fn try_from(settings: UsersSettings) -> Result<Self, ConfigError> {
        let UsersSettings { jwks, jwt_issuer, jwt_audience, jwt_type, jwt_group_claim, .. } =
            settings;
        let needs_keys = [
            ("jwt-issuer", &jwt_issuer),
            ("jwt-audience", &jwt_audience),
            ("jwt-type", &jwt_type),
            ("jwt-group-claim", &jwt_group_claim),
        ];
        if let (None, Some((first, _))) = (&jwks, needs_keys.iter().find(|it| it.1.is_some())) {
            let reason = "without keys no JSON Web Token is accepted";
            return Err(ConfigError::Incomplete { first, second: "jwks", reason });
        }
        let UsersSettings { token_file, users_file, usage_store, .. } = settings;
        let require_usage_store = settings.require_usage_store.unwrap_or_default();
        if require_usage_store && usage_store.is_none() {
            return Err(ConfigError::Incomplete {
                first: "require-usage-store",
                second: "usage-store",
                reason: "there is no store that could be required",
            });
        }
        Ok(Self {
            token_file,
            jwks,
            jwt_issuer,
            jwt_audience,
            jwt_type,
            jwt_group_claim,
            users_file,
            usage_store,
            require_usage_store,
        })
    }
}

/// A guard against naming the wrong file.
const JWKS_LEN_MAX: u64 = 1_000_000;

impl UsersSetup {
    /// Users that are the holders of the tokens in a file.
    pub(crate) fn of_tokens(file: PathBuf) -> Self {
        Self { token_file: Some(file), ..Self::default() }
    }

    /// The setting that decides who may use the proxy, if there is one.
    pub(crate) fn access_setting(&self) -> Option<&'static str> {
        let Self { token_file, jwks, .. } = self;
        token_file.as_ref().map(|_| "token-file").or(jwks.as_ref().map(|_| "jwks"))
    }

    /// Reads tokens and keys.
    pub(crate) fn access(&self) -> Result<Access, FileError> {
        let tokens = self.token_file.as_deref().map(tokens::read_all).transpose()?;
        let keys = self.keys()?;
        Ok(match (tokens, keys) {
            (tokens, Some(keys)) => {
                Access::TokensOrSigned(tokens.unwrap_or_default(), Arc::new(keys))
            }
            (Some(tokens), None) => Access::Tokens(tokens),
            (None, None) => Access::Anyone,
        })
    }

    /// Warns of what an operator has perhaps not meant.
    pub(crate) fn warn(&self) {
        if self.jwks.is_some() && self.jwt_issuer.is_none() && self.jwt_audience.is_none() {
            text::say(
                "warning: without --jwt-issuer and --jwt-audience, every token that a key of --jwks has signed for a \
                 user opens the proxy, also one for another service",
            );
        }
    }

    fn keys(&self) -> Result<Option<JwtKeys>, FileError> {
        let Some(file) = &self.jwks else { return Ok(None) };
        let unreadable = |error| FileError::Unreadable { file: file.clone(), error };
        let len = fs::metadata(file).map_err(unreadable)?.len();
        if len > JWKS_LEN_MAX {
            return Err(FileError::TooLong { file: file.clone(), len, max: JWKS_LEN_MAX });
        }
        let text = fs::read_to_string(file).map_err(unreadable)?;
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
    pub(crate) fn rules(&self) -> Result<UserRules, FileError> {
        self.users_file.as_deref().map_or_else(|| Ok(UserRules::default()), read_rules)
    }

    /// Fails if the store is required and cannot be read. Another process may still write to it. A store that does
    /// not exist yet is none that is damaged.
    pub(crate) fn check_store(&self) -> Result<(), StoreError> {
        match &self.usage_store {
            Some(file) if self.require_usage_store && file.exists() => {
                Store::open_to_read(file)?.check_all()
            }
            _ => Ok(()),
        }
    }

    /// What a reload reads again, as a message calls it.
    pub(crate) fn reloaded(&self) -> impl Iterator<Item = &'static str> {
        let Self { token_file, jwks, users_file, .. } = self;
        let files = [(token_file, "tokens"), (jwks, "JWK set"), (users_file, "limits of users")];
        files.into_iter().filter_map(|(file, name)| file.as_ref().map(|_| name))
    }
}

/// Reads the limits of a file.
fn read_rules(file: &Path) -> Result<UserRules, FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let len = fs::metadata(file).map_err(unreadable)?.len();
    let max = tandem_files::users::FILE_LEN_MAX;
    if len > max {
        return Err(FileError::TooLong { file: file.to_owned(), len, max });
    }
    let text = fs::read_to_string(file).map_err(unreadable)?;
    tandem_files::users::parse(&text).map_err(|Fault { line, reason }| FileError::InFile {
        file: file.to_owned(),
        line,
        key: None,
        seen: None,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_required_has_a_name_and_is_no_other_file() {
        let nameless = UsersSettings { require_usage_store: Some(true), ..Default::default() };
        let error = UsersSetup::try_from(nameless).unwrap_err().to_string();
        assert!(error.contains("require-usage-store") && error.contains("usage-store"), "{error}");
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
