//! A link, which clients of this project read.

use super::{Content, Kind, Profile};
use crate::{error::ProfileError, link::Link};

/// The end of RFC 9298's default template.
const DEFAULT_PATH: &str = "/.well-known/masque/udp/{target_host}/{target_port}/";

pub(super) fn profile(profile: &Profile) -> Result<Content, ProfileError> {
    let hop = profile.last();
    let template = hop.template.as_str();
    // A secret path stands before the path of the default template.
    let path = template.strip_suffix(DEFAULT_PATH).and_then(|start| start.split_once("://"));
    let path =
        path.map(|(_, rest)| rest.strip_prefix(hop.template.authority()).unwrap_or_default());
    let lacks = || ProfileError::Lacks {
        client: Kind::Tandem,
        what: "a template other than RFC 9298's default one, with a path before it or without",
    };
    let mut link = Link::new(hop.template.host(), hop.template.port())?
        .with_secret_path(path.ok_or_else(lacks)?)?
        .with_name(profile.user.as_deref())?;
    if let Some(token) = &hop.token {
        link = link.with_token(token.clone());
    }
    if let Some(certificate) = &profile.certificate {
        link = link.with_fingerprint(certificate.fingerprint());
    }
    // A name alone that looks like a token would be taken for one.
    let text = link.reveal();
    text.parse::<Link>()?;
    Ok(Content::Text(text))
}
