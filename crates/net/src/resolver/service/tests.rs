use std::{future::Future, iter, net::Ipv4Addr, sync::Arc};

use hickory_proto::{
    op::{Message, ResponseCode},
    rr::rdata::{
        HTTPS,
        svcb::{Alpn, EchConfigList, Mandatory},
    },
};
use tokio::net::UdpSocket;

use super::*;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn record(name: &str, kind: RecordType, text: &str) -> Record {
    let data = RData::try_from_str(kind, text).expect(text);
    Record::from_rdata(Name::from_utf8(name).unwrap(), 60, data)
}

fn https(name: &str, text: &str) -> Record {
    record(name, RecordType::HTTPS, text)
}

/// What a name server does with a query.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Answers,
    /// It does not answer queries for HTTPS records.
    DropsHttps,
    /// It answers queries for HTTPS records with this code.
    Refuses(ResponseCode),
    /// It cuts answers with HTTPS records to so many bytes.
    Truncates(usize),
}

/// Starts a name server on loopback with these records. It ends with the runtime.
async fn serve(zone: Vec<Record>, manner: Manner) -> Resolver {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = socket.local_addr().unwrap();
    let zone = Arc::new(zone);
    tokio::spawn(async move {
        let mut buffer = [0; 1500];
        while let Ok((len, client)) = socket.recv_from(&mut buffer).await {
            let request = Message::from_vec(&buffer[..len]).unwrap();
            if let Some(response) = answer(&request, &zone, manner) {
                socket.send_to(&response, client).await.unwrap();
            }
        }
    });
    Resolver::from_parts(&[address], "127.0.0.9 hosts.test")
}

fn answer(request: &Message, zone: &[Record], manner: Manner) -> Option<Vec<u8>> {
    let query = request.queries[0].clone();
    let is_https = query.query_type() == RecordType::HTTPS;
    let mut response = Message::response(request.metadata.id, request.metadata.op_code);
    response.add_query(query.clone());
    let mut of_name = zone.iter().filter(|record| record.name == *query.name()).peekable();
    if of_name.peek().is_none() {
        response.metadata.response_code = ResponseCode::NXDomain;
    }
    for record in of_name.filter(|record| record.record_type() == query.query_type()) {
        response.add_answer(record.clone());
    }
    match manner {
        Manner::DropsHttps if is_https => return None,
        Manner::Refuses(code) if is_https => response.metadata.response_code = code,
        _ => {}
    }
    let mut bytes = response.to_vec().unwrap();
    if let (Manner::Truncates(len), true) = (manner, is_https) {
        bytes.truncate(len);
    }
    Some(bytes)
}

/// The endpoints of a name, as `PRIORITY ADDRESS ADDRESS`.
async fn found(resolver: &Resolver, host: &str, port: u16) -> Vec<String> {
    let endpoints = resolver.resolve_service(host, port, drop).await.expect(host);
    let text = |endpoint: ServiceEndpoint| {
        let addresses = endpoint.addresses.iter().map(ToString::to_string);
        let priority = match endpoint.priority {
            LAST => "last".to_owned(),
            priority => priority.to_string(),
        };
        iter::once(priority).chain(addresses).collect::<Vec<_>>().join(" ")
    };
    endpoints.into_iter().map(text).collect()
}

fn zone() -> Vec<Record> {
    let address = |name: &str, text: &str| record(name, RecordType::A, text);
    vec![
        address("p.test.", "127.0.0.1"),
        https("p.test.", "2 far.test. alpn=h3 port=4444"),
        https("p.test.", "1 near.test. alpn=h2,h3 port=4443"),
        https("p.test.", "1 . alpn=h3"),
        address("near.test.", "127.0.0.2"),
        address("far.test.", "127.0.0.3"),
        https("_8443._https.p.test.", "1 near.test. alpn=h3"),
        https("alias.test.", "0 p.test."),
        address("plain.test.", "127.0.0.4"),
        https("onlyalias.test.", "0 plain.test."),
        https("hints.test.", "1 nowhere.test. alpn=h3 ipv4hint=127.0.0.5,127.0.0.6 ipv6hint=::5"),
        https("stale.test.", "1 near.test. alpn=h3 ipv4hint=127.0.0.99"),
        address("loop1.test.", "127.0.0.7"),
        https("loop1.test.", "0 loop2.test."),
        https("loop2.test.", "0 loop1.test."),
        address("none.test.", "127.0.0.8"),
        https("none.test.", "0 ."),
    ]
}

#[test]
fn the_servers_of_a_name_are_those_of_its_records() {
    block_on(async {
        let resolver = serve(zone(), Manner::Answers).await;
        for (host, port, expected) in [
            // The address of the name itself is in the record with the target ".".
            ("p.test", 443, vec!["1 127.0.0.1:443", "1 127.0.0.2:4443", "2 127.0.0.3:4444"]),
            ("P.TEST.", 443, vec!["1 127.0.0.1:443", "1 127.0.0.2:4443", "2 127.0.0.3:4444"]),
            ("p.test", 8443, vec!["1 127.0.0.2:8443", "last 127.0.0.1:8443"]),
            ("p.test", 8444, vec!["last 127.0.0.1:8444"]),
            ("alias.test", 443, vec!["1 127.0.0.1:443", "1 127.0.0.2:4443", "2 127.0.0.3:4444"]),
            ("onlyalias.test", 443, vec!["last 127.0.0.4:443"]),
            ("hints.test", 443, vec!["1 [::5]:443 127.0.0.5:443 127.0.0.6:443"]),
            ("stale.test", 443, vec!["1 127.0.0.2:443"]),
            ("plain.test", 443, vec!["last 127.0.0.4:443"]),
            ("loop1.test", 443, vec!["last 127.0.0.7:443"]),
            ("none.test", 443, vec!["last 127.0.0.8:443"]),
            ("hosts.test", 443, vec!["last 127.0.0.9:443"]),
        ] {
            let mut found = found(&resolver, host, port).await;
            found.sort(); // records of one priority are in no order
            assert_eq!(found, expected, "{host}:{port}");
        }
        for host in ["other.test", "loop2.test"] {
            let nothing = resolver.resolve_service(host, 443, drop).await;
            assert_eq!(nothing, Err(ResolveError::NotFound), "{host}");
        }
    });
}

#[test]
fn a_name_server_that_fails_on_records_leaves_the_addresses() {
    for manner in [
        Manner::DropsHttps,
        Manner::Refuses(ResponseCode::ServFail),
        Manner::Refuses(ResponseCode::NotImp),
        Manner::Truncates(45),
        Manner::Truncates(20),
        Manner::Truncates(5),
    ] {
        block_on(async {
            let resolver = serve(zone(), manner).await;
            assert_eq!(found(&resolver, "p.test", 443).await, ["last 127.0.0.1:443"]);
        });
    }
}

#[test]
fn a_name_without_addresses_whose_records_never_come_is_an_error() {
    let zone = vec![https("p.test.", "1 near.test. alpn=h3")];
    block_on(async {
        let resolver = serve(zone, Manner::DropsHttps).await;
        tokio::time::pause(); // timeouts expire as soon as all tasks are idle
        assert!(resolver.resolve_service("p.test", 443, drop).await.is_err());
    });
}

#[test]
fn hundreds_of_records_are_bounded() {
    let many = (1..=300).map(|priority| {
        let text = format!("{priority} t{priority}.test. alpn=h3 ipv4hint=127.1.0.1");
        https("p.test.", &text)
    });
    let Records::Services(services) = interpret(&many.rev().collect::<Vec<_>>()) else { panic!() };
    let priorities: Vec<_> = services.iter().map(|service| service.priority).collect();
    assert_eq!(priorities, (1..=16).collect::<Vec<_>>());
}

#[test]
fn records_that_this_client_cannot_use_are_left_out() {
    for (text, is_used) in [
        ("1 . alpn=h3", true),
        ("1 . alpn=h2,h3,http/1.1 port=1", true),
        ("1 . alpn=h3 no-default-alpn", true),
        ("1 . alpn=h3 key65000=x", true),
        ("1 . mandatory=alpn,port alpn=h3 port=5", true),
        ("1 .", false),
        ("1 . alpn=h2", false),
        ("1 . alpn=h2 no-default-alpn", false),
        ("1 . no-default-alpn", false),
        ("1 . alpn=h3 port=0", false),
        ("1 . mandatory=key65000 alpn=h3 key65000=x", false),
        ("1 . mandatory=port alpn=h3", false),
        ("1 . mandatory=mandatory alpn=h3", false),
    ] {
        let Records::Services(services) = interpret(&[https("p.test.", text)]) else { panic!() };
        assert_eq!(services.len(), usize::from(is_used), "{text}");
    }
    let mandatory_ech = SVCB::new(
        1,
        Name::root(),
        vec![
            (SvcParamKey::Mandatory, mandatory(SvcParamKey::EchConfigList)),
            (SvcParamKey::Alpn, SvcParamValue::Alpn(alpn("h3"))),
            (SvcParamKey::EchConfigList, ech()),
        ],
    );
    let record = Record::from_rdata(Name::root(), 60, RData::HTTPS(HTTPS(mandatory_ech)));
    let Records::Services(services) = interpret(&[record]) else { panic!() };
    assert_eq!(services[0].ech.as_deref(), Some(&[1][..]));
}

#[test]
fn without_a_server_that_shows_the_name_none_is_used_that_does() {
    let zone = vec![
        record("near.test.", RecordType::A, "127.0.0.2"),
        record("all.test.", RecordType::A, "127.0.0.1"),
        https("all.test.", "1 near.test. alpn=h3 ech=AQ=="),
        https("all.test.", "2 near.test. alpn=h3 port=4443 ech=AQ=="),
        record("some.test.", RecordType::A, "127.0.0.1"),
        https("some.test.", "1 near.test. alpn=h3 ech=AQ=="),
        https("some.test.", "2 near.test. alpn=h3 port=4443"),
        https("alias.test.", "0 all.test."),
        record("other.test.", RecordType::A, "127.0.0.1"),
        https("other.test.", "1 near.test. alpn=h2 ech=AQ=="),
    ];
    block_on(async {
        let resolver = serve(zone, Manner::Answers).await;
        for (host, expected) in [
            ("all.test", vec![("127.0.0.2:443", true), ("127.0.0.2:4443", true)]),
            ("alias.test", vec![("127.0.0.2:443", true), ("127.0.0.2:4443", true)]),
            (
                "some.test",
                vec![("127.0.0.2:443", true), ("127.0.0.2:4443", false), ("127.0.0.1:443", false)],
            ),
            ("other.test", vec![("127.0.0.1:443", false)]),
        ] {
            let endpoints = resolver.resolve_service(host, 443, drop).await.expect(host);
            let found: Vec<_> = endpoints
                .iter()
                .map(|endpoint| (endpoint.addresses[0].to_string(), endpoint.ech.is_some()))
                .collect();
            let found: Vec<_> = found.iter().map(|(at, ech)| (at.as_str(), *ech)).collect();
            assert_eq!(found, expected, "{host}");
        }
    });
}

fn mandatory(key: SvcParamKey) -> SvcParamValue {
    SvcParamValue::Mandatory(Mandatory(vec![key]))
}

fn alpn(id: &str) -> Alpn {
    Alpn(vec![id.to_owned()])
}

fn ech() -> SvcParamValue {
    let list = EchConfigList(vec![1]);
    SvcParamValue::EchConfigList(list)
}

#[test]
fn an_alias_hides_the_servers_beside_it() {
    let records = [https("p.test.", "1 a.test. alpn=h3"), https("p.test.", "0 b.test. port=1")];
    assert_eq!(interpret(&records), Records::Alias(Name::from_utf8("b.test.").unwrap()));
}

#[test]
fn any_answer_leads_to_few_servers_with_addresses() {
    let mut message = Message::response(7, hickory_proto::op::OpCode::Query);
    message.answers = vec![
        https("a.test.", "1 . alpn=h3 port=8443 ipv4hint=192.0.2.1,192.0.2.2"),
        https("a.test.", "2 b.test. mandatory=alpn alpn=h2,h3 ipv6hint=2001:db8::1"),
        https("a.test.", "0 c.test."),
    ];
    let bytes = message.to_vec().unwrap();
    for at in 0..bytes.len() {
        for change in [1, 0x80, 0xff] {
            let mut changed = [&[3][..], &bytes].concat();
            changed[at + 1] ^= change;
            model::run(&changed);
        }
        model::run(&[&[3], &bytes[..at]].concat());
    }
}
