//! The files of a folder as answers to HTTP/1.1 requests. Everything but the transport is that of an origin.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, SizeHint};
use tandem_node::{
    node::FileError,
    origin::answer,
    upstream::{RequestHead, ResponseHead},
};
use tokio::task::{JoinHandle, spawn_blocking};

use super::http1::Answer;
use crate::{Files, files::OpenFile};

/// The bytes that are read at a time.
const PIECE: usize = 64 * 1024;

/// The answer to a request.
pub(super) async fn answer<B>(files: &Files, request: &Request<B>) -> Answer {
    let head = RequestHead {
        method: request.method().clone(),
        path: Some(request.uri().path_and_query().map_or("", |path| path.as_str()).to_owned()),
        headers: request.headers().clone(),
        ..RequestHead::default()
    };
    let path = match answer::find(&head, false) {
        Ok(path) => path,
        Err(answer) => return whole(*answer),
    };
    let name = path.last().cloned().unwrap_or_default();
    let files = files.clone();
    let opened = spawn_blocking(move || files.open(&path)).await;
    let opened = opened.unwrap_or_else(|_| Err(FileError::Io(io::ErrorKind::Interrupted.into())));
    let (file, meta) = match opened {
        Ok(opened) => opened,
        Err(error) => return whole(answer::without_file(&head, error)),
    };
    let answer::Answer { head, start, end } = answer::for_file(&head, &name, &meta);
    with_head(
        head,
        Piecewise { file: Arc::new(file), next: start, end, reading: None }.boxed_unsync(),
    )
}

/// An answer with a short body.
pub(super) fn whole((head, body): (ResponseHead, Bytes)) -> Answer {
    with_head(head, Full::new(body).map_err(|never| match never {}).boxed_unsync())
}

fn with_head(head: ResponseHead, body: super::upstream::Body) -> Answer {
    let mut answer = Response::new(body);
    (*answer.status_mut(), *answer.headers_mut()) = (head.status, head.headers);
    answer
}

/// A part of a file, which is read as the client takes it.
struct Piecewise {
    file: Arc<OpenFile>,
    next: u64,
    end: u64,
    reading: Option<JoinHandle<Result<Bytes, FileError>>>,
}

impl Body for Piecewise {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let (file, next, left) = (Arc::clone(&self.file), self.next, self.end - self.next);
        if left == 0 {
            return Poll::Ready(None);
        }
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
        let reading =
            self.reading.get_or_insert_with(|| spawn_blocking(move || file.read(next, len)));
        let read = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        match read {
            Ok(Ok(data)) if !data.is_empty() => {
                self.next += data.len() as u64;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            // The file was truncated or cannot be read, so that the length that was announced cannot be reached.
            _ => Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into()))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.end - self.next)
    }
}
