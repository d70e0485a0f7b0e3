//! A body of zeros with which clients measure their rate. It needs no file, and its length has a bound.

use bytes::Bytes;
use tandem_wire::RequestHead;

use super::{
    answer,
    site::{Edge, OpenRequest, RequestId, ResponseState, Site},
};
use crate::node::FileMeta;

/// Where the body is. RFC 8615 keeps such paths apart from those of files.
pub(super) const PATH: &str = "/.well-known/tandem-speedtest";

/// The data of one write.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// At most this number of zeros.
pub(super) fn zeros(len: usize) -> Bytes {
    let mut zeros = Bytes::from_static(&ZEROS);
    zeros.truncate(len);
    zeros
}

impl Site {
    /// Begins the answer to a request for the body.
    pub(super) fn begin_speedtest(&mut self, cx: &mut Edge<'_>, id: RequestId, head: RequestHead) {
        let meta = FileMeta { len: self.limits.upload, modified: None };
        let answer = answer::for_file(&head, "speedtest", &meta);
        let exchange = OpenRequest {
            head,
            path: Vec::new(),
            file: None,
            state: ResponseState::Opening,
            began: cx.now,
            sent: (None, 0),
        };
        self.exchanges.insert(id, exchange);
        self.start(cx, id, &answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_never_more_zeros_than_are_asked_for() {
        for (asked, given) in [(0, 0), (1, 1), (65_536, 65_536), (usize::MAX, 65_536)] {
            let zeros = zeros(asked);
            assert!(zeros.len() == given && zeros.iter().all(|byte| *byte == 0), "{asked}");
        }
    }
}
