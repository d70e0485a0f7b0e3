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
    use std::{io, os::fd::OwnedFd, task::Context};

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
            while let std::task::Poll::Ready(Ok(mut guard)) = self.0.poll_read_ready(context) {
                // An error other than "nothing is there" says that messages were lost.
                has_changed |= guard.try_io(|socket| drain(socket.get_ref())).is_ok();
            }
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

    /// Reads what is there. What the messages say does not matter.
    fn drain(socket: &OwnedFd) -> io::Result<()> {
        let mut buffer = [0_u8; 512]; // the rest of a longer message is discarded
        for count in 0..MESSAGES_MAX {
            match recv(socket, &mut buffer, RecvFlags::empty()) {
                Ok(_) => {}
                Err(rustix::io::Errno::WOULDBLOCK) if count > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
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
