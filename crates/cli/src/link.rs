//! Links that set a client up: `tandem://NAME:TOKEN@HOST[:PORT][/SECRET-PATH]?sha256=HEX`.
//!
//! A link is a secret if it has a token or a secret path. So nothing prints one but [`Link::reveal`], and no error
//! shows a part of it but the names of its keys.

use std::{fmt, net::Ipv6Addr, str::FromStr};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tandem_node::proxy::Token;
use tandem_wire::{StrangerText, uri_template::check_host};

/// What every link begins with. RFC 3986 §3.1: upper and lower case are the same.
const SCHEME: &str = "tandem://";

/// The port of a link that names none: that of https.
const DEFAULT_PORT: u16 = 443;

/// Bytes of a SHA-256 fingerprint.
const FINGERPRINT_LEN: usize = 32;

/// What is percent-encoded in a name and a token: all but the unreserved characters (RFC 3986 §2.3).
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Characters of a secret path besides letters, digits and slashes: `pchar` of RFC 3986 §3.3 without percent-encoding,
/// which some programs undo, and without `@`, before which a token with a slash looks like a port and a path.
const IN_PATH: &[u8] = b"-._~!$&'()*+,;=:";

/// What a client needs to know of a proxy.
///
/// Do not make it the value of a flag or an argument: clap would show a link that it refuses, token and all.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Link {
    name: Option<String>,
    token: Option<Token>,
    /// A DNS name or an IP address. An IPv6 address has no brackets.
    host: String,
    port: u16,
    /// The path below which the proxy's templates are, without slashes at its ends. `None`: at the root.
    secret_path: Option<String>,
    fingerprint: Option<Fingerprint>,
}

/// The SHA-256 digest of a certificate in DER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint(pub(crate) [u8; FINGERPRINT_LEN]);

/// Why a text is not a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LinkError {
    /// Another scheme, or none.
    #[error("a link begins with {SCHEME}")]
    Scheme,
    /// A character that no link has, such as a space, or a letter with an accent in a host's name.
    #[error(
        "a link has visible ASCII characters only, and this one has {0:?}: was more than the link copied, or is it broken into two lines?"
    )]
    Character(char),
    /// It is longer than any link.
    #[error("{len} bytes; a link has at most {max}")]
    TooLong {
        /// Bytes of the text.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A percent sign without two hexadecimal digits.
    #[error("a percent sign without two hexadecimal digits after it: is the link cut?")]
    Percent,
    /// Something stands before `@`, but not the name of a user.
    #[error(
        "the name before the token must have 1 to 128 visible ASCII characters; without a name, a colon stands before the token"
    )]
    Name,
    /// A token is where the name of a user is expected.
    #[error("what stands before @ looks like a token without a name: write a colon before it")]
    TokenWithoutColon,
    /// What stands between the colon and `@` is no token.
    #[error(
        "what stands between the colon and @ is no token: a token has 16 to 8192 characters out of A-Z a-z 0-9 - . _ ~ + / and = at the end"
    )]
    Token,
    /// No host, or no name or address.
    #[error("there is no host: is the link cut?")]
    NoHost,
    /// The host is neither a name nor an address, or it is a name that ends in a number.
    #[error(
        "the host is neither a DNS name nor an IP address (a token has / as %2F, and @ stands before the host)"
    )]
    Host,
    /// An IPv6 address without brackets, or brackets without one.
    #[error("an IPv6 address needs brackets, as in [2001:db8::1]:443")]
    Brackets,
    /// The port is not one.
    #[error(
        "a port from 1 to 65535 is expected after the host's colon (a token has / as %2F, and @ stands before the host)"
    )]
    Port,
    /// The path has parts that programs change, or characters that a path does not have.
    #[error(
        "the path has a part that is empty, \".\" or \"..\", or a character that would need percent-encoding, which is not allowed in a link's path"
    )]
    Path,
    /// A fragment.
    #[error("a # is not allowed in a link")]
    Fragment,
    /// A key that is not known.
    #[error("unknown key {0:?}; allowed: sha256. A newer version of tandem may know it")]
    UnknownKey(StrangerText),
    /// The same key twice.
    #[error("the link has sha256 twice")]
    DoubledKey,
    /// The fingerprint has another form or length.
    #[error("sha256 has {digits} hexadecimal digits, and {others} other characters; allowed: {} digits", 2 * FINGERPRINT_LEN)]
    Fingerprint {
        /// Hexadecimal digits in it.
        digits: usize,
        /// Other characters but colons.
        others: usize,
    },
}

impl Link {
    /// Bytes of the longest link: each byte of a token of the largest length may be encoded as three.
    const LEN_MAX: usize = 32_768;

    /// Characters of the longest name of a user.
    const NAME_MAX: usize = 128;

    /// A link without a name, a token, a path and a fingerprint.
    pub(crate) fn new(host: &str, port: u16) -> Result<Self, LinkError> {
        check_host(host).map_err(|_| LinkError::Host)?;
        if port == 0 {
            return Err(LinkError::Port);
        }
        let host = host.to_ascii_lowercase();
        Ok(Self { name: None, token: None, host, port, secret_path: None, fingerprint: None })
    }

    /// Whether a text can be the name of a user.
    pub(crate) fn is_name(text: &str) -> bool {
        (1..=Self::NAME_MAX).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_graphic())
    }

    /// With the name of a user. `None`: a user without a name.
    pub(crate) fn with_name(mut self, name: Option<&str>) -> Result<Self, LinkError> {
        if name.is_some_and(|name| !Self::is_name(name)) {
            return Err(LinkError::Name);
        }
        self.name = name.map(str::to_owned);
        Ok(self)
    }

    /// With what the user shows to the proxy.
    pub(crate) fn with_token(self, token: Token) -> Self {
        Self { token: Some(token), ..self }
    }

    /// With the path below which the proxy's templates are. Slashes at its ends do not count.
    pub(crate) fn with_secret_path(mut self, path: &str) -> Result<Self, LinkError> {
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = if path == "/" { path } else { path.strip_suffix('/').unwrap_or(path) };
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || IN_PATH.contains(&byte);
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_allowed);
        if !path.is_empty() && !path.split('/').all(is_part) {
            return Err(LinkError::Path);
        }
        self.secret_path = Some(path).filter(|path| !path.is_empty()).map(str::to_owned);
        Ok(self)
    }

    /// With the fingerprint of the only certificate that the proxy may show.
    pub(crate) fn with_fingerprint(self, fingerprint: Fingerprint) -> Self {
        Self { fingerprint: Some(fingerprint), ..self }
    }

    /// The name of the user, if the link has one.
    #[cfg(test)]
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What the user shows to the proxy, if the link has it.
    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// The host of the proxy: a DNS name in lower case, or an IP address without brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The port of the proxy.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The path below which the proxy's templates are: empty at the root, else it begins with a slash and ends without
    /// one.
    pub(crate) fn path(&self) -> String {
        self.secret_path.as_ref().map(|path| format!("/{path}")).unwrap_or_default()
    }

    /// The fingerprint of the only certificate that the proxy may show. `None`: its certificate has a name of the
    /// host, and is signed by a CA that the client trusts.
    pub(crate) fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// Host and port, as in a URL. The port is left out if it is 443.
    pub(crate) fn authority(&self) -> String {
        let host = &self.host;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        if self.port == DEFAULT_PORT { host } else { format!("{host}:{}", self.port) }
    }

    /// The proxy as --via names it. A secret path is in it.
    pub(crate) fn via(&self) -> String {
        format!("https://{}{}", self.authority(), self.path())
    }

    /// The link itself, token and all, for a place that only its owner can read.
    pub(crate) fn reveal(&self) -> String {
        let encoded = |text: &str| utf8_percent_encode(text, ENCODED).to_string();
        let name = self.name.as_deref().map(encoded).unwrap_or_default();
        let token = self.token.as_ref().map(|token| format!(":{}", encoded(token.reveal())));
        let user = match (name.as_str(), token) {
            ("", None) => String::new(),
            (name, token) => format!("{name}{}@", token.unwrap_or_default()),
        };
        let (authority, path) = (self.authority(), self.path());
        let query = self.fingerprint.map(|it| format!("?sha256={it}")).unwrap_or_default();
        format!("{SCHEME}{user}{authority}{path}{query}")
    }

    /// The part before `@`: `NAME`, `NAME:TOKEN` or `:TOKEN`.
    fn with_user(self, user: &str) -> Result<Self, LinkError> {
        let Some((name, token)) = user.split_once(':') else {
            let name = decoded(user)?;
            if Token::parse(&name).is_ok() {
                return Err(LinkError::TokenWithoutColon);
            }
            return self.with_name(Some(&name));
        };
        let name = decoded(name)?;
        let token = Token::parse(&decoded(token)?).map_err(|_| LinkError::Token)?;
        let name = Some(name.as_str()).filter(|name| !name.is_empty());
        Ok(self.with_name(name)?.with_token(token))
    }

    /// The part after `?`.
    fn with_query(mut self, query: &str) -> Result<Self, LinkError> {
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some(("sha256", _)) if self.fingerprint.is_some() => {
                    return Err(LinkError::DoubledKey);
                }
                Some(("sha256", value)) => self = self.with_fingerprint(value.parse()?),
                Some((key, _)) => return Err(LinkError::UnknownKey(key.into())),
                None => return Err(LinkError::UnknownKey(pair.into())),
            }
        }
        Ok(self)
    }
}

impl FromStr for Link {
    type Err = LinkError;

    /// Parses a link. Whitespace around it does not count, since people copy it from messages.
    fn from_str(text: &str) -> Result<Self, LinkError> {
        let text = text.trim();
        if text.len() > Self::LEN_MAX {
            return Err(LinkError::TooLong { len: text.len(), max: Self::LEN_MAX });
        }
        let scheme = text.get(..SCHEME.len()).unwrap_or_default();
        if !scheme.eq_ignore_ascii_case(SCHEME) {
            return Err(LinkError::Scheme);
        }
        if let Some(character) = text.chars().find(|it| !it.is_ascii_graphic()) {
            return Err(LinkError::Character(character));
        }
        if text.contains('#') {
            return Err(LinkError::Fragment);
        }
        let rest = text.get(SCHEME.len()..).unwrap_or_default();
        let (before, query) = match rest.split_once('?') {
            Some((before, query)) => (before, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = before.split_at(before.find('/').unwrap_or(before.len()));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let (host, port) = host_and_port(host)?;
        let mut link = Self::new(host, port)?.with_secret_path(path)?;
        if let Some(user) = user {
            link = link.with_user(user)?;
        }
        match query {
            Some(query) => link.with_query(query),
            None => Ok(link),
        }
    }
}

/// Splits what stands behind `@`. An IPv6 address comes without its brackets.
fn host_and_port(text: &str) -> Result<(&str, u16), LinkError> {
    let (host, rest) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(LinkError::Brackets)?;
        host.parse::<Ipv6Addr>().map_err(|_| LinkError::Brackets)?;
        (host, rest)
    } else {
        text.split_at(text.find(':').unwrap_or(text.len()))
    };
    if host.is_empty() {
        return Err(LinkError::NoHost);
    }
    if text.parse::<Ipv6Addr>().is_ok() || rest.matches(':').count() > 1 {
        return Err(LinkError::Brackets);
    }
    let port = match rest.strip_prefix(':') {
        // A link that is cut within its token must not look like a host and a port more often than it has to.
        Some(port) if port.bytes().all(|it| it.is_ascii_digit()) && !port.starts_with('0') => {
            port.parse().map_err(|_| LinkError::Port)?
        }
        Some(_) => return Err(LinkError::Port),
        None if rest.is_empty() => DEFAULT_PORT,
        None => return Err(LinkError::Host),
    };
    Ok((host, port))
}

/// Undoes percent-encoding, which must be whole.
fn decoded(text: &str) -> Result<String, LinkError> {
    let is_encoding = |after: &str| {
        let digits = after.bytes().take(2).filter(u8::is_ascii_hexdigit);
        digits.count() == 2
    };
    if !text.split('%').skip(1).all(is_encoding) {
        return Err(LinkError::Percent);
    }
    let text = percent_decode_str(text).decode_utf8().map_err(|_| LinkError::Name)?;
    Ok(text.into_owned())
}

impl FromStr for Fingerprint {
    type Err = LinkError;

    /// Parses hexadecimal digits in upper or lower case. Colons between them do not count, since OpenSSL prints some.
    fn from_str(text: &str) -> Result<Self, LinkError> {
        let digits: Vec<Option<u8>> = (text.chars().filter(|it| *it != ':'))
            .map(|it| it.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let others = digits.iter().filter(|it| it.is_none()).count();
        let refused = || LinkError::Fingerprint { digits: digits.len() - others, others };
        let byte = |pair: &[Option<u8>]| match pair {
            [Some(high), Some(low)] => Some(high << 4 | low),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(refused)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Link {
    /// Shows neither the token nor the secret path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("name", &self.name)
            .field("authority", &self.authority())
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
