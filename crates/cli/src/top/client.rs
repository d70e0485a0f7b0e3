//! What `tandem top` draws of a client.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    text::Line,
    widgets::{Row, Table, Widget},
};
use tandem_server::admin::{
    client::{ClientFlow, ClientHop, ClientNow, ClientState},
    words::{age, bytes, count, met, ms, percent, rate},
};

use super::picture::{FAINT, STRONG, curve};

/// A client at one time.
pub(super) struct ClientPicture<'a> {
    pub(super) now: &'a ClientNow,
}

impl Widget for ClientPicture<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let now = self.now;
        let hops = u16::try_from(now.hops.len()).unwrap_or(u16::MAX).saturating_add(1);
        let [head, rates, _, rtts, _, tunnels, _, flows, foot] = Layout::vertical([
            Constraint::Length(4),
            Constraint::Length(3),
            Constraint::Length(1),
            Constraint::Length(2),
            Constraint::Length(1),
            Constraint::Length(hops.min(area.height / 4)),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(area);
        for (line, row) in head_lines(now).into_iter().zip(head.rows()) {
            line.render(row, buffer);
        }
        let history = &now.history;
        curve("Rate to programs", &history.to_client_mbps, rate, rates, buffer);
        curve("RTT of the nearest tunnel", &history.rtt_s, ms, rtts, buffer);
        hop_table(now, tunnels, buffer);
        flow_table(now, flows, buffer);
        Line::raw(format!("dropped: {}", met(&now.dropped))).style(FAINT).render(foot, buffer);
    }
}

fn head_lines(now: &ClientNow) -> [Line<'static>; 3] {
    let lasts = age(now.state_for_s);
    let state = match now.state {
        ClientState::Connecting => format!("connecting for {lasts}"),
        ClientState::Up => format!("tunnel up for {lasts}"),
        ClientState::Away => format!("no tunnel for {lasts}"),
    };
    let lost = match now.lost {
        0 => String::new(),
        1 => ", lost once".to_owned(),
        lost => format!(", lost {} times", count(lost)),
    };
    let title = format!("Tandem client: {state}{lost}, runs for {}", age(now.uptime_s));
    let (rates, carried) = (&now.rates, &now.carried);
    let carried = format!(
        "from programs {} ({})   to programs {} ({})   open flows {}",
        rate(rates.to_target_mbps),
        bytes(carried.to_target_bytes),
        rate(rates.to_client_mbps),
        bytes(carried.to_client_bytes),
        now.flows.open,
    );
    let failure = match (&now.error, now.retry_in_s) {
        (Some(error), Some(wait)) if wait > 0.0 => format!("trying again in {}: {error}", ms(wait)),
        (Some(error), Some(_)) => format!("trying again: {error}"),
        (Some(error), None) => format!("last failure: {error}"),
        (None, _) => String::new(),
    };
    let style = if now.state == ClientState::Away { STRONG } else { FAINT };
    [Line::styled(title, STRONG), Line::raw(carried), Line::styled(failure, style)]
}

fn hop_table(now: &ClientNow, area: Rect, buffer: &mut Buffer) {
    let header = ["tunnel to", "mode", "RTT", "sent", "received", "lost", "repaired"];
    let rows = now.hops.iter().map(|it| Row::new(hop_cells(it)));
    let widths = [20, 7, 8, 12, 12, 7, 8].map(Constraint::Length);
    let header = Row::new(header).style(STRONG);
    Widget::render(Table::new(rows, widths).header(header), area, buffer);
}

fn hop_cells(it: &ClientHop) -> [String; 7] {
    let rtt = if it.is_up { ms(it.rtt_s) } else { "down".to_owned() };
    [
        it.proxy.clone(),
        it.mode.clone().unwrap_or_else(|| "–".to_owned()),
        rtt,
        rate(it.sent_mbps),
        rate(it.received_mbps),
        percent(it.lost_ratio),
        count(it.repaired.saturating_add(it.waited)),
    ]
}

fn flow_table(now: &ClientNow, area: Rect, buffer: &mut Buffer) {
    let header = ["flow", "target", "state", "sent", "received", "age"];
    let rows = now.open_flows.iter().map(|it| Row::new(flow_cells(it)));
    let widths = [9, 32, 8, 8, 8, 8].map(Constraint::Length);
    let header = Row::new(header).style(STRONG);
    Widget::render(Table::new(rows, widths).header(header), area, buffer);
}

fn flow_cells(it: &ClientFlow) -> [String; 6] {
    [
        it.kind.clone(),
        it.target.clone(),
        it.phase.clone(),
        bytes(it.to_target_bytes),
        bytes(it.to_client_bytes),
        it.age_s.map_or_else(|| "–".to_owned(), age),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the picture in a terminal of 80 columns and 24 lines.
    fn drawn(now: &ClientNow) -> Vec<String> {
        let area = Rect::new(0, 0, 80, 23);
        let mut buffer = Buffer::empty(area);
        ClientPicture { now }.render(area, &mut buffer);
        let lines = buffer.content.chunks(80);
        lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
    }

    fn client() -> ClientNow {
        let hop = ClientHop {
            proxy: "proxy.example".to_owned(),
            is_up: true,
            mode: Some("rmdt".to_owned()),
            rtt_s: 0.0215,
            received_mbps: 940.0,
            lost_ratio: 0.0123,
            repaired: 3,
            waited: 4,
            ..ClientHop::default()
        };
        let flow = ClientFlow {
            kind: "socks-udp".to_owned(),
            target: "a-host-with-a-long-name.example:443".to_owned(),
            phase: "waiting".to_owned(),
            to_client_bytes: 999_900_000,
            age_s: Some(7_000.0),
            ..ClientFlow::default()
        };
        let mut now = ClientNow {
            state: ClientState::Up,
            state_for_s: 75.0,
            lost: 2,
            hops: vec![hop.clone(), hop],
            open_flows: vec![flow; 50],
            ..ClientNow::default()
        };
        now.history.to_client_mbps = vec![0.0, 12.5];
        now.dropped.insert("queue_full".to_owned(), 3);
        now
    }

    #[test]
    fn the_picture_shows_the_tunnel_its_hops_and_flows() {
        let text = drawn(&client()).join("\n");
        for words in [
            "Tandem client: tunnel up for 75 s, lost 2 times",
            "proxy.example        rmdt    22 ms    0            940.0 Mbit/s 1.23 %  7",
            "socks-udp a-host-with-a-long-name.example: waiting  0 B      999.9 MB 117 min",
            "dropped: queue full 3",
            "█",
        ] {
            assert!(text.contains(words), "no {words:?} in\n{text}");
        }
        assert!(text.matches("socks-udp").count() >= 5, "{text}");
    }

    #[test]
    fn a_client_without_a_tunnel_says_why_and_when_it_tries_again() {
        let error = Some("proxy.example does not answer within 12s".to_owned());
        let away = ClientNow {
            state: ClientState::Away,
            error,
            retry_in_s: Some(2.5),
            hops: Vec::new(),
            ..client()
        };
        let text = drawn(&away).join("\n");
        assert!(text.contains("no tunnel for 75 s"), "{text}");
        assert!(text.contains("trying again in 2500 ms: proxy.example does not answer"), "{text}");
        let text =
            drawn(&ClientNow { retry_in_s: None, state: ClientState::Up, ..away }).join("\n");
        assert!(text.contains("last failure: proxy.example does not"), "{text}");
    }
}
