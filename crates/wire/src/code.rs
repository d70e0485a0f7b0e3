use std::fmt;

/// An HTTP/3 error code ([RFC 9114 §8.1], [RFC 9204 §6], [RFC 9297 §5.2]).
///
/// [RFC 9114 §8.1]: https://www.rfc-editor.org/rfc/rfc9114#section-8.1
/// [RFC 9204 §6]: https://www.rfc-editor.org/rfc/rfc9204#section-6
/// [RFC 9297 §5.2]: https://www.rfc-editor.org/rfc/rfc9297#section-5.2
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u64);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Returns the code's name in its RFC, or "unknown".
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => stringify!($name),)*
                    _ => "unknown",
                }
            }
        }
    };
}

codes! {
    /// An HTTP Datagram is malformed, or its stream cannot carry datagrams.
    H3_DATAGRAM_ERROR = 0x33;
    /// There is no error.
    H3_NO_ERROR = 0x100;
    /// The peer violates the protocol in a way for which there is no specific code.
    H3_GENERAL_PROTOCOL_ERROR = 0x101;
    /// The endpoint that sends this code has failed internally.
    H3_INTERNAL_ERROR = 0x102;
    /// The peer opened a stream that the endpoint does not accept.
    H3_STREAM_CREATION_ERROR = 0x103;
    /// A stream that must stay open was closed.
    H3_CLOSED_CRITICAL_STREAM = 0x104;
    /// A frame arrived on a stream, or at a time, at which it is not allowed.
    H3_FRAME_UNEXPECTED = 0x105;
    /// A frame has the wrong layout or size.
    H3_FRAME_ERROR = 0x106;
    /// The peer causes too much load.
    H3_EXCESSIVE_LOAD = 0x107;
    /// A stream ID or push ID is used incorrectly.
    H3_ID_ERROR = 0x108;
    /// The content of a SETTINGS frame is invalid.
    H3_SETTINGS_ERROR = 0x109;
    /// The control stream does not begin with SETTINGS.
    H3_MISSING_SETTINGS = 0x10a;
    /// The request was not processed, so it may be repeated.
    H3_REQUEST_REJECTED = 0x10b;
    /// The request or its response is no longer needed.
    H3_REQUEST_CANCELLED = 0x10c;
    /// The stream ended before the request was complete.
    H3_REQUEST_INCOMPLETE = 0x10d;
    /// The HTTP message is malformed.
    H3_MESSAGE_ERROR = 0x10e;
    /// The connection that CONNECT opened was reset or closed abnormally.
    H3_CONNECT_ERROR = 0x10f;
    /// The request has to be repeated over HTTP/1.1.
    H3_VERSION_FALLBACK = 0x110;
    /// A field section cannot be decoded.
    QPACK_DECOMPRESSION_FAILED = 0x200;
    /// The encoder stream cannot be decoded.
    QPACK_ENCODER_STREAM_ERROR = 0x201;
    /// The decoder stream cannot be decoded.
    QPACK_DECODER_STREAM_ERROR = 0x202;
}

impl Code {
    /// Formats the code's name, or its number if the name is unknown.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for Code {
    fn from(code: u64) -> Self {
        Self(code)
    }
}

impl From<Code> for u64 {
    fn from(code: Code) -> Self {
        code.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            "unknown" => write!(f, "{:#x}", self.0),
            name => f.pad(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_print_their_name_or_number() {
        assert_eq!(Code::H3_NO_ERROR.to_string(), "H3_NO_ERROR");
        assert_eq!(Code(0x33).to_string(), "H3_DATAGRAM_ERROR");
        assert_eq!(Code(0x21).to_string(), "0x21");
    }
}
