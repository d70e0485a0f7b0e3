//! The reports of a proxy on its tunnel, which a client forwards to its origin (`docs/design/wire.md`).

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::HeaderValue;
use sfv::{Item, ItemSerializer, Parser};
use tandem_units::{ByteCount, Rate, Ratio};

use crate::{HttpDatagram, QuarterStreamId, VarInt};

/// One report of a proxy on a flow of its tunnel: `TUNNEL_INFO` from proxy to client, and
/// `QUIC_INFO` from client to origin (TECC, NSDI '24, §4.2.2). Newer reports replace older ones.
///
/// The symbols are the paper's. Rates count the tunnel's packets. On the wire they are in kbit/s,
/// rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelInfo {
    /// The sequence number, which increases from report to report. Gaps have no meaning.
    pub sequence: VarInt,
    /// Tr: the rate at which the proxy can send the flow's packets at present; 1 kbit/s to some
    /// 1 Tbit/s.
    pub sending_rate: Rate,
    /// The flow's share of the bottleneck bandwidth that the tunnel's controller has estimated, or
    /// `None` if the controller has no estimate.
    pub bandwidth: Option<Rate>,
    /// q: the smallest backlog of the flow in the proxy's queue since the last report; at most 2^30
    /// - 1 bytes.
    pub queue: ByteCount,
    /// r: the share of retransmissions in the tunnel's bytes since the last report, in units of
    /// 1/10000.
    pub retransmit_ratio: Ratio,
    /// The least RTT of the tunnel, 1 µs to 60 s.
    pub min_rtt: Duration,
    /// `T_l`: the smoothed RTT of the tunnel, 1 µs to 60 s.
    pub smoothed_rtt: Duration,
    /// The rate at which the flow's packets arrived from the origin since the last report, or
    /// `None` if none arrived.
    pub arrival_rate: Option<Rate>,
}

/// The reason why a report is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TunnelInfoError {
    /// The report ends before its last field.
    #[error("the report ends before its field {0}")]
    Cut(&'static str),
    /// The report has an unknown version.
    #[error("version {0}; allowed: 1")]
    Version(u64),
    /// The value of a field is out of range.
    #[error("{name} = {seen} {unit}; allowed: {least} to {most}")]
    Field {
        /// The name of the field.
        name: &'static str,
        /// The value of the field.
        seen: u64,
        /// The unit of the value.
        unit: &'static str,
        /// The least allowed value.
        least: u64,
        /// The largest allowed value.
        most: u64,
    },
    /// A header field is not a structured Byte Sequence.
    #[error("not a structured Byte Sequence")]
    Syntax,
}

/// The largest variable-length integer of 4 bytes.
const MOST: u64 = (1 << 30) - 1;

/// A ratio of 1 on the wire.
const RATIO_PARTS: u64 = 10_000;

/// The unit of ratios on the wire, 1/10000, in parts per billion.
const PPB_OF_PART: u32 = 100_000;

const RTT_MOST_MICROS: u64 = 60_000_000;

impl TunnelInfo {
    /// The name of the header field that carries the newest report in requests to an origin, as a
    /// Byte Sequence (RFC 9651 §3.3.5).
    pub const FIELD: &str = "tandem-quic-info";

    /// The `:protocol` of the extended CONNECT request on which a client sends reports to an
    /// origin.
    pub const PROTOCOL: &str = "tandem-quic-info";

    /// The ALPN protocol ID (RFC 7301) that a client lists behind `h3` if it will send reports. It names no
    /// protocol that a server could choose: it tells an origin, before the connection begins, that a tunnel
    /// on the path repairs losses.
    pub const ALPN: &[u8] = b"tandem-quic-info";

    /// The Context ID of the HTTP Datagrams of that request, each of which carries a report.
    pub const CONTEXT_ID: VarInt = VarInt::from_u32(0);

    /// An upper bound of the length of a report in bytes.
    pub const LEN_MAX: usize = 64;

    /// The same for a report as an HTTP Datagram. Its two IDs have at most 8 bytes each.
    pub const DATAGRAM_LEN_MAX: usize = Self::LEN_MAX + 2 * 8;

    const VERSION: u32 = 1;

    /// Decodes a report. Bytes after its last field are ignored.
    ///
    /// # Errors
    ///
    /// The report is truncated, has an unknown version, or has a field out of range.
    pub fn decode(mut data: Bytes) -> Result<Self, TunnelInfoError> {
        let mut fields = InfoFields { data: &mut data };
        let version = fields.next("version")?.get();
        if version != u64::from(Self::VERSION) {
            return Err(TunnelInfoError::Version(version));
        }
        Ok(Self {
            sequence: fields.next("sequence")?,
            sending_rate: rate(fields.within("sending rate", "kbit/s", 1, MOST)?)
                .ok_or(TunnelInfoError::Cut("sending rate"))?,
            bandwidth: rate(fields.within("bandwidth", "kbit/s", 0, MOST)?),
            queue: ByteCount::new(fields.within("queue", "bytes", 0, MOST)?),
            retransmit_ratio: {
                let parts = fields.within("retransmitted", "1/10000", 0, RATIO_PARTS)?;
                Ratio::of(parts, RATIO_PARTS)
            },
            min_rtt: fields.rtt("least RTT")?,
            smoothed_rtt: fields.rtt("smoothed RTT")?,
            arrival_rate: rate(fields.within("arrival rate", "kbit/s", 0, MOST)?),
        })
    }

    /// Appends the report to `out`. A value out of range becomes the nearest allowed one.
    pub fn encode(&self, out: &mut impl BufMut) {
        let rtt = |rtt: Duration| {
            let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
            micros.clamp(1, RTT_MOST_MICROS)
        };
        let parts = self.retransmit_ratio.parts_per_billion() / PPB_OF_PART;
        for value in [
            u64::from(Self::VERSION),
            self.sequence.get(),
            kbps(Some(self.sending_rate)),
            kbps(self.bandwidth),
            self.queue.get().min(MOST),
            u64::from(parts),
            rtt(self.min_rtt),
            rtt(self.smoothed_rtt),
            kbps(self.arrival_rate),
        ] {
            VarInt::saturating_from(value).encode(out);
        }
    }

    /// Encodes the report as an HTTP Datagram, which has at most [`Self::DATAGRAM_LEN_MAX`] bytes.
    pub fn encode_datagram(
        &self,
        quarter_stream_id: QuarterStreamId,
        context_id: VarInt,
        out: &mut impl BufMut,
    ) {
        HttpDatagram::encode_ids(quarter_stream_id, context_id, out);
        self.encode(out);
    }

    /// Encodes the report as the value of [`Self::FIELD`].
    #[expect(clippy::missing_panics_doc, reason = "the encoded value is printable ASCII")]
    pub fn to_field(&self) -> HeaderValue {
        let mut bytes = Vec::with_capacity(Self::LEN_MAX);
        self.encode(&mut bytes);
        let item = ItemSerializer::new().bare_item(bytes.as_slice());
        HeaderValue::try_from(item.finish()).expect("structured fields are printable ASCII")
    }

    /// Parses the value of [`Self::FIELD`]. Parameters are ignored.
    ///
    /// # Errors
    ///
    /// The value is not a Byte Sequence, or [`Self::decode`] refuses it.
    pub fn parse_field(value: &str) -> Result<Self, TunnelInfoError> {
        let item: Item = Parser::new(value).parse().map_err(|_| TunnelInfoError::Syntax)?;
        let bytes = item.bare_item.as_byte_sequence().ok_or(TunnelInfoError::Syntax)?;
        Self::decode(Bytes::copy_from_slice(bytes))
    }
}

struct InfoFields<'a> {
    data: &'a mut Bytes,
}

impl InfoFields<'_> {
    fn next(&mut self, name: &'static str) -> Result<VarInt, TunnelInfoError> {
        if !self.data.has_remaining() {
            return Err(TunnelInfoError::Cut(name));
        }
        VarInt::decode(self.data).map_err(|_| TunnelInfoError::Cut(name))
    }

    fn within(
        &mut self,
        name: &'static str,
        unit: &'static str,
        least: u64,
        most: u64,
    ) -> Result<u64, TunnelInfoError> {
        let seen = self.next(name)?.get();
        if (least..=most).contains(&seen) {
            return Ok(seen);
        }
        Err(TunnelInfoError::Field { name, seen, unit, least, most })
    }

    fn rtt(&mut self, name: &'static str) -> Result<Duration, TunnelInfoError> {
        self.within(name, "µs", 1, RTT_MOST_MICROS).map(Duration::from_micros)
    }
}

fn rate(kbps: u64) -> Option<Rate> {
    Rate::from_bps(kbps * 1000)
}

fn kbps(rate: Option<Rate>) -> u64 {
    rate.map_or(0, |rate| rate.bits_per_second().div_ceil(1000)).min(MOST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn info() -> TunnelInfo {
        TunnelInfo {
            sequence: VarInt::from_u32(7),
            sending_rate: Rate::from_mbps(10),
            bandwidth: Some(Rate::from_mbps(9)),
            queue: ByteCount::new(50_000),
            retransmit_ratio: Ratio::of(1, 20),
            min_rtt: Duration::from_millis(40),
            smoothed_rtt: Duration::from_millis(55),
            arrival_rate: None,
        }
    }

    fn encoded(info: &TunnelInfo) -> Vec<u8> {
        let mut bytes = Vec::new();
        info.encode(&mut bytes);
        bytes
    }

    /// Encodes a report with these fields.
    fn of(fields: [u64; 9]) -> Bytes {
        let mut bytes = Vec::new();
        for field in fields {
            VarInt::saturating_from(field).encode(&mut bytes);
        }
        bytes.into()
    }

    const FIELDS: [u64; 9] = [1, 7, 10_000, 9_000, 50_000, 500, 40_000, 55_000, 0];

    #[test]
    fn a_report_is_its_fields_in_order() {
        assert_eq!(TunnelInfo::decode(of(FIELDS)), Ok(info()));
        assert_eq!(Bytes::from(encoded(&info())), of(FIELDS));
        let mut longer = encoded(&info());
        longer.extend([1, 2, 3]);
        assert_eq!(TunnelInfo::decode(longer.into()), Ok(info()), "what follows is ignored");
    }

    #[test]
    fn truncated_reports_and_fields_out_of_range_are_refused_by_name() {
        let whole = Bytes::from(encoded(&info()));
        for len in 0..whole.len() {
            let error = TunnelInfo::decode(whole.slice(..len)).unwrap_err();
            assert!(matches!(error, TunnelInfoError::Cut(_)), "{len}: {error}");
        }
        for (index, value, error) in [
            (0, 2, "version 2; allowed: 1"),
            (2, 0, "sending rate = 0 kbit/s; allowed: 1 to 1073741823"),
            (3, 1 << 30, "bandwidth = 1073741824 kbit/s; allowed: 0 to 1073741823"),
            (4, 1 << 30, "queue = 1073741824 bytes; allowed: 0 to 1073741823"),
            (5, 10_001, "retransmitted = 10001 1/10000; allowed: 0 to 10000"),
            (6, 0, "least RTT = 0 µs; allowed: 1 to 60000000"),
            (7, 60_000_001, "smoothed RTT = 60000001 µs; allowed: 1 to 60000000"),
            (8, 1 << 31, "arrival rate = 2147483648 kbit/s; allowed: 0 to 1073741823"),
        ] {
            let mut fields = FIELDS;
            fields[index] = value;
            let refused = TunnelInfo::decode(of(fields)).unwrap_err();
            assert_eq!(refused.to_string(), error);
        }
    }

    #[test]
    fn field_lines_hold_the_same_bytes() {
        let value = info().to_field();
        assert_eq!(TunnelInfo::parse_field(value.to_str().unwrap()), Ok(info()));
        for line in ["", "1", ":AQ", "\"x\"", ":AQ==:, :AQ==:"] {
            let refused = TunnelInfo::parse_field(line);
            assert_eq!(refused, Err(TunnelInfoError::Syntax), "{line}");
        }
        assert_eq!(TunnelInfo::parse_field(":AQ==:"), Err(TunnelInfoError::Cut("sequence")));
    }

    proptest! {
        #[test]
        fn a_decoded_report_is_short_and_round_trips(
            data in proptest::collection::vec(any::<u8>(), 0..80),
            fields in proptest::array::uniform9(0_u64..2_000_000_000),
        ) {
            for data in [Bytes::from(data), of(fields), {
                let mut fields = fields;
                fields[0] = 1;
                fields[5] %= 10_001;
                fields[6] %= 60_000_000;
                fields[7] %= 60_000_000;
                of(fields)
            }] {
                if let Ok(info) = TunnelInfo::decode(data) {
                    let bytes = encoded(&info);
                    prop_assert!(bytes.len() <= TunnelInfo::LEN_MAX);
                    prop_assert_eq!(TunnelInfo::decode(bytes.into()), Ok(info));
                }
            }
        }
    }
}
