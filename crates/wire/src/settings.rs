use std::collections::BTreeSet;

use bytes::{Buf, BufMut, Bytes};

use crate::{DecodeError, VarInt};

/// An endpoint's HTTP/3 settings, the payload of a SETTINGS frame. Unknown settings are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `SETTINGS_MAX_FIELD_SECTION_SIZE` in bytes; `None` means no limit ([RFC 9114 §7.2.4.1]).
    ///
    /// [RFC 9114 §7.2.4.1]: https://www.rfc-editor.org/rfc/rfc9114#section-7.2.4.1
    pub max_field_section_size: Option<u64>,
    /// `SETTINGS_QPACK_MAX_TABLE_CAPACITY` in bytes ([RFC 9204 §5]).
    ///
    /// [RFC 9204 §5]: https://www.rfc-editor.org/rfc/rfc9204#section-5
    pub qpack_max_table_capacity: u64,
    /// `SETTINGS_QPACK_BLOCKED_STREAMS` ([RFC 9204 §5]).
    ///
    /// [RFC 9204 §5]: https://www.rfc-editor.org/rfc/rfc9204#section-5
    pub qpack_blocked_streams: u64,
    /// `SETTINGS_ENABLE_CONNECT_PROTOCOL` ([RFC 9220 §3]).
    ///
    /// [RFC 9220 §3]: https://www.rfc-editor.org/rfc/rfc9220#section-3
    pub enable_connect_protocol: bool,
    /// `SETTINGS_H3_DATAGRAM` ([RFC 9297 §2.1.1]).
    ///
    /// [RFC 9297 §2.1.1]: https://www.rfc-editor.org/rfc/rfc9297#section-2.1.1
    pub h3_datagram: bool,
    /// Whether the endpoint reads request streams that continue on other streams. The setting is
    /// Tandem's own.
    pub continuation: bool,
}

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x01;
const MAX_FIELD_SECTION_SIZE: u64 = 0x06;
const QPACK_BLOCKED_STREAMS: u64 = 0x07;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x08;
const H3_DATAGRAM: u64 = 0x33;
const CONTINUATION: u64 = 0x2c4b_1d7a;

impl Settings {
    /// Decodes the payload of a SETTINGS frame ([RFC 9114 §7.2.4]).
    ///
    /// # Errors
    ///
    /// The payload is truncated, a setting occurs twice or is reserved, or a Boolean setting is
    /// neither 0 nor 1.
    ///
    /// [RFC 9114 §7.2.4]: https://www.rfc-editor.org/rfc/rfc9114#section-7.2.4
    pub fn decode(mut payload: Bytes) -> Result<Self, DecodeError> {
        let mut settings = Self::default();
        let mut seen = BTreeSet::new();
        while payload.has_remaining() {
            let setting = VarInt::decode(&mut payload)?;
            let value = VarInt::decode(&mut payload)?;
            // RFC 9114 §7.2.4: "The same setting identifier MUST NOT occur more than once in the
            // SETTINGS frame."
            if !seen.insert(setting) {
                return Err(DecodeError::SettingRepeated(setting));
            }
            settings.set(setting, value)?;
        }
        Ok(settings)
    }

    /// Appends the payload of a SETTINGS frame to `out`. Settings with their default value are left
    /// out, and values above 2^62 - 1 become 2^62 - 1.
    pub fn encode(&self, out: &mut impl BufMut) {
        let mut put = |setting: u64, value: u64| {
            VarInt::saturating_from(setting).encode(out);
            VarInt::saturating_from(value).encode(out);
        };
        if self.qpack_max_table_capacity != 0 {
            put(QPACK_MAX_TABLE_CAPACITY, self.qpack_max_table_capacity);
        }
        if let Some(size) = self.max_field_section_size {
            put(MAX_FIELD_SECTION_SIZE, size);
        }
        if self.qpack_blocked_streams != 0 {
            put(QPACK_BLOCKED_STREAMS, self.qpack_blocked_streams);
        }
        if self.enable_connect_protocol {
            put(ENABLE_CONNECT_PROTOCOL, 1);
        }
        if self.h3_datagram {
            put(H3_DATAGRAM, 1);
        }
        if self.continuation {
            put(CONTINUATION, 1);
        }
    }

    fn set(&mut self, setting: VarInt, value: VarInt) -> Result<(), DecodeError> {
        match setting.get() {
            QPACK_MAX_TABLE_CAPACITY => self.qpack_max_table_capacity = value.get(),
            MAX_FIELD_SECTION_SIZE => self.max_field_section_size = Some(value.get()),
            QPACK_BLOCKED_STREAMS => self.qpack_blocked_streams = value.get(),
            ENABLE_CONNECT_PROTOCOL => self.enable_connect_protocol = boolean(setting, value)?,
            // RFC 9297 §2.1.1: "If the SETTINGS_H3_DATAGRAM setting is received with a value that
            // is neither 0 nor 1, the receiver MUST terminate the connection with error
            // H3_SETTINGS_ERROR."
            H3_DATAGRAM => self.h3_datagram = boolean(setting, value)?,
            CONTINUATION => self.continuation = boolean(setting, value)?,
            // RFC 9114 §7.2.4.1: settings that HTTP/2 defined "MUST NOT be sent, and their receipt
            // MUST be treated as a connection error of type H3_SETTINGS_ERROR."
            0x02..=0x05 => return Err(DecodeError::SettingReserved(setting)),
            // RFC 9114 §7.2.4: "An implementation MUST ignore any parameter with an identifier it
            // does not understand."
            _ => {}
        }
        Ok(())
    }
}

fn boolean(setting: VarInt, value: VarInt) -> Result<bool, DecodeError> {
    match value.get() {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::SettingNotBoolean { setting, value }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn settings_decode() {
        let default = Settings::default();
        for (payload, settings) in [
            (&[][..], default),
            (&[0x08, 1], Settings { enable_connect_protocol: true, ..default }),
            (&[0x08, 0], default),
            (&[0x33, 1], Settings { h3_datagram: true, ..default }),
            (&[0xac, 0x4b, 0x1d, 0x7a, 1], Settings { continuation: true, ..default }),
            (&[0x06, 0x50, 0], Settings { max_field_section_size: Some(4096), ..default }),
            (&[0x01, 9], Settings { qpack_max_table_capacity: 9, ..default }),
            (&[0x07, 9], Settings { qpack_blocked_streams: 9, ..default }),
            (&[0x21, 5, 0x40, 0x33, 1], Settings { h3_datagram: true, ..default }),
        ] {
            assert_eq!(Settings::decode(Bytes::from_static(payload)), Ok(settings), "{payload:?}");
        }
    }

    #[test]
    fn wrong_settings_are_refused() {
        let id = VarInt::from_u32;
        for (payload, error) in [
            (&[0x06][..], DecodeError::VarIntTruncated),
            (&[0x06, 0x40], DecodeError::VarIntTruncated),
            (&[0x02, 0], DecodeError::SettingReserved(id(2))),
            (&[0x03, 0], DecodeError::SettingReserved(id(3))),
            (&[0x04, 0], DecodeError::SettingReserved(id(4))),
            (&[0x05, 0], DecodeError::SettingReserved(id(5))),
            (&[0x08, 2], DecodeError::SettingNotBoolean { setting: id(8), value: id(2) }),
            (&[0x33, 2], DecodeError::SettingNotBoolean { setting: id(0x33), value: id(2) }),
            (&[0x33, 1, 0x33, 1], DecodeError::SettingRepeated(id(0x33))),
            (&[0x21, 1, 0x40, 0x21, 2], DecodeError::SettingRepeated(id(0x21))),
        ] {
            let decoded = Settings::decode(Bytes::from_static(payload));
            assert_eq!(decoded, Err(error), "{payload:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_itself(
            max_field_section_size in proptest::option::of(0..=VarInt::MAX),
            qpack_max_table_capacity in 0..=VarInt::MAX,
            qpack_blocked_streams in 0..=VarInt::MAX,
            enable_connect_protocol: bool,
            h3_datagram: bool,
            continuation: bool,
        ) {
            let settings = Settings {
                max_field_section_size,
                qpack_max_table_capacity,
                qpack_blocked_streams,
                enable_connect_protocol,
                h3_datagram,
                continuation,
            };
            let mut payload = Vec::new();
            settings.encode(&mut payload);
            prop_assert_eq!(Settings::decode(payload.into()), Ok(settings));
        }
    }
}
