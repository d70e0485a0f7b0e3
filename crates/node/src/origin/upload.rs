//! Uploads, which the origin reads, counts and discards. They serve measurements.

use http::{HeaderMap, Method, StatusCode};
use tandem_wire::{Code, RequestHead, ResponseHead};

use super::{
    answer,
    site::{Edge, RequestId, Site},
};
use crate::{fields::content_length, h3::End};

impl Site {
    /// Begins an upload if the request has a length and the length is within the limit. Otherwise
    /// refuses the request.
    pub(super) fn begin_upload(&mut self, cx: &mut Edge<'_>, id: RequestId, head: &RequestHead) {
        let refused = match content_length(&head.headers) {
            Ok(Some(len)) if len <= self.limits.upload => {
                self.uploads.insert(id, len);
                return;
            }
            Ok(Some(_)) => StatusCode::PAYLOAD_TOO_LARGE,
            Ok(None) => StatusCode::LENGTH_REQUIRED,
            Err(_) => StatusCode::BAD_REQUEST,
        };
        Self::refuse(cx, id, &Method::PUT, answer::plain(refused));
    }

    /// Counts a part of a request's body. Returns false if the body is longer than its
    /// content-length.
    pub(super) fn take_upload(&mut self, cx: &mut Edge<'_>, id: RequestId, len: usize) -> bool {
        let Some(left) = self.uploads.get_mut(&id) else { return true }; // of another request
        let Some(rest) = left.checked_sub(len as u64) else {
            self.abort_upload(cx, id);
            return false;
        };
        *left = rest;
        cx.stats.upload_bytes += len as u64;
        true
    }

    /// Ends an upload with a response, or with an error if the body is shorter than its
    /// content-length.
    pub(super) fn end_upload(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        match self.uploads.get(&id) {
            None => {}
            Some(0) => {
                self.uploads.remove(&id);
                let Some(mut carrier) = cx.server.carrier(id.0) else { return }; // the client has gone
                let head =
                    ResponseHead { status: StatusCode::NO_CONTENT, headers: HeaderMap::new() };
                carrier.respond(id.1, &head, End::Last);
            }
            Some(_) => self.abort_upload(cx, id),
        }
    }

    /// Aborts an upload. RFC 9114 §4.1.2: a request whose content-length "does not equal the sum of
    /// the DATA frame lengths received" is malformed, which is "a stream error of type
    /// `H3_MESSAGE_ERROR`".
    fn abort_upload(&mut self, cx: &mut Edge<'_>, id: RequestId) {
        self.uploads.remove(&id);
        cx.stats.requests_refused += 1;
        if let Some(mut carrier) = cx.server.carrier(id.0) {
            carrier.reset(id.1, Code::H3_MESSAGE_ERROR);
        }
    }
}
