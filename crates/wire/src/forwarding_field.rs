//! The fields with which a client and a proxy negotiate QUIC-aware proxying
//! ([draft-ietf-masque-quic-proxy §3] and §4).
//!
//! [draft-ietf-masque-quic-proxy §3]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-3

use http::HeaderValue;
use sfv::{Item, ItemSerializer, KeyRef, Parameters, Parser, StringRef, key_ref};

use crate::{ScrambleKey, StrangerText, Transform};

/// The value of `Proxy-QUIC-Forwarding` with which a client or a proxy declines forwarded mode, but
/// takes connection IDs for the sharing of ports.
pub const FORWARDING_DECLINED: &str = "?0";

/// The largest number of names in `accept-transform` that is looked at.
const NAMES_MAX: usize = 16;

const ACCEPT_TRANSFORM: &KeyRef = key_ref("accept-transform");
const TRANSFORM: &KeyRef = key_ref("transform");
const SCRAMBLE_KEY: &KeyRef = key_ref("scramble-key");

/// What is allowed in `accept-transform` and `transform`, in words.
const STRING: &str = "a String";
/// What is allowed in `scramble-key`, in words.
const KEY: &str = "a Byte Sequence of 32 bytes";

/// The field `Proxy-QUIC-Forwarding` of a request that offers forwarded mode ([draft §3]). Its value
/// is a structured Boolean with parameters.
///
/// [draft §3]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-3
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingRequest {
    /// The parameter `accept-transform`: the transforms that the client accepts, each once, in
    /// descending preference. It may be empty if the client only accepts transforms that we do not
    /// know.
    pub transforms: Vec<Transform>,
    /// The parameter `scramble-key`: the key of the packets that the client sends. A parsed field
    /// has it if one of its transforms needs it.
    pub scramble_key: Option<ScrambleKey>,
}

/// The field `Proxy-QUIC-Forwarding` of a response that grants forwarded mode ([draft §3]). Its
/// value is a structured Boolean with parameters.
///
/// [draft §3]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-3
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardingGrant {
    /// The parameter `transform`: the transform that the proxy has selected from the client's.
    pub transform: Transform,
    /// The parameter `scramble-key`: the key of the packets that the proxy sends. A parsed field
    /// has it if the transform needs it.
    pub scramble_key: Option<ScrambleKey>,
}

/// The field `Proxy-QUIC-Port-Sharing` ([draft §4]): whether a socket of the proxy may carry other
/// QUIC connections to the same target too. Its value is a structured Boolean.
///
/// [draft §4]: https://datatracker.ietf.org/doc/html/draft-ietf-masque-quic-proxy-08#section-4
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortSharing {
    /// In a request, the client permits it; in a response, the proxy supports it.
    Allowed,
    /// In a request, the client prohibits it; in a response, the proxy does not support it. The
    /// same holds without the field.
    #[default]
    Prohibited,
}

/// The reason why a field of QUIC-aware proxying cannot be used.
///
/// A [`TransformNotOffered`](Self::TransformNotOffered) ends the request. All others mean that the
/// field has to be handled as if it were absent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardingFieldError {
    /// The value is not an Item of the type Boolean.
    #[error("not a structured Boolean: {0}")]
    Syntax(StrangerText),
    /// A parameter is missing or has a value that is not allowed.
    #[error("parameter {name} is missing or not allowed; allowed: {allowed}")]
    Parameter {
        /// The parameter's name.
        name: &'static str,
        /// The allowed values, in words.
        allowed: &'static str,
    },
    /// The proxy has selected a transform that the client did not offer, or that does not exist.
    #[error("the proxy selected transform {name:?}, which was not offered")]
    TransformNotOffered {
        /// The name of the transform.
        name: StrangerText,
    },
}

impl ForwardingRequest {
    /// The field's name.
    pub const NAME: &str = "proxy-quic-forwarding";

    /// Encodes the field's value. A transform that needs a key is left out if there is no key.
    pub fn encode(&self) -> HeaderValue {
        let key = self.scramble_key.as_ref();
        let usable = self.transforms.iter().filter(|&&it| can_be_used(it, key));
        let names: Vec<_> = usable.map(|transform| transform.as_str()).collect();
        enabled(ACCEPT_TRANSFORM, &names.join(","), key)
    }

    /// Parses a field's value. `None`: the client declines forwarded mode. Unknown transforms and
    /// parameters are ignored, and so are transforms after the first 16 and spaces around names.
    ///
    /// # Errors
    ///
    /// The value is not a Boolean; it is true, but there is no `accept-transform`; or there is no
    /// key although a transform needs one. The request has to be handled as if it had no such field.
    pub fn parse(value: &str) -> Result<Option<Self>, ForwardingFieldError> {
        // The draft's §3: "servers MUST ignore receipt of a "transform" parameter."
        let (is_enabled, parameters) = parse_boolean(value)?;
        if !is_enabled {
            return Ok(None);
        }
        // The draft's §3: "If the proxy receives a "Proxy-QUIC-Forwarding" header with a value of
        // "?1" and without the "accept-transform" parameter, it MUST ignore the header".
        let names = string(&parameters, ACCEPT_TRANSFORM)?;
        let names = names.ok_or(refused(ACCEPT_TRANSFORM, STRING))?;
        let mut transforms = Vec::new();
        for name in names.split(',').take(NAMES_MAX) {
            if let Ok(transform) = name.trim().parse()
                && !transforms.contains(&transform)
            {
                transforms.push(transform);
            }
        }
        let scramble_key = scramble_key(&parameters, &transforms)?;
        Ok(Some(Self { transforms, scramble_key }))
    }
}

impl ForwardingGrant {
    /// The field's name.
    pub const NAME: &str = ForwardingRequest::NAME;

    /// Encodes the field's value. It is [`FORWARDING_DECLINED`] if the transform needs a key and
    /// there is none.
    pub fn encode(&self) -> HeaderValue {
        let key = self.scramble_key.as_ref();
        if !can_be_used(self.transform, key) {
            return HeaderValue::from_static(FORWARDING_DECLINED);
        }
        // The draft's §3: "The proxy MUST include a "transform" parameter".
        enabled(TRANSFORM, self.transform.as_str(), key)
    }

    /// Parses the value of the field in the response to a request that offered the transforms in
    /// `offered`. `None`: the proxy declines forwarded mode. Unknown parameters are ignored.
    ///
    /// # Errors
    ///
    /// [`ForwardingFieldError::TransformNotOffered`] if the client has to abort the request. All
    /// others mean that there is no forwarded mode: the value is not a Boolean; it is true, but
    /// there is no `transform`; or there is no key although the transform needs one.
    pub fn parse(value: &str, offered: &[Transform]) -> Result<Option<Self>, ForwardingFieldError> {
        // The draft's §3: "Clients MUST ignore receipt of an "accept-transform" parameter".
        let (is_enabled, parameters) = parse_boolean(value)?;
        let transform = match string(&parameters, TRANSFORM)? {
            // The draft's §3: "If the client receives a transform that it did not advertise support
            // for, it MUST abort the request."
            Some(name) => {
                let transform = name.parse().ok().filter(|it| offered.contains(it));
                let name = name.into();
                Some(transform.ok_or(ForwardingFieldError::TransformNotOffered { name })?)
            }
            None => None,
        };
        if !is_enabled {
            return Ok(None);
        }
        let transform = transform.ok_or(refused(TRANSFORM, STRING))?;
        let scramble_key = scramble_key(&parameters, &[transform])?;
        Ok(Some(Self { transform, scramble_key }))
    }
}

impl PortSharing {
    /// The field's name.
    pub const NAME: &str = "proxy-quic-port-sharing";

    /// Encodes the field's value.
    pub const fn encode(self) -> HeaderValue {
        match self {
            Self::Allowed => HeaderValue::from_static("?1"),
            Self::Prohibited => HeaderValue::from_static("?0"),
        }
    }

    /// Parses a field's value. Parameters are ignored.
    ///
    /// # Errors
    ///
    /// The value is not a Boolean.
    pub fn parse(value: &str) -> Result<Self, ForwardingFieldError> {
        let (is_allowed, _) = parse_boolean(value)?;
        Ok(if is_allowed { Self::Allowed } else { Self::Prohibited })
    }
}

fn can_be_used(transform: Transform, key: Option<&ScrambleKey>) -> bool {
    key.is_some() || !transform.needs_key()
}

/// Encodes the value true with a parameter that names transforms, and with the key.
fn enabled(parameter: &KeyRef, names: &str, key: Option<&ScrambleKey>) -> HeaderValue {
    let names = StringRef::from_str(names).expect("names of transforms are printable ASCII");
    let mut item = ItemSerializer::new().bare_item(true).parameter(parameter, names);
    if let Some(key) = key {
        // The draft's §6.3.2: client and server "MUST add it to the "Proxy-QUIC-Forwarding" header
        // in an sf-binary parameter named "scramble-key"."
        item = item.parameter(SCRAMBLE_KEY, key.as_bytes().as_slice());
    }
    let mut value =
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII");
    value.set_sensitive(key.is_some());
    value
}

fn parse_boolean(value: &str) -> Result<(bool, Parameters), ForwardingFieldError> {
    let syntax = |error: &dyn ToString| ForwardingFieldError::Syntax(error.to_string().into());
    let item: Item = Parser::new(value).parse().map_err(|error: sfv::Error| syntax(&error))?;
    let boolean = item.bare_item.as_boolean().ok_or_else(|| syntax(&"another type"))?;
    Ok((boolean, item.params))
}

fn refused(name: &'static KeyRef, allowed: &'static str) -> ForwardingFieldError {
    ForwardingFieldError::Parameter { name: name.as_str(), allowed }
}

/// Returns a parameter that must be a String, or `None` if it is absent.
fn string<'a>(
    parameters: &'a Parameters,
    name: &'static KeyRef,
) -> Result<Option<&'a str>, ForwardingFieldError> {
    let Some(value) = parameters.get(name) else { return Ok(None) };
    let string = value.as_string().ok_or(refused(name, STRING))?;
    Ok(Some(string.as_str()))
}

/// Returns the key, which must be there if one of the transforms needs it.
fn scramble_key(
    parameters: &Parameters,
    transforms: &[Transform],
) -> Result<Option<ScrambleKey>, ForwardingFieldError> {
    let refused = refused(SCRAMBLE_KEY, KEY);
    match parameters.get(SCRAMBLE_KEY) {
        Some(value) => {
            let key = value.as_byte_sequence().and_then(|bytes| bytes.try_into().ok());
            Ok(Some(ScrambleKey::new(key.ok_or(refused)?)))
        }
        // The draft's §6.3.2: "If either side receives a scramble transform without the
        // "scramble-key" parameter, forwarded mode MUST be disabled."
        None if transforms.iter().any(|transform| transform.needs_key()) => Err(refused),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 32 times the byte 7, as a Byte Sequence.
    const KEY_7: &str = ":BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=:";

    fn key_7() -> ScrambleKey {
        ScrambleKey::new([7; 32])
    }

    fn error(name: &KeyRef, allowed: &'static str) -> ForwardingFieldError {
        let names = [ACCEPT_TRANSFORM, TRANSFORM, SCRAMBLE_KEY];
        refused(names.into_iter().find(|known| *known == name).unwrap(), allowed)
    }

    #[test]
    fn requests_parse() {
        use Transform::{Identity, ScrambleDt};

        let many = |count: usize| format!("{}identity", "x,".repeat(count));
        for (parameters, transforms, scramble_key) in [
            ("accept-transform=\"identity\"".to_owned(), vec![Identity], None),
            (
                format!("accept-transform=\"scramble-dt,identity\";scramble-key={KEY_7}"),
                vec![ScrambleDt, Identity],
                Some(key_7()),
            ),
            (
                format!("scramble-key={KEY_7};accept-transform=\"identity,scramble-dt\""),
                vec![Identity, ScrambleDt],
                Some(key_7()),
            ),
            ("accept-transform=\"scramble,identity\"".to_owned(), vec![Identity], None),
            ("accept-transform=\" identity , identity \"".to_owned(), vec![Identity], None),
            ("accept-transform=\"\"".to_owned(), vec![], None),
            ("accept-transform=\"Identity,scramble-dt2\"".to_owned(), vec![], None),
            // The last value of a parameter counts (RFC 9651 §4.2.3.2).
            ("accept-transform=1;accept-transform=\"identity\"".to_owned(), vec![Identity], None),
            ("accept-transform=\"identity\";transform=1;later=x".to_owned(), vec![Identity], None),
            (format!("accept-transform=\"{}\"", many(15)), vec![Identity], None),
            (format!("accept-transform=\"{}\"", many(16)), vec![], None),
        ] {
            let expected = ForwardingRequest { transforms, scramble_key };
            let value = format!("?1;{parameters}");
            assert_eq!(ForwardingRequest::parse(&value), Ok(Some(expected)), "{value}");
            let declined = format!("?0;{parameters}");
            assert_eq!(ForwardingRequest::parse(&declined), Ok(None), "{declined}");
        }
        assert_eq!(ForwardingRequest::parse(FORWARDING_DECLINED), Ok(None));
    }

    #[test]
    fn requests_that_must_be_ignored_are_refused_with_the_reason() {
        let short_key = "scramble-key=:BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBw==:";
        for (parameters, error) in [
            (String::new(), error(ACCEPT_TRANSFORM, STRING)),
            (format!(";scramble-key={KEY_7}"), error(ACCEPT_TRANSFORM, STRING)),
            (";accept-transform".to_owned(), error(ACCEPT_TRANSFORM, STRING)),
            (";accept-transform=identity".to_owned(), error(ACCEPT_TRANSFORM, STRING)),
            (";accept-transform=\"scramble-dt\"".to_owned(), error(SCRAMBLE_KEY, KEY)),
            (";accept-transform=\"identity,scramble-dt\"".to_owned(), error(SCRAMBLE_KEY, KEY)),
            (
                ";accept-transform=\"scramble-dt\";scramble-key=\"abc\"".to_owned(),
                error(SCRAMBLE_KEY, KEY),
            ),
            (format!(";accept-transform=\"scramble-dt\";{short_key}"), error(SCRAMBLE_KEY, KEY)),
            (format!(";accept-transform=\"identity\";{short_key}"), error(SCRAMBLE_KEY, KEY)),
        ] {
            let value = format!("?1{parameters}");
            assert_eq!(ForwardingRequest::parse(&value), Err(error), "{value}");
        }
    }

    #[test]
    fn grants_parse() {
        for (value, granted) in [
            (FORWARDING_DECLINED.to_owned(), None),
            ("?0;transform=\"identity\"".to_owned(), None),
            ("?1;transform=\"identity\"".to_owned(), Some((Transform::Identity, None))),
            (
                "?1;transform=\"identity\";accept-transform=1;later".to_owned(),
                Some((Transform::Identity, None)),
            ),
            (
                format!("?1;transform=\"scramble-dt\";scramble-key={KEY_7}"),
                Some((Transform::ScrambleDt, Some(key_7()))),
            ),
        ] {
            let granted = granted
                .map(|(transform, scramble_key)| ForwardingGrant { transform, scramble_key });
            assert_eq!(ForwardingGrant::parse(&value, &Transform::ALL), Ok(granted), "{value}");
        }
    }

    #[test]
    fn a_transform_that_was_not_offered_is_not_the_same_as_a_malformed_grant() {
        let not_offered =
            |name: &str| ForwardingFieldError::TransformNotOffered { name: name.into() };
        for (value, error) in [
            ("?1", error(TRANSFORM, STRING)),
            ("?1;transform=identity", error(TRANSFORM, STRING)),
            ("?1;transform", error(TRANSFORM, STRING)),
            ("?1;transform=\"identity\"", not_offered("identity")),
            ("?0;transform=\"identity\"", not_offered("identity")),
            ("?1;transform=\"scramble\"", not_offered("scramble")),
            ("?1;transform=\"\"", not_offered("")),
            ("?1;transform=\"scramble-dt\"", error(SCRAMBLE_KEY, KEY)),
            ("?1;transform=\"scramble-dt\";scramble-key=:Bwc=:", error(SCRAMBLE_KEY, KEY)),
        ] {
            let refused = ForwardingGrant::parse(value, &[Transform::ScrambleDt]);
            assert_eq!(refused, Err(error), "{value}");
        }
    }

    #[test]
    fn only_booleans_are_values() {
        for value in ["", "1", "true", "\"?1\"", "?2", "?1, ?1", "(?1)", "?1;", "?1;;", "\u{e4}"] {
            for error in [
                ForwardingRequest::parse(value).map(|_| ()),
                ForwardingGrant::parse(value, &Transform::ALL).map(|_| ()),
                PortSharing::parse(value).map(|_| ()),
            ] {
                let is_syntax = matches!(error, Err(ForwardingFieldError::Syntax(_)));
                assert!(is_syntax, "{value}: {error:?}");
            }
        }
    }

    #[test]
    fn ports_are_shared_if_the_field_is_true() {
        for (value, sharing) in [
            ("?1", PortSharing::Allowed),
            (" ?1;later=\"x\" ", PortSharing::Allowed),
            ("?0", PortSharing::Prohibited),
        ] {
            assert_eq!(PortSharing::parse(value), Ok(sharing), "{value}");
        }
        for sharing in [PortSharing::Allowed, PortSharing::Prohibited] {
            let value = sharing.encode();
            assert_eq!(PortSharing::parse(value.to_str().unwrap()), Ok(sharing));
        }
        assert_eq!(PortSharing::default(), PortSharing::Prohibited);
    }

    #[test]
    fn fields_have_the_form_of_the_draft() {
        let transforms = Transform::ALL.to_vec();
        let request = ForwardingRequest { transforms, scramble_key: Some(key_7()) };
        let expected = format!("?1;accept-transform=\"scramble-dt,identity\";scramble-key={KEY_7}");
        assert_eq!(request.encode(), expected);
        let grant =
            ForwardingGrant { transform: Transform::ScrambleDt, scramble_key: Some(key_7()) };
        assert_eq!(grant.encode(), format!("?1;transform=\"scramble-dt\";scramble-key={KEY_7}"));
    }

    #[test]
    fn what_needs_a_key_is_not_offered_without_one() {
        let request = ForwardingRequest { transforms: Transform::ALL.to_vec(), scramble_key: None };
        assert_eq!(request.encode(), "?1;accept-transform=\"identity\"");
        let grant = ForwardingGrant { transform: Transform::ScrambleDt, scramble_key: None };
        assert_eq!(grant.encode(), FORWARDING_DECLINED);
    }

    #[test]
    fn no_key_is_printed() {
        let request = ForwardingRequest {
            transforms: vec![Transform::ScrambleDt],
            scramble_key: Some(key_7()),
        };
        for text in [format!("{request:?}"), format!("{:?}", request.encode())] {
            assert!(!text.contains("BwcH") && !text.contains("7, 7"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn encoded_fields_parse_to_themselves(key: Option<[u8; 32]>, first: bool, both: bool) {
            let scramble_key = key.map(ScrambleKey::new);
            let mut transforms = Transform::ALL.to_vec();
            if first {
                transforms.reverse();
            }
            if !both {
                transforms.truncate(1);
            }
            transforms.retain(|transform| can_be_used(*transform, scramble_key.as_ref()));
            for &transform in &transforms {
                let grant = ForwardingGrant { transform, scramble_key: scramble_key.clone() };
                let value = grant.encode();
                let parsed = ForwardingGrant::parse(value.to_str().unwrap(), &transforms);
                prop_assert_eq!(parsed, Ok(Some(grant)));
            }
            let request = ForwardingRequest { transforms, scramble_key };
            let value = request.encode();
            prop_assert_eq!(ForwardingRequest::parse(value.to_str().unwrap()), Ok(Some(request)));
        }
    }
}
