//! `tandem-group` fields: what is read encodes to what reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_wire::GroupField;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(field) = GroupField::parse(text)
    {
        let value = field.encode();
        assert_eq!(GroupField::parse(value.to_str().expect("it is ASCII")), Ok(field));
    }
});
