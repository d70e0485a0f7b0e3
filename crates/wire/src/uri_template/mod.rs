//! The URI template that says where a CONNECT-UDP proxy is and how to name a target
//! ([RFC 9298 §2], [RFC 6570]).
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

pub use self::path_matcher::PathMatcher;
pub use self::target::{TargetError, check_host};

const TARGET_HOST: &str = "target_host";
const TARGET_PORT: &str = "target_port";

/// The port of an https URI that has none ([RFC 9110 §4.2.2]).
///
/// [RFC 9110 §4.2.2]: https://www.rfc-editor.org/rfc/rfc9110#section-4.2.2
const HTTPS_PORT: u16 = 443;

/// A URI template that CONNECT-UDP may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    authority: Authority,
    port: u16,
    /// Where the path begins in `text`.
    path_start: usize,
    /// Path and query.
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Expression { operator: Operator, variables: Vec<String> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    /// `{a,b}`: the values, with commas between them.
    Simple,
    /// `{?a,b}`: "?a=", the value, "&b=", the value.
    Query,
    /// `{&a,b}`: "&a=", the value, "&b=", the value.
    QueryContinuation,
}

/// Why a text is not a template that CONNECT-UDP may use, or not one for a proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A character outside of printable ASCII.
    #[error("character {0:?} in the template; allowed: visible ASCII")]
    Character(char),
    /// Not a URI template at all.
    #[error("not a URI template: {0}")]
    Syntax(SyntaxError),
    /// It does not begin with "https://".
    #[error("the template does not begin with \"https://\"")]
    NotHttps,
    /// The part between "https://" and the path is not a host with an optional port.
    #[error("{0:?} is not a host, optionally with a port from 1 to 65535")]
    Authority(String),
    /// No path follows the authority.
    #[error("the template has no path that begins with \"/\"")]
    NoPath,
    /// A fragment, or a variable before the path.
    #[error("{0:?} is not in the path or query of the template")]
    OutsidePathAndQuery(String),
    /// An expansion that RFC 9298 forbids.
    #[error("operator {0:?} in the template; allowed: none, \"?\", \"&\"")]
    Operator(char),
    /// A prefix or explode modifier, which is level 4 of RFC 6570.
    #[error("{0:?} has a modifier; templates are at most level 3")]
    Level4(String),
    /// A required variable is not there.
    #[error("the template has no variable {0:?}")]
    VariableMissing(&'static str),

    /// A proxy has no value for the variable.
    #[error("a proxy's template has only target_host and target_port, not {0:?}")]
    VariableUnknown(String),
    /// A proxy cannot compare two values.
    #[error("a proxy's template has each variable once, but {0:?} twice")]
    VariableRepeated(String),
    /// A proxy cannot tell where a value ends.
    #[error("the end of {0} is not clear; put \"/\" or another reserved character after it")]
    Ambiguous(&'static str),
}

/// A template's URI for one target, in the parts that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expanded {
    /// For `:scheme`.
    pub scheme: String,
    /// For `:authority`.
    pub authority: String,
    /// For `:path`; includes the query.
    pub path: String,
}

impl Template {
    /// Checks a template ([RFC 9298 §2]).
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
                    TemplateError::OutsidePathAndQuery(format!("{variable}}}"))
                }
                _ => TemplateError::NoPath,
            });
        }
        let parts = parse_parts(path)?;
        let path_start = scheme_end + authority_len;
        Ok(Self { text: text.to_owned(), authority, port, path_start, parts })
    }

    /// The template that RFC 9298 §2 gives for a proxy of which only `authority` is known, a host
    /// with an optional port: `https://AUTHORITY/.well-known/masque/udp/{target_host}/{target_port}/`.
    pub fn default_for(authority: &str) -> Result<Self, TemplateError> {
        parse_authority(authority)?;
        Self::parse(&format!(
            "https://{authority}/.well-known/masque/udp/{{{TARGET_HOST}}}/{{{TARGET_PORT}}}/"
        ))
    }

    /// The URI for one target.
    ///
    /// `host` is an IP address without brackets or a name; see [`check_host`]. Colons are
    /// percent-encoded.
    #[expect(clippy::missing_panics_doc, reason = "`parse` has checked what is assumed")]
    pub fn expand(&self, host: &str, port: u16) -> Expanded {
        let target = Target { host, port: &port.to_string() };
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

    /// The proxy's host and, if the template has one, port.
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The proxy's host; an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        let host = self.authority.host();
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The proxy's port, 443 if the template has none.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The template as it was parsed.
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

fn parse_authority(text: &str) -> Result<(Authority, u16), TemplateError> {
    let refused = || TemplateError::Authority(text.to_owned());
    let authority: Authority = text.parse().map_err(|_| refused())?;
    let host = authority.host();
    let rest = authority.as_str().strip_prefix(host).ok_or_else(refused)?; // also refuses userinfo
    let port = match rest.strip_prefix(':') {
        None => HTTPS_PORT,
        Some(port) => port.parse().map_err(|_| refused())?,
    };
    if host.is_empty() || port == 0 || !(rest.is_empty() || rest.starts_with(':')) {
        return Err(refused());
    }
    Ok((authority, port))
}

/// Splits path and query, whose syntax is already checked.
fn parse_parts(mut rest: &str) -> Result<Vec<Part>, TemplateError> {
    let mut parts = Vec::new();
    while !rest.is_empty() {
        let (literal, tail) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
        // RFC 9298 §2: "All template variables MUST be within the path or query components of the
        // URI."
        if let Some((_, fragment)) = literal.split_once('#') {
            return Err(TemplateError::OutsidePathAndQuery(format!("#{fragment}")));
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.to_owned()));
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
            Part::Literal(_) => false,
            Part::Expression { variables, .. } => variables.iter().any(|variable| variable == name),
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

fn parse_expression(expression: &str) -> Result<Part, TemplateError> {
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
        return Err(TemplateError::Level4(variable.to_owned()));
    }
    let variables = variables.split(',').map(str::to_owned).collect();
    Ok(Part::Expression { operator, variables })
}

struct Target<'a> {
    host: &'a str,
    port: &'a str,
}

impl Context for Target<'_> {
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
