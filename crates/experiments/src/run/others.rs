//! Other downloads that share the access link with the downloads of a run.

use tandem_congestion::{ControllerConfig, ControllerName};
use tandem_lab::{Contents, FileSet, Handle};
use tandem_netem::Seed;
use tandem_node::{
    Client, ClientConfig, Origin, OriginConfig,
    client::{FetchConfig, Task},
    limits::Limits,
    quic::Transport,
};
use tandem_units::ByteCount;

use super::{
    links,
    topology::{PORT, SeededPart, Topology, set_name},
};

/// A competing origin has a number; that of its client is higher by this.
const CLIENTS: u32 = 500;

pub(super) fn name(number: u64) -> String {
    format!("other{number}.test")
}

impl Topology<'_> {
    /// Starts other downloads of this number of bytes. They use no tunnel, and each has an origin
    /// of its own at the same distance as the origin of the run.
    pub(super) fn add_others(
        &mut self,
        controller: ControllerName,
        size: ByteCount,
    ) -> Vec<Handle<Client>> {
        let count = u32::try_from(self.run.others_count).unwrap_or(u32::MAX);
        (1..=count).map(|number| self.add_other(number, controller, size)).collect()
    }

    fn add_other(
        &mut self,
        number: u32,
        controller: ControllerName,
        size: ByteCount,
    ) -> Handle<Client> {
        let host = name(number.into());
        let seed = self.seed(SeededPart::Others, number);
        let controller = ControllerConfig { seed, ..controller.into() };
        let origin = Origin::new(OriginConfig {
            transport: Transport { controller, ..Transport::default() },
            seed: Some(seed),
            ..OriginConfig::new(([0, 0, 0, 0], PORT).into(), self.certificate.server())
        });
        let origin = origin.expect("the certificate serves QUIC");
        let ip = format!("10.0.5.{number}");
        let origin = self.world.add_host(&format!("other origin {number}"), [&*ip], origin);
        set_name(&mut self.world, &host, &ip);
        let contents = Contents::Generated { len: size, seed: Seed(seed) };
        self.world.set_files(origin, FileSet::new().with("file", contents));

        let task = Task::Fetch(Box::new(FetchConfig::new(
            host,
            PORT,
            "/file".to_owned(),
            self.certificate.client(),
        )));
        let seed = Some(self.seed(SeededPart::Others, CLIENTS + number));
        let config = ClientConfig { hops: Vec::new(), task, limits: Limits::default(), seed };
        let client = Client::new(config).expect("the certificate serves QUIC");
        let ip = format!("10.2.0.{number}");
        let client = self.world.add_host(&format!("other client {number}"), [&*ip], client);

        if self.run.others_share_origin_link {
            let first = self.peers.first().expect("there is an origin");
            let (down, up) = self.through(first);
            self.world.route_over(origin, client, &down);
            self.world.route_over(client, origin, &up);
            return client;
        }
        let behind = links::delay(self.run.e2e_rtt().saturating_sub(self.run.client_rtt.0) / 2);
        let down = self.world.route(origin, self.everybody, vec![behind.clone()]);
        let up = self.world.route(self.everybody, origin, vec![behind]);
        self.world.route_over(origin, client, &[down, self.watched.downlink]);
        self.world.route_over(client, origin, &[self.watched.uplink, up]);
        client
    }
}
