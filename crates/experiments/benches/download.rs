//! Measures the cost of one run: a 30 MB download at 10 Mbit/s, in every mode.

#![expect(missing_docs, reason = "Criterion's macro makes a public function")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};
use tandem_experiments::run::{self, Mode, Parameters, TraceStore};
use tandem_units::ByteCount;

fn download(c: &mut Criterion) {
    let mut group = c.benchmark_group("lab/download_30MB_10Mbit");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    for mode in Mode::ALL {
        let parameters =
            Parameters { mode, size: ByteCount::new(30_000_000), ..Parameters::default() };
        let traces = TraceStore::default();
        group.bench_function(BenchmarkId::from_parameter(mode), |b| {
            b.iter(|| black_box(run::run(&parameters, &traces)));
        });
    }
    group.finish();
}

criterion_group!(benches, download);
criterion_main!(benches);
