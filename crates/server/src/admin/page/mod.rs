//! The live page: one document without assets from elsewhere. Its script replaces the body once a second by what
//! the server has drawn again, so that a browser without scripts shows the same.

mod chart;

use std::time::Duration;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderValue, StatusCode, header::CONTENT_SECURITY_POLICY};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};
use tandem_net::admin::{Answer, answer};
use tandem_units::HumanDuration;

use self::chart::{Chart, Line};
use super::{
    RoleName,
    now::{Now, Tunnel, User},
    words::{bytes, cause, count, met, ms, percent, rate},
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const TYPE: &str = "text/html; charset=utf-8";

/// The whole document.
pub(super) fn whole(now: &Now) -> Answer {
    let title = format!("Tandem {}", role(now));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                link rel="icon" href="data:,";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    p #notice {
                        noscript {
                            "This browser runs no scripts, so these are the numbers of the moment when the page \
                             was loaded. Reload it for new ones."
                        }
                    }
                }
                (main(now))
                footer {
                    "The same for programs: " a href="/metrics" { "metrics" } " for Prometheus and "
                    a href="/api/now" { "JSON" } "; in a terminal: " code { "tandem top" }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    let policy = format!(
        "default-src 'none'; img-src data:; style-src {}; script-src {}; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    );
    let mut answer = answer(StatusCode::OK, TYPE, page.into_string());
    let policy = HeaderValue::try_from(policy).expect("it is ASCII");
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    answer
}

/// The part that changes.
pub(super) fn live(now: &Now) -> Answer {
    answer(StatusCode::OK, TYPE, main(now).into_string())
}

/// A source of a content security policy that allows exactly this text.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

const fn role(now: &Now) -> &'static str {
    now.role.as_str()
}

fn main(now: &Now) -> Markup {
    html! {
        main {
            (state(now))
            (tiles(now))
            (charts(now))
            (tunnels(now))
            (users(now))
            (ab_test(now))
            div.pair {
                (causes("Dropped by tunnels", &now.dropped, now.role == RoleName::Proxy))
                (causes("Refused", &now.refused, true))
            }
        }
    }
}

fn state(now: &Now) -> Markup {
    let (class, words) = match (now.is_draining, now.is_ready) {
        (true, _) => ("bad", "draining: open flows may go on, new ones are refused"),
        (false, true) => ("good", "ready"),
        _ if now.upstream_is_up == Some(false) => {
            ("bad", "the HTTP server behind the site is down")
        }
        (false, false) => ("bad", "takes no new connections: it starts, or memory is short"),
    };
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "a time since a start"
    )]
    let uptime = HumanDuration(Duration::from_secs(now.uptime_s as u64));
    html! {
        p.state {
            span class=(class) { (words) }
            " · version " (now.version) " · up for " (uptime) " · " (now.threads)
            (if now.threads == 1 { " thread" } else { " threads" })
            @if now.stuck_threads > 0 { span.bad { ", which were stuck " (now.stuck_threads) " times" } }
            @if now.lost_log_lines > 0 { " · " span.bad { (now.lost_log_lines) " lines of the log were lost" } }
            @if now.cut_qlogs > 0 { " · " span.bad { (now.cut_qlogs) " qlog files are not complete" } }
        }
    }
}

fn tile(title: &str, value: &str, detail: &str) -> Markup {
    html! { div.tile { h2 { (title) } p.value { (value) } p.detail { (detail) } } }
}

fn tiles(now: &Now) -> Markup {
    let rates = &now.rates;
    let of_limit = |limit: usize| format!("of at most {}", count(limit as u64));
    let rtt = now.rtt.unwrap_or_default();
    html! {
        section.tiles {
            (tile("To clients", &rate(rates.to_client_mbps), &format!("sent: {} packets/s", count_f(rates.sent_pps))))
            (tile(
                if now.role == RoleName::Proxy { "To targets" } else { "Uploads" },
                &rate(rates.to_target_mbps),
                &format!("received: {} packets/s", count_f(rates.received_pps)),
            ))
            (tile("Connections", &count(now.connections.open), &of_limit(now.connections.limit)))
            @if now.role == RoleName::Proxy {
                (tile(
                    "Flows",
                    &count(now.flows.udp + now.flows.tcp),
                    &format!("{} UDP, {} TCP", count(now.flows.udp), count(now.flows.tcp)),
                ))
                (tile(
                    "Tunnel queues",
                    &bytes(now.queue.bytes),
                    &format!("sent within {}", ms(now.queue.longest_wait_s)),
                ))
            }
            (tile(
                "RTT to clients",
                &now.rtt.map_or("–".to_owned(), |_| ms(rtt.median_s)),
                &format!("95 % below {}", ms(rtt.p95_s)),
            ))
            (tile("Lost", &percent(rates.lost_ratio), "of the packets to clients"))
            (tile(
                "Memory",
                &bytes(now.memory.in_use_bytes),
                &format!("bound: {}", bytes(now.memory.bound_bytes)),
            ))
        }
    }
}

#[expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    reason = "a rate is not negative"
)]
fn count_f(number: f64) -> String {
    count(number.round() as u64)
}

fn charts(now: &Now) -> Markup {
    let history = &now.history;
    let other = if now.role == RoleName::Proxy { "to targets" } else { "uploads" };
    let rates = Chart {
        title: "Rate",
        format: rate,
        lines: &[
            Line { name: "to clients", class: "a", values: &history.to_client_mbps },
            Line { name: other, class: "b", values: &history.to_target_mbps },
        ],
    };
    let rtt = Chart {
        title: "Median RTT",
        format: ms,
        lines: &[Line { name: "RTT", class: "a", values: &history.rtt_median_s }],
    };
    let queue = Chart {
        title: "Tunnel queues",
        format: chart::bytes,
        lines: &[Line { name: "bytes", class: "a", values: &history.queue_bytes }],
    };
    html! {
        section.charts {
            (rates.draw())
            (rtt.draw())
            @if now.role == RoleName::Proxy { (queue.draw()) }
        }
    }
}

fn tunnels(now: &Now) -> Markup {
    let is_proxy = now.role == RoleName::Proxy;
    let has_clients = now.tunnels.iter().any(|it| it.client.is_some());
    let shown = now.tunnels.len();
    html! {
        section {
            h2 { (if is_proxy { "Busiest tunnels" } else { "Busiest connections" }) }
            @if shown == 0 {
                p.detail { "There is none." }
            } @else {
                div.scroll { table {
                    thead { tr {
                        th { "connection" }
                        @if is_proxy { th.text { "user" } }
                        @if has_clients { th.text { "client" } }
                        th { "to client" } th { "from client" }
                        @if is_proxy { th { "flows" } }
                        th { "RTT" } th { "lost" }
                        @if is_proxy { th { "queue" } th { "wait" } }
                        th { "sent" } th { "received" }
                    } }
                    tbody { @for it in &now.tunnels { (tunnel(it, is_proxy, has_clients)) } }
                } }
                @let rest = now.connections.open.saturating_sub(shown as u64);
                @if rest > 0 { p.detail { "and " (count(rest)) " that carry less" } }
            }
        }
    }
}

fn tunnel(it: &Tunnel, is_proxy: bool, has_clients: bool) -> Markup {
    html! {
        tr {
            td { (it.connection) }
            @if is_proxy { td.text { (it.user.as_deref().unwrap_or("–")) } }
            @if has_clients { td.text { (it.client.map_or("–".to_owned(), |it| it.to_string())) } }
            td { (rate(it.to_client_mbps)) } td { (rate(it.from_client_mbps)) }
            @if is_proxy { td { (it.udp_flows + it.tcp_flows) } }
            td { (ms(it.rtt_s)) } td { (percent(it.lost_ratio)) }
            @if is_proxy { td { (bytes(it.queue_bytes)) } td { (ms(it.queue_wait_s)) } }
            td { (bytes(it.to_client_bytes)) } td { (bytes(it.from_client_bytes)) }
        }
    }
}

fn users(now: &Now) -> Markup {
    html! {
        @if !now.users.is_empty() {
            section {
                h2 { "Busiest users" }
                div.scroll { table {
                    thead { tr {
                        th.text { "user" } th { "to client" } th { "to targets" } th { "connections" } th { "flows" }
                        th { "sent" } th { "received" } th.text { "met its limit of" }
                    } }
                    tbody { @for it in &now.users { (user(it)) } }
                } }
                @let rest = now.users_known.saturating_sub(now.users.len());
                @if rest > 0 { p.detail { "and " (count(rest as u64)) " that carry less" } }
            }
        }
    }
}

fn ab_test(now: &Now) -> Markup {
    html! {
        @if !now.ab_test.is_empty() {
            section {
                h2 { "Transfers in the A/B test" }
                div.scroll { table {
                    thead { tr {
                        th.text { "size" } th.text { "mode" } th { "transfers" } th { "mean" } th { "geometric mean" }
                    } }
                    tbody { @for it in &now.ab_test { tr {
                        td.text { (it.size) } td.text { (it.mode) } td { (count(it.transfers)) }
                        td { (ms(it.mean_s)) } td { (ms(it.geometric_mean_s())) }
                    } } }
                } }
                p.detail { "tandem ab compares them, with confidence intervals" }
            }
        }
    }
}

fn user(it: &User) -> Markup {
    html! {
        tr {
            td.text { (it.name) }
            td { (rate(it.to_client_mbps)) } td { (rate(it.to_target_mbps)) }
            td { (it.connections) } td { (it.flows) }
            td { (bytes(it.to_client_bytes)) } td { (bytes(it.to_target_bytes)) }
            td.text { (met(&it.limited)) }
        }
    }
}

fn causes(title: &str, causes: &std::collections::BTreeMap<String, u64>, is_shown: bool) -> Markup {
    html! {
        @if is_shown {
            section {
                h2 { (title) " since the start" }
                table {
                    @for (name, number) in causes {
                        tr.zero[*number == 0] { th.text { (cause(name)) } td { (count(*number)) } }
                    }
                }
            }
        }
    }
}
