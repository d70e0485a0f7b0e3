//! Notices that addresses or routes of the host change, so that a connection can move to another network at once.
//!
//! On Linux the kernel tells it by netlink. Elsewhere, or where a sandbox forbids netlink, nothing is noticed: a failed
//! send call then tells that the way to a peer has gone.

#[cfg(target_os = "linux")]
pub(crate) use self::linux::NetworkWatch;
#[cfg(not(target_os = "linux"))]
pub(crate) use self::other::NetworkWatch;

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        io,
        os::fd::OwnedFd,
        task::{Context, Poll},
    };

    use rustix::net::{
        AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink::SocketAddrNetlink, recv,
        socket_with,
    };
    use tokio::io::{Interest, unix::AsyncFd};
    use tracing::debug;

    /// What the kernel tells: changes of links, addresses and routes (`RTMGRP_LINK`, `RTMGRP_IPV4_IFADDR`,
    /// `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR` and `RTMGRP_IPV6_ROUTE` of rtnetlink(7)).
    const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;

    /// The most messages that are read at a time. The rest is left for the next time.
    const MESSAGES_MAX: usize = 64;

    /// A subscription to changes.
    pub(crate) struct NetworkWatch(AsyncFd<OwnedFd>);

    impl NetworkWatch {
        /// Subscribes. `None`: the operating system does not tell. The caller must be in a tokio runtime.
        pub(crate) fn new() -> Option<Self> {
            let noted =
                |error: &io::Error| debug!(%error, "changes of the network are not noticed");
            subscription().inspect_err(noted).ok().map(Self)
        }

        /// Whether something has changed since the last call. Otherwise the task of the context is woken then.
        pub(crate) fn poll(&self, context: &mut Context<'_>) -> bool {
            let mut has_changed = false;
            for _ in 0..MESSAGES_MAX {
                let Poll::Ready(Ok(mut guard)) = self.0.poll_read_ready(context) else {
                    return has_changed; // nothing more is there
                };
                // What the message says does not matter, so that a part of it is enough. An error says that messages
                // were lost.
                let read = |socket: &AsyncFd<OwnedFd>| {
                    recv(socket.get_ref(), &mut [0_u8; 16], RecvFlags::empty())
                        .map_err(io::Error::from)
                };
                has_changed |= guard.try_io(read).is_ok();
            }
            context.waker().wake_by_ref();
            has_changed
        }
    }

    #[expect(
        deprecated,
        reason = "it is unsound if a type's descriptor can change or be closed; an `OwnedFd`'s cannot"
    )]
    fn subscription() -> io::Result<AsyncFd<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // The protocol is NETLINK_ROUTE, whose number is 0.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        AsyncFd::with_interest(socket, Interest::READABLE)
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::task::Context;

    /// No subscription.
    pub(crate) enum NetworkWatch {}

    impl NetworkWatch {
        pub(crate) fn new() -> Option<Self> {
            None
        }

        pub(crate) fn poll(&self, _: &mut Context<'_>) -> bool {
            match *self {}
        }
    }
}
