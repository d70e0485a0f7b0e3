//! Clients that encrypt their `ClientHello` (RFC 9849) for proxies whose HTTPS records ask for it.

use bytes::Bytes;
use tandem_node::{
    Client, ClientConfig, client::HopConfig, error::ClientError, node::ServiceEndpoint,
};
use tandem_units::ByteCount;
use tandem_wire::Template;

use crate::{
    MS,
    scenario::{Outcome, Scenario, Testbed, certificate},
};

/// The certificate of all hosts has this name, and not the other one.
const PUBLIC: &str = "origin.test";
const STRANGE: &str = "strange.test";

/// The versions and suites of an `ECHConfig` (RFC 9849 §4, RFC 9180 §7).
const ECH: u16 = 0xfe0d;
const X25519: u16 = 0x0020;
const HKDF_SHA256: u16 = 1;
const AES_128_GCM: u16 = 1;

/// An `ECHConfigList` with one configuration. The key is the base point of X25519, which is a key like any other.
fn configs(version: u16, aead: u16, public_name: &str) -> Bytes {
    let with_len =
        |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
    let mut key = [0; 32];
    key[0] = 9;
    let mut contents = vec![7]; // the identifier
    contents.extend(X25519.to_be_bytes());
    contents.extend(with_len(&key));
    contents.extend(with_len(&[HKDF_SHA256.to_be_bytes(), aead.to_be_bytes()].concat()));
    contents.push(64); // the length to which names are padded
    contents.push(u8::try_from(public_name.len()).unwrap());
    contents.extend(public_name.as_bytes());
    contents.extend(with_len(&[])); // no extensions
    let config = [&version.to_be_bytes()[..], &with_len(&contents)].concat();
    with_len(&config).into()
}

/// Downloads through a proxy that takes no Encrypted `ClientHello`, although its HTTPS records have these
/// configurations.
fn download(ech: Option<&Bytes>) -> Outcome {
    let scenario = Scenario { file: ByteCount::new(20_000), ..Scenario::new(1, 1) };
    scenario.run(|testbed: &mut Testbed| {
        let addresses = vec!["10.0.0.2:443".parse().unwrap()];
        let endpoint = ServiceEndpoint { priority: 1, addresses, ech: ech.cloned() };
        testbed.world.set_service("proxy1.test", vec![endpoint]);
        let template = Template::default_for("proxy1.test").unwrap();
        let hop = HopConfig {
            ech: Some(certificate().trust().ech),
            mode: scenario.mode,
            ..HopConfig::new(template, certificate().client())
        };
        let config = ClientConfig {
            hops: vec![hop],
            task: Scenario::fetch(),
            limits: scenario.limits.clone(),
            seed: Some(scenario.seed.0),
        };
        testbed.world.replace(testbed.client, Client::new(config).unwrap());
        testbed.finish()
    })
}

#[test]
fn a_proxy_that_has_proven_its_public_name_is_asked_again_without_it() {
    let plain = download(None).report().setup;
    let rejected = download(Some(&configs(ECH, AES_128_GCM, PUBLIC))).report().setup;
    let more = rejected.saturating_sub(plain);
    assert!(more >= 40 * MS && more < 100 * MS, "{plain:?}, and {more:?} for one round trip more");
}

#[test]
fn a_proxy_without_a_certificate_for_its_public_name_does_not_learn_the_name() {
    let outcome = download(Some(&configs(ECH, AES_128_GCM, STRANGE)));
    assert!(matches!(outcome.error(), ClientError::Tls { .. }), "{:?}", outcome.error());
}

#[test]
fn configurations_that_cannot_be_used_change_nothing() {
    let plain = download(None).report().setup;
    let good = configs(ECH, AES_128_GCM, PUBLIC);
    for (what, unusable) in [
        ("another version", configs(0xfe0a, AES_128_GCM, PUBLIC)),
        ("an unknown AEAD", configs(ECH, 0x1234, PUBLIC)),
        ("no name", configs(ECH, AES_128_GCM, "")),
        ("nothing", Bytes::new()),
        ("a part", good.slice(..good.len() - 1)),
        ("an empty list", Bytes::from_static(&[0, 0])),
        ("noise", Bytes::from_static(&[0xff; 40])),
    ] {
        assert_eq!(download(Some(&unusable)).report().setup, plain, "{what}");
    }
}
