//! A bound on what reports cost: at most one per cent of each direction of a tunnel.

use std::time::{Duration, Instant};

use tandem_units::{ByteCount, Rate};

/// One of this many bytes that a direction can carry may belong to reports.
const SHARE: i64 = 100;

/// Reports that may be sent at once, before the direction has carried anything.
const BURST: i64 = 16;

/// The bytes that a report costs on the way to the client: an HTTP Datagram of 30 bytes, and the
/// headers of IP, UDP, QUIC and the DATAGRAM frame, with the tag of the encryption. A packet full of
/// payload has no room for a report.
const TO_CLIENT: i64 = 90;

/// The bytes that a report costs on the way from the client: half an ACK of the packet in which it
/// came, and the frame in which the client passes it on, in a packet with an ACK.
const FROM_CLIENT: i64 = 70;

/// The time over which the rate from the client is measured.
const SAMPLE: Duration = Duration::from_millis(50);

/// The largest rate of the last one to two of these times counts.
const MEMORY: Duration = Duration::from_secs(5);

/// What reports may still cost in both directions.
#[derive(Debug)]
pub(super) struct Budget {
    to_client: Credit,
    from_client: Credit,
    peak: Peak,
    earned: Option<Instant>,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self {
            to_client: Credit::new(TO_CLIENT),
            from_client: Credit::new(FROM_CLIENT),
            peak: Peak::new(),
            earned: None,
        }
    }

    /// Adds what reports may cost for the time since the last call. `sending_rate` is the rate at
    /// which the tunnel can send, and `received` the number of bytes that have come from the client.
    pub(super) fn earn(&mut self, now: Instant, sending_rate: Rate, received: ByteCount) {
        let receiving_rate = self.peak.update(now, received);
        let since = self.earned.replace(now).unwrap_or(now);
        let elapsed = now.saturating_duration_since(since);
        self.to_client.earn(sending_rate.bytes_in(elapsed));
        self.from_client.earn(receiving_rate.map_or(ByteCount::ZERO, |it| it.bytes_in(elapsed)));
    }

    /// Pays for a report. `false`: it would cost too much. The first report on a flow is never
    /// refused, because an origin needs it before it sends, and the flow's request costs more than
    /// the report. Later reports have to make up for it.
    pub(super) const fn spend(&mut self, is_first: bool) -> bool {
        let is_enough = self.to_client.is_enough() && self.from_client.is_enough();
        if is_enough || is_first {
            self.to_client.spend();
            self.from_client.spend();
        }
        is_enough || is_first
    }
}

/// The bytes that a direction could carry and that are not set against a report yet.
#[derive(Debug)]
struct Credit {
    /// It is below zero after first reports, and always within a burst of zero.
    bytes: i64,
    /// The bytes that are set against one report.
    price: i64,
}

impl Credit {
    /// The credit for a burst of reports of this cost in bytes.
    const fn new(cost: i64) -> Self {
        let price = cost * SHARE;
        Self { bytes: BURST * price, price }
    }

    fn earn(&mut self, carried: ByteCount) {
        let carried = i64::try_from(carried.get()).unwrap_or(i64::MAX);
        self.bytes = self.bytes.saturating_add(carried).min(BURST * self.price);
    }

    const fn is_enough(&self) -> bool {
        self.bytes >= self.price
    }

    const fn spend(&mut self) {
        let (bytes, least) = (self.bytes - self.price, -BURST * self.price);
        self.bytes = if bytes < least { least } else { bytes };
    }
}

/// The largest rate at which bytes have come from the client. How much more the direction could
/// carry is not known.
#[derive(Debug)]
struct Peak {
    /// The largest rate since `began`, and in the time before.
    rates: [Option<Rate>; 2],
    began: Option<Instant>,
    /// The start of the present sample, and the bytes that had come by then.
    sample: Option<(Instant, ByteCount)>,
}

impl Peak {
    const fn new() -> Self {
        Self { rates: [None; 2], began: None, sample: None }
    }

    /// Notes how many bytes have come in all. Returns the largest rate.
    fn update(&mut self, now: Instant, received: ByteCount) -> Option<Rate> {
        let (since, before) = *self.sample.get_or_insert((now, received));
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= SAMPLE {
            let rate = Rate::average(received.saturating_sub(before), elapsed);
            if now.saturating_duration_since(*self.began.get_or_insert(now)) >= MEMORY {
                self.rates.rotate_right(1);
                self.rates[0] = None;
                self.began = Some(now);
            }
            self.rates[0] = self.rates[0].max(rate);
            self.sample = Some((now, received));
        }
        self.rates.into_iter().max().flatten()
    }
}
