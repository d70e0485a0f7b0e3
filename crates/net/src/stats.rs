//! Plain counters of a driver.

/// What a driver did since it was started. All are totals unless they say otherwise.
///
/// Mean batch sizes follow: `datagrams_sent / send_calls` for GSO, `datagrams_received /
/// receive_messages` for GRO, `receive_messages / receive_calls` for `recvmmsg`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverStats {
    /// UDP payloads given to the node.
    pub datagrams_received: u64,
    /// Bytes of UDP payload given to the node.
    pub bytes_received: u64,
    /// System calls that received something.
    pub receive_calls: u64,
    /// Messages received; with GRO one message holds several UDP payloads.
    pub receive_messages: u64,
    /// The most UDP payloads that one message held; a maximum.
    pub receive_message_datagrams_max: u64,
    /// Receive calls that ended in an error other than "would block".
    pub receive_errors: u64,
    /// Received datagrams dropped because a connected socket got them from somebody else: they came
    /// between `bind` and `connect`.
    pub dropped_not_from_peer: u64,

    /// UDP payloads that the operating system took.
    pub datagrams_sent: u64,
    /// Bytes of UDP payload that the operating system took.
    pub bytes_sent: u64,
    /// System calls that sent something; with GSO one call sends several UDP payloads.
    pub send_calls: u64,
    /// The most UDP payloads that one call sent; a maximum.
    pub send_call_datagrams_max: u64,
    /// Times that the operating system's send buffer was full, so that the driver had to wait.
    pub send_waits: u64,
    /// Datagrams not sent because they do not fit in a packet of their path.
    pub dropped_too_large: u64,
    /// Datagrams not sent because the operating system's send buffer stayed full.
    pub dropped_send_blocked: u64,
    /// Datagrams not sent because of another error, such as an unreachable network.
    pub dropped_send_error: u64,
    /// Datagrams not sent because their socket is not open.
    pub dropped_no_socket: u64,

    /// Times that the driver woke from waiting.
    pub wakes: u64,
    /// Times that it told the node that a deadline had passed.
    pub timeouts: u64,
    /// Sockets opened.
    pub sockets_opened: u64,
    /// Sockets that could not be opened.
    pub sockets_refused: u64,
    /// Connected sockets that the operating system reported as of no use any more.
    pub sockets_failed: u64,
}
