//! Parsed `tandem-group`, `tandem-seal` and `priority` fields encode to values that parse to the same field.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_wire::{GroupField, SealField, Urgency};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(field) = GroupField::parse(text) {
        let value = field.encode();
        assert_eq!(GroupField::parse(value.to_str().expect("it is ASCII")), Ok(field));
    }
    if let Ok(field) = SealField::parse(text) {
        let value = field.encode();
        assert_eq!(SealField::parse(value.to_str().expect("it is ASCII")), Ok(field));
    }
    let urgency = Urgency::parse_field(text);
    let value = urgency.field_value();
    assert_eq!(Urgency::parse_field(value.to_str().expect("it is ASCII")), urgency);
});
