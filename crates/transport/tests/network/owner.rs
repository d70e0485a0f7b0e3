//! The owner of a transport: a queue of datagrams, and what it hears of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tandem_transport::{Fates, Source, Tag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Sent,
    Acked,
    Lost,
    LateAcked,
}

/// Each datagram begins with its tag, and is filled with it.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    pub(crate) queue: VecDeque<(Tag, usize)>,
    pub(crate) fates: BTreeMap<Tag, Fate>,
    /// What has arrived from the other end.
    pub(crate) received: BTreeSet<Tag>,
    pub(crate) packets: BTreeSet<u64>,
}

pub(crate) const TAG_LEN: usize = size_of::<Tag>();

impl Owner {
    pub(crate) fn count(&self, fate: Fate) -> usize {
        self.fates.values().filter(|&&it| it == fate).count()
    }

    pub(crate) fn offer(&mut self, tag: Tag, len: usize) {
        self.queue.push_back((tag, len.max(TAG_LEN)));
    }

    /// Takes a datagram from the other end.
    pub(crate) fn receive(&mut self, datagram: &[u8]) {
        let (tag, rest) = datagram.split_first_chunk().expect("each datagram has a tag");
        assert!(rest.iter().all(|byte| *byte == tag[TAG_LEN - 1]), "a datagram has changed");
        let is_new = self.received.insert(Tag::from_be_bytes(*tag));
        assert!(is_new, "a datagram came twice");
    }

    fn change(&mut self, tag: Tag, from: Fate, to: Fate) {
        let before = self.fates.insert(tag, to);
        assert_eq!(before, Some(from), "datagram {tag} becomes {to:?}");
    }
}

impl Fates for Owner {
    fn sent(&mut self, tag: Tag, packet_number: u64) {
        assert_eq!(self.fates.insert(tag, Fate::Sent), None, "datagram {tag} was sent before");
        self.packets.insert(packet_number);
    }

    fn acked(&mut self, tag: Tag) {
        self.change(tag, Fate::Sent, Fate::Acked);
    }

    fn lost(&mut self, tag: Tag) {
        self.change(tag, Fate::Sent, Fate::Lost);
    }

    fn late_acked(&mut self, tag: Tag) {
        self.change(tag, Fate::Lost, Fate::LateAcked);
    }
}

impl Source for Owner {
    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn next(&mut self, room: usize, out: &mut Vec<u8>) -> Option<Tag> {
        let (tag, len) = self.queue.front().copied().filter(|(_, len)| *len <= room)?;
        self.queue.pop_front();
        let bytes = tag.to_be_bytes();
        let end = out.len() + len;
        out.extend_from_slice(&bytes);
        out.resize(end, bytes[TAG_LEN - 1]);
        Some(tag)
    }
}
