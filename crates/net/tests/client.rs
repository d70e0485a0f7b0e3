//! Tests of a client that a program embeds, with real sockets on loopback. No test asserts a
//! duration.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "../examples/embedded_client.rs"]
#[allow(dead_code, reason = "the tests use its proxy and its target")]
mod embedded_client;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use embedded_client::{Identity, TOKEN, start_echo, start_proxy};
use tandem_net::{
    Client, ClientError, ClientEvent, ClientOptions, FlowConfig, UdpFlow, client::TunnelError,
};
use tandem_node::{client::Oversize, error::FlowError, limits::Limits};
use tokio::time::timeout;

/// Runs a test on a runtime with several threads. A test that hangs fails.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime
        .block_on(async { timeout(Duration::from_secs(60), future).await.expect("the test hangs") })
}

async fn open(client: &Client, target: SocketAddr) -> Result<UdpFlow, ClientError> {
    client.open_udp(target.ip().to_string(), target.port()).await
}

/// Sends a payload until it comes back, because datagrams may be lost even on loopback.
async fn echo(flow: &UdpFlow, payload: &[u8]) {
    for _ in 0..20 {
        flow.send(payload).await.unwrap();
        if let Ok(answer) = timeout(Duration::from_secs(2), flow.recv()).await {
            assert_eq!(answer.unwrap(), payload);
            return;
        }
    }
    panic!("no echo of {} bytes", payload.len());
}

fn refusal(error: ClientError) -> (u16, String) {
    match error {
        ClientError::Tunnel(TunnelError::Refused { status, .. }) => (status, error.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn flows_open_and_close_while_the_client_runs() {
    let (proxy, pem) = start_proxy().unwrap();
    let url = format!("https://{}", proxy.address);
    block_on(async {
        let target = start_echo().await.unwrap();
        let last_words = Duration::from_millis(10);
        let limits = Limits { local_flows: 2, last_words, ..Limits::default() };
        let options = ClientOptions::new(url).token(TOKEN).ca(pem).limits(limits);
        let client = Client::connect(options).await.unwrap();
        let mut events = client.events();
        let (first, second) = tokio::join!(open(&client, target), open(&client, target));
        let (first, second) = (Arc::new(first.unwrap()), second.unwrap());
        assert_ne!(first.id(), second.id());
        assert!(first.max_payload() >= 1400 && first.agreement().is_some());
        // Handles move between tasks, and several tasks share a flow.
        let shared = Arc::clone(&first);
        let task = tokio::spawn(async move {
            for len in [1, 1200, 1400] {
                echo(&shared, &vec![1; len]).await;
            }
        });
        for len in [1, 1200, 1400] {
            echo(&second, &vec![2; len]).await;
        }
        task.await.unwrap();
        drop(second);
        // The third flow gets its place when the request stream of the second one is closed.
        let third = loop {
            match open(&client, target).await {
                Err(ClientError::Flow(FlowError::TooMany { most: 2 })) => {
                    tokio::task::yield_now().await;
                }
                result => break result.unwrap(),
            }
        };
        echo(&third, b"three").await;
        echo(&first, b"one").await;
        client.close().await.unwrap();
        assert_eq!(first.recv().await.unwrap_err(), ClientError::Closed);
        assert_eq!(first.send(b"late").await.unwrap_err(), ClientError::Closed);
        assert!(matches!(events.next().await, Some(ClientEvent::Closed(Ok(())))));
        assert!(events.next().await.is_none());
    });
    let stats = proxy.stop().unwrap().stats();
    assert_eq!((stats.flows, stats.flows_open), (3, 0));
    // The second flow was closed by itself; the others ended with the connection.
    assert_eq!((stats.flows_ended.by_client, stats.flows_ended.with_connection), (1, 2));
}

#[test]
fn errors_say_what_is_wrong() {
    let (proxy, pem) = start_proxy().unwrap();
    let url = format!("https://{}", proxy.address);
    block_on(async {
        let target = start_echo().await.unwrap();
        let options = || ClientOptions::new(&url).ca(pem.as_str());
        let client = Client::connect(options().token(TOKEN)).await.unwrap();
        let mut events = client.events();
        let (status, text) = refusal(client.open_udp("192.0.2.1", 53).await.unwrap_err());
        assert_eq!(status, 403);
        assert!(text.contains("192.0.2.1:53") && text.contains("prohibited"), "{text}");
        let error = client.open_udp("no host", 53).await.unwrap_err().to_string();
        assert!(error.contains("no host"), "{error}");
        let other = open(&client, target).await.unwrap();
        echo(&other, b"others go on").await;
        // The client ends with its last handle, and what is open ends with it.
        drop((client, other));
        assert!(matches!(events.next().await, Some(ClientEvent::Closed(Ok(())))));

        let wrong = Client::connect(options().token("a-token-that-is-wrong")).await.unwrap();
        let (status, text) = refusal(open(&wrong, target).await.unwrap_err());
        assert_eq!(status, 401, "{text}");

        let short = Client::connect(options().token("short")).await.unwrap_err();
        assert!(matches!(short, ClientError::Token(_)), "{short:?}");
        let untrusted = Client::connect(ClientOptions::new(&url)).await.unwrap_err();
        // The machine of the caller, or its variable SSL_CERT_FILE, may name no CA at all.
        let is_untrusted = matches!(
            untrusted,
            ClientError::Tunnel(TunnelError::Tls { .. }) | ClientError::Trust(_)
        );
        assert!(is_untrusted, "{untrusted:?}");
        let (other, other_pem) = start_proxy().unwrap();
        let options_of_other = ClientOptions::new(&url).ca(other_pem.as_str());
        let untrusted = Client::connect(options_of_other).await.unwrap_err();
        assert!(matches!(untrusted, ClientError::Tunnel(TunnelError::Tls { .. })), "{untrusted:?}");
        other.stop().unwrap();
        let no_url = Client::connect(ClientOptions::new("ftp://x")).await.unwrap_err();
        assert!(no_url.to_string().contains("\"ftp://x\" is not the URL of a proxy"), "{no_url}");
        let no_pem = Client::connect(options().ca("nothing")).await.unwrap_err();
        assert!(matches!(no_pem, ClientError::Trust(_)), "{no_pem:?}");
    });
    proxy.stop().unwrap();
}

#[test]
fn queues_and_sizes_have_bounds() {
    let (proxy, pem) = start_proxy().unwrap();
    let url = format!("https://{}", proxy.address);
    block_on(async {
        let target = start_echo().await.unwrap();
        let limits = Limits { local_flows: 2, flow_queue: 2, ..Limits::default() };
        let options = ClientOptions::new(url).token(TOKEN).ca(pem).limits(limits);
        let client = Client::connect(options).await.unwrap();
        let config = FlowConfig::new(target.ip().to_string(), target.port());
        let config = FlowConfig { oversize: Oversize::Drop, ..config };
        let flow = client.open(config).await.unwrap();
        let other = open(&client, target).await.unwrap();
        let third = open(&client, target).await.unwrap_err();
        assert_eq!(third, ClientError::Flow(FlowError::TooMany { most: 2 }));
        let large = flow.send(&[0; 1500]).await.unwrap_err();
        let ClientError::Flow(FlowError::TooLarge { len: 1500, fits }) = large else {
            panic!("{large:?}");
        };
        assert!((1200..1472).contains(&fits), "{fits}");
        echo(&flow, &vec![0; fits]).await;
        // A program that takes nothing loses the newest payloads, and nothing else.
        for _ in 0..200 {
            flow.send(b"once").await.unwrap();
            echo(&other, b"beside it").await;
            if flow.missed() > 0 {
                break;
            }
        }
        assert!(flow.missed() > 0);
        for _ in 0..2 {
            assert_eq!(flow.recv().await.unwrap(), &b"once"[..]);
        }
        echo(&flow, b"again").await;
        client.close().await.unwrap();
    });
    proxy.stop().unwrap();
}

#[test]
fn a_flow_goes_on_after_the_proxy_has_restarted() {
    let identity = Identity::new().unwrap();
    let proxy = identity.start_proxy(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = proxy.address;
    let url = format!("https://{}", proxy.address);
    block_on(async {
        let target = start_echo().await.unwrap();
        let client =
            Client::connect(ClientOptions::new(url).token(TOKEN).ca(&*identity.pem)).await.unwrap();
        let mut events = client.events();
        let flow = open(&client, target).await.unwrap();
        echo(&flow, b"before").await;
        proxy.stop().unwrap();
        let proxy = identity.start_proxy(address).unwrap();
        let lost = events.next().await.unwrap();
        assert!(matches!(lost, ClientEvent::TunnelLost { hop: 0, .. }), "{lost:?}");
        echo(&flow, b"after").await;
        loop {
            match events.next().await.unwrap() {
                ClientEvent::TunnelUp { hop: 0, .. } => break,
                ClientEvent::TunnelLost { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        client.close().await.unwrap();
        assert_eq!(proxy.stop().unwrap().stats().flows, 1);
    });
}

#[test]
fn a_program_that_sends_as_fast_as_it_can_is_slowed_down() {
    const PAYLOADS: u64 = 5000;
    let (proxy, pem) = start_proxy().unwrap();
    let url = format!("https://{}", proxy.address);
    block_on(async {
        let target = start_echo().await.unwrap();
        let client = Client::connect(ClientOptions::new(url).token(TOKEN).ca(pem)).await.unwrap();
        let flow = open(&client, target).await.unwrap();
        for _ in 0..PAYLOADS {
            flow.send(&[7; 1200]).await.unwrap();
        }
        flow.close();
        client.close().await.unwrap();
    });
    // All but those that the sockets lost came to the proxy: 6 MB are more than the tunnel's queue
    // holds, so that without waiting most would have been dropped there.
    let stats = proxy.stop().unwrap().stats();
    assert!(stats.to_target_datagrams > PAYLOADS / 2, "{}", stats.to_target_datagrams);
}

#[test]
fn the_example_gets_its_echoes() {
    let (proxy, pem) = start_proxy().unwrap();
    let url = format!("https://{}", proxy.address);
    let echoes = block_on(async {
        let target = start_echo().await.unwrap();
        embedded_client::talk(ClientOptions::new(url).token(TOKEN).ca(pem), target).await
    });
    assert_eq!(echoes.unwrap(), [b"hello".to_vec(), vec![0; 1400]]);
    proxy.stop().unwrap();
}
