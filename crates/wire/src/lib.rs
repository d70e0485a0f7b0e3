//! Encoders and decoders for the wire formats of CONNECT-UDP over HTTP/3: HTTP/3 frames, settings
//! and field sections, HTTP Datagrams, capsules, the URI template of CONNECT-UDP, `Proxy-Status`,
//! the fields, capsules and packets of QUIC-aware proxying, PEP-ACKs, and the formats of Tandem's own
//! extensions.
//!
//! Nothing here depends on a connection, a stream or the time. Only the incremental decoders ([`FrameDecoder`],
//! [`CapsuleDecoder`], [`TcpCapsuleDecoder`]) have state. They give the same values however their input is split. All
//! input may come from an attacker: no input makes a decoder panic, and no input makes it keep more bytes than its
//! limit. The fuzz targets in `fuzz/` check this for each decoder.

pub mod capsule;
mod chunks;
mod cid_capsule;
mod code;
pub mod connect_tcp;
mod connection_id;
mod error;
mod feedback;
mod forwarding_field;
mod group;
pub mod h3_frame;
mod http_datagram;
mod integer_item;
pub mod message;
pub mod pep_ack;
mod priority;
pub mod proxy_status;
pub mod qpack;
mod quic_frame;
mod quic_lb;
mod repair;
mod seal_field;
mod settings;
mod stranger_text;
mod trace_id;
pub mod transform;
mod transport_field;
mod tunnel_info;
pub mod uri_template;
mod varint;
mod version_probe;

pub use capsule::{
    CAPSULE_TYPE_PROXY_STATUS, CAPSULE_TYPE_REPAIR, Capsule, CapsuleDecoder, OWN_CAPSULE_MAX,
    OwnCapsule, PROXY_STATUS_MAX, datagram_capsule_len, encode_capsule, encode_datagram_capsule,
};
pub use cid_capsule::{CidCapsule, CidCapsuleError, CidCapsuleType, CidReason};
pub use code::Code;
pub use connect_tcp::{
    PROTOCOL_CONNECT_TCP, TcpCapsuleDecoder, TcpPiece, encode_tcp_data_header, encode_tcp_final,
};
pub use connection_id::{ConnectionId, ConnectionIdTooLong, ResetToken};
pub use error::{DecodeError, ErrorScope};
pub use feedback::FeedbackField;
pub use forwarding_field::{
    FORWARDING_DECLINED, ForwardingFieldError, ForwardingGrant, ForwardingRequest, PortSharing,
};
pub use group::{GroupField, GroupFieldError};
pub use h3_frame::{
    Frame, FrameDecoder, StreamKind, encode_continuation_header, encode_continued,
    encode_data_header, encode_goaway, encode_headers, encode_settings,
};
pub use http_datagram::{
    CONTEXT_ID_UDP, HttpDatagram, MAX_UDP_PAYLOAD, QuarterStreamId, split_context_id,
};
pub use integer_item::FieldError;
pub use message::{MessageError, RequestHead, ResponseHead, decode_trailers, encode_trailers};
pub use pep_ack::{Ends, PepAck, PepAckError, PepId, PepKey, SeenPacket, Slice};
pub use priority::{ParseUrgencyError, Urgency};
pub use proxy_status::{CAPSULE_PROTOCOL_TRUE, ProxyStatus, parse_boolean_item};
pub use quic_frame::{QuicFrame, QuicFrameKind, QuicFrames};
pub use quic_lb::{RoutableIds, RoutableIdsError};
pub use repair::{Order, RepairField, RetransmissionLimit, Sequenced, UnknownOrder};
pub use seal_field::SealField;
pub use settings::Settings;
pub use stranger_text::StrangerText;
pub use trace_id::TraceId;
pub use transform::{ScrambleKey, Transform};
pub use transport_field::TransportField;
pub use tunnel_info::{TunnelInfo, TunnelInfoError};
pub use uri_template::{Expanded, PathMatcher, TargetError, Template, TemplateError};
pub use varint::{VarInt, VarIntRangeError};
pub use version_probe::VersionProbe;

/// Runs the example of the page that the registry shows.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
