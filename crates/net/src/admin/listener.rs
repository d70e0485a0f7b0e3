//! The socket at which operators reach a server.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net;

use super::{Address, HttpStream};

/// The owner and the group of the server may connect to its Unix socket.
const MODE: u32 = 0o660;

/// Connections that the operating system keeps until they are accepted.
const BACKLOG: i32 = 128;

/// The socket at which operators reach a server. A Unix socket is removed with it.
#[derive(Debug)]
pub struct AdminListener {
    socket: Listening,
}

#[derive(Debug)]
enum Listening {
    Tcp(net::TcpListener),
    Unix(net::UnixListener, PathBuf),
}

impl AdminListener {
    /// Listens from now on. Call within a runtime.
    ///
    /// A Unix socket that a program has left at the path is replaced. If a program still listens to it, that is
    /// an error.
    pub fn bind(address: &Address) -> io::Result<Self> {
        let socket = match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Listening::Tcp(net::TcpListener::from_std(listener)?)
            }
            Address::Unix(path) => {
                remove_unused(path)?;
                let listener = net::UnixListener::from_std(bind_unix(path)?)?;
                Listening::Unix(listener, path.clone())
            }
        };
        Ok(Self { socket })
    }

    /// The TCP address, whose port the operating system may have chosen.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.socket {
            Listening::Tcp(listener) => listener.local_addr().ok(),
            Listening::Unix(..) => None,
        }
    }

    pub(super) const fn is_tcp(&self) -> bool {
        matches!(self.socket, Listening::Tcp(_))
    }

    pub(super) async fn accept(&self) -> io::Result<Box<dyn HttpStream>> {
        Ok(match &self.socket {
            Listening::Tcp(listener) => Box::new(listener.accept().await?.0),
            Listening::Unix(listener, _) => Box::new(listener.accept().await?.0),
        })
    }
}

impl Drop for AdminListener {
    fn drop(&mut self) {
        if let Listening::Unix(_, path) = &self.socket
            && let Err(error) = fs::remove_file(path)
        {
            tracing::debug!(%error, path = %path.display(), "the Unix socket remains");
        }
    }
}

/// Removes a socket of a program that has ended.
fn remove_unused(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
    if !is_socket {
        return Ok(()); // then `bind` tells what is in the way
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens there")),
    }
}

/// No client can connect before the rights are set, because a socket accepts nothing before it listens.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
