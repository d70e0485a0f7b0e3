//! The UDP datagrams of SOCKS5 (RFC 1928 §7): a header with the target, and the payload.

use super::address::{Address, AddressError};

/// The reason why a datagram of a program is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// The datagram has no complete header.
    #[error("the datagram of a program has no SOCKS5 header")]
    Malformed,
    /// The datagram is a fragment. RFC 1928 §7: "an implementation that does not support
    /// fragmentation MUST drop any datagram whose FRAG field is other than X'00'."
    #[error("the datagram of a program is a SOCKS5 fragment, and fragments are not supported")]
    Fragment,
}

/// Splits a datagram of a program into the address of the target and the payload, both borrowed.
///
/// # Errors
///
/// The datagram is a fragment, or has no complete header.
pub fn decode_datagram(datagram: &[u8]) -> Result<(Address<'_>, &[u8]), DatagramError> {
    let Some(([0, 0, fragment], rest)) = datagram.split_first_chunk() else {
        return Err(DatagramError::Malformed);
    };
    if *fragment != 0 {
        return Err(DatagramError::Fragment);
    }
    match Address::split(rest) {
        Ok(Some(split)) => Ok(split),
        Ok(None) | Err(AddressError::Type | AddressError::Name) => Err(DatagramError::Malformed),
    }
}

/// Appends the header of a datagram for a program. The payload follows it. `from` is the target as
/// the program named it.
pub fn encode_datagram_header(from: &Address<'_>, out: &mut Vec<u8>) {
    out.extend([0, 0, 0]);
    from.write(out);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::client::local::{Host, Target};

    #[test]
    fn a_datagram_has_a_target_and_a_payload() {
        for (header, target) in [
            (&b"\0\0\0\x01\xc0\0\x02\x01\0\x35"[..], "192.0.2.1:53"),
            (b"\0\0\0\x03\x0bexample.org\x01\xbb", "example.org:443"),
            (b"\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\x50", "[::1]:80"),
        ] {
            let datagram = [header, b"payload"].concat();
            let (address, payload) = decode_datagram(&datagram).unwrap();
            assert_eq!(address.to_target().unwrap().to_string(), target);
            assert_eq!(payload, b"payload");
            let mut encoded = Vec::new();
            encode_datagram_header(&Address::from(&address.to_target().unwrap()), &mut encoded);
            assert_eq!(encoded, header);
            // A payload may be empty, and a header may not be cut.
            assert_eq!(decode_datagram(header), Ok((address, &b""[..])));
            for len in 0..header.len() {
                assert_eq!(decode_datagram(&header[..len]), Err(DatagramError::Malformed), "{len}");
            }
        }
    }

    #[test]
    fn fragments_and_malformed_datagrams_are_dropped() {
        for (datagram, error) in [
            (&b"\0\0\x01\x01\xc0\0\x02\x01\0\x35x"[..], DatagramError::Fragment),
            (b"\0\0\x80\x01\xc0\0\x02\x01\0\x35x", DatagramError::Fragment),
            (b"\0\x01\0\x01\xc0\0\x02\x01\0\x35x", DatagramError::Malformed),
            (b"\0\0\0\x02\xc0\0\x02\x01\0\x35x", DatagramError::Malformed),
            (b"\0\0\0\x03\x02\xff\xff\0\x35x", DatagramError::Malformed),
        ] {
            assert_eq!(decode_datagram(datagram), Err(error), "{datagram:?}");
        }
    }

    #[test]
    fn a_name_that_is_no_dns_name_and_port_0_are_no_targets() {
        for (host, port) in [("", 53), ("a b", 53), ("127.1", 53), ("a\n", 53), ("example.org", 0)]
        {
            assert!(Address { host: Host::Name(host), port }.to_target().is_err(), "{host}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(source: SocketAddr, name in "[a-z]{1,60}", payload: Vec<u8>) {
            let port = source.port().max(1);
            let target = Target::new(&name, port).unwrap();
            for address in [Address::from(source), Address::from(&target)] {
                let mut datagram = Vec::new();
                encode_datagram_header(&address, &mut datagram);
                datagram.extend(&payload);
                prop_assert_eq!(decode_datagram(&datagram), Ok((address, &payload[..])));
            }
        }
    }
}
