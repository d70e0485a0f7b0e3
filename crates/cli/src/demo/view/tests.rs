use std::time::Duration;

use ratatui::{Terminal, backend::TestBackend, style::Color};
use tandem_node::ConnectionStats;
use tandem_units::ByteCount;

use super::*;
use crate::demo::gauges::Readings;

const YARDSTICK: Yardstick = Yardstick { rate_mbps: 10.0, rtt_ms: 140.0, ideal_s: 8.6 };

/// A journey that starts fast, then goes steadily for four seconds while its tunnel's queue drains.
fn samples(has_tunnel: bool) -> Vec<DemoSample> {
    let sample = |step: u8| {
        let at_s = f64::from(step) / 4.0;
        let of_tunnel = |value: f64| has_tunnel.then_some(value);
        DemoSample {
            at_s,
            e2e_pacing_mbps: Some(if step < 4 { 90.0 } else { 8.0 }),
            tunnel_pacing_mbps: of_tunnel(10.0),
            e2e_srtt_ms: Some(200.0),
            tunnel_srtt_ms: of_tunnel(50.0),
            tunnel_queue_bytes: has_tunnel.then_some(1_000 * u64::from(16 - step)),
        }
    };
    (1..=16).map(sample).collect()
}

fn readings(has_tunnel: bool) -> Readings {
    Readings {
        e2e: Some(ConnectionStats { sent_packets: 3_210, lost_packets: 3, ..Default::default() }),
        tunnel: has_tunnel.then(|| ConnectionStats {
            sent_packets: 3_400,
            lost_packets: 173,
            ..Default::default()
        }),
        tunnel_queue: has_tunnel.then_some(ByteCount::ZERO),
        body: 4_210_000,
        body_len: Some(10_000_000),
        awaited: "connecting".to_owned(),
    }
}

fn entries() -> Vec<JsonEntry> {
    let finished = ["mft", "10.04 s", "1.09", "7.97 Mbit/s", "9.5 %", "150 ms"];
    vec![
        JsonEntry::Finished(finished.map(str::to_owned)),
        JsonEntry::Running("rmdt".to_owned()),
        JsonEntry::Waiting("rmdt:off@cubic".to_owned()),
    ]
}

/// The screen, line by line.
fn draw(picture: &DemoPicture<'_>, width: u16, height: u16) -> (Vec<String>, Buffer) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| frame.render_widget(picture, frame.area())).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = buffer.content.chunks(usize::from(width));
    let lines = lines.map(|line| {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    });
    (lines.collect(), buffer)
}

fn with_picture<T>(
    has_tunnel: bool,
    has_colour: bool,
    look: impl FnOnce(&DemoPicture<'_>) -> T,
) -> T {
    let (samples, readings, entries) = (samples(has_tunnel), readings(has_tunnel), entries());
    let at = Duration::from_millis(4_300);
    look(&DemoPicture {
        title: "rmdt (MASQUE datagram tunnel, which retransmits lost packets)",
        moment: Moment { at, readings: &readings, samples: &samples },
        entries: &entries,
        yardstick: YARDSTICK,
        palette: Palette::new(has_colour),
    })
}

#[test]
fn a_picture_has_both_layers_the_queue_and_the_table() {
    let (lines, _) = with_picture(true, false, |picture| draw(picture, 80, 22));
    let expected = [
        "rmdt (MASQUE datagram tunnel, which retransmits lost packets)",
        " ━━━━━━━━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌ 4.21 MB of 10 MB  7.83 Mbit/s  4.3 s",
        "rate Mbit/s ⠒ server 8.00 • tunnel 10.0  RTT ms       ⠒ server 200 • tunnel 50.0",
        "20│ ⠉⢹                                   300│",
        "  │   ⡇                                     │",
        "  │   ⢇                                     │ ⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠁",
        "10│ ••⠸⠤⠤⠤⠤⠤⠤⠤⠤⠤⠤⠄                       150│",
        "  │                                         │ ••••••••••••••",
        "0 │                                      0  │",
        "  └────────────────────────────────────     └───────────────────────────────────",
        "  0                  5             10 s     0                5              10 s",
        "queue kB                  • tunnel 0.00  mode              time FCT/ideal    RTT",
        "16│ •                                    mft            10.04 s      1.09 150 ms",
        "  │ ••••                                 rmdt           running",
        "  │ ••••••                               rmdt:off@cubic waiting",
        "8 │ ••••••••••",
        "  │ ••••••••••••",
        "0 │ ••••••••••••••",
        "  └────────────────────────────────────",
        "  0                  5             10 s",
        "packets lost so far ⠒ server 0.1 % of 3210 • tunnel 5.1 % of 3400",
        "server: its connection to the client, end to end (E2E); tunnel: proxy to client",
    ];
    assert_eq!(lines, expected, "\n{}", lines.join("\n"));
}

#[test]
fn without_a_tunnel_there_are_the_lines_of_the_origin_only() {
    let (lines, _) = with_picture(false, false, |picture| draw(picture, 80, 19));
    let all = lines.join("\n");
    assert!(all.contains("⠒ server") && !all.contains("•"), "{all}");
    assert!(all.contains("no tunnel") && !all.contains("queue kB"), "{all}");
}

#[test]
fn colours_are_drawn_only_where_they_are_wanted_and_are_never_the_only_difference() {
    let colours = |has_colour| {
        let (_, buffer) = with_picture(true, has_colour, |picture| draw(picture, 80, 23));
        let has = |colour| buffer.content.iter().any(|cell| cell.fg == colour);
        [Color::Magenta, Color::Green].map(has)
    };
    assert_eq!(colours(true), [true, true]);
    let text = |has_colour| with_picture(true, has_colour, |picture| draw(picture, 80, 23)).0;
    assert_eq!(text(true), text(false));
    assert_eq!(colours(false), [false, false]);
    let (_, plain) = with_picture(true, false, |picture| draw(picture, 80, 23));
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
}

#[test]
fn larger_terminals_have_larger_charts_and_more_columns() {
    let (lines, _) = with_picture(true, true, |picture| draw(picture, 150, 40));
    let all = lines.join("\n");
    assert_eq!(lines.len(), 40);
    assert!(all.contains("retransmitted") && all.contains("7.97 Mbit/s"), "{all}");
    assert!(all.contains("15│"), "numbers at the quarters:\n{all}");
}

#[test]
fn before_the_first_byte_it_names_the_awaited_event() {
    let readings = Readings { body: 0, body_len: None, ..readings(true) };
    let moment = Moment { at: Duration::ZERO, readings: &readings, samples: &[] };
    let (lines, _) =
        with_picture(true, true, |picture| draw(&DemoPicture { moment, ..*picture }, 80, 23));
    assert!(lines[0].starts_with("rmdt") && lines[1].ends_with("connecting"), "{lines:?}");
}

#[test]
fn the_running_journey_is_visible_in_any_number_of_journeys() {
    let mut entries = vec![JsonEntry::Waiting("mdt".to_owned()); 30];
    entries[25] = JsonEntry::Running("rmdt".to_owned());
    let (lines, _) = with_picture(true, true, |picture| {
        draw(&DemoPicture { entries: &entries, ..*picture }, 80, 23)
    });
    assert!(lines.iter().any(|line| line.contains("running")), "{}", lines.join("\n"));
}
