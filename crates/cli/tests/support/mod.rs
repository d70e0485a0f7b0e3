//! Runs the program as a user would.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    net::{SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A timeout above the duration of every step, so that a hang fails the test.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Where the program is that the tests run.
pub(crate) fn tandem() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tandem"))
}

/// A folder for one test, with the program's files in it.
pub(crate) struct Scene {
    dir: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file into the folder.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }

    /// Writes a file of this number of bytes, which do not repeat soon.
    pub(crate) fn write_noise(&self, name: &str, len: usize) -> PathBuf {
        let mut state = 1_u32;
        let noise: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_be_bytes()[0]
            })
            .collect();
        self.write(name, noise)
    }

    /// A command that runs the program in this folder, with nothing of the test's environment.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.other_program(tandem());
        command.args(args);
        command
    }

    /// A command that runs any program in this folder. It has no environment variables, so that it does the same
    /// whatever language, time zone, colours, proxies or settings the caller of the tests has chosen, and no input.
    pub(crate) fn other_program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, line: &str) -> Run {
        let output = self.command(line.split_whitespace()).output().unwrap();
        Run { line: line.to_owned(), output }
    }

    /// Starts a server and waits until it listens.
    pub(crate) fn serve(&self, line: &str) -> Server {
        Server::start(self.command(line.split_whitespace()), line)
    }

    /// An origin for the folder `root`, whose CA is in `origin.pem`.
    pub(crate) fn origin(&self) -> Server {
        fs::create_dir_all(self.path("root")).unwrap();
        self.serve("origin --listen 127.0.0.1:0 --root root --write-ca origin.pem")
    }

    /// A proxy that reaches loopback, whose CA is in a file of this name.
    pub(crate) fn proxy(&self, ca: &str) -> Server {
        self.serve(&format!(
            "proxy --listen 127.0.0.1:0 --allow-target 127.0.0.0/8 --write-ca {ca}"
        ))
    }
}

/// The result of a run of the program.
pub(crate) struct Run {
    line: String,
    output: Output,
}

impl Run {
    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.output.stdout.clone()).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Checks that the exit code is 0, and returns standard output.
    #[track_caller]
    pub(crate) fn succeeds(&self) -> String {
        assert_eq!(self.code(), Some(0), "tandem {}\n{}", self.line, self.stderr());
        self.stdout()
    }

    /// Checks the exit code, and that the only error line contains all these words.
    #[track_caller]
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        let stderr = self.stderr();
        assert_eq!(self.code(), Some(code), "tandem {}\n{stderr}", self.line);
        let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
        let [error] = errors.as_slice() else { panic!("not one error line: {stderr}") };
        for word in words {
            assert!(error.contains(word), "tandem {}: no {word:?} in {error}", self.line);
        }
        assert_eq!(self.stdout(), "", "a failure must not print results");
    }
}

/// A running server. It is killed by its process ID when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// Its error output before it listened.
    pub(crate) said: String,
    child: Child,
    stderr: mpsc::Receiver<String>,
}

impl Server {
    pub(crate) fn start(mut command: Command, line: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pipe = BufReader::new(child.stderr.take().unwrap());
        let (sender, stderr) = mpsc::channel();
        thread::spawn(move || {
            for line in pipe.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0)); // From now on the server is killed on drop.
        let mut server = Self { address: unknown, said: String::new(), child, stderr };
        while let Ok(text) = server.stderr.recv_timeout(TIMEOUT) {
            if let Some((_, address)) = text.split_once("listening on ") {
                // In a log of JSON more follows.
                let address = address.split('"').next().unwrap_or_default();
                server.address = address.parse().unwrap();
                return server;
            }
            server.said += &text;
            server.said += "\n";
        }
        panic!("tandem {line} does not listen:\n{}", server.said);
    }

    /// Where its admin listener is.
    pub(crate) fn admin(&self) -> SocketAddr {
        let (_, url) = self.said.split_once("admin page at http://").unwrap();
        url.split_once('/').unwrap().0.parse().unwrap()
    }

    /// Waits for a line of its error output that contains this text. Returns the line.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> String {
        let mut before = String::new();
        while let Ok(line) = self.stderr.recv_timeout(TIMEOUT) {
            if line.contains(text) {
                return line;
            }
            before += &line;
            before += "\n";
        }
        panic!("no {text:?} in\n{before}");
    }

    /// The lines before the one that contains this text, which must come.
    #[track_caller]
    pub(crate) fn says_before(&self, text: &str) -> Vec<String> {
        let mut before = Vec::new();
        while let Ok(line) = self.stderr.recv_timeout(TIMEOUT) {
            if line.contains(text) {
                return before;
            }
            before.push(line);
        }
        panic!("no {text:?} in\n{before:?}");
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ends(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
    }

    /// Ends the server as an operator would. Returns its status and its error output after it
    /// listened.
    pub(crate) fn stop(mut self) -> (ExitStatus, String) {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap();
        (status, self.stderr.iter().collect::<Vec<_>>().join("\n"))
    }

    /// The rest of its standard output, after [`Self::stop`] with this signal.
    pub(crate) fn stop_and_read(mut self) -> String {
        self.signal(Signal::INT);
        assert!(self.child.wait().unwrap().success());
        std::io::read_to_string(self.child.stdout.take().unwrap()).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended before.
        if self.child.kill().is_ok() && self.child.wait().is_ok() {}
    }
}

pub(crate) fn sha256(path: &Path) -> String {
    format!("{:x}", Sha256::digest(fs::read(path).unwrap()))
}

/// A target that sends back what comes, in a thread that ends with the test's process.
pub(crate) fn echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 2000];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            // A client that has ended may refuse it.
            drop(socket.send_to(buffer.get(..len).unwrap(), from));
        }
    });
    address
}

/// Whether a local program's packet comes back through a client's tunnel. The program repeats it, as
/// programs do that use UDP.
pub(crate) fn comes_back(program: &UdpSocket, client: &Server) -> bool {
    program.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    (0..10).any(|_| {
        program.send_to(b"ping", client.address).unwrap();
        program.recv_from(&mut [0; 100]).is_ok()
    })
}

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    const STEP: Duration = Duration::from_millis(20);
    for _ in 0..TIMEOUT.as_millis() / STEP.as_millis() {
        if holds() {
            return;
        }
        thread::sleep(STEP);
    }
    panic!("{what} never happened");
}
