//! HTTP/1.1 as to a proxy: CONNECT, and requests with absolute URLs (RFC 9112 §3.2).
//!
//! A program's connection has one exchange at a time: a request and its responses. What comes after
//! a request waits for the end of the exchange. Each head is parsed completely and written again, so
//! that the next server reads exactly what was read here; what follows a malformed head is never
//! interpreted.

mod answer;
mod body;
mod fields;
mod request;
mod response;

use std::{collections::VecDeque, mem, sync::Arc};

use bytes::Bytes;

use self::{
    answer::{CONNECTED, Rejection},
    body::{BadChunk, BodyPart, BodyRest, NO_BODY},
    fields::ConnectionField,
    request::{Message, ProgramAsked, ProgramRequest},
    response::{BadResponse, Response, ResponseKind},
};
use super::{Fault, Password, Refusal, Step, Target, inbox::Inbox};
use crate::{impossible::impossible, limits::LocalProxyLimits};

#[derive(Debug)]
enum HttpState {
    /// The next request is expected.
    Idle,
    Exchange(HttpExchange),
    /// The program asked for a tunnel, and its bytes are for the target already.
    Connecting,
    /// All bytes pass unchanged.
    Passing,
    Ended,
}

/// A request and its responses.
#[derive(Debug)]
struct HttpExchange {
    /// The rest of the request's body.
    upload: BodyRest,
    asked: ProgramAsked,
    /// Whether the program waits for 100 (Continue) and has sent nothing of the body.
    waits: bool,
    /// Whether the target's connection had an exchange before this one.
    is_reused: bool,
    /// The final response, as soon as its head has arrived.
    response: Option<ResponseBody>,
}

#[derive(Debug)]
struct ResponseBody {
    /// The rest of the body.
    body: BodyRest,
    is_chunked: bool,
}

impl HttpExchange {
    fn is_uploaded(&self) -> bool {
        self.upload.is_complete()
    }

    fn is_downloaded(&self) -> bool {
        self.response.as_ref().is_some_and(|response| response.body.is_complete())
    }
}

/// The connection to a target.
#[derive(Debug)]
struct Connected {
    target: Target,
    /// Whether it may have another request.
    persists: bool,
}

/// One connection of a program that speaks HTTP/1.1.
#[derive(Debug)]
pub(super) struct Http1 {
    password: Option<Arc<Password>>,
    limits: LocalProxyLimits,
    state: HttpState,
    program: Inbox,
    has_program_ended: bool,
    target: Inbox,
    connected: Option<Connected>,
    steps: VecDeque<Step>,
}

impl Http1 {
    pub(super) fn new(password: Option<Arc<Password>>, limits: LocalProxyLimits) -> Self {
        Self {
            password,
            limits,
            state: HttpState::Idle,
            program: Inbox::default(),
            has_program_ended: false,
            target: Inbox::default(),
            connected: None,
            steps: VecDeque::new(),
        }
    }

    pub(super) fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// Whether bytes of the program can be used at present.
    pub(super) fn wants_program(&self) -> bool {
        match &self.state {
            HttpState::Exchange(exchange) => !exchange.is_uploaded(),
            HttpState::Idle | HttpState::Connecting | HttpState::Passing | HttpState::Ended => true,
        }
    }

    pub(super) fn from_program(&mut self, bytes: Bytes) {
        if !matches!(self.state, HttpState::Ended) {
            self.program.push(bytes);
            self.advance();
        }
        if self.program.len() > self.limits.held {
            self.fail(Fault::TooLarge("more requests at once than are kept"));
        }
    }

    pub(super) fn program_ended(&mut self) {
        self.has_program_ended = true;
        self.advance();
    }

    pub(super) fn from_target(&mut self, bytes: Bytes) {
        match &self.state {
            HttpState::Passing => self.to_program(bytes),
            // The rest of the request is awaited. The connection ends with it, so these bytes
            // answer nothing, and must not pile up.
            HttpState::Exchange(exchange) if exchange.is_downloaded() => {}
            HttpState::Exchange(_) => {
                self.target.push(bytes);
                self.advance();
            }
            // These bytes answer no request, so they must not become the answer of a later request.
            HttpState::Idle => self.disconnect(),
            HttpState::Connecting | HttpState::Ended => {}
        }
    }

    pub(super) fn target_ended(&mut self, is_clean: bool) {
        match &mut self.state {
            HttpState::Idle => self.disconnect(),
            HttpState::Exchange(exchange) => {
                let response = exchange.response.as_mut();
                match response.filter(|it| is_clean && it.body == BodyRest::UntilEnd) {
                    Some(response) => {
                        response.body = NO_BODY;
                        self.advance();
                    }
                    None => self.on_early_end(),
                }
            }
            HttpState::Connecting | HttpState::Passing | HttpState::Ended => {}
        }
    }

    /// The connection to the target ended in an exchange that is not complete.
    fn on_early_end(&mut self) {
        let HttpState::Exchange(exchange) = &self.state else {
            return impossible("only an exchange ends early");
        };
        let words = "it ended the connection before its response was complete";
        if exchange.is_downloaded() {
            self.close(None); // the target does not read the rest of the request
        } else if exchange.response.is_none() && exchange.is_reused && self.target.is_empty() {
            // The target has ended an idle connection just when the request was sent. A program that
            // finds its own connection closed repeats the request if that is safe (RFC 9112 §9.3.1).
            self.close(Some(Fault::Target("it ended the connection between two requests")));
        } else {
            self.bad_response(&BadResponse(words));
        }
    }

    pub(super) fn on_granted(&mut self) {
        if matches!(self.state, HttpState::Connecting) {
            self.to_program(CONNECTED);
            self.splice();
        }
    }

    pub(super) fn on_refused(&mut self, refusal: &Refusal) {
        let is_head = match &self.state {
            HttpState::Connecting => false,
            HttpState::Exchange(exchange) if exchange.response.is_none() => exchange.asked.is_head,
            HttpState::Exchange(_) | HttpState::Idle | HttpState::Passing | HttpState::Ended => {
                return;
            }
        };
        let target = self.connected.as_ref().map(|connected| &connected.target);
        let rejection = Rejection::refused(refusal, target);
        self.reject(rejection, is_head);
    }

    /// Interprets what has arrived, as far as that is possible.
    fn advance(&mut self) {
        loop {
            let progress = match &mut self.state {
                HttpState::Idle => self.begin_exchange(),
                HttpState::Exchange(exchange) => {
                    if exchange.is_downloaded() && self.finish_exchange() {
                        true
                    } else {
                        // The order makes the steps independent of how the input was cut.
                        self.upload() || self.download()
                    }
                }
                HttpState::Connecting | HttpState::Passing => {
                    let bytes = self.program.take_all();
                    self.to_target(bytes);
                    false
                }
                HttpState::Ended => false,
            };
            if !progress {
                return;
            }
        }
    }

    /// Takes the next head of a request. Returns whether there was one.
    fn begin_exchange(&mut self) -> bool {
        match self.program.take_head(self.limits.head, request::check_line) {
            Ok(Some(head)) => {
                match request::parse(&head, self.password.as_deref()) {
                    Ok(request) => self.on_request(request),
                    Err(rejection) => self.reject(rejection, request::is_head_method(&head)),
                }
                true
            }
            Ok(None) if self.has_program_ended => {
                let fault = "it ended within the head of a request";
                let fault = (!self.program.is_empty()).then(|| Fault::Malformed(fault.into()));
                self.close(fault);
                true
            }
            Ok(None) => false,
            Err(rejection) => {
                let is_head = request::is_head_method(self.program.bytes());
                self.reject(rejection, is_head);
                true
            }
        }
    }

    fn on_request(&mut self, ProgramRequest { target, message }: ProgramRequest) {
        let is_reused = self
            .connected
            .as_ref()
            .is_some_and(|it| it.target == target && it.persists && message.is_some());
        if !is_reused {
            self.disconnect();
            self.connected = Some(Connected { target: target.clone(), persists: true });
            self.steps.push_back(Step::Connect(target));
        }
        let Some(message) = message else {
            self.state = HttpState::Connecting;
            return;
        };
        let Message { head, body: upload, asked, expects } = message;
        self.to_target(head);
        let waits = expects && !upload.is_complete();
        let response = None;
        self.state =
            HttpState::Exchange(HttpExchange { upload, asked, waits, is_reused, response });
    }

    /// Passes on a part of the request's body. Returns whether there was one.
    fn upload(&mut self) -> bool {
        let HttpState::Exchange(exchange) = &mut self.state else {
            return impossible("only an exchange has an upload");
        };
        let left = self.program.len();
        let part = exchange.upload.take(&mut self.program, &self.limits);
        let has_taken = self.program.len() < left;
        exchange.waits &= !has_taken;
        match part {
            Ok(Some(BodyPart::Content(bytes) | BodyPart::Framing(bytes))) => self.to_target(bytes),
            Ok(None) if has_taken => {}
            Ok(None) => {
                if self.has_program_ended && !exchange.is_uploaded() {
                    self.fail(Fault::Malformed("it ended within the body of a request".into()));
                }
                return false;
            }
            Err(BadChunk) => {
                let words = "the chunks of the request's body are malformed";
                self.fail_exchange(Rejection::malformed(words));
            }
        }
        true
    }

    /// Passes on a head of a response or a part of its body. Returns whether there was one.
    fn download(&mut self) -> bool {
        let HttpState::Exchange(exchange) = &mut self.state else { return false }; // its upload has failed
        let Some(ResponseBody { body, is_chunked }) = &mut exchange.response else {
            return self.begin_response();
        };
        let is_chunked = *is_chunked;
        let left = self.target.len();
        match body.take(&mut self.target, &self.limits) {
            Ok(Some(BodyPart::Framing(_))) if !is_chunked => {}
            Ok(Some(BodyPart::Content(bytes) | BodyPart::Framing(bytes))) => self.to_program(bytes),
            Ok(None) => return self.target.len() < left,
            Err(BadChunk) => {
                self.bad_response(&BadResponse("the chunks of its body are malformed"));
            }
        }
        true
    }

    fn begin_response(&mut self) -> bool {
        let HttpState::Exchange(exchange) = &self.state else {
            return impossible("only an exchange has a response");
        };
        let mut asked = exchange.asked;
        // A program that gets an error does not always send the rest of its request.
        if !exchange.is_uploaded() {
            asked.connection = ConnectionField::Closes;
        }
        let head = self.target.take_head(self.limits.head, response::check_line);
        let parsed =
            head.and_then(|head| head.map(|head| response::parse(&head, asked)).transpose());
        match parsed {
            Ok(Some(response)) => self.on_response(response),
            Ok(None) => return false,
            Err(error) => self.bad_response(&error),
        }
        true
    }

    fn on_response(&mut self, response: Response) {
        let HttpState::Exchange(exchange) = &mut self.state else {
            return impossible("only an exchange has a response");
        };
        match response.kind {
            // RFC 9110 §15.2: "a server MUST NOT send a 1xx response to an HTTP/1.0 client."
            ResponseKind::Interim if exchange.asked.is_old => {}
            ResponseKind::Interim => {
                exchange.waits = false;
                self.to_program(response.head);
            }
            ResponseKind::Switching => {
                self.to_program(response.head);
                self.splice();
            }
            ResponseKind::Final => {
                let Response { head, body, is_chunked, persists, target_persists, .. } = response;
                if !persists {
                    exchange.asked.connection = ConnectionField::Closes;
                }
                exchange.response = Some(ResponseBody { body, is_chunked });
                if let Some(connected) = &mut self.connected {
                    connected.persists = target_persists;
                }
                self.to_program(head);
            }
        }
    }

    /// Ends an exchange whose response is complete. Returns `false` if the rest of the request must
    /// be passed on before.
    fn finish_exchange(&mut self) -> bool {
        let HttpState::Exchange(exchange) = &self.state else {
            return impossible("only an exchange is finished");
        };
        let target_persists = self.connected.as_ref().is_some_and(|it| it.persists);
        if exchange.is_uploaded() && exchange.asked.connection != ConnectionField::Closes {
            // More bytes than the response has could become the answer of the next request.
            if !target_persists || !self.target.is_empty() {
                self.disconnect();
            }
            self.state = HttpState::Idle;
        } else if exchange.is_uploaded() || exchange.waits || !target_persists {
            self.close(None);
        } else {
            return false;
        }
        true
    }

    /// From now on all bytes pass unchanged.
    fn splice(&mut self) {
        self.state = HttpState::Passing;
        let (program, target) = (self.program.take_all(), self.target.take_all());
        self.to_target(program);
        self.to_program(target);
        self.steps.push_back(Step::Splice);
    }

    fn to_program(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.steps.push_back(Step::ToProgram(bytes));
        }
    }

    fn to_target(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.steps.push_back(Step::ToTarget(bytes));
        }
    }

    /// Closes the connection to the target if there is one.
    fn disconnect(&mut self) {
        self.target.take_all();
        if self.connected.take().is_some() {
            self.steps.push_back(Step::Disconnect);
        }
    }

    /// Answers a request that is not passed on, or whose target cannot be reached.
    fn reject(&mut self, rejection: Rejection, is_head: bool) {
        self.to_program(rejection.answer(is_head));
        self.close(Some(rejection.fault));
    }

    /// Ends an exchange with an answer if the program has got no other one.
    fn fail_exchange(&mut self, rejection: Rejection) {
        match &self.state {
            HttpState::Exchange(exchange) if exchange.response.is_none() => {
                let is_head = exchange.asked.is_head;
                self.reject(rejection, is_head);
            }
            _ => self.fail(rejection.fault),
        }
    }

    fn bad_response(&mut self, error: &BadResponse) {
        self.fail_exchange(Rejection::of_target(error.0));
    }

    fn close(&mut self, fault: Option<Fault>) {
        self.end(Step::Close(fault));
    }

    fn fail(&mut self, fault: Fault) {
        self.end(Step::Abort(fault));
    }

    fn end(&mut self, last: Step) {
        if !matches!(mem::replace(&mut self.state, HttpState::Ended), HttpState::Ended) {
            self.steps.push_back(last);
        }
        self.program.take_all();
        self.target.take_all();
        self.connected = None;
    }
}
