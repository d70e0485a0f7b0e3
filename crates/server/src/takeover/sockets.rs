//! Open files in a message between two processes.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};
use tandem_net::Listeners;

/// The most files: all sockets at an address, and the socket for what users use. Linux allows no more.
const FILES_MAX: usize = Listeners::SOCKETS_MAX as usize + 1;

/// The most bytes of a message, which has four short fields.
const BYTES_MAX: usize = 1024;

/// Room for the files of a message.
type Room = [MaybeUninit<u8>; rustix::cmsg_space!(ScmRights(FILES_MAX))];

/// Sends a message that is shorter than what a socket holds.
pub(super) fn send(to: &UnixStream, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut room: Room = [const { MaybeUninit::uninit() }; _];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if message.len() > BYTES_MAX || !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(to, &[IoSlice::new(message)], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives a message and its files, which other programs that are started do not get.
pub(super) fn receive(from: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut room: Room = [const { MaybeUninit::uninit() }; _];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut message = vec![0; BYTES_MAX];
    let buffer = &mut [IoSliceMut::new(&mut message)];
    let received = recvmsg(from, buffer, &mut control, RecvFlags::empty())?;
    message.truncate(received.bytes);
    let mut files = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = part {
            files.extend(some);
        }
    }
    files.iter().try_for_each(|file| fcntl_setfd(file, FdFlags::CLOEXEC))?;
    Ok((message, files))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::fd::AsFd,
    };

    use super::*;

    #[test]
    fn files_arrive_open() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut one, other) = UnixStream::pair().unwrap();
        let files = vec![other.as_fd(); FILES_MAX];
        send(&here, b"hello", &files).unwrap();
        let (message, files) = receive(&there).unwrap();
        assert_eq!((&message[..], files.len()), (&b"hello"[..], FILES_MAX));
        drop(other);
        one.write_all(b"x").unwrap();
        let mut last = UnixStream::from(files.into_iter().last().unwrap());
        last.read_exact(&mut [0]).unwrap();
        assert!(send(&here, &[0; BYTES_MAX + 1], &[]).is_err());
    }
}
