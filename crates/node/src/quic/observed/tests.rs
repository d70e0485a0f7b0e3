use super::*;

/// A packet of a layer: its frames are as the flags say, and `inner` are the tags of packets in it.
fn packet(tag: u8, size: usize, contents: &PacketContents, inner: &[u8]) -> LayerPacket<'static> {
    let tag_of = |tag: u8| Tag::of(&[tag; 16]);
    let inner: Vec<_> = inner.iter().map(|&tag| tag_of(tag)).collect();
    LayerPacket { tag: tag_of(tag), size: size as u64, contents: *contents, inner: inner.leak() }
}

const ACK: PacketContents = PacketContents {
    ack_frames: 1,
    ack_bytes: 6,
    has_stream: false,
    has_datagram: false,
    has_others: false,
};
const DATA: PacketContents =
    PacketContents { has_stream: true, ack_frames: 0, ack_bytes: 0, ..ACK };
const AROUND: PacketContents =
    PacketContents { has_datagram: true, ack_frames: 0, ack_bytes: 0, ..ACK };
const AROUND_WITH_ACK: PacketContents = PacketContents { has_datagram: true, ..ACK };

/// Two tunnels and an end-to-end connection.
fn layers(ledger: &Ledger) -> [Layer; 3] {
    [ledger.layer(true, false), ledger.layer(false, false), ledger.layer(false, true)]
}

#[test]
fn an_acknowledgement_counts_with_everything_around_it() {
    let ledger = Ledger::default();
    let [outer, inner, end_to_end] = layers(&ledger);
    end_to_end.on_sent(&packet(1, 40, &ACK, &[]));
    inner.on_sent(&packet(2, 80, &AROUND, &[1]));
    outer.on_sent(&packet(3, 126, &AROUND_WITH_ACK, &[2]));
    let totals = ledger.totals();
    // The end-to-end packet alone would have taken 40 bytes and the same headers.
    assert_eq!((totals.ack_bytes, totals.ack_frames, totals.data_packets), (86, 1, 0));
    outer.on_sent(&packet(4, 35, &ACK, &[]));
    assert_eq!(ledger.totals().ack_bytes, 86 + 35 + 28, "a tunnel's own, with headers");
}

#[test]
fn in_a_packet_with_data_only_the_frames_of_tunnels_count() {
    let ledger = Ledger::default();
    let [outer, inner, end_to_end] = layers(&ledger);
    end_to_end.on_sent(&packet(
        1,
        1200,
        &PacketContents { ack_frames: 1, ack_bytes: 7, ..DATA },
        &[],
    ));
    inner.on_sent(&packet(2, 1240, &AROUND_WITH_ACK, &[1]));
    end_to_end.on_sent(&packet(3, 40, &ACK, &[]));
    inner.on_sent(&packet(4, 80, &AROUND, &[3]));
    outer.on_sent(&packet(5, 1380, &AROUND_WITH_ACK, &[4, 2]));
    let totals = ledger.totals();
    assert_eq!((totals.ack_bytes, totals.ack_frames, totals.data_packets), (12, 2, 1));
}

#[test]
fn what_arrives_is_settled_when_the_innermost_packet_is_decrypted() {
    let ledger = Ledger::default();
    let [outer, inner, end_to_end] = layers(&ledger);
    outer.on_received(&packet(3, 126, &AROUND, &[2]));
    outer.on_received(&packet(5, 130, &AROUND, &[4]));
    inner.on_received(&packet(4, 90, &AROUND, &[6]));
    inner.on_received(&packet(2, 80, &AROUND, &[1]));
    assert_eq!(ledger.totals().ack_bytes, 0);
    end_to_end.on_received(&packet(1, 40, &ACK, &[]));
    assert_eq!(ledger.totals().ack_bytes, 86);
    end_to_end.on_received(&packet(6, 50, &DATA, &[]));
    assert_eq!(ledger.totals().ack_bytes, 86, "the other packet had data");
    end_to_end.on_received(&packet(1, 40, &ACK, &[]));
    assert_eq!(ledger.totals().ack_bytes, 86, "a duplicate is inside no other packet");
}

#[test]
fn a_payload_of_which_nothing_is_known_counts_as_data() {
    let ledger = Ledger::default();
    let [outer, ..] = layers(&ledger);
    outer.on_sent(&packet(1, 126, &AROUND_WITH_ACK, &[9]));
    assert_eq!(ledger.totals().ack_bytes, 6);
}

#[test]
fn without_tunnels_there_is_no_overhead() {
    let ledger = Ledger::default();
    let only = ledger.layer(true, true);
    only.on_sent(&packet(1, 40, &ACK, &[]));
    only.on_received(&packet(2, 1200, &DATA, &[]));
    let totals = ledger.totals();
    assert_eq!((totals.ack_bytes, totals.ack_frames, totals.data_packets), (0, 0, 1));
}

#[test]
fn only_packets_with_nothing_else_are_acknowledgements() {
    let is_ack_only = |payload: &[u8]| PacketContents::read(payload, |_| {}).is_ack_only();
    for (what, payload, expected) in [
        ("an ACK frame", &[2, 9, 0, 0, 4][..], true),
        ("and PADDING", &[2, 9, 0, 0, 4, 0, 0], true),
        ("and a PING", &[2, 9, 0, 0, 4, 1], false),
        ("and a datagram", &[2, 9, 0, 0, 4, 0x30, 0], false),
        ("PADDING", &[0, 0], false),
        ("an unknown frame", &[2, 9, 0, 0, 4, 0x21], false),
    ] {
        assert_eq!(is_ack_only(payload), expected, "{what}");
    }
}

#[test]
fn packets_may_be_decrypted_in_any_order_and_some_never() {
    let ledger = Ledger::default();
    let [outer, inner, end_to_end] = layers(&ledger);
    outer.on_received(&packet(1, 100, &AROUND, &[91])); // a report
    for order in [[11, 12, 13], [13, 11, 12]] {
        for tag in [11, 12, 13] {
            outer.on_received(&packet(tag + 20, 126, &AROUND, &[tag + 10]));
            inner.on_received(&packet(tag + 10, 80, &AROUND, &[tag]));
        }
        let before = ledger.totals().ack_bytes;
        for tag in order {
            end_to_end.on_received(&packet(tag, 40, &ACK, &[]));
        }
        assert_eq!(ledger.totals().ack_bytes, before + 3 * 86, "{order:?}");
    }
}
