//! The documents state sizes and limits. This test compares them with the constants of the code.

use std::{fs, path::Path};

use tandem_node::{limits::Limits, proxy::NamedToken, quic::Mtu, tunnel::resequence::Bounds};

/// A number with a comma between thousands, as the documents write it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let count = digits.len();
    let with_commas = digits.char_indices().map(|(index, digit)| {
        let is_after_group = index > 0 && (count - index).is_multiple_of(3);
        if is_after_group { format!(",{digit}") } else { digit.to_string() }
    });
    with_commas.collect()
}

const THREATS: &str = "docs/design/threats.md";
const ARCHITECTURE: &str = "docs/design/architecture.md";
const ADR_26: &str = "docs/design/adr/0026-sizes-of-packets.md";

#[test]
fn the_documents_state_the_numbers_of_the_code() {
    let limits = Limits::default();
    let tunnel = Mtu::TUNNEL.start;
    let megabytes = |bytes: usize| format!("{} MB", bytes / 1_000_000);
    let seconds = |time: std::time::Duration| format!("{} s", time.as_secs());
    let bounds = Bounds::default();
    let claims = [
        (ARCHITECTURE, format!("A tunnel's packets start with {tunnel} bytes of UDP payload.")),
        ("docs/guide/tasks.md", format!("use {tunnel}-byte packets")),
        (ADR_26, format!("starts with {tunnel} bytes")),
        (ADR_26, format!("probes for {}", Mtu::TUNNEL.probe_up_to)),
        (THREATS, format!("{tunnel}-byte packets")),
        (THREATS, format!("and {} in all", limits.queries)),
        (
            THREATS,
            format!("| sockets towards targets | {} of a process", grouped(limits.sockets as u64)),
        ),
        (
            "docs/guide/deploy.md",
            format!("at most {}. If that is few", grouped(limits.sockets as u64)),
        ),
        (
            THREATS,
            format!("Of one flow {0} payloads wait in the client and {0} in", limits.flow_queue),
        ),
        (THREATS, format!("| {} of a driver; 10 s", tandem_net::TCP_CLOSING_MAX)),
        (THREATS, format!("| header section | {} KiB |", limits.field_section / 1024)),
        (
            THREATS,
            format!(
                "| tunnel's queue | {}; {} for flows",
                megabytes(limits.tunnel_queue),
                megabytes(limits.short_tunnel_queue)
            ),
        ),
        (
            THREATS,
            format!(
                "| datagrams kept for retransmission | {} per tunnel, {} numbers per flow |",
                megabytes(limits.repair_bytes),
                grouped(bounds.packets.into())
            ),
        ),
        (
            THREATS,
            format!(
                "{} and {} numbers per flow, {} for all flows of a node, {} |",
                megabytes(bounds.bytes),
                grouped(bounds.packets.into()),
                megabytes(limits.held_bytes),
                seconds(bounds.gap_max)
            ),
        ),
        (
            THREATS,
            format!("| concurrent name lookups | {} in all |", grouped(limits.queries as u64)),
        ),
        (THREATS, format!("| name resolution | {} |", seconds(limits.dns_timeout))),
        (
            THREATS,
            format!(
                "| silence | {} for a flow, {} for a connection, {} for a client's tunnel |",
                seconds(limits.flow_idle),
                seconds(limits.connection_idle),
                seconds(limits.tunnel_idle)
            ),
        ),
    ];
    for (file, claim) in claims {
        assert_says(file, &claim);
    }
}

#[test]
fn the_documents_state_the_size_with_which_chains_start() {
    let start = Mtu::CHAIN_START;
    for (file, claim) in [
        (THREATS, format!("{start}-byte packets")),
        (ARCHITECTURE, format!("of a chain of three or four starts with {start} bytes")),
        ("docs/design/adr/0027-sizes-in-chains.md", format!("it starts with {start} bytes")),
    ] {
        assert_says(file, &claim);
    }
}

#[test]
fn the_threats_state_the_limits_of_strangers() {
    let limits = Limits::default();
    for claim in [
        format!("| connections of a server | {} |", grouped(limits.connections as u64)),
        format!(
            "| connections of one prefix without a permitted request | {} |",
            grouped(limits.connections_per_prefix as u64)
        ),
        format!(
            "| handshakes with peers of unproven addresses | {} | Retry |",
            limits.unvalidated_handshakes
        ),
        format!(
            "| duration of a handshake at a server | {} s |",
            limits.handshake_timeout.as_secs()
        ),
    ] {
        assert_says(THREATS, &claim);
    }
}

#[test]
fn the_threats_state_the_limits_of_guesses() {
    let limits = Limits::default();
    for claim in [
        format!(
            "looks at {} wrong tokens from one source at once, and then at one every {} s;",
            limits.guesses,
            limits.guess_interval.as_secs()
        ),
        format!("closes a connection after {} wrong tokens", limits.guesses_per_connection),
        format!("that a proxy remembers | {} |", grouped(limits.guess_sources as u64)),
        format!("A token's name has at most {} characters", NamedToken::NAME_MAX),
    ] {
        assert_says(THREATS, &claim);
    }
}

#[test]
fn the_threats_state_the_limits_of_the_local_proxy_port() {
    let limits = Limits::default().local_proxy;
    for claim in [
        format!("at a client's proxy port | {} KiB |", limits.head / 1024),
        format!(
            "| line before a chunk at a client's proxy port | {} bytes |",
            grouped(limits.chunk_line as u64)
        ),
        format!("the end of an exchange | {} KiB, and one read |", limits.held / 1024),
    ] {
        assert_says(THREATS, &claim);
    }
}

/// Checks that a document contains a text. Line ends and the number of spaces do not matter.
#[track_caller]
fn assert_says(file: &str, claim: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = fs::read_to_string(path).expect("the document exists");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(claim), "{file} does not say {claim:?}");
}
