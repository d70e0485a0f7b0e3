//! The settings of a proxy about its users.

use std::path::PathBuf;

use clap::builder::Resettable;
use tandem_server::users::UsersSetup;

use crate::error::ConfigError;

/// Flags, and keys of a file.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct UsersSettings {
    /// Serve clients that send one of the tokens in this file, which has TOKEN or NAME TOKEN on each
    /// line; logs show the name of a flow's token
    #[arg(long, value_name = "FILE", env = "TANDEM_TOKEN_FILE", help_heading = Resettable::Reset)]
    token_file: Option<PathBuf>,

    /// Serve clients that send a JSON Web Token whose signature one of the keys in this file verifies
    ///
    /// The file is a JWK Set (RFC 7517) with RSA keys, or keys of P-256, P-384 or Ed25519. The user's name is
    /// the claim `sub`, and a token needs the claim `exp`. Flows end when their token expires.
    #[arg(long, value_name = "FILE", env = "TANDEM_JWKS")]
    jwks: Option<PathBuf>,

    /// Serve clients that show they have the private key of one of the public keys in this file, a NAME and a KEY on
    /// each line (RFC 9729; `tandem generate concealed-key` makes one); strangers cannot find out that a proxy asks for
    /// it
    #[arg(long, value_name = "FILE", env = "TANDEM_CONCEALED_KEYS")]
    concealed_keys: Option<PathBuf>,

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
    #[arg(long, value_name = "FILE", env = "TANDEM_USERS_FILE", help_heading = Resettable::Reset)]
    users_file: Option<PathBuf>,

    /// File in which to keep what users have used in a month; `tandem users` prints it
    #[arg(long, value_name = "FILE", env = "TANDEM_USAGE_STORE")]
    usage_store: Option<PathBuf>,

    /// Do not start without the usage store, rather than count from zero, when it is damaged or cannot be opened
    #[arg(long, value_name = "BOOL", env = "TANDEM_REQUIRE_USAGE_STORE",
          num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    require_usage_store: Option<bool>,
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
        let UsersSettings { token_file, concealed_keys, users_file, usage_store, .. } = settings;
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
            concealed_keys,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_required_has_a_name() {
        let nameless = UsersSettings { require_usage_store: Some(true), ..Default::default() };
        let error = UsersSetup::try_from(nameless).unwrap_err().to_string();
        assert!(error.contains("require-usage-store") && error.contains("usage-store"), "{error}");
    }
}
