//! Tests that run the examples.

#[path = "../examples/embedded_client.rs"]
#[allow(dead_code, reason = "a test calls what `main` does")]
mod embedded_client;
#[path = "../examples/relay_feedback.rs"]
#[allow(dead_code, reason = "a test calls what `main` does")]
mod relay_feedback;

use tandem_net::ClientOptions;

#[test]
fn a_program_forwards_the_reports_of_its_tunnel() {
    let counts = relay_feedback::run().expect("loopback works");
    assert_eq!(counts.bytes, 20_000_000);
    assert!(counts.received > 0 && counts.forwarded > 0 && counts.followed > 0, "{counts:?}");
    assert!(counts.followed <= counts.forwarded, "{counts:?}");
}

#[test]
fn a_program_embeds_a_client() {
    let (proxy, pem) = embedded_client::start_proxy().expect("loopback works");
    let url = format!("https://{}", proxy.address);
    let runtime = tokio::runtime::Runtime::new().expect("threads start");
    let echoes = runtime.block_on(async {
        let target = embedded_client::start_echo().await.expect("loopback works");
        let options = ClientOptions::new(url).token(embedded_client::TOKEN).ca(pem);
        embedded_client::talk(options, target).await
    });
    assert_eq!(echoes.expect("the proxy grants flows"), [b"hello".to_vec(), vec![0; 1400]]);
    proxy.stop().expect("the proxy runs until then");
}
