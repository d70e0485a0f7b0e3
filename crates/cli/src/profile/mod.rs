//! `tandem generate profile`: what a client needs to know of a proxy, in the form that this client reads.

mod apple;
mod curl;
mod firefox;
mod mihomo;
mod qr;
mod sing_box;
mod surge;
mod tandem;

use std::{
    fmt, iter,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use clap::ValueEnum;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use tandem_node::proxy::{NamedToken, Token};
use tandem_server::{files::tokens, process::secret::write_new, tls::pem};
use tandem_wire::{StrangerText, Template, uri_template::check_host};

use crate::{
    config::{ValueError, Via},
    error::{CliError, ConfigError, ProfileError},
    link::Fingerprint,
    text,
};

/// The mode of files with tokens.
const OWNER_ONLY: u32 = 0o600;

/// The name by which the configuration of a client calls the proxy.
const NAME: &str = "Tandem";

/// A client for which a profile is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// iOS, iPadOS, macOS, tvOS and visionOS: a configuration profile with a network relay
    Apple,
    /// Surge for iOS and macOS: lines of its configuration
    Surge,
    /// sing-box 1.15 or newer: outbounds and rules
    SingBox,
    /// mihomo (Clash): a proxy and rules, for TCP only
    Mihomo,
    /// curl 8.21 or newer with HTTP/3: a file for curl -K
    Curl,
    /// Firefox: an add-on
    Firefox,
    /// This program: a link, and its QR code
    Tandem,
}

/// What a profile can say to a client.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a column of a table")]
struct Can {
    /// Several proxies, each of which is reached through the one before it.
    chain: bool,
    /// A template other than the default one.
    template: bool,
    /// Which domains go through the proxy.
    domains: bool,
    /// Which domains do not.
    excluded: bool,
    /// A certificate that no public CA has signed.
    certificate: bool,
    /// A user name with a colon, which Basic credentials cannot have (RFC 7617 §2).
    colon: bool,
}

impl Kind {
    const fn can(self) -> Can {
        let all = Can {
            chain: true,
            template: true,
            domains: true,
            excluded: true,
            certificate: true,
            colon: true,
        };
        match self {
            Self::Apple => all,
            Self::Surge | Self::SingBox => Can { template: false, colon: false, ..all },
            Self::Mihomo => Can { chain: false, template: false, colon: false, ..all },
            Self::Curl => Can { chain: false, template: false, domains: false, ..all },
            Self::Firefox => Can { chain: false, certificate: false, ..all },
            Self::Tandem => Can { chain: false, domains: false, excluded: false, ..all },
        }
    }
}

impl fmt::Display for Kind {
    /// The word that names it on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("each client has a word");
        f.write_str(value.get_name())
    }
}

/// Flags of the subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct ProfileArgs {
    /// For which client
    kind: Kind,

    /// The proxy: https://HOST:PORT or a URI template; repeat it for a chain, nearest proxy first
    #[arg(long, value_name = "URL", required = true)]
    via: Vec<Via>,

    /// The name of the user; without it, the profile is for the first token of the file
    #[arg(long, value_name = "NAME")]
    user: Option<UserName>,

    /// File with the user's token; repeat it to name one file for each --via
    ///
    /// Also a proxy's file with the tokens of all users will do: --user says which one the profile gets.
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    token_file: Vec<PathBuf>,

    /// The proxy's own certificate in PEM, if no public CA has signed it
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,

    /// Send only this domain and what is below it through the proxy; repeatable, or several with commas between
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',')]
    domain: Vec<Domain>,

    /// Do not send this domain and what is below it through the proxy; repeatable, or several with commas between
    #[arg(long, value_name = "DOMAIN", value_delimiter = ',')]
    exclude_domain: Vec<Domain>,

    /// Write the profile to a new file, which only its owner can read, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also write the QR code of the link to a new file; only for `tandem`
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
}

/// The name of a user: 1 to 128 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UserName(String);

impl FromStr for UserName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_name =
            (1..=128).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_graphic());
        let expected = "1 to 128 visible ASCII characters without spaces";
        is_name.then(|| Self(text.to_owned())).ok_or(ValueError::Form { expected })
    }
}

/// A DNS name that stands for itself and for all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Domain(String);

impl FromStr for Domain {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "a domain such as example.org, which stands for all names below it too";
        let is_address = text.parse::<IpAddr>().is_ok();
        if is_address || check_host(text).is_err() {
            return Err(ValueError::Form { expected });
        }
        Ok(Self(text.trim_end_matches('.').to_ascii_lowercase()))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a profile says. Its parts fit the client, as [`Can`] has it.
#[derive(Debug)]
struct Profile {
    /// The proxies, nearest first: at least one.
    hops: Vec<Hop>,
    user: Option<String>,
    domains: Vec<Domain>,
    excluded: Vec<Domain>,
    certificate: Option<Certificate>,
}

/// A proxy of a profile.
#[derive(Debug)]
struct Hop {
    template: Template,
    token: Option<Token>,
}

/// The proxy's certificate.
#[derive(Debug)]
struct Certificate {
    /// Where it is.
    file: PathBuf,
    der: CertificateDer<'static>,
}

impl Certificate {
    /// The lines of its PEM form (RFC 7468 §3).
    fn pem_lines(&self) -> Vec<String> {
        const WIDTH: usize = 64;
        let text = BASE64_STANDARD.encode(&self.der);
        let line = |start: usize| text.get(start..text.len().min(start + WIDTH)).map(str::to_owned);
        let lines = (0..text.len()).step_by(WIDTH).filter_map(line);
        let edge = |word: &str| iter::once(format!("-----{word} CERTIFICATE-----"));
        edge("BEGIN").chain(lines).chain(edge("END")).collect()
    }

    fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(&self.der).into())
    }
}

impl Hop {
    /// Whether clients that know only the proxy's host and port find it.
    fn has_default_template(&self) -> bool {
        Template::default_for(self.template.authority()).is_ok_and(|it| it == self.template)
    }

    /// What a client that asks for a user and a password is told: the name may be empty.
    fn login<'a>(&'a self, profile: &'a Profile) -> Option<(&'a str, &'a str)> {
        let user = profile.user.as_deref().unwrap_or_default();
        self.token.as_ref().map(|token| (user, token.reveal()))
    }

    /// The value of a field with the token.
    fn bearer(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("Bearer {}", token.reveal()))
    }
}

impl Profile {
    /// The proxy from which connections leave.
    fn last(&self) -> &Hop {
        self.hops.last().expect("clap demands a proxy")
    }

    /// The rules of clients that have a list of them: what goes through the proxy, and what does not.
    fn rules(&self) -> impl Iterator<Item = (&Domain, bool)> {
        let excluded = self.excluded.iter().map(|domain| (domain, false));
        excluded.chain(self.domains.iter().map(|domain| (domain, true)))
    }

    /// A UUID (RFC 9562, version 8) that is the same for the same proxies, user and part, so that a new profile takes
    /// the place of an older one.
    fn uuid(&self, part: &str) -> String {
        let mut hash = Sha256::new();
        let proxies = self.hops.iter().map(|hop| hop.template.as_str());
        let user = self.user.as_deref().unwrap_or_default();
        for text in iter::once(part).chain([user]).chain(proxies) {
            hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(text);
        }
        let digest: [u8; 32] = hash.finalize().into();
        let bits = u128::from_be_bytes(digest.first_chunk().copied().unwrap_or_default());
        let version = (bits & !(0xf << 76)) | (8 << 76);
        let digits = format!("{:032X}", (version & !(0b11 << 62)) | (0b10 << 62));
        let groups =
            [0..8, 8..12, 12..16, 16..20, 20..32].map(|it| digits.get(it).unwrap_or_default());
        groups.join("-")
    }
}

/// The text or the bytes of a profile.
enum Content {
    Text(String),
    /// It cannot be shown in a terminal.
    Binary(Vec<u8>),
}

impl ProfileArgs {
    pub(crate) fn run(mut self) -> Result<(), CliError> {
        let (kind, output, png) = (self.kind, self.output.take(), self.png.take());
        let has_token = !self.token_file.is_empty();
        if png.is_some() && kind != Kind::Tandem {
            let reason = "only a link has a QR code";
            return Err(ConfigError::Conflict { first: "png", second: "KIND", reason }.into());
        }
        // All is made before anything is written.
        let (content, mut files) = (self.content()?, Vec::new());
        if let (Some(png), Content::Text(link)) = (&png, &content) {
            files.push((png.clone(), qr::png(link)?));
        }
        match (output, content) {
            (None, Content::Binary(_)) => return Err(ProfileError::Binary { client: kind }.into()),
            (None, Content::Text(text)) => {
                if kind == Kind::Tandem && png.is_none() && qr::has_room() {
                    text::print(qr::drawing(&text)?)?;
                }
                text::print(text)?;
            }
            (Some(file), Content::Text(text)) => files.push((file, (text + "\n").into_bytes())),
            (Some(file), Content::Binary(bytes)) => files.push((file, bytes)),
        }
        for (file, bytes) in files {
            write_new(&file, bytes, OWNER_ONLY)?;
            if has_token {
                let file = file.display();
                text::say(format_args!("{file} has a token: who reads it can use the proxy"));
            }
        }
        Ok(())
    }

    /// The profile.
    fn content(self) -> Result<Content, CliError> {
        let kind = self.kind;
        let profile = self.read()?;
        Ok(match kind {
            Kind::Apple => apple::profile(&profile)?,
            Kind::Surge => surge::profile(&profile)?,
            Kind::SingBox => sing_box::profile(&profile),
            Kind::Mihomo => mihomo::profile(&profile),
            Kind::Curl => curl::profile(&profile),
            Kind::Firefox => firefox::profile(&profile)?,
            Kind::Tandem => tandem::profile(&profile)?,
        })
    }

    /// Reads the files, and checks that the client can have all that was asked for.
    fn read(self) -> Result<Profile, CliError> {
        let (kind, can) = (self.kind, self.kind.can());
        let lacks = |what| Err(ProfileError::Lacks { client: kind, what }.into());
        if self.via.len() > 1 && !can.chain {
            return lacks("a chain of proxies");
        }
        if !self.domain.is_empty() && !can.domains {
            return lacks("domains that alone go through the proxy");
        }
        if !self.exclude_domain.is_empty() && !can.excluded {
            return lacks("domains that do not go through the proxy");
        }
        if self.cert.is_some() && !can.certificate {
            return lacks("a certificate that no public CA has signed");
        }
        if self.cert.is_some() && self.via.len() > 1 {
            return lacks("certificates of the proxies of a chain");
        }
        // A URL may have a host with commas and other signs, which would end its place in a line.
        if let Some(Via(template)) = self.via.iter().find(|via| check_host(via.0.host()).is_err()) {
            return Err(ProfileError::Host { host: template.host().into() }.into());
        }
        let user = self.user.map(|user| user.0);
        if user.as_ref().is_some_and(|user| user.contains(':')) && !can.colon {
            return lacks("user names with a colon");
        }
        let mut profile = Profile {
            hops: Vec::new(),
            user,
            domains: self.domain,
            excluded: self.exclude_domain,
            certificate: None,
        };
        let tokens: Result<Vec<_>, CliError> =
            self.token_file.iter().map(|file| profile.token(file)).collect();
        let mut tokens = tokens?;
        let (files, proxies) = (tokens.len(), self.via.len());
        if files > 1 && files != proxies {
            return Err(ConfigError::TokenFiles { files, proxies }.into());
        }
        // One file is for all proxies.
        let first = tokens.first().cloned();
        tokens.resize(proxies, first.unwrap_or_default());
        if profile.user.is_none() {
            // The proxies of a chain may call the user by different names, and need none.
            let mut names = tokens.iter().map(|token| token.name.as_deref());
            let name = names.next().flatten().filter(|first| names.all(|it| it == Some(first)));
            profile.user = name.map(str::to_owned);
        }
        profile.hops = (self.via.into_iter().zip(tokens))
            .map(|(Via(template), token)| Hop { template, token: token.token })
            .collect();
        if !can.template && !profile.hops.iter().all(Hop::has_default_template) {
            return lacks("a template other than RFC 9298's default one");
        }
        if let Some(file) = self.cert {
            let der = pem::certificates(&file)?.swap_remove(0);
            profile.certificate = Some(Certificate { file, der });
        }
        Ok(profile)
    }
}

/// What a file says of a user.
#[derive(Clone, Default)]
struct FoundToken {
    /// The name by which the proxy knows the token, if the file says one.
    name: Option<String>,
    token: Option<Token>,
}

impl Profile {
    /// The user's token: the one of this name, or the only one of a file that says no names.
    fn token(&self, file: &Path) -> Result<FoundToken, CliError> {
        let tokens = tokens::read_all(file)?.tokens;
        // The file gives a token without a name that of its line.
        let has_name = |token: &NamedToken| !token.name().starts_with("token-");
        let found = match (&self.user, tokens.as_slice()) {
            (None, [first, ..]) => Some(first),
            (Some(_), [only]) if !has_name(only) => Some(only),
            (Some(user), all) => all.iter().find(|token| token.name() == user),
            (None, []) => None,
        };
        let found = found.cloned().ok_or_else(|| {
            let user = StrangerText::from(self.user.as_deref().unwrap_or_default());
            ProfileError::NoTokenOf { file: file.to_owned(), user }
        })?;
        let name = has_name(&found).then(|| found.name().to_owned());
        Ok(FoundToken { name, token: Some(found.into_token()) })
    }
}

#[cfg(test)]
mod tests;
