//! Decoded reports on tunnels, as datagrams and as header fields, and decoded `tandem-feedback`
//! fields are within their bounds, and encode to bytes that decode to the same value.

#![no_main]

use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_wire::{FeedbackField, TunnelInfo};

fuzz_target!(|data: &[u8]| {
    if let Ok(info) = TunnelInfo::decode(Bytes::copy_from_slice(data)) {
        check(&info);
        let mut encoded = Vec::new();
        info.encode(&mut encoded);
        assert!(encoded.len() <= data.len(), "the shortest integers are never longer");
        assert!(encoded.len() <= TunnelInfo::LEN_MAX);
        assert_eq!(TunnelInfo::decode(encoded.into()), Ok(info));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(info) = TunnelInfo::parse_field(text) {
        check(&info);
        let value = info.to_field();
        assert_eq!(TunnelInfo::parse_field(value.to_str().expect("it is ASCII")), Ok(info));
    }
    if let Ok(field) = FeedbackField::parse_request(text) {
        assert!(
            matches!(field, FeedbackField::Request { weight: 1..=FeedbackField::WEIGHT_MAX }),
            "{field:?}"
        );
        let value = field.encode();
        let value = value.to_str().expect("it is ASCII");
        assert_eq!(FeedbackField::parse_request(value), Ok(field));
    }
    if let Ok(field) = FeedbackField::parse_grant(text) {
        let value = field.encode();
        assert_eq!(FeedbackField::parse_grant(value.to_str().expect("it is ASCII")), Ok(field));
    }
});

/// Checks the bounds on which a sender relies: no rate is far above 1 Tbit/s, and every RTT is
/// above zero and at most one minute.
fn check(info: &TunnelInfo) {
    for rate in [Some(info.sending_rate), info.bandwidth, info.arrival_rate].into_iter().flatten() {
        assert!(rate.bits_per_second() <= 1_100_000_000_000, "{info:?}");
    }
    for rtt in [info.min_rtt, info.smoothed_rtt] {
        assert!(!rtt.is_zero() && rtt <= Duration::from_secs(60), "{info:?}");
    }
    assert!(info.retransmit_ratio.parts_per_billion() <= 1_000_000_000, "{info:?}");
    assert!(info.queue.get() < 1 << 30, "{info:?}");
}
