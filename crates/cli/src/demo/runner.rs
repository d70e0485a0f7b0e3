//! Runs downloads one after the other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tandem_net::clock;
use tandem_server::process::{self, Signals};
use tokio::{runtime::Runtime, time};

use super::{
    Demo,
    file::DemoFile,
    gauges::{Gauges, ProgressSink},
    journey::Journey,
    live::Live,
    network::DemoNetwork,
    result::{DemoResult, OriginPackets},
    series::SeriesFile,
    watch::watch,
};
use crate::{
    error::CliError,
    outcome::Outcome,
    progress::{Bar, Progress},
};

/// What all parts of the demo share.
pub(super) struct Runner<'a> {
    pub(super) demo: &'a Demo,
    pub(super) file: DemoFile,
    runtime: Runtime,
    signals: Signals,
    series: Option<SeriesFile>,
    /// The complete downloads of the file, by the names of their journeys.
    done: BTreeMap<String, DemoResult>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(demo: &'a Demo) -> Result<Self, CliError> {
        let runtime = process::runtime()?;
        let signals = runtime.block_on(async { Signals::new() })?;
        let series = demo.series.as_deref().map(SeriesFile::create).transpose()?;
        let file = DemoFile::create(demo.size, demo.seed())?;
        Ok(Self { demo, file, runtime, signals, series, done: BTreeMap::new() })
    }

    /// Downloads the file, unless an earlier part has made the same journey.
    pub(super) fn download(
        &mut self,
        journey: Journey,
        live: &mut Live,
        place: usize,
    ) -> Result<DemoResult, CliError> {
        if let Some(result) = self.done.get(&journey.to_string()) {
            return Ok(result.clone());
        }
        let (outcome, packets) =
            self.watched(journey, live, place, async |network, file, sink, signals| {
                network.download(file, sink, signals).await
            })?;
        let result = DemoResult::new(self.demo, journey, outcome, packets);
        self.done.insert(result.journey.clone(), result.clone());
        Ok(result)
    }

    /// Downloads the file, but stops after `settling` and `measured` have passed.
    pub(super) fn observe(
        &mut self,
        journey: Journey,
        live: &mut Live,
        (settling, measured): (Duration, Duration),
    ) -> Result<(ObservedDownload, OriginPackets), CliError> {
        self.watched(journey, live, 0, async |network, file, sink, signals| {
            let mut download = Box::pin(network.download(file, sink, signals));
            if let Ok(ended) = time::timeout(settling, &mut download).await {
                return ended.map(|outcome| ObservedDownload::Complete(Box::new(outcome)));
            }
            let before = sink.gauges.read().body;
            if let Ok(ended) = time::timeout(measured, &mut download).await {
                return ended.map(|outcome| ObservedDownload::Complete(Box::new(outcome)));
            }
            Ok(ObservedDownload::Stopped { before, after: sink.gauges.read().body })
        })
    }

    /// Makes several requests for `page` in a row. A pause lasts from the last byte of a response to the
    /// next request, and longer if the connections need longer to close.
    pub(super) fn requests(
        &mut self,
        journey: Journey,
        page: &DemoFile,
        (requests, pause): (usize, Duration),
        bar: &Bar,
    ) -> Result<Vec<Outcome>, CliError> {
        let gauges = Arc::<Gauges>::default();
        let network = DemoNetwork::start(journey, self.demo, page, &gauges)?;
        let mut outcomes = Vec::new();
        for number in 1..=requests {
            // The bar shows requests, not bytes.
            let hidden = Bar::hidden();
            let sink = ProgressSink { bar: &hidden, gauges: &gauges };
            bar.say(format!("request {number} of {requests}"));
            let outcome = self.runtime.block_on(async {
                let begin = clock::now();
                let outcome = network.download(page, &sink, &mut self.signals).await?;
                let active = Duration::from_secs_f64(outcome.setup_s + outcome.fct_s);
                if number < requests {
                    time::sleep_until((begin + active + pause).into()).await;
                }
                Ok::<_, CliError>(outcome)
            });
            outcomes.push(outcome?);
        }
        network.stop()?;
        Ok(outcomes)
    }

    /// Runs `download` in a network of its own, and shows and samples it.
    fn watched<T>(
        &mut self,
        journey: Journey,
        live: &mut Live,
        place: usize,
        download: impl AsyncFnOnce(
            &DemoNetwork,
            &DemoFile,
            &ProgressSink<'_>,
            &mut Signals,
        ) -> Result<T, CliError>,
    ) -> Result<(T, OriginPackets), CliError> {
        let (bar, stage) = live.begin(place, journey);
        let gauges = Arc::<Gauges>::default();
        let network = DemoNetwork::start(journey, self.demo, &self.file, &gauges)?;
        let sink = ProgressSink { bar: &bar, gauges: &gauges };
        let Self { file, runtime, signals, series, .. } = self;
        let run = || runtime.block_on(download(&network, file, &sink, signals));
        let (ended, samples) = watch(&gauges, stage, run)?;
        if let Some(series) = series {
            series.add(journey, samples.as_slice())?;
        }
        let ended = ended?;
        Ok((ended, network.stop()?))
    }
}

/// What was seen of a download within some time.
#[derive(Debug)]
pub(super) enum ObservedDownload {
    Complete(Box<Outcome>),
    /// The bytes that had arrived before and after the time in which the rate was measured.
    Stopped {
        before: u64,
        after: u64,
    },
}
