use crate::h3_frame::StreamKind;
use crate::message::MessageError;
use crate::qpack::FieldSectionError;
use crate::{CidCapsuleError, Code, VarInt};

/// The reason why the peer's bytes cannot be decoded. [`DecodeError::code`] is the error code for
/// the peer, and [`DecodeError::scope`] says what that code closes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A variable-length integer is truncated.
    #[error("the data ends inside a variable-length integer")]
    VarIntTruncated,

    /// A QUIC DATAGRAM frame is too short for an HTTP Datagram.
    #[error("the datagram ends inside its Quarter Stream ID")]
    NoQuarterStreamId,
    /// The Quarter Stream ID is above that of every possible stream.
    #[error("Quarter Stream ID {0} is above 2^60 - 1")]
    QuarterStreamIdTooLarge(VarInt),
    /// An HTTP Datagram's payload is too short for the Context ID of CONNECT-UDP.
    #[error("the HTTP Datagram ends inside its Context ID")]
    NoContextId,
    /// A sequenced payload is too short for its sequence number and repair floor.
    #[error("the HTTP Datagram ends inside its sequence number or repair floor")]
    NoSequenceNumber,
    /// The repair floor would be negative.
    #[error("the repair floor is {distance} below sequence number {sequence}")]
    RepairFloor {
        /// The payload's sequence number.
        sequence: VarInt,
        /// The distance from the sequence number down to the repair floor.
        distance: VarInt,
    },

    /// The stream ended inside a capsule.
    #[error("the stream ends inside a capsule")]
    CapsuleTruncated,
    /// A DATAGRAM capsule is longer than the decoder accepts.
    #[error("a DATAGRAM capsule has {len} bytes; at most {len_max} are allowed")]
    DatagramCapsuleTooLong {
        /// Length of its value in bytes.
        len: u64,
        /// The decoder's limit in bytes.
        len_max: usize,
    },

    /// A capsule with a connection ID does not have the format of its type.
    #[error("malformed capsule with a connection ID: {0}")]
    CidCapsuleMalformed(#[from] CidCapsuleError),
    /// A capsule with data follows the `FINAL_DATA` capsule of a TCP connection.
    #[error("a capsule with data follows FINAL_DATA")]
    DataAfterFinalData,

    /// The stream ended inside a frame.
    #[error("the stream ends inside a frame")]
    FrameTruncated,
    /// A frame is on a stream that must not carry it, or its type is reserved because HTTP/2 uses
    /// it.
    #[error("frame type {frame_type:#x} is not allowed on a {stream} stream", frame_type = .frame_type.get())]
    FrameUnexpected {
        /// The frame's type.
        frame_type: VarInt,
        /// The kind of the stream that carried it.
        stream: StreamKind,
    },
    /// A frame's payload is shorter or longer than the fields in it.
    #[error("frame type {frame_type:#x} has a payload of {len} bytes that its fields do not fill exactly", frame_type = .frame_type.get())]
    FrameMalformed {
        /// The frame's type.
        frame_type: VarInt,
        /// Length of its payload in bytes.
        len: u64,
    },
    /// A frame that has to be buffered as a whole is longer than the decoder accepts.
    #[error("frame type {frame_type:#x} has {len} bytes; at most {len_max} are allowed", frame_type = .frame_type.get())]
    FrameTooLong {
        /// The frame's type.
        frame_type: VarInt,
        /// Length of its payload in bytes.
        len: u64,
        /// The decoder's limit in bytes.
        len_max: usize,
    },
    /// A server pushes, although Tandem never sends `MAX_PUSH_ID`.
    #[error("a PUSH_PROMISE frame arrived, but no push ID was ever allowed")]
    PushPromise,
    /// The control stream does not begin with SETTINGS.
    #[error("the control stream begins with frame type {:#x}, not with SETTINGS", .0.get())]
    SettingsMissing(VarInt),
    /// The peer sent SETTINGS a second time.
    #[error("a second SETTINGS frame arrived")]
    SettingsRepeated,

    /// A setting occurs twice in one frame.
    #[error("setting {:#x} occurs twice", .0.get())]
    SettingRepeated(VarInt),
    /// A setting has an identifier that is reserved because HTTP/2 uses it.
    #[error("setting {:#x} is reserved", .0.get())]
    SettingReserved(VarInt),
    /// A setting that must be 0 or 1 has another value.
    #[error("setting {setting:#x} has value {value}; allowed: 0, 1", setting = .setting.get())]
    SettingNotBoolean {
        /// The setting's identifier.
        setting: VarInt,
        /// Its value.
        value: VarInt,
    },

    /// A field section is not well-formed QPACK.
    #[error("the field section cannot be decoded: {0}")]
    FieldSectionMalformed(#[from] FieldSectionError),
    /// A field section is larger than the decoder accepts.
    #[error("the field section is larger than {size_max} bytes")]
    FieldSectionTooLarge {
        /// The limit in bytes, counted as in RFC 9114 §4.2.2.
        size_max: u64,
    },

    /// A field section is not a well-formed request, response or trailer section.
    #[error("malformed message: {0}")]
    MessageMalformed(#[from] MessageError),
}

/// The part of a connection that an error closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorScope {
    /// Only the stream is closed: a stream error ([RFC 9114 §8]).
    ///
    /// [RFC 9114 §8]: https://www.rfc-editor.org/rfc/rfc9114#section-8
    Stream,
    /// The whole connection is closed: a connection error.
    Connection,
}

impl DecodeError {
    /// Returns the HTTP/3 error code for this cause.
    pub const fn code(&self) -> Code {
        match self {
            // RFC 9297 §2.1: "Receipt of an HTTP/3 Datagram that includes a larger value MUST be
            // treated as an HTTP/3 connection error of type H3_DATAGRAM_ERROR", and so for a
            // payload "too short to allow parsing the Quarter Stream ID field".
            Self::NoQuarterStreamId
            | Self::QuarterStreamIdTooLarge(_)
            | Self::NoContextId
            | Self::NoSequenceNumber
            | Self::RepairFloor { .. }
            | Self::DatagramCapsuleTooLong { .. } => Code::H3_DATAGRAM_ERROR,
            // RFC 9297 §3.3: a truncated capsule "MUST be treated as if it were a malformed or
            // incomplete message", and so must one whose value has too few or too many bytes.
            Self::CapsuleTruncated
            | Self::CidCapsuleMalformed(_)
            | Self::DataAfterFinalData
            | Self::MessageMalformed(_) => Code::H3_MESSAGE_ERROR,
            Self::VarIntTruncated | Self::FrameTruncated | Self::FrameMalformed { .. } => {
                Code::H3_FRAME_ERROR
            }
            Self::FrameUnexpected { .. } | Self::SettingsRepeated => Code::H3_FRAME_UNEXPECTED,
            Self::FrameTooLong { .. } | Self::FieldSectionTooLarge { .. } => {
                Code::H3_EXCESSIVE_LOAD
            }
            Self::PushPromise => Code::H3_ID_ERROR,
            Self::SettingsMissing(_) => Code::H3_MISSING_SETTINGS,
            Self::SettingRepeated(_)
            | Self::SettingReserved(_)
            | Self::SettingNotBoolean { .. } => Code::H3_SETTINGS_ERROR,
            Self::FieldSectionMalformed(_) => Code::QPACK_DECOMPRESSION_FAILED,
        }
    }

    /// Returns the part of the connection that has to be closed.
    pub const fn scope(&self) -> ErrorScope {
        match self {
            Self::NoContextId
            | Self::NoSequenceNumber
            | Self::RepairFloor { .. }
            | Self::CapsuleTruncated
            | Self::CidCapsuleMalformed(_)
            | Self::DataAfterFinalData
            | Self::DatagramCapsuleTooLong { .. }
            | Self::FieldSectionTooLarge { .. }
            | Self::MessageMalformed(_) => ErrorScope::Stream,
            Self::VarIntTruncated
            | Self::NoQuarterStreamId
            | Self::QuarterStreamIdTooLarge(_)
            | Self::FrameTruncated
            | Self::FrameUnexpected { .. }
            | Self::FrameMalformed { .. }
            | Self::FrameTooLong { .. }
            | Self::PushPromise
            | Self::SettingsMissing(_)
            | Self::SettingsRepeated
            | Self::SettingRepeated(_)
            | Self::SettingReserved(_)
            | Self::SettingNotBoolean { .. }
            | Self::FieldSectionMalformed(_) => ErrorScope::Connection,
        }
    }
}
