//! The answers of name servers that are still valid.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use hickory_proto::rr::{Name, RecordType};
use tokio::time::Instant;

use super::message::Reply;

/// The largest number of answers. A cache that is full of valid answers is emptied.
const ENTRIES_MAX: usize = 4096;

/// The longest time for which an answer is kept.
const TTL_MAX: Duration = Duration::from_secs(3600);

/// The longest time for which it is kept that there is nothing, since what is missing may just be added.
const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Cache {
    replies: BTreeMap<(Name, RecordType), (Instant, Arc<Reply>)>,
}

impl Cache {
    pub(super) fn get(&self, name: &Name, kind: RecordType) -> Option<Arc<Reply>> {
        let (until, reply) = self.replies.get(&(name.clone(), kind))?;
        (Instant::now() < *until).then(|| Arc::clone(reply))
    }

    pub(super) fn keep(&mut self, name: Name, kind: RecordType, reply: &Arc<Reply>) {
        let now = Instant::now();
        let longest = if reply.records().is_empty() { NEGATIVE_TTL_MAX } else { TTL_MAX };
        let ttl = reply.ttl.min(longest);
        if ttl.is_zero() {
            return;
        }
        if self.replies.len() >= ENTRIES_MAX {
            self.replies.retain(|_, (until, _)| now < *until);
        }
        if self.replies.len() >= ENTRIES_MAX {
            self.replies.clear();
        }
        self.replies.insert((name, kind), (now + ttl, Arc::clone(reply)));
    }
}
