//! What `tandem top` draws of a server.

use std::time::Duration;

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::Line,
    widgets::{Row, Sparkline, Table, Widget},
};
use tandem_server::admin::{
    Now, RoleName, Tunnel, User,
    words::{bytes, count, met, ms, percent, rate},
};
use tandem_units::HumanDuration;

pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// A server at one time.
pub(super) struct Picture<'a> {
    pub(super) now: &'a Now,
}

impl Widget for Picture<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let users = self.user_lines(area.height);
        let [head, rates, _, rtts, _, tunnels, users, foot] = Layout::vertical([
            Constraint::Length(4),
            Constraint::Length(4),
            Constraint::Length(1),
            Constraint::Length(3),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Length(users),
            Constraint::Length(2),
        ])
        .areas(area);
        let now = self.now;
        for (line, row) in self.head().into_iter().zip(head.rows()) {
            line.render(row, buffer);
        }
        let history = &now.history;
        curve("Rate to clients", &history.to_client_mbps, rate, rates, buffer);
        curve("Median RTT", &history.rtt_median_s, ms, rtts, buffer);
        tunnel_table(now, tunnels, buffer);
        user_table(now, users, buffer);
        for (line, row) in self.foot().into_iter().zip(foot.rows()) {
            line.style(FAINT).render(row, buffer);
        }
    }
}

impl Picture<'_> {
    fn head(&self) -> [Line<'static>; 3] {
        let now = self.now;
        let (role, other) = match now.role {
            RoleName::Proxy => ("proxy", "to targets"),
            RoleName::Origin => ("origin", "uploads"),
        };
        let state = match (now.is_draining, now.is_ready) {
            (true, _) => "draining",
            (false, true) => "ready",
            _ if now.upstream_is_up == Some(false) => "its HTTP server is down",
            (false, false) => "takes no new connections",
        };
        #[expect(
            clippy::cast_sign_loss,
            clippy::cast_possible_truncation,
            reason = "a time since a start"
        )]
        let uptime = HumanDuration(Duration::from_secs(now.uptime_s as u64));
        let title = format!("Tandem {role}: {state}, up for {uptime}, {} threads", now.threads);
        let rates = &now.rates;
        let carried = format!(
            "to clients {}   {other} {}   lost {}",
            rate(rates.to_client_mbps),
            rate(rates.to_target_mbps),
            percent(rates.lost_ratio),
        );
        let rtt = now.rtt.map_or("–".to_owned(), |rtt| ms(rtt.median_s));
        let open = format!(
            "connections {}   flows {}   queues {}   RTT {rtt}   memory {} of {}",
            count(now.connections.open),
            count(now.flows.udp + now.flows.tcp),
            bytes(now.queue.bytes),
            bytes(now.memory.in_use_bytes),
            bytes(now.memory.bound_bytes),
        );
        [Line::styled(title, STRONG), Line::raw(carried), Line::raw(open)]
    }

    fn foot(&self) -> [Line<'static>; 2] {
        let now = self.now;
        let line = |title, causes| Line::raw(format!("{title}: {}", met(causes)));
        [line("dropped", &now.dropped), line("refused", &now.refused)]
    }

    /// The lines for users: a head and an empty line for those that there are, in at most a third of the picture.
    fn user_lines(&self, height: u16) -> u16 {
        let users = u16::try_from(self.now.users.len()).unwrap_or(u16::MAX);
        if users == 0 { 0 } else { users.saturating_add(2).min(height / 3) }
    }
}

/// Draws the newest values as a curve below a title.
pub(super) fn curve(
    title: &str,
    values: &[f64],
    format: fn(f64) -> String,
    area: Rect,
    buffer: &mut Buffer,
) {
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let newest: Vec<_> = values.iter().rev().take(usize::from(area.width)).copied().collect();
    let max = newest.iter().copied().fold(0.0, f64::max);
    Line::styled(title.to_owned(), STRONG).render(head, buffer);
    let legend = format!("top: {}, the last {} s", format(max), newest.len());
    Line::styled(legend, FAINT).right_aligned().render(head, buffer);
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "values are not negative, and a thousandth is as fine as the picture is"
    )]
    let data: Vec<u64> = newest.iter().map(|it| (it * 1e6) as u64).collect();
    let direction = ratatui::widgets::RenderDirection::RightToLeft;
    Sparkline::default().data(data).direction(direction).render(body, buffer);
}

fn tunnel_table(now: &Now, area: Rect, buffer: &mut Buffer) {
    let header = ["conn.", "user", "to client", "from client", "flows", "RTT", "lost", "queue"];
    let rows = now.tunnels.iter().map(|it| Row::new(tunnel_cells(it)));
    let widths = [8, 18, 14, 14, 6, 9, 8, 9].map(Constraint::Length);
    let header = Row::new(header).style(STRONG);
    Widget::render(Table::new(rows, widths).header(header), area, buffer);
}

fn user_table(now: &Now, area: Rect, buffer: &mut Buffer) {
    let header = [
        "user",
        "to client",
        "to targets",
        "conn.",
        "flows",
        "sent",
        "received",
        "met its limit of",
    ];
    let rows = now.users.iter().map(|it| Row::new(user_cells(it)));
    let widths = [18, 14, 14, 6, 6, 9, 9, 40].map(Constraint::Length);
    let header = Row::new(header).style(STRONG).top_margin(1);
    Widget::render(Table::new(rows, widths).header(header), area, buffer);
}

fn user_cells(it: &User) -> [String; 8] {
    [
        it.name.clone(),
        rate(it.to_client_mbps),
        rate(it.to_target_mbps),
        it.connections.to_string(),
        it.flows.to_string(),
        bytes(it.to_client_bytes),
        bytes(it.to_target_bytes),
        met(&it.limited),
    ]
}

fn tunnel_cells(it: &Tunnel) -> [String; 8] {
    let client = it.client.map(|client| client.to_string());
    [
        it.connection.to_string(),
        it.user.clone().or(client).unwrap_or_else(|| "–".to_owned()),
        rate(it.to_client_mbps),
        rate(it.from_client_mbps),
        (it.udp_flows + it.tcp_flows).to_string(),
        ms(it.rtt_s),
        percent(it.lost_ratio),
        bytes(it.queue_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_shows_rates_tunnels_and_drops() {
        let tunnel = Tunnel {
            connection: 7,
            user: Some("alice".to_owned()),
            to_client_mbps: 12.5,
            ..Tunnel::default()
        };
        let mut now = Now { is_ready: true, threads: 2, tunnels: vec![tunnel], ..Now::default() };
        now.users.push(User {
            name: "carol".to_owned(),
            connections: 1,
            limited: [("flows".to_owned(), 3), ("month".to_owned(), 0)].into(),
            ..User::default()
        });
        now.dropped.insert("queue_full".to_owned(), 3);
        now.history.to_client_mbps = vec![0.0, 12.5];
        let area = Rect::new(0, 0, 100, 24);
        let mut buffer = Buffer::empty(area);
        Picture { now: &now }.render(area, &mut buffer);
        let lines = buffer.content.chunks(100);
        let lines = lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect());
        let text = lines.collect::<Vec<String>>().join("\n");
        for words in [
            "Tandem proxy: ready",
            "alice",
            "12.5 Mbit/s",
            "carol",
            "flows 3",
            "dropped: queue full 3",
            "refused: nothing",
            "█",
        ] {
            assert!(text.contains(words), "no {words:?} in\n{text}");
        }
    }
}
