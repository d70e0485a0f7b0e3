//! The examples do what they say.

#[path = "../examples/relay_feedback.rs"]
#[allow(dead_code, reason = "a test calls what `main` does")]
mod relay_feedback;

#[test]
fn a_program_tells_its_origin_of_its_tunnel() {
    let counts = relay_feedback::run().expect("loopback works");
    assert_eq!(counts.bytes, 20_000_000);
    assert!(counts.told > 0 && counts.passed_on > 0 && counts.followed > 0, "{counts:?}");
    assert!(counts.followed <= counts.passed_on, "{counts:?}");
}
