//! A name server on loopback that treats each question as its table says. Time is virtual: it advances when nothing
//! else is left to do.

use std::{collections::BTreeMap, fs, future::Future, net::UdpSocket as StdSocket, path::Path};

use hickory_proto::{
    op::{Message, OpCode, Query, ResponseCode},
    rr::{
        RData, Record,
        rdata::{A, AAAA},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
    task::JoinHandle,
    time::sleep,
};

use super::*;

const FOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 7);
const SIX: Ipv6Addr = Ipv6Addr::LOCALHOST;
/// Without a scope, no host has a route to it.
const NO_ROUTE: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

const BOTH: &[IpAddr; 2] = &[IpAddr::V4(FOUR), IpAddr::V6(NO_ROUTE)];
const ONLY_FOUR: &[IpAddr] = &[IpAddr::V4(FOUR)];

/// What a name server does with a question.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    /// It answers with this address.
    Is(IpAddr),
    /// It answers with this address after a delay in milliseconds.
    Late(u64, IpAddr),
    /// It drops the first question.
    LostOnce(IpAddr),
    /// The answer does not fit UDP.
    Truncated(IpAddr),
    /// A datagram with another number comes before the answer.
    Spoofed(IpAddr),
    /// The answer is no message, after the number.
    Garbage,
    /// There is nothing of this type.
    Empty,
    Code(ResponseCode),
    Silent,
}

use Manner::{Code, Empty, Garbage, Is, Late, LostOnce, Silent, Spoofed, Truncated};

/// The names of a server, each with what it does with questions for AAAA and A.
type Table = Vec<(&'static str, Manner, Manner)>;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::pause();
        future.await
    })
}

/// Starts a name server, which ends with the runtime. Other names than those of the table do not exist.
async fn serve(table: Table) -> SocketAddr {
    serve_and_hold(table).await.0
}

/// Takes a port that is free for UDP and for TCP. Other tests may have taken the second one.
async fn bind_both() -> (UdpSocket, TcpListener) {
    for _ in 0..100 {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        if let Ok(listener) = TcpListener::bind(socket.local_addr().unwrap()).await {
            return (socket, listener);
        }
    }
    panic!("no port is free for UDP and for TCP");
}

async fn serve_and_hold(table: Table) -> (SocketAddr, JoinHandle<()>) {
    let (socket, listener) = bind_both().await;
    let (socket, address) = (Arc::new(socket), listener.local_addr().unwrap());
    let table = Arc::new(table);
    let over_tcp = Arc::clone(&table);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let len = stream.read_u16().await.unwrap();
            let mut question = vec![0; len.into()];
            stream.read_exact(&mut question).await.unwrap();
            let question = Message::from_vec(&question).unwrap();
            let (Is(ip) | Truncated(ip)) = manner(&question, &over_tcp) else { continue };
            let answer = answer(&question, Some(ip)).to_vec().unwrap();
            stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    });
    let task = tokio::spawn(async move {
        let (mut buffer, mut asked) = ([0; 1500], BTreeMap::new());
        while let Ok((len, client)) = socket.recv_from(&mut buffer).await {
            let question = Message::from_vec(&buffer[..len]).unwrap();
            let query = question.queries[0].clone();
            let times = asked.entry((query.name().clone(), query.query_type())).or_insert(0);
            *times += 1;
            let how = manner(&question, &table);
            let (socket, times) = (Arc::clone(&socket), *times);
            tokio::spawn(async move {
                for message in messages(&question, how, times).await {
                    socket.send_to(&message, client).await.unwrap();
                }
            });
        }
    });
    (address, task)
}

fn manner(question: &Message, table: &Table) -> Manner {
    let query = &question.queries[0];
    let name = query.name().to_ascii();
    match table.iter().find(|(known, ..)| format!("{known}.") == name) {
        Some((_, of_six, _)) if query.query_type() == RecordType::AAAA => *of_six,
        Some((_, _, of_four)) => *of_four,
        None => Code(ResponseCode::NXDomain),
    }
}

fn answer(question: &Message, ip: Option<IpAddr>) -> Message {
    let query: Query = question.queries[0].clone();
    let mut response = Message::response(question.metadata.id, OpCode::Query);
    response.add_query(query.clone());
    if let Some(ip) = ip {
        let data = match ip {
            IpAddr::V4(v4) => RData::A(A(v4)),
            IpAddr::V6(v6) => RData::AAAA(AAAA(v6)),
        };
        response.add_answer(Record::from_rdata(query.name().clone(), 60, data));
    }
    response
}

async fn messages(question: &Message, how: Manner, times: u32) -> Vec<Vec<u8>> {
    let encoded = |message: Message| message.to_vec().unwrap();
    let right = |ip| encoded(answer(question, Some(ip)));
    match how {
        Late(delay, ip) => {
            sleep(Duration::from_millis(delay)).await;
            vec![right(ip)]
        }
        Silent => Vec::new(),
        LostOnce(_) if times == 1 => Vec::new(),
        Is(ip) | LostOnce(ip) => vec![right(ip)],
        Truncated(_) => {
            let mut short = answer(question, None);
            short.metadata.truncation = true;
            vec![encoded(short)]
        }
        Spoofed(ip) => {
            let mut other = answer(question, Some(Ipv4Addr::new(6, 6, 6, 6).into()));
            other.metadata.id ^= 1;
            vec![encoded(other), vec![0; 3], right(ip)]
        }
        Garbage => {
            let mut bytes = right(FOUR.into());
            bytes.truncate(20);
            vec![bytes]
        }
        Empty => vec![encoded(answer(question, None))],
        Code(code) => {
            let mut refusal = answer(question, None);
            refusal.metadata.response_code = code;
            vec![encoded(refusal)]
        }
    }
}

/// The partial answers about a host, and the last one.
async fn parts(
    resolver: &Resolver,
    host: &str,
) -> (Vec<Vec<IpAddr>>, Result<Vec<IpAddr>, ResolveError>) {
    let mut partial = Vec::new();
    let result = resolver.resolve(host, |found| partial.push(found)).await;
    (partial, result)
}

async fn resolved(resolver: &Resolver, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
    parts(resolver, host).await.1
}

/// What is done with the questions for AAAA and A, what is told before the end, and what at the end.
type Row = (Manner, Manner, &'static [IpAddr], Result<&'static [IpAddr], ResolveError>);

#[test]
fn each_answer_may_come_late_be_lost_or_break() {
    let [four, no_route] = *BOTH;
    let (not_found, unreachable) = (Err(ResolveError::NotFound), Err(ResolveError::Unreachable));
    let rows: Vec<Row> = vec![
        (Empty, Is(four), &[], Ok(ONLY_FOUR)),
        (Is(no_route), Is(four), &[], Ok(BOTH)),
        // The host has no route to what is known, so it waits for the other family.
        (Is(no_route), Late(40, four), &[], Ok(BOTH)),
        (Is(no_route), Late(60, four), &[], Ok(BOTH)),
        (Is(no_route), Late(300, four), &[], Ok(BOTH)),
        (Is(no_route), Late(3000, four), &[], Ok(BOTH)),
        (Is(no_route), LostOnce(four), &[], Ok(BOTH)),
        (Is(no_route), Truncated(four), &[], Ok(BOTH)),
        (Is(no_route), Silent, &[], Ok(&BOTH[1..])),
        // The host has a route to what is known, so the first attempt begins after a moment.
        (Late(40, no_route), Is(four), &[], Ok(BOTH)),
        (Late(300, no_route), Is(four), ONLY_FOUR, Ok(BOTH)),
        (LostOnce(no_route), Is(four), ONLY_FOUR, Ok(BOTH)),
        (Silent, Is(four), ONLY_FOUR, Ok(ONLY_FOUR)),
        // A family that has nothing is waited for no longer than its answer takes.
        (Garbage, Is(four), &[], Ok(ONLY_FOUR)),
        (Code(ResponseCode::ServFail), Is(four), &[], Ok(ONLY_FOUR)),
        (Code(ResponseCode::Refused), Is(four), &[], Ok(ONLY_FOUR)),
        (Code(ResponseCode::NotImp), Is(four), &[], Ok(ONLY_FOUR)),
        (Code(ResponseCode::FormErr), Is(four), &[], Ok(ONLY_FOUR)),
        (Code(ResponseCode::NXDomain), Is(four), &[], Ok(ONLY_FOUR)),
        (Empty, Late(3000, four), &[], Ok(ONLY_FOUR)),
        (Empty, Late(8000, four), &[], Ok(ONLY_FOUR)),
        (Late(3000, no_route), Late(3000, four), &[], Ok(BOTH)),
        (LostOnce(no_route), LostOnce(four), &[], Ok(BOTH)),
        (Empty, Spoofed(four), &[], Ok(ONLY_FOUR)),
        (Empty, Truncated(four), &[], Ok(ONLY_FOUR)),
        (Empty, Empty, &[], not_found),
        (Code(ResponseCode::NXDomain), Silent, &[], not_found),
        (Empty, Silent, &[], unreachable),
        (Silent, Silent, &[], unreachable),
        (Late(11_000, no_route), Late(11_000, four), &[], unreachable),
        (Garbage, Garbage, &[], unreachable),
        (Code(ResponseCode::ServFail), Code(ResponseCode::ServFail), &[], unreachable),
    ];
    for (of_six, of_four, told, expected) in rows {
        block_on(async {
            let server = serve(vec![("a_b.test", of_six, of_four)]).await;
            let resolver = Resolver::from_parts(&[server], "");
            let (partial, result) = parts(&resolver, "a_b.test").await;
            let expected = expected.map(<[_]>::to_vec);
            assert_eq!(result, expected, "AAAA: {of_six:?}, A: {of_four:?}");
            assert_eq!(partial.concat(), told, "AAAA: {of_six:?}, A: {of_four:?}");
        });
    }
}

#[test]
fn an_ipv6_address_is_used_before_the_ipv4_addresses_are_known() {
    if StdSocket::bind((SIX, 0)).is_err() {
        return; // there is no IPv6 on this machine
    }
    let (six, four) = (IpAddr::from(SIX), IpAddr::from(FOUR));
    for (of_six, of_four, told, expected) in [
        (Is(six), Is(four), vec![], vec![six, four]),
        (Is(six), Late(30, four), vec![vec![six]], vec![six, four]),
        (Late(30, six), Is(four), vec![], vec![six, four]),
        (Late(60, six), Is(four), vec![vec![four]], vec![six, four]),
        (Is(six), Silent, vec![vec![six]], vec![six]),
    ] {
        block_on(async {
            let server = serve(vec![("a.test", of_six, of_four)]).await;
            let resolver = Resolver::from_parts(&[server], "");
            let found = parts(&resolver, "A.Test.").await;
            assert_eq!(found, (told, Ok(expected)), "AAAA: {of_six:?}, A: {of_four:?}");
        });
    }
}

#[test]
fn a_bad_server_beside_a_good_one_does_not_lose_a_name() {
    let four = IpAddr::from(FOUR);
    for bad in [
        Silent,
        Garbage,
        Late(20_000, four),
        Code(ResponseCode::ServFail),
        Code(ResponseCode::Refused),
    ] {
        block_on(async {
            let closed = StdSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
            let bad_server = serve(vec![("a.test", bad, bad)]).await;
            let good_server = serve(vec![("a.test", Empty, Is(four))]).await;
            for servers in [
                vec![bad_server, good_server],
                vec![good_server, bad_server],
                vec![closed, bad_server, bad_server, good_server],
            ] {
                let resolver = Resolver::from_parts(&servers, "");
                assert_eq!(resolved(&resolver, "a.test").await, Ok(vec![four]), "{bad:?}");
            }
        });
    }
}

#[test]
fn a_server_that_was_silent_is_asked_last_for_a_while() {
    let four = IpAddr::from(FOUR);
    block_on(async {
        let silent = serve(vec![("a.test", Silent, Silent), ("b.test", Silent, Silent)]).await;
        let good = serve(vec![("a.test", Empty, Is(four)), ("b.test", Empty, Is(four))]).await;
        let resolver = Resolver::from_parts(&[silent, good], "");
        let mut waited = Vec::new();
        for host in ["a.test", "b.test"] {
            let begin = Instant::now();
            assert_eq!(resolved(&resolver, host).await, Ok(vec![four]));
            waited.push(begin.elapsed() >= Duration::from_millis(900)); // virtual time
        }
        assert_eq!(waited, [true, false]);
    });
}

#[test]
fn an_answer_is_kept_while_it_is_valid() {
    block_on(async {
        let (server, task) = serve_and_hold(vec![("a.test", Empty, Is(FOUR.into()))]).await;
        let resolver = Resolver::from_parts(&[server], "");
        assert_eq!(resolved(&resolver, "a.test").await, Ok(vec![FOUR.into()]));
        task.abort();
        sleep(Duration::from_secs(50)).await;
        assert_eq!(resolved(&resolver, "a.test").await, Ok(vec![FOUR.into()]), "for 60 s");
        sleep(Duration::from_secs(20)).await;
        assert_eq!(resolved(&resolver, "a.test").await, Err(ResolveError::Unreachable));
    });
}

#[test]
fn names_of_the_hosts_file_and_localhost_need_no_server() {
    let resolver = Resolver::from_parts(&[], "# comment\n127.0.0.5 Inner.test my_alias # more");
    block_on(async {
        for (host, expected) in [
            ("inner.test", Ok(Ipv4Addr::new(127, 0, 0, 5).into())),
            ("my_alias", Ok(Ipv4Addr::new(127, 0, 0, 5).into())),
            ("127.0.0.6", Ok(Ipv4Addr::new(127, 0, 0, 6).into())),
            ("other.test", Err(ResolveError::Unreachable)),
            ("not a name..", Err(ResolveError::NotFound)),
        ] {
            let first = resolved(&resolver, host).await.map(|addresses| addresses[0]);
            assert_eq!(first, expected, "{host}");
        }
        for host in ["localhost", "LOCALHOST.", "sub.localhost"] {
            let addresses = resolved(&resolver, host).await.unwrap();
            assert!(addresses.iter().all(IpAddr::is_loopback), "{host}: {addresses:?}");
            assert_eq!(addresses.len(), 2, "{host}");
        }
    });
}

#[test]
fn localhost_is_known_with_the_systems_configuration() {
    let addresses = block_on(async { resolved(&Resolver::from_system(), "localhost").await });
    assert!(addresses.unwrap().iter().all(IpAddr::is_loopback));
}

#[test]
fn short_names_are_found_in_the_search_list() {
    let four = IpAddr::from(FOUR);
    block_on(async {
        let server = serve(vec![
            ("box.lab.test", Empty, Is(four)),
            ("a.box", Code(ResponseCode::ServFail), Code(ResponseCode::ServFail)),
            ("a.box.lab.test", Empty, Is(four)),
        ])
        .await;
        let mut servers = Servers::parse("search other.test lab.test");
        servers.addresses = vec![server];
        let resolver = Resolver::from_settings(Settings::new(servers, Hosts::default()));
        for host in ["box", "box.lab.test", "a.box"] {
            assert_eq!(resolved(&resolver, host).await, Ok(vec![four]), "{host}");
        }
        assert_eq!(resolved(&resolver, "box.").await, Err(ResolveError::NotFound));
    });
}

#[test]
fn an_address_without_a_route_is_reached_through_a_nat64() {
    let known = "64:ff9b::192.0.0.170".parse().unwrap();
    let literal = "255.255.255.255"; // UDP sockets cannot be connected to it
    block_on(async {
        let server = serve(vec![("ipv4only.arpa", Is(known), Empty)]).await;
        let found = resolved(&Resolver::from_parts(&[server], ""), literal).await.unwrap();
        let mut found: Vec<_> = found.iter().map(ToString::to_string).collect();
        found.sort();
        assert_eq!(found, ["255.255.255.255", "64:ff9b::ffff:ffff"]);
        let server = serve(vec![("ipv4only.arpa", Empty, Empty)]).await;
        let found = resolved(&Resolver::from_parts(&[server], ""), literal).await.unwrap();
        assert_eq!(found.len(), 1, "there is no NAT64");
    });
}

/// A resolver that looks at two files each time.
fn watching(folder: &Path) -> Resolver {
    let files = (folder.join("resolv.conf"), folder.join("hosts"));
    let watched = Watched::new(files.0, files.1, Duration::ZERO);
    Resolver { source: Source::Files(Arc::new(watched)) }
}

#[test]
fn the_hosts_file_is_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let (hosts, new) = (folder.path().join("hosts"), folder.path().join("new"));
    let resolver = watching(folder.path());
    block_on(async {
        let missing = resolved(&resolver, "box").await;
        assert_eq!(missing, Err(ResolveError::Unreachable), "there are no files yet");
        fs::write(&hosts, "127.0.0.5 box\n").unwrap();
        assert_eq!(resolved(&resolver, "box").await, Ok(vec![[127, 0, 0, 5].into()]));
        fs::write(&hosts, "127.0.0.66 box\n").unwrap(); // in place
        assert_eq!(resolved(&resolver, "box").await, Ok(vec![[127, 0, 0, 66].into()]));
        fs::write(&new, "127.0.0.77 box\n").unwrap();
        fs::rename(&new, &hosts).unwrap(); // another file of the same size
        assert_eq!(resolved(&resolver, "box").await, Ok(vec![[127, 0, 0, 77].into()]));
        fs::remove_file(&hosts).unwrap();
        assert_eq!(resolved(&resolver, "box").await, Err(ResolveError::Unreachable));
    });
}

#[test]
fn the_name_servers_are_read_again_when_they_change() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("resolv.conf");
    let resolver = watching(folder.path());
    block_on(async {
        fs::write(&file, "").unwrap();
        assert!(resolver.settings().await.servers.addresses.is_empty());
        for server in ["10.0.0.1", "10.0.0.2", "::1"] {
            fs::write(&file, format!("nameserver {server}\n")).unwrap();
            let addresses = resolver.settings().await.servers.addresses.clone();
            assert_eq!(addresses[0].ip().to_string(), server);
        }
        let before = resolver.settings().await;
        assert!(Arc::ptr_eq(&before, &resolver.settings().await), "nothing has changed");
    });
}
