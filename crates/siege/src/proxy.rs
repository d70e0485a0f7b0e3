//! The proxy that is attacked: a child process and its log.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStderr, Command},
    time::{Instant, sleep, timeout},
};

use crate::{client::Login, usage::Usage};

/// The number of the last log lines that are kept for an error message.
const LAST_LINES: usize = 20;

/// The longest wait for the proxy to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// How to start the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// The program.
    pub(crate) program: PathBuf,
    /// Arguments besides those that every attack needs.
    pub(crate) arguments: Vec<String>,
    /// The limit of open files, or `None` for the limit of this process.
    pub(crate) files: Option<u32>,
    /// The number of users, each with a token.
    pub(crate) users: usize,
    /// Whether the proxy has a certificate that it can be started with again.
    pub(crate) keeps_key: bool,
}

/// A running proxy. The process ends when this value is dropped.
pub(crate) struct Proxy {
    child: Child,
    launch: Launch,
    /// The process.
    pub(crate) id: u32,
    /// What a client of the first user needs to use it.
    pub(crate) login: Login,
    tokens: Vec<String>,
    log: Arc<Mutex<Log>>,
    folder: TempDir,
}

/// What the proxy logged.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The number of lines of the levels WARN and ERROR.
    pub(crate) warnings: usize,
    /// The number of all lines.
    pub(crate) lines: usize,
    last: VecDeque<String>,
    address: Option<SocketAddr>,
}

impl Log {
    fn add(&mut self, line: String) {
        self.lines += 1;
        self.warnings += usize::from(line.contains(" WARN ") || line.contains(" ERROR "));
        if let Some(rest) = line.strip_prefix("listening on ") {
            self.address = rest.split_whitespace().next().and_then(|text| text.parse().ok());
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }
}

impl Launch {
    /// Starts the proxy and waits until it listens.
    pub(crate) async fn start(&self) -> Result<Proxy> {
        let folder = tempfile::tempdir().context("no temporary folder can be made")?;
        let tokens: Vec<String> = (0..self.users.max(1)).map(|_| random_token()).collect();
        write_secrets(&folder.path().join("tokens"), &tokens)?;
        if self.keeps_key {
            let mut generate = Command::new(&self.program);
            generate.args(["generate", "certificate"]).arg(folder.path().join("key"));
            let made = generate.stdout(Stdio::null()).stderr(Stdio::null()).status().await?;
            anyhow::ensure!(made.success(), "no certificate can be made: {made}");
        }
        self.start_in(folder, tokens, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    async fn start_in(
        &self,
        folder: TempDir,
        tokens: Vec<String>,
        listen: SocketAddr,
    ) -> Result<Proxy> {
        let (key, mut ca_file) = (folder.path().join("key"), folder.path().join("ca.pem"));
        let mut command = self.command();
        command.args(["proxy", "--allow-target", "127.0.0.0/8", "--listen"]);
        command.arg(listen.to_string());
        command.arg("--token-file").arg(folder.path().join("tokens"));
        if self.keeps_key {
            ca_file = key.join("ca.pem");
            command.arg("--cert").arg(key.join("cert.pem"));
            command.arg("--key").arg(key.join("key.pem"));
        } else {
            command.arg("--write-ca").arg(&ca_file);
        }
        command.args(&self.arguments);
        // Settings, the form of the log and its language are not those of the caller.
        command.env_clear().kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("{} cannot be started", self.program.display()))?;
        let id = child.id().context("the proxy ended at once")?;
        let log = Arc::new(Mutex::new(Log::default()));
        let lines = child.stderr.take().context("the proxy has no standard error")?;
        tokio::spawn(read_log(lines, Arc::clone(&log)));
        let address = wait_for_address(&mut child, &log).await?;
        let ca = CertificateDer::from_pem_file(&ca_file)
            .with_context(|| format!("there is no certificate in {}", ca_file.display()))?;
        let login = Login::new(address, ca, tokens.first().cloned().unwrap_or_default())?;
        Ok(Proxy { child, launch: self.clone(), id, login, tokens, log, folder })
    }

    fn command(&self) -> Command {
        let Some(files) = self.files else { return Command::new(&self.program) };
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]);
        command.arg(&self.program);
        command
    }
}

impl Proxy {
    /// What a client of each user needs.
    pub(crate) fn logins(&self) -> impl Iterator<Item = Login> {
        self.tokens.iter().map(|token| self.login.with_token(token.clone()))
    }

    /// What the process uses now.
    pub(crate) fn usage(&self) -> Result<Usage> {
        Usage::of(self.id).with_context(|| format!("its last lines: {}", self.last_lines()))
    }

    /// Reads the memory in MB each second until some time, and prints progress.
    pub(crate) async fn watch(
        &self,
        end: Instant,
        progress: impl Fn() -> String,
    ) -> Result<Vec<f64>> {
        let (mut samples, began) = (Vec::new(), Instant::now());
        let mut reported = began;
        while Instant::now() < end {
            let usage = self.usage()?;
            samples.push(usage.memory_mb());
            if reported.elapsed() >= PROGRESS {
                reported = Instant::now();
                eprintln!(
                    "{:>5} of {} s: {}, {:.1} MB, {} descriptors",
                    began.elapsed().as_secs(),
                    (end - began).as_secs(),
                    progress(),
                    usage.memory_mb(),
                    usage.descriptors,
                );
            }
            sleep(Duration::from_secs(1)).await;
        }
        Ok(samples)
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    fn last_lines(&self) -> String {
        joined(&self.log)
    }

    /// Ends the process without a warning, and starts it again at the same address. [`Launch::keeps_key`] says whether
    /// it has the same key.
    pub(crate) async fn restart(mut self) -> Result<Self> {
        self.child.kill().await.context("the proxy cannot be ended")?;
        self.launch.start_in(self.folder, self.tokens, self.login.address).await
    }

    /// Ends the process and waits for it.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.child.kill().await.context("the proxy cannot be ended")
    }
}

async fn wait_for_address(child: &mut Child, log: &Arc<Mutex<Log>>) -> Result<SocketAddr> {
    let listens = async {
        loop {
            if let Some(address) = lock(log).address {
                return Ok(address);
            }
            if let Some(status) = child.try_wait()? {
                // The reader of the log needs a moment for the last lines.
                sleep(Duration::from_millis(50)).await;
                bail!("the proxy ended with {status}: {}", joined(log));
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(START_TIMEOUT, listens).await.context("the proxy does not listen")?
}

async fn read_log(lines: ChildStderr, log: Arc<Mutex<Log>>) {
    let mut lines = BufReader::new(lines).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        lock(&log).add(line);
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

fn joined(log: &Mutex<Log>) -> String {
    lock(log).last.iter().fold(String::new(), |mut text, line| {
        // Writing to a string cannot fail.
        writeln!(text, "{line}").ok();
        text
    })
}

fn random_token() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Writes a file of tokens, which only its owner can read.
fn write_secrets(path: &std::path::Path, tokens: &[String]) -> Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.with_context(|| format!("{} cannot be written", path.display()))?;
    let lines = tokens.iter().enumerate().map(|(index, token)| format!("user-{index} {token}\n"));
    file.write_all(lines.collect::<String>().as_bytes())
        .with_context(|| format!("{} cannot be written", path.display()))
}
