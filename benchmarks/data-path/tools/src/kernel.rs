//! System calls that the standard library does not have.

use std::{
    io, mem,
    net::{SocketAddrV4, UdpSocket},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

/// The most packets of one call.
pub const BATCH: usize = 64;

/// Keeps this thread on one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: zeroes are an empty set, and the call reads no more than its size.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    checked(result).map(|_| ())
}

/// The CPU time of all threads of a process, also of those that have ended. It is the sum of what their `schedstat` in
/// `/proc` says.
pub fn cpu_nanos(pid: i32) -> io::Result<u64> {
    let clock = (!pid << 3) | 2; // as clock_getcpuclockid(3) makes it
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` only.
    checked(unsafe { libc::clock_gettime(clock, &raw mut time) })?;
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Sends a payload several times with one call, and says how many the kernel took.
pub fn send(
    socket: &UdpSocket,
    payload: &[u8],
    to: Option<SocketAddrV4>,
    count: usize,
) -> io::Result<usize> {
    let mut address = to.map(|to| libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: to.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*to.ip()).to_be() },
        sin_zero: [0; 8],
    });
    let (name, name_length) = match &mut address {
        Some(address) => (ptr::from_mut(address).cast(), size_of::<libc::sockaddr_in>() as u32),
        None => (ptr::null_mut(), 0),
    };
    let mut piece =
        libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: zeroes are a valid message header. The headers point at `piece` and `address`, which live until the call
    // has returned, and the kernel only reads them.
    let result = unsafe {
        let mut headers: [libc::mmsghdr; BATCH] = mem::zeroed();
        for header in &mut headers[..count.min(BATCH)] {
            header.msg_hdr.msg_name = name;
            header.msg_hdr.msg_namelen = name_length;
            header.msg_hdr.msg_iov = &raw mut piece;
            header.msg_hdr.msg_iovlen = 1;
        }
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            count.min(BATCH) as u32,
            libc::MSG_DONTWAIT,
        )
    };
    checked(result)
}

/// Receives what has arrived at a socket, of which it keeps only the head.
pub struct Receiver {
    heads: Box<[[u8; HEAD]; BATCH]>,
}

/// How many bytes of a packet are kept.
pub const HEAD: usize = 16;

impl Default for Receiver {
    fn default() -> Self {
        Self { heads: Box::new([[0; HEAD]; BATCH]) }
    }
}

impl Receiver {
    /// Calls `each` with the head and the whole length of each packet, and says how many there were. It never waits.
    pub fn receive(&mut self, socket: &UdpSocket, mut each: impl FnMut(&[u8], usize)) -> usize {
        let mut lengths = [0; BATCH];
        // SAFETY: zeroes are a valid message header. The headers point at pieces, and those at heads of their length;
        // all of them live until the call has returned.
        let count = unsafe {
            let mut pieces: [libc::iovec; BATCH] = mem::zeroed();
            let mut headers: [libc::mmsghdr; BATCH] = mem::zeroed();
            for ((head, piece), header) in self.heads.iter_mut().zip(&mut pieces).zip(&mut headers)
            {
                *piece = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: HEAD };
                header.msg_hdr.msg_iov = piece;
                header.msg_hdr.msg_iovlen = 1;
            }
            let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
            let fd = socket.as_raw_fd();
            let count =
                libc::recvmmsg(fd, headers.as_mut_ptr(), BATCH as u32, flags, ptr::null_mut());
            for (length, header) in lengths.iter_mut().zip(&headers) {
                *length = header.msg_len as usize;
            }
            checked(count).unwrap_or(0)
        };
        for (head, length) in self.heads.iter().zip(lengths).take(count) {
            each(&head[..length.min(HEAD)], length);
        }
        count
    }
}

/// Sockets of which one thread waits for any. A socket is ready as long as it holds a packet.
pub struct Poll {
    epoll: OwnedFd,
    events: [libc::epoll_event; BATCH],
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call has a number only, and the descriptor that it returns is nobody else's.
        let epoll = unsafe {
            OwnedFd::from_raw_fd(checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))? as i32)
        };
        Ok(Self { epoll, events: [libc::epoll_event { events: 0, u64: 0 }; BATCH] })
    }

    pub fn add(&self, socket: &UdpSocket, name: usize) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: name as u64 };
        let (epoll, socket) = (self.epoll.as_raw_fd(), socket.as_raw_fd());
        // SAFETY: the call reads `event` only.
        let result = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, socket, &raw mut event) };
        checked(result).map(|_| ())
    }

    /// Waits. Returns the names of sockets that are ready.
    pub fn wait(&mut self) -> impl Iterator<Item = usize> + use<> {
        let (epoll, events) = (self.epoll.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: the call writes as many events at most.
        let count = checked(unsafe { libc::epoll_wait(epoll, events, BATCH as i32, -1) });
        let ready = self.events;
        ready.into_iter().take(count.unwrap_or(0)).map(|event| event.u64 as usize)
    }
}

fn checked(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
