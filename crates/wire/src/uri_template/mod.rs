//! The URI template that locates a CONNECT-UDP proxy and identifies a target ([RFC 9298 §2],
//! [RFC 6570]).
//!
//! [RFC 9298 §2]: https://www.rfc-editor.org/rfc/rfc9298#section-2
//! [RFC 6570]: https://www.rfc-editor.org/rfc/rfc6570

mod path_matcher;
mod target;

use std::fmt;
use std::str::FromStr;

use http::uri::Authority;
use iri_string::spec::UriSpec;
use iri_string::template::context::{Context, Visitor};
use iri_string::template::{Error as SyntaxError, UriTemplateStr};

use crate::StrangerText;

pub use self::path_matcher::PathMatcher;
pub use self::target::{TargetError, check_host, parse_target_authority};

const TARGET_HOST: &str = "target_host";
const TARGET_PORT: &str = "target_port";

/// The default port of https ([RFC 9110 §4.2.2]).
///
/// [RFC 9110 §4.2.2]: https://www.rfc-editor.org/rfc/rfc9110#section-4.2.2
const HTTPS_PORT: u16 = 443;

/// A URI template for CONNECT-UDP, which meets the requirements of [RFC 9298 §2].
///
/// [RFC 9298 §2]: https://www.rfc-editor.org/rfc/rfc9298#section-2
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    authority: Authority,
    port: u16,
    /// The position of the path in `text`.
    path_start: usize,
    /// The parts of the path and the query.
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Literal(String),
    Expression { operator: Operator, variables: Vec<String> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    /// `{a,b}` expands to the values, separated by commas.
    Simple,
    /// `{?a,b}` expands to "?a=", the value, "&b=" and the value.
    Query,
    /// `{&a,b}` expands to "&a=", the value, "&b=" and the value.
    QueryContinuation,
}

/// The reason why a text is not a template for CONNECT-UDP, or why a proxy cannot use the template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template has a character that is not visible ASCII.
    #[error("character {0:?} in the template; allowed: visible ASCII")]
    Character(char),
    /// The text is not a URI template (RFC 6570).
    #[error("not a URI template: {0}")]
    Syntax(SyntaxError),
    /// The template does not begin with "https://".
    #[error("the template does not begin with \"https://\"")]
    NotHttps,
    /// The part between "https://" and the path is not a host with an optional port.
    #[error("{0:?} is not a host, optionally with a port from 1 to 65535")]
    Authority(StrangerText),
    /// No path follows the authority.
    #[error("the template has no path that begins with \"/\"")]
    NoPath,
    /// The template has a fragment, or a variable before the path.
    #[error("{0:?} is not in the path or query of the template")]
    OutsidePathAndQuery(StrangerText),
    /// The template has an operator that RFC 9298 forbids.
    #[error("operator {0:?} in the template; allowed: none, \"?\", \"&\"")]
    Operator(char),
    /// A variable has a prefix or explode modifier, which belongs to level 4 of RFC 6570.
    #[error("{0:?} has a modifier; templates are at most level 3")]
    Level4(StrangerText),
    /// A required variable is missing.
    #[error("the template has no variable {0:?}")]
    VariableMissing(&'static str),

    /// A proxy's template has a variable for which the proxy has no value.
    #[error("a proxy's template may have only target_host and target_port, not {0:?}")]
    VariableUnknown(StrangerText),
    /// A proxy's template has a variable twice, so that a path could have two values for it.
    #[error("a proxy's template must have each variable once, but has {0:?} twice")]
    VariableRepeated(StrangerText),
    /// A proxy cannot determine the end of a value in a path.
    #[error("the end of {0} is not clear; put \"/\" or another reserved character after it")]
    Ambiguous(&'static str),
}

/// The URI of a template for one target, as the pseudo-header fields of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expanded {
    /// The value of `:scheme`.
    pub scheme: String,
    /// The value of `:authority`.
    pub authority: String,
    /// The value of `:path`, including the query.
    pub path: String,
}

impl Template {
    /// Parses and checks a template ([RFC 9298 §2]).
    ///
    /// # Errors
    ///
    /// The text is not a URI template, or does not meet the requirements of RFC 9298.
    ///
    /// [RFC 9298 §2]: https://www.rfc-editor.org/rfc/rfc9298#section-2
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        // RFC 9298 §2: "The URI Template MUST NOT contain any non-ASCII Unicode characters and
        // MUST only contain ASCII characters in the range 0x21-0x7E inclusive".
        if let Some(character) = text.chars().find(|c| !c.is_ascii_graphic()) {
            return Err(TemplateError::Character(character));
        }
        UriTemplateStr::new(text).map_err(TemplateError::Syntax)?;
        // RFC 9298 §2: "The URI Template MUST be in absolute form and MUST include non-empty
        // scheme, authority, and path components."
        let scheme_end = "https://".len();
        match text.get(..scheme_end) {
            Some(scheme) if scheme.eq_ignore_ascii_case("https://") => {}
            Some(_) | None => return Err(TemplateError::NotHttps),
        }
        let (_, rest) = text.split_at(scheme_end);
        let authority_len = rest.find(['/', '?', '#', '{']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(authority_len);
        let (authority, port) = parse_authority(authority)?;
        // RFC 9298 §2: "The path component of the URI Template MUST start with a slash "/"."
        if !path.starts_with('/') {
            return Err(match path.split_once('}') {
                Some((variable, _)) if variable.starts_with('{') => {
                    TemplateError::OutsidePathAndQuery(format!("{variable}}}").into())
                }
                _ => TemplateError::NoPath,
            });
        }
        let parts = parse_parts(path)?;
        let path_start = scheme_end + authority_len;
        Ok(Self { text: text.to_owned(), authority, port, path_start, parts })
    }

    /// Returns the default template of RFC 9298 §2 for a proxy whose template is not configured:
    /// `https://AUTHORITY/.well-known/masque/udp/{target_host}/{target_port}/`. `authority` is a host
    /// with an optional port.
    ///
    /// # Errors
    ///
    /// `authority` is not a host with an optional port.
    pub fn default_for(authority: &str) -> Result<Self, TemplateError> {
        parse_authority(authority)?;
        Self::parse(&format!("https://{authority}{}", default_path("udp")))
    }

    /// The default template for TCP connections through the proxy `authority`
    /// (draft-ietf-httpbis-connect-tcp).
    ///
    /// # Errors
    ///
    /// The authority is malformed.
    pub fn default_for_tcp(authority: &str) -> Result<Self, TemplateError> {
        parse_authority(authority)?;
        Self::parse(&format!("https://{authority}{}", default_path("tcp")))
    }

    /// The default template for TCP connections through the proxy that has this template for UDP. If that one is the
    /// default below a path, so is the other.
    ///
    /// # Errors
    ///
    /// There is no such template.
    pub fn default_tcp_beside(&self) -> Result<Self, TemplateError> {
        match self.text.strip_suffix(&default_path("udp")) {
            Some(base) => Self::parse(&format!("{base}{}", default_path("tcp"))),
            None => Self::default_for_tcp(self.authority()),
        }
    }

    /// The template of a proxy as a user names it: a template, or `https://HOST:PORT`, or `HOST:PORT`,
    /// which stand for the default template, or `https://HOST:PORT/PATH`, which stands for the same below a path.
    ///
    /// # Errors
    ///
    /// The text is none of these.
    pub fn of_proxy(text: &str) -> Result<Self, TemplateError> {
        if text.contains('{') {
            return Self::parse(text);
        }
        let Some(rest) = text.strip_prefix("https://") else { return Self::default_for(text) };
        let base = rest.strip_suffix('/').unwrap_or(rest);
        match base.split_once('/') {
            Some((_, path)) if !path.contains(['?', '#']) => {
                Self::parse(&format!("https://{base}{}", default_path("udp")))
            }
            _ => Self::default_for(base),
        }
    }

    /// Expands the template to the URI for one target.
    ///
    /// `host` is an IP address without brackets or a name; see [`check_host`]. Colons are
    /// percent-encoded.
    #[expect(clippy::missing_panics_doc, reason = "`parse` has checked all assumptions")]
    pub fn expand(&self, host: &str, port: u16) -> Expanded {
        let target = TemplateTarget { host, port: &port.to_string() };
        let template = UriTemplateStr::new(&self.text).expect("checked by parse");
        let uri = template.expand::<UriSpec, _>(&target).expect("strings fit every expansion");
        let uri = uri.to_string();
        let path = uri.get(self.path_start..).expect("nothing expands before the path");
        Expanded {
            scheme: "https".to_owned(),
            authority: self.authority.as_str().to_owned(),
            path: path.to_owned(),
        }
    }

    /// Returns the proxy's host and, if the template has one, its port.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Returns the proxy's host. An IPv6 address has no brackets.
    pub fn host(&self) -> &str {
        let host = self.authority.host();
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Returns the proxy's port, or 443 if the template has none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the text of the template.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        Self::parse(text)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// The path of the default templates, below that of a proxy ([RFC 9298 §2]).
///
/// [RFC 9298 §2]: https://www.rfc-editor.org/rfc/rfc9298#section-2
fn default_path(service: &str) -> String {
    format!("/.well-known/masque/{service}/{{{TARGET_HOST}}}/{{{TARGET_PORT}}}/")
}

fn parse_authority(text: &str) -> Result<(Authority, u16), TemplateError> {
    let refused = || TemplateError::Authority(text.into());
    let authority: Authority = text.parse().map_err(|_| refused())?;
    let host = authority.host();
    let rest = authority.as_str().strip_prefix(host).ok_or_else(refused)?; // this also refuses userinfo
    let port = match rest.strip_prefix(':') {
        None => HTTPS_PORT,
        Some(port) => port.parse().map_err(|_| refused())?,
    };
    if host.is_empty() || port == 0 || !(rest.is_empty() || rest.starts_with(':')) {
        return Err(refused());
    }
    Ok((authority, port))
}

/// Splits path and query into parts. Their syntax was checked before.
fn parse_parts(mut rest: &str) -> Result<Vec<TemplatePart>, TemplateError> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (literal, tail) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
        // RFC 9298 §2: "All template variables MUST be within the path or query components of the
        // URI."
        if let Some((_, fragment)) = literal.split_once('#') {
            return Err(TemplateError::OutsidePathAndQuery(format!("#{fragment}").into()));
        }
        if !literal.is_empty() {
            parts.push(TemplatePart::Literal(literal.to_owned()));
        }
        let Some((expression, tail)) = tail.strip_prefix('{').and_then(|tail| tail.split_once('}'))
        else {
            break;
        };
        parts.push(parse_expression(expression)?);
        rest = tail;
    }
    let has = |name: &str| {
        parts.iter().any(|part| match part {
            TemplatePart::Literal(_) => false,
            TemplatePart::Expression { variables, .. } => {
                variables.iter().any(|variable| variable == name)
            }
        })
    };
    // RFC 9298 §2: "The URI Template MUST contain the two variables "target_host" and
    // "target_port" and MAY contain other variables."
    for name in [TARGET_HOST, TARGET_PORT] {
        if !has(name) {
            return Err(TemplateError::VariableMissing(name));
        }
    }
    Ok(parts)
}

fn parse_expression(expression: &str) -> Result<TemplatePart, TemplateError> {
    let (operator, variables) = match expression.chars().next() {
        Some('?') => (Operator::Query, expression.trim_start_matches('?')),
        Some('&') => (Operator::QueryContinuation, expression.trim_start_matches('&')),
        // RFC 9298 §2: "The URI Template MUST NOT use Reserved Expansion ("+" operator), Fragment
        // Expansion ("#" operator), Label Expansion with Dot-Prefix, Path Segment Expansion with
        // Slash-Prefix, nor Path-Style Parameter Expansion with Semicolon-Prefix."
        Some(operator @ ('+' | '#' | '.' | '/' | ';')) => {
            return Err(TemplateError::Operator(operator));
        }
        _ => (Operator::Simple, expression),
    };
    // RFC 9298 §2: "The URI Template MUST be a level 3 template or lower."
    if let Some(variable) = variables.split(',').find(|name| name.contains([':', '*'])) {
        return Err(TemplateError::Level4(variable.into()));
    }
    let variables = variables.split(',').map(str::to_owned).collect();
    Ok(TemplatePart::Expression { operator, variables })
}

struct TemplateTarget<'a> {
    host: &'a str,
    port: &'a str,
}

impl Context for TemplateTarget<'_> {
    fn visit<V: Visitor>(&self, visitor: V) -> V::Result {
        match visitor.var_name().as_str() {
            TARGET_HOST => visitor.visit_string(self.host),
            TARGET_PORT => visitor.visit_string(self.port),
            _ => visitor.visit_undefined(),
        }
    }
}

#[cfg(test)]
mod tests;
