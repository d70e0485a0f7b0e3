//! The bytes of a chain of tunnels, and the part of them that acknowledgements take.
//!
//! The client of a chain has an end of each of its connections, and so sees what each packet contains
//! that passes its access link. The definitions are those of the paper on nested acknowledgements
//! (ANRW '25, §5.2). There, contents are inferred from the sizes of packets; here, each packet is
//! recognized inside the packet around it by the tag of its packet protection.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use tandem_transport::PacketCounts;

use super::PacketContents;
use crate::stats::Overhead;

/// The headers of IPv4 and UDP in bytes.
pub(in crate::quic) const HEADERS: u64 = 28;

/// The most packets that are remembered in one direction. The oldest are forgotten, and count as data.
const REMEMBERED_MAX: usize = 4096;

/// The last bytes of an encrypted packet, which no other packet shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(u128);

impl Tag {
    /// The tag at the end of a packet. A packet without one matches no other.
    pub(crate) fn of(packet: &[u8]) -> Self {
        packet.last_chunk().map_or_else(Self::default, |tag| Self(u128::from_be_bytes(*tag)))
    }
}

/// What is known of the contents of a packet, with all packets inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    /// Whether all packets, on every layer, contain nothing but acknowledgements.
    is_ack_only: bool,
    /// The bytes of ACK frames on the layers of tunnels.
    tunnel_ack_bytes: u64,
    /// The bytes of end-to-end packets that contain nothing but acknowledgements, as IPv4 packets.
    end_to_end_acks: u64,
}

/// A packet on one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerPacket<'a> {
    pub(super) tag: Tag,
    /// The bytes of the whole packet.
    pub(super) size: u64,
    pub(super) contents: PacketContents,
    /// The packets in its DATAGRAM frames.
    pub(super) inner: &'a [Tag],
}

impl LayerPacket<'_> {
    /// The class of the packet without what is inside.
    fn own_class(&self, is_end_to_end: bool) -> Class {
        let is_ack_only = !self.contents.has_stream && !self.contents.has_others;
        Class {
            is_ack_only,
            tunnel_ack_bytes: if is_end_to_end { 0 } else { self.contents.ack_bytes },
            end_to_end_acks: if is_end_to_end && is_ack_only { self.size + HEADERS } else { 0 },
        }
    }
}

impl Class {
    /// A packet with no frames of its own. What is inside it decides.
    const BARE: Self = Self { is_ack_only: true, tunnel_ack_bytes: 0, end_to_end_acks: 0 };

    /// Adds a packet inside. `None`: nothing is known of it.
    fn add(&mut self, inner: Option<Self>) {
        self.is_ack_only &= inner.is_some_and(|inner| inner.is_ack_only);
        self.tunnel_ack_bytes += inner.map_or(0, |inner| inner.tunnel_ack_bytes);
        self.end_to_end_acks += inner.map_or(0, |inner| inner.end_to_end_acks);
    }

    /// The bytes of acknowledgements that tunnels cause, in an outermost packet of this size.
    const fn overhead(&self, size: u64) -> u64 {
        if self.is_ack_only {
            (size + HEADERS).saturating_sub(self.end_to_end_acks)
        } else {
            self.tunnel_ack_bytes
        }
    }
}

/// The classes of the newest packets by their tags. The oldest ones are forgotten.
#[derive(Debug, Default)]
struct Recent {
    entries: BTreeMap<Tag, Class>,
    order: VecDeque<Tag>,
}

impl Recent {
    fn insert(&mut self, tag: Tag, class: Class) {
        if self.entries.insert(tag, class).is_none() {
            self.order.push_back(tag);
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    fn get(&self, tag: Tag) -> Option<Class> {
        self.entries.get(&tag).copied()
    }
}

/// A received packet of which some inner packets have not been decrypted yet.
#[derive(Debug)]
struct Open {
    tag: Tag,
    class: Class,
    size: u64,
    is_outermost: bool,
    missing: usize,
}

/// Received packets that are open, by numbers in the order in which they came, and what is inside them.
#[derive(Debug, Default)]
struct OpenPackets {
    packets: VecDeque<Option<Open>>,
    /// The number of the first one.
    first: u64,
    /// What is inside and has not been decrypted, with the number of the packet around it. Packets are decrypted in the
    /// order in which they came, but for a few. Reports on the tunnel are never decrypted.
    inside: VecDeque<(Tag, u64)>,
}

impl OpenPackets {
    /// Adds a packet with these packets inside.
    fn push(&mut self, packet: Open, inside: &[Tag]) {
        if self.packets.len() >= REMEMBERED_MAX {
            self.pop_front();
        }
        let number = self.first + self.packets.len() as u64;
        self.packets.push_back(Some(packet));
        self.inside.extend(inside.iter().map(|tag| (*tag, number)));
        while self.inside.len() > REMEMBERED_MAX
            || self.inside.front().is_some_and(|(_, number)| *number < self.first)
        {
            self.inside.pop_front();
        }
    }

    fn pop_front(&mut self) {
        self.first += self.packets.pop_front().map_or(0, |_| 1);
    }

    /// Notes what a packet contains. Returns the packet around it, if everything is known of that now.
    fn close(&mut self, packet: &Open) -> Option<Open> {
        let place = self.inside.iter().position(|(tag, _)| *tag == packet.tag)?;
        let (_, number) = self.inside.remove(place)?; // `None`: the packet around it came first
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?; // `None`: it is forgotten
        let around = self.packets.get_mut(place)?;
        let open = around.as_mut()?;
        open.class.add(Some(packet.class));
        open.missing = open.missing.saturating_sub(1);
        if open.missing > 0 {
            return None;
        }
        let closed = around.take();
        while self.packets.front().is_some_and(Option::is_none) {
            self.pop_front();
        }
        closed
    }
}

/// The account of a chain, which the observers of its connections keep together. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<LayerAccount>>);

#[derive(Debug, Default)]
struct LayerAccount {
    totals: Overhead,
    /// What was sent on inner layers, for the packets around it.
    sent: Recent,
    /// Received packets with others inside that have not been decrypted.
    open: OpenPackets,
}

/// The place of a connection in a chain.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    ledger: Ledger,
    /// Whether the connection's packets go to the socket, and are in no tunnel.
    is_outermost: bool,
    is_end_to_end: bool,
}

impl Ledger {
    /// The place of a connection.
    pub(crate) fn layer(&self, is_outermost: bool, is_end_to_end: bool) -> Layer {
        Layer { ledger: self.clone(), is_outermost, is_end_to_end }
    }

    fn with<T>(&self, change: impl FnOnce(&mut LayerAccount) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts UDP payloads that pass the client's socket, in either direction.
    pub(crate) fn on_socket(&self, datagrams: usize, bytes: usize) {
        self.with(|account| {
            account.totals.total_bytes += bytes as u64 + HEADERS * datagrams as u64;
        });
    }

    /// The totals so far.
    pub(crate) fn totals(&self) -> Overhead {
        self.with(|account| account.totals)
    }
}

impl Layer {
    /// Notes that a packet of the connection inside leaves beside this connection, as `sent`.
    pub(crate) fn on_sent_beside(&self, inner: &[u8], sent: &[u8]) {
        self.ledger.with(|account| {
            let mut class = Class::BARE;
            class.add(account.sent.get(Tag::of(inner)));
            if self.is_outermost {
                account.settle(class, sent.len() as u64);
            } else {
                account.sent.insert(Tag::of(sent), class);
            }
        });
    }

    /// Notes that a packet of the connection inside came beside this connection, in a packet with
    /// this tag and size. The packet inside has not been decrypted yet.
    pub(crate) fn on_received_beside(&self, (tag, size): (Tag, usize), inner: &[u8]) {
        let (class, size) = (Class::BARE, size as u64);
        let open = Open { tag, class, size, is_outermost: self.is_outermost, missing: 1 };
        self.ledger.with(|account| account.open.push(open, &[Tag::of(inner)]));
    }

    /// Notes a packet of the sealed transport that leaves, with these packets inside. `counted`: what the transport had
    /// counted before it, and with it.
    pub(in crate::quic) fn on_sent_sealed(
        &self,
        (tag, size): (Tag, usize),
        counted: (PacketCounts, PacketCounts),
        inner: &[Tag],
    ) {
        let contents = PacketContents::of_sealed(counted, inner);
        self.on_sent(&LayerPacket { tag, size: size as u64, contents, inner });
    }

    /// The same for a packet that has come. The packets inside have not been decrypted yet.
    pub(in crate::quic) fn on_received_sealed(
        &self,
        (tag, size): (Tag, usize),
        counted: (PacketCounts, PacketCounts),
        inner: &[Tag],
    ) {
        let contents = PacketContents::of_sealed(counted, inner);
        self.on_received(&LayerPacket { tag, size: size as u64, contents, inner });
    }

    fn count(&self, account: &mut LayerAccount, packet: &LayerPacket<'_>) {
        if self.is_end_to_end {
            account.totals.data_packets += u64::from(packet.contents.has_stream);
        } else {
            account.totals.ack_frames += packet.contents.ack_frames;
        }
    }

    pub(super) fn on_sent(&self, packet: &LayerPacket<'_>) {
        self.ledger.with(|account| {
            self.count(account, packet);
            let mut class = packet.own_class(self.is_end_to_end);
            for &tag in packet.inner {
                class.add(account.sent.get(tag));
            }
            if self.is_outermost {
                account.settle(class, packet.size);
            } else {
                account.sent.insert(packet.tag, class);
            }
        });
    }

    pub(super) fn on_received(&self, packet: &LayerPacket<'_>) {
        let open = Open {
            tag: packet.tag,
            class: packet.own_class(self.is_end_to_end),
            size: packet.size,
            is_outermost: self.is_outermost,
            missing: packet.inner.len(),
        };
        self.ledger.with(|account| {
            self.count(account, packet);
            if open.missing == 0 {
                return account.close(open);
            }
            account.open.push(open, packet.inner);
        });
    }
}

impl LayerAccount {
    /// Counts an outermost packet.
    const fn settle(&mut self, class: Class, size: u64) {
        self.totals.ack_bytes += class.overhead(size);
    }

    /// Handles a received packet of which everything is known, and then those around it.
    fn close(&mut self, mut closed: Open) {
        while !closed.is_outermost {
            let Some(around) = self.open.close(&closed) else { return };
            closed = around;
        }
        self.settle(closed.class, closed.size);
    }
}
