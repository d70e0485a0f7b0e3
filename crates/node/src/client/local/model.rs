//! A connection of a program against its promises, for property tests and fuzzing: whatever arrives
//! and however it is cut, the steps are the same and follow the rules of [`super`], the connection
//! ends, and an independent reader finds in the bytes for the targets the requests that were passed
//! on and no others.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use httparse::{EMPTY_HEADER, Status};

use super::{Local, Password, Refusal, Step};
use crate::limits::LocalProxyLimits;

/// The parts of an input are separated by this byte, which HTTP does not allow in heads.
const SEPARATOR: u8 = 0x1e;

/// The password of the model's port.
pub(super) const PASSWORD: &str = "user:secret";

/// Limits that short inputs reach.
pub(super) const LIMITS: LocalProxyLimits =
    LocalProxyLimits { head: 2048, chunk_line: 64, held: 64 * 1024 };

/// What a program sends, and what its targets answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Script {
    pub(super) program: Vec<u8>,
    /// One for each request.
    pub(super) responses: Vec<Vec<u8>>,
    pub(super) has_password: bool,
    pub(super) is_refused: bool,
    /// Whether targets end their connections in an orderly way.
    pub(super) is_clean: bool,
}

/// What was done for a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Transcript {
    /// The steps without those that carry bytes.
    pub(super) steps: Vec<Step>,
    pub(super) to_program: BytesMut,
    /// The bytes for the target of each `Connect`.
    pub(super) to_targets: Vec<BytesMut>,
    /// The number of requests that the targets were asked to answer.
    pub(super) answered: usize,
}

struct LocalRun<'a> {
    local: Local,
    script: &'a Script,
    transcript: Transcript,
    is_connected: bool,
    is_transparent: bool,
    has_ended: bool,
}

/// Plays a script. The bytes of both sides are cut into pieces of these lengths.
pub(super) fn play(script: &Script, program_cut: usize, target_cut: usize) -> Transcript {
    let password = script.has_password.then(|| Password::parse(PASSWORD).ok()).flatten();
    let mut run = LocalRun {
        local: Local::new(password.map(Arc::new), LIMITS),
        script,
        transcript: Transcript::default(),
        is_connected: false,
        is_transparent: false,
        has_ended: false,
    };
    for piece in script.program.chunks(program_cut.max(1)) {
        run.answer_all(target_cut);
        run.local.from_program(Bytes::copy_from_slice(piece));
        run.take_steps();
    }
    run.answer_all(target_cut);
    if script.is_refused {
        run.refuse();
    }
    run.local.program_ended();
    run.take_steps();
    run.answer_all(target_cut);
    assert!(run.has_ended || run.is_transparent, "the connection hangs: {:?}", run.local);
    if script.is_refused {
        run.transcript.to_targets.clear(); // these bytes went nowhere
    }
    run.transcript
}

impl LocalRun<'_> {
    /// Lets the target answer as long as the program's bytes are of no use.
    fn answer_all(&mut self, target_cut: usize) {
        while !self.local.wants_program() {
            if self.script.is_refused {
                return self.refuse();
            }
            let response = self.script.responses.get(self.transcript.answered);
            self.transcript.answered += 1;
            let before = self.progress();
            for piece in response.into_iter().flat_map(|bytes| bytes.chunks(target_cut.max(1))) {
                self.local.from_target(Bytes::copy_from_slice(piece));
                self.take_steps();
            }
            // An incomplete response ends with its connection. After a complete one, the next request
            // may have followed already.
            if !self.local.wants_program() && self.progress() == before {
                self.local.target_ended(self.script.is_clean);
                self.take_steps();
            }
        }
    }

    /// What changes when the next request is passed on.
    fn progress(&self) -> (usize, usize) {
        let sent = self.transcript.to_targets.iter().map(BytesMut::len).sum();
        (self.transcript.steps.len(), sent)
    }

    fn take_steps(&mut self) {
        while let Some(step) = self.local.poll() {
            assert!(!self.has_ended, "{step:?} comes after the last step");
            match &step {
                Step::ToProgram(bytes) => {
                    self.transcript.to_program.extend_from_slice(bytes);
                    continue;
                }
                Step::ToTarget(bytes) => {
                    assert!(self.is_connected, "there is no target for {bytes:?}");
                    let target = self.transcript.to_targets.last_mut();
                    target.expect("a target is connected").extend_from_slice(bytes);
                    continue;
                }
                Step::Connect(_) => {
                    assert!(!self.is_connected, "two targets at once");
                    self.is_connected = true;
                    self.transcript.to_targets.push(BytesMut::new());
                }
                Step::Disconnect => {
                    assert!(self.is_connected, "there is no target to disconnect");
                    self.is_connected = false;
                }
                Step::Associate { .. } => {}
                Step::Splice => self.is_transparent = true,
                Step::Close(_) | Step::Abort(_) => self.has_ended = true,
            }
            match &step {
                Step::Connect(_) if !self.script.is_refused => self.local.on_granted(),
                Step::Associate { .. } if !self.script.is_refused => {
                    self.local.on_associated(([127, 0, 0, 1], 1080).into());
                }
                _ => {}
            }
            self.transcript.steps.push(step);
        }
    }

    /// Refuses the target or the association. This comes as late as possible, because a program that
    /// has also sent something malformed is told of what was noticed first.
    fn refuse(&mut self) {
        let refusal = Refusal::new("connection_refused".into(), "refused".into());
        self.local.on_refused(&refusal);
        self.take_steps();
    }
}

/// Checks that the bytes for the targets are whole requests, and returns their number and whether
/// the last one is incomplete. The reader is lenient where servers may be, and strict about what
/// servers must not see.
pub(super) fn count_requests(mut bytes: &[u8]) -> (usize, bool) {
    let mut count = 0;
    while !bytes.is_empty() {
        let mut headers = vec![EMPTY_HEADER; LIMITS.head];
        let mut request = httparse::Request::new(&mut headers);
        let Status::Complete(len) = request.parse(bytes).expect("a well-formed head") else {
            panic!("a head is passed on as a whole");
        };
        count += 1;
        let values = |name: &str| {
            let found = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(name));
            found.map(|it| it.value).collect::<Vec<_>>()
        };
        assert_eq!(request.version, Some(1));
        assert!(request.path.is_some_and(|path| path.starts_with('/') || path == "*"));
        assert_eq!(values("host").len(), 1);
        assert!(values("via").last().is_some_and(|via| via.ends_with(b" tandem")));
        for hop_by_hop in ["proxy-authorization", "proxy-connection", "keep-alive", "te", "trailer"]
        {
            assert!(values(hop_by_hop).is_empty(), "{hop_by_hop} is passed on");
        }
        let rest = bytes.get(len..).unwrap_or_default();
        let body = match (&*values("content-length"), &*values("transfer-encoding")) {
            ([], []) => Some(0),
            ([length], []) => {
                let length = str::from_utf8(length).expect("digits").parse().expect("a number");
                (length <= rest.len()).then_some(length)
            }
            ([], [b"chunked"]) => chunks_len(rest),
            both => panic!("{both:?}"),
        };
        let Some(body) = body else { return (count, true) };
        bytes = rest.get(body..).unwrap_or_default();
    }
    (count, false)
}

/// The length of a chunked body without extensions and trailers. `None`: it is incomplete.
fn chunks_len(bytes: &[u8]) -> Option<usize> {
    let mut len = 0;
    loop {
        let rest = bytes.get(len..)?;
        let line = rest.get(..rest.windows(2).position(|end| end == b"\r\n")?)?;
        let size = str::from_utf8(line).expect("digits");
        let size = u64::from_str_radix(size, 16).expect("a size alone");
        len = usize::try_from(size).ok()?.checked_add(len + line.len() + 4)?;
        let end = bytes.get(len.checked_sub(2)?..len)?;
        assert_eq!(end, b"\r\n", "a chunk ends with its line");
        if size == 0 {
            return Some(len);
        }
    }
}

/// Plays an input: a byte of flags, the bytes of the program, and the responses of the targets.
///
/// # Panics
///
/// The connection breaks a promise.
#[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "only a fuzz target is outside"))]
pub fn run(input: &[u8]) {
    let Some((&flags, rest)) = input.split_first() else { return };
    let mut parts = rest.split(|&byte| byte == SEPARATOR).map(<[u8]>::to_vec);
    let script = Script {
        program: parts.next().unwrap_or_default(),
        responses: parts.collect(),
        has_password: flags & 1 > 0,
        is_refused: flags & 2 > 0,
        is_clean: flags & 4 > 0,
    };
    if script.program.len() <= LIMITS.held {
        check(&script, usize::from(flags >> 3) + 1);
    }
}

/// Plays a script whole and in pieces, and checks all promises.
pub(super) fn check(script: &Script, cut: usize) -> Transcript {
    let whole = play(script, usize::MAX, usize::MAX);
    assert_eq!(play(script, cut, usize::MAX), whole, "the program's bytes were cut");
    // A target whose bytes are cut may be asked again before it has said all, unless the program
    // waits for each response.
    assert_eq!(play(script, 1, cut), whole, "the target's bytes were cut");
    let is_http = script.program.first().is_some_and(|first| !matches!(first, 4 | 5));
    if is_http && !whole.steps.contains(&Step::Splice) && !script.is_refused {
        let counts = whole.to_targets.iter().map(|bytes| count_requests(bytes));
        let (count, incomplete) =
            counts.fold((0, 0), |(count, incomplete), (more, is_incomplete)| {
                (count + more, incomplete + usize::from(is_incomplete))
            });
        assert_eq!(count - incomplete, whole.answered, "{whole:?}");
    }
    whole
}
