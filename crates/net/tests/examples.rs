//! Tests that run the examples.

#[path = "../examples/relay_feedback.rs"]
#[allow(dead_code, reason = "a test calls what `main` does")]
mod relay_feedback;

#[test]
fn a_program_forwards_the_reports_of_its_tunnel() {
    let counts = relay_feedback::run().expect("loopback works");
    assert_eq!(counts.bytes, 20_000_000);
    assert!(counts.received > 0 && counts.forwarded > 0 && counts.followed > 0, "{counts:?}");
    assert!(counts.followed <= counts.forwarded, "{counts:?}");
}
