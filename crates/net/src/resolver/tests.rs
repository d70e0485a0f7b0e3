use std::net::UdpSocket as StdSocket;

use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::{
        RData, Record,
        rdata::{A, AAAA},
    },
};
use tokio::net::UdpSocket;

use super::*;

const IPV4: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
const IPV6: Ipv6Addr = Ipv6Addr::LOCALHOST;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Starts a name server on loopback that knows `both.test`, `four.test` and `silent.test`. It does
/// not answer AAAA queries for `silent.test`. It ends with the runtime.
async fn name_server_task() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        while let Ok((len, client)) = socket.recv_from(&mut buffer).await {
            let request = Message::from_vec(&buffer[..len]).unwrap();
            if let Some(response) = answer(&request) {
                socket.send_to(&response.to_vec().unwrap(), client).await.unwrap();
            }
        }
    });
    address
}

fn answer(request: &Message) -> Option<Message> {
    let query = request.queries[0].clone();
    let host = query.name().to_lowercase().to_string();
    let data = match (host.as_str(), query.query_type()) {
        ("both.test.", RecordType::AAAA) => Some(RData::AAAA(AAAA(IPV6))),
        ("both.test." | "four.test." | "silent.test.", RecordType::A) => Some(RData::A(A(IPV4))),
        ("silent.test.", RecordType::AAAA) => return None,
        _ => None,
    };
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.add_query(query.clone());
    match data {
        Some(data) => {
            response.add_answer(Record::from_rdata(query.name().clone(), 60, data));
        }
        None if host == "four.test." || host == "empty.test." => {}
        None => response.metadata.response_code = ResponseCode::NXDomain,
    }
    Some(response)
}

#[test]
fn names_are_resolved_by_a_name_server() {
    let has_ipv6 = StdSocket::bind((IPV6, 0)).is_ok();
    block_on(async {
        let server = name_server_task().await;
        let resolver = Resolver::from_parts(&[server], "127.0.0.9 four-hosts.test").unwrap();
        let both: Vec<IpAddr> = if has_ipv6 {
            vec![IPV6.into(), IPV4.into()]
        } else {
            vec![IPV4.into(), IPV6.into()] // an address without a route comes last
        };
        for (host, expected) in [
            ("both.test", Ok(both.clone())),
            ("BOTH.test.", Ok(both)),
            ("four.test", Ok(vec![IPV4.into()])),
            ("silent.test", Ok(vec![IPV4.into()])),
            ("four-hosts.test", Ok(vec![Ipv4Addr::new(127, 0, 0, 9).into()])),
            ("none.test", Err(ResolveError::NotFound)),
            ("empty.test", Err(ResolveError::NotFound)),
        ] {
            assert_eq!(resolver.resolve(host).await, expected, "{host}");
        }
    });
}

#[test]
fn without_name_servers_hosts_and_localhost_are_known() {
    let resolver =
        Resolver::from_parts(&[], "# comment\n127.0.0.5 Inner.test alias # more").unwrap();
    block_on(async {
        for (host, expected) in [
            ("inner.test", Ok(Ipv4Addr::new(127, 0, 0, 5).into())),
            ("alias", Ok(Ipv4Addr::new(127, 0, 0, 5).into())),
            ("other.test", Err(ResolveError::Unreachable)),
            ("not a name..", Err(ResolveError::NotFound)),
        ] {
            let first = resolver.resolve(host).await.map(|addresses| addresses[0]);
            assert_eq!(first, expected, "{host}");
        }
        for host in ["localhost", "LOCALHOST.", "sub.localhost"] {
            let addresses = resolver.resolve(host).await.unwrap();
            assert!(addresses.iter().all(IpAddr::is_loopback), "{host}: {addresses:?}");
            assert_eq!(addresses.len(), 2, "{host}");
        }
    });
}

#[test]
fn localhost_is_known_with_the_systems_configuration() {
    let addresses = block_on(Resolver::from_system().resolve("localhost")).unwrap();
    assert!(addresses.iter().all(IpAddr::is_loopback), "{addresses:?}");
}

#[test]
fn a_name_that_no_server_answers_is_unreachable() {
    let closed = StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let resolver = Resolver::from_parts(&[closed], "").unwrap();
    block_on(async {
        tokio::time::pause(); // timeouts expire as soon as all tasks are idle
        assert_eq!(resolver.resolve("both.test").await, Err(ResolveError::Unreachable));
    });
}
