//! The counters of a driver.

/// The counters of a driver. All are totals since its start, except the two maxima.
///
/// They give mean batch sizes: `datagrams_sent / send_calls` for GSO (generic segmentation
/// offload), `datagrams_received / receive_messages` for GRO (generic receive offload), and
/// `receive_messages / receive_calls` for `recvmmsg`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverStats {
    /// UDP payloads given to the node.
    pub datagrams_received: u64,
    /// Bytes of UDP payload given to the node.
    pub bytes_received: u64,
    /// Successful system calls that received messages.
    pub receive_calls: u64,
    /// Messages received. With GRO one message holds several UDP payloads.
    pub receive_messages: u64,
    /// The largest number of UDP payloads in one message.
    pub receive_message_datagrams_max: u64,
    /// Receive calls that ended in an error other than "would block".
    pub receive_errors: u64,
    /// Received datagrams dropped because a connected socket got them from another address. They
    /// arrived between `bind` and `connect`.
    pub dropped_not_from_peer: u64,
    /// Received datagrams that were handed to the thread of their connection. The operating system had joined them with
    /// one for this thread.
    pub handed_over: u64,
    /// Received datagrams dropped because too many waited for the thread of their connection.
    pub dropped_hand_over: u64,

    /// UDP payloads that the operating system accepted for sending.
    pub datagrams_sent: u64,
    /// Bytes of UDP payload that the operating system accepted for sending.
    pub bytes_sent: u64,
    /// Successful system calls that sent UDP payloads. With GSO one call sends several of them.
    pub send_calls: u64,
    /// The largest number of UDP payloads that one call sent.
    pub send_call_datagrams_max: u64,
    /// Datagrams not sent because they exceed the path MTU.
    pub dropped_too_large: u64,
    /// Datagrams not sent because the operating system's send buffer was full.
    pub dropped_send_blocked: u64,
    /// Datagrams not sent because of another error, such as an unreachable network.
    pub dropped_send_error: u64,
    /// Datagrams not sent because their socket is not open.
    pub dropped_no_socket: u64,
    /// ICMP messages sent to peers whose packets were too large.
    pub too_big_sent: u64,

    /// Times that the driver woke from waiting.
    pub wakes: u64,
    /// Times that the driver let packets gather before it waited.
    pub pauses: u64,
    /// Deadlines that passed and were reported to the node.
    pub timeouts: u64,
    /// Sockets opened.
    pub sockets_opened: u64,
    /// Sockets that could not be opened.
    pub sockets_refused: u64,
    /// Connected sockets that failed with an error about their peer, such as a refused connection.
    pub sockets_failed: u64,

    /// TCP connections opened, to either side, and standard input and output.
    pub tcp_opened: u64,
    /// TCP connections and listening sockets that could not be opened.
    pub tcp_refused: u64,
    /// Calls of `accept` that failed. The driver repeats them after a pause.
    pub tcp_accepts_failed: u64,
    /// Open TCP connections that failed, for example because the peer reset them.
    pub tcp_failed: u64,
    /// TCP connections that were reset because their peers did not take the last bytes after the
    /// node had closed them.
    pub tcp_closes_cut: u64,
    /// Bytes read from TCP connections for the node.
    pub tcp_bytes_read: u64,
    /// Successful system calls that read them.
    pub tcp_read_calls: u64,
    /// Bytes that the operating system accepted on TCP connections.
    pub tcp_bytes_written: u64,
    /// Successful system calls that wrote them.
    pub tcp_write_calls: u64,
}
