//! Sends packets through a tunnel and receives them. It reads commands, and answers each with a line of JSON:
//!
//! ```text
//! load GENERATOR_CPU SINK_CPU
//! through CLIENT CLIENT_TO_ECHO PID ...               the tunnel's local addresses, and the processes to watch
//! packets LOAD COUNT                                  LOAD is: up|down FLOWS BYTES PER_SECOND BURST
//! echo BYTES COUNT PAUSE_US [LOAD]                    one after the other, with pauses, alone or beside a load
//! setup BYTES COUNT
//! largest FITS TOO_LARGE                              the largest payload that fits
//! ```

use std::{
    env, io,
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use data_path_bench::{
    echo::{self, Echoes, summary},
    ends::Ends,
    kernel,
    packets::{self, Cpus, Direction, Load, Sent},
};

/// How long a load lasts before echoes are sent beside it.
const WARM_UP: Duration = Duration::from_millis(100);

struct Bench {
    cpus: Cpus,
    ends: Ends,
    client: SocketAddr,
    client_to_echo: SocketAddr,
    /// The flow of echoes.
    echoes: Option<UdpSocket>,
    pids: Vec<i32>,
}

fn main() -> Result<()> {
    let cpus: Vec<usize> =
        env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let &[generator, sink] = cpus.as_slice() else { bail!("which CPUs?") };
    kernel::pin(generator)?;
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let mut bench = Bench {
        cpus: Cpus { generator, sink },
        ends: Ends::new()?,
        client: nobody,
        client_to_echo: nobody,
        echoes: None,
        pids: Vec::new(),
    };
    println!("{} {}", bench.ends.target.local_addr()?, echo::serve(sink)?);
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match bench.run(&words) {
            Ok(answer) => println!("{{{answer}}}"),
            Err(error) => println!(r#"{{"error": {:?}}}"#, format!("{line}: {error:#}")),
        }
    }
    Ok(())
}

impl Bench {
    fn run(&mut self, words: &[&str]) -> Result<String> {
        match words {
            ["through", client, client_to_echo, pids @ ..] => {
                self.client = client.parse()?;
                self.client_to_echo = client_to_echo.parse()?;
                self.pids = pids.iter().map(|pid| pid.parse()).collect::<Result<_, _>>()?;
                Ok(String::new())
            }
            ["packets", load @ .., count] => self.packets(load_of(load, count.parse()?)?),
            ["echo", words @ ..] => self.echoes(words),
            ["setup", bytes, count] => Ok(summary(echo::of_new_flows(
                self.client_to_echo,
                bytes.parse()?,
                count.parse()?,
            )?)),
            ["largest", fits, too_large] => {
                let bytes = echo::largest(self.client_to_echo, fits.parse()?, too_large.parse()?)?;
                Ok(format!(r#""bytes": {bytes}"#))
            }
            _ => bail!("not a command"),
        }
    }

    fn packets(&mut self, load: Load) -> Result<String> {
        let run = self.ends.open(load.flows, self.client)?;
        let outcome = packets::measure(&self.ends, load, run, &self.pids, self.cpus)?;
        Ok(format!(
            r#"{}, "received": {}, "seconds": {}, "cpu_ns": {:?}"#,
            of_generator(&outcome.sent),
            outcome.received,
            outcome.seconds,
            outcome.cpu_nanos,
        ))
    }

    fn echoes(&mut self, words: &[&str]) -> Result<String> {
        let [bytes, count, pause, load @ ..] = words else { bail!("which echoes?") };
        let (bytes, count) = (bytes.parse()?, count.parse()?);
        let pause = Duration::from_micros(pause.parse()?);
        let flow = match self.echoes.take() {
            Some(flow) => flow,
            None => echo::flow(self.client_to_echo)?,
        };
        let echoes = || echo::of_one_flow(&flow, bytes, count, pause);
        let answer = match load {
            [] => summary(echoes()?),
            load => self.beside(load_of(load, u64::MAX)?, echoes)?,
        };
        self.echoes = Some(flow);
        Ok(answer)
    }

    fn beside(&mut self, load: Load, echoes: impl FnOnce() -> Result<Echoes>) -> Result<String> {
        let run = self.ends.open(load.flows, self.client)?;
        let (received, stop, stop_sink) =
            (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let (ends, cpus) = (&self.ends, self.cpus);
        thread::scope(|scope| {
            let sink = scope.spawn(|| {
                kernel::pin(cpus.sink)
                    .map(|()| packets::sink(ends, load, run, &received, &stop_sink))
            });
            let sent = scope
                .spawn(|| packets::generate(ends, load, run, || !stop.load(Ordering::Relaxed)));
            thread::sleep(WARM_UP);
            let echoes = echoes();
            stop.store(true, Ordering::Relaxed);
            let sent = sent.join().ok().context("the generator panicked")?;
            packets::drain(sent.packets, &received);
            stop_sink.store(true, Ordering::Relaxed);
            sink.join().ok().context("the sink panicked")??;
            Ok(format!(
                r#"{}, {}, "received": {}"#,
                summary(echoes?),
                of_generator(&sent),
                received.load(Ordering::Relaxed),
            ))
        })
    }
}

/// The words are `up|down FLOWS BYTES PER_SECOND BURST`.
fn load_of(words: &[&str], count: u64) -> Result<Load> {
    let [direction, flows, bytes, rate, burst] = words else { bail!("which load?") };
    Ok(Load {
        direction: direction_of(direction)?,
        flows: flows.parse()?,
        bytes: bytes.parse()?,
        packets_per_second: rate.parse()?,
        burst: burst.parse()?,
        count,
    })
}

fn direction_of(word: &str) -> Result<Direction> {
    match word {
        "up" => Ok(Direction::Up),
        "down" => Ok(Direction::Down),
        _ => bail!("{word} is neither up nor down"),
    }
}

/// Members of a JSON object: what was sent, at which rate, and how late.
fn of_generator(sent: &Sent) -> String {
    let rate = sent.packets as f64 / sent.elapsed.as_secs_f64();
    let late = sent.late_p99_us;
    format!(r#""sent": {}, "reached_pps": {rate:.0}, "late_p99_us": {late}"#, sent.packets)
}
