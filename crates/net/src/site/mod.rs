//! What web sites need of the operating system: the HTTP server behind a site, and HTTP/1.1 over TCP beside HTTP/3
//! ([ADR 83](../../../../docs/design/adr/0083-a-proxy-that-is-a-site.md)).

mod exchanges;
mod fields;
mod folder;
mod http1;
mod upstream;
mod watch;
mod websocket;

pub(crate) use self::exchanges::Exchanges;
pub use self::{
    http1::TcpSite,
    upstream::{Upstream, UpstreamUrlError},
    watch::UpstreamWatch,
};
use crate::Files;

/// Where a site comes from.
#[derive(Clone, Debug)]
pub enum SiteContent {
    /// The files below a folder.
    Folder(Files),
    /// A server, with connections of its own.
    Upstream(Box<Upstream>),
}

impl SiteContent {
    /// The same for another runtime.
    #[must_use]
    pub fn apart(&self) -> Self {
        match self {
            Self::Folder(files) => Self::Folder(files.clone()),
            Self::Upstream(upstream) => Self::Upstream(Box::new(upstream.apart())),
        }
    }
}
