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

use super::PacketContents;
use crate::impossible::impossible;
use crate::stats::Overhead;

/// The headers of IPv4 and UDP in bytes.
pub(in crate::quic) const HEADERS: u64 = 28;

/// The most packets that are remembered in one direction. The oldest are forgotten, and count as data.
const REMEMBERED_MAX: usize = 4096;

/// The last bytes of an encrypted packet, which no other packet shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag([u8; 16]);

impl Tag {
    /// The tag at the end of a packet. A packet without one matches no other.
    pub(crate) fn of(packet: &[u8]) -> Self {
        packet.last_chunk().copied().map(Self).unwrap_or_default()
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
#[derive(Clone, Debug)]
pub(super) struct LayerPacket {
    pub(super) tag: Tag,
    /// The bytes of the whole packet.
    pub(super) size: u64,
    pub(super) contents: PacketContents,
    /// The packets in its DATAGRAM frames.
    pub(super) inner: Vec<Tag>,
}

impl LayerPacket {
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

/// A map that forgets its oldest entries.
#[derive(Debug)]
struct Recent<T> {
    entries: BTreeMap<Tag, T>,
    order: VecDeque<Tag>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<T> Recent<T> {
    fn insert(&mut self, tag: Tag, value: T) {
        if self.entries.insert(tag, value).is_none() {
            self.order.push_back(tag);
        }
        if self.order.len() > REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    fn remove(&mut self, tag: Tag) -> Option<T> {
        self.entries.remove(&tag)
    }

    fn get(&self, tag: Tag) -> Option<&T> {
        self.entries.get(&tag)
    }

    fn get_mut(&mut self, tag: Tag) -> Option<&mut T> {
        self.entries.get_mut(&tag)
    }
}

/// A received packet of which some inner packets have not been decrypted yet.
#[derive(Debug)]
struct Open {
    class: Class,
    size: u64,
    is_outermost: bool,
    missing: usize,
}

/// The account of a chain, which the observers of its connections keep together. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(Arc<Mutex<LayerAccount>>);

#[derive(Debug, Default)]
struct LayerAccount {
    totals: Overhead,
    /// What was sent on inner layers, for the packets around it.
    sent: Recent<Class>,
    /// Received packets with others inside that have not been decrypted.
    open: Recent<Open>,
    /// The packet around each of those others.
    around: Recent<Tag>,
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
            class.add(account.sent.get(Tag::of(inner)).copied());
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
        let open = Open { class, size, is_outermost: self.is_outermost, missing: 1 };
        self.ledger.with(|account| {
            account.open.insert(tag, open);
            account.around.insert(Tag::of(inner), tag);
        });
    }

    fn count(&self, account: &mut LayerAccount, packet: &LayerPacket) {
        if self.is_end_to_end {
            account.totals.data_packets += u64::from(packet.contents.has_stream);
        } else {
            account.totals.ack_frames += packet.contents.ack_frames;
        }
    }

    pub(super) fn on_sent(&self, packet: &LayerPacket) {
        self.ledger.with(|account| {
            self.count(account, packet);
            let mut class = packet.own_class(self.is_end_to_end);
            for &tag in &packet.inner {
                class.add(account.sent.get(tag).copied());
            }
            if self.is_outermost {
                account.settle(class, packet.size);
            } else {
                account.sent.insert(packet.tag, class);
            }
        });
    }

    pub(super) fn on_received(&self, packet: LayerPacket) {
        let class = packet.own_class(self.is_end_to_end);
        let open = Open {
            class,
            size: packet.size,
            is_outermost: self.is_outermost,
            missing: packet.inner.len(),
        };
        self.ledger.with(|account| {
            self.count(account, &packet);
            if open.missing == 0 {
                return account.close(packet.tag, open);
            }
            account.open.insert(packet.tag, open);
            for inner in packet.inner {
                account.around.insert(inner, packet.tag);
            }
        });
    }
}

impl LayerAccount {
    /// Counts an outermost packet.
    const fn settle(&mut self, class: Class, size: u64) {
        self.totals.ack_bytes += class.overhead(size);
    }

    /// Handles a received packet of which everything is known, and then those around it.
    fn close(&mut self, mut tag: Tag, mut closed: Open) {
        while !closed.is_outermost {
            let Some(outer) = self.around.remove(tag) else { return }; // the packet around it came first
            let Some(open) = self.open.get_mut(outer) else { return }; // it is forgotten
            open.class.add(Some(closed.class));
            open.missing = open.missing.saturating_sub(1);
            if open.missing > 0 {
                return;
            }
            let Some(open) = self.open.remove(outer) else {
                return impossible("the packet was there a moment ago");
            };
            (tag, closed) = (outer, open);
        }
        self.settle(closed.class, closed.size);
    }
}
