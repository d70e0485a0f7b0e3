//! Parsed fields of QUIC-aware proxying are complete, and encode to values that parse to the same
//! field.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_wire::{
    ForwardingFieldError, ForwardingGrant, ForwardingRequest, PortSharing, ScrambleKey, Transform,
};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(Some(request)) = ForwardingRequest::parse(text) {
        assert!(request.transforms.len() <= Transform::ALL.len(), "each transform once");
        for transform in &request.transforms {
            check_key(*transform, request.scramble_key.as_ref());
        }
        let value = request.encode();
        let value = value.to_str().expect("it is ASCII");
        assert_eq!(ForwardingRequest::parse(value), Ok(Some(request)));
    }
    match ForwardingGrant::parse(text, &Transform::ALL) {
        Ok(Some(grant)) => {
            check_key(grant.transform, grant.scramble_key.as_ref());
            let refused = ForwardingGrant::parse(text, &[]);
            let is_refused =
                matches!(refused, Err(ForwardingFieldError::TransformNotOffered { .. }));
            assert!(is_refused, "{refused:?}");
            let value = grant.encode();
            let value = value.to_str().expect("it is ASCII");
            assert_eq!(ForwardingGrant::parse(value, &[grant.transform]), Ok(Some(grant)));
        }
        Ok(None) | Err(_) => {}
    }
    if let Ok(sharing) = PortSharing::parse(text) {
        let value = sharing.encode();
        assert_eq!(PortSharing::parse(value.to_str().expect("it is ASCII")), Ok(sharing));
    }
});

fn check_key(transform: Transform, key: Option<&ScrambleKey>) {
    assert!(key.is_some() || !transform.needs_key(), "{transform} without a key");
}
