//! Questions to name servers, and what their messages say.

use std::{net::IpAddr, time::Duration};

use hickory_proto::{
    op::{Edns, Message, MessageType, Query, ResponseCode},
    rr::{DNSClass, Name, RData, Record, RecordType},
};

/// The longest chain of aliases (CNAME) in an answer.
const ALIASES_MAX: usize = 16;

/// The most records of an answer that are used.
const RECORDS_MAX: usize = 64;

/// The longest answer over UDP if the name server knows EDNS: it fits every path without fragments (RFC 9715).
pub(super) const PAYLOAD_MAX: u16 = 1232;

/// A question to a name server.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) id: u16,
    pub(super) name: Name,
    pub(super) kind: RecordType,
}

/// What a message says about a question.
#[derive(Debug)]
pub(super) enum Reading {
    /// It is not about this question, as far as one can see.
    Foreign,
    /// The answer was too long for a UDP datagram.
    Truncated,
    /// The name server does not answer the question, or not in a form that can be read.
    Failed(ResponseCode),
    Answer(Reply),
}

/// The answer to a question.
#[derive(Debug)]
pub(super) struct Reply {
    records: Vec<Record>,
    /// Whether there is no such name, with whatever records.
    pub(super) is_no_name: bool,
    /// For how long the answer is valid.
    pub(super) ttl: Duration,
}

impl Reply {
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.records.iter().filter_map(|record| record.data.ip_addr())
    }
}

impl Question {
    /// Makes a question with a random ID, which an attacker cannot guess (RFC 5452 §9.2).
    pub(super) fn new(name: Name, kind: RecordType) -> Self {
        Self { id: Message::query().metadata.id, name, kind }
    }

    /// The message that asks it. `None`: the name is too long.
    pub(super) fn encode(&self, with_edns: bool) -> Option<Vec<u8>> {
        let mut message = Message::query();
        message.metadata.id = self.id;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(self.name.clone(), self.kind));
        if with_edns {
            let mut edns = Edns::new();
            edns.set_max_payload(PAYLOAD_MAX);
            message.set_edns(edns);
        }
        message.to_vec().ok()
    }

    /// Reads a message from a name server, which is any bytes.
    pub(super) fn read(&self, bytes: &[u8]) -> Reading {
        let &[id_high, id_low, flags, ..] = bytes else { return Reading::Foreign };
        let is_response = flags & 0x80 != 0;
        if u16::from_be_bytes([id_high, id_low]) != self.id || !is_response {
            return Reading::Foreign;
        }
        let is_truncated = flags & 0x02 != 0;
        let Ok(message) = Message::from_vec(bytes) else {
            return if is_truncated {
                Reading::Truncated // it may end within a record
            } else {
                Reading::Failed(ResponseCode::FormErr)
            };
        };
        let code = message.metadata.response_code;
        let is_error = !matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
        let is_same = match message.queries.as_slice() {
            [query] => self.is_asked_by(query),
            // Some servers refuse without a copy of the question.
            queries => queries.is_empty() && is_error,
        };
        if !is_same || message.metadata.message_type != MessageType::Response {
            return Reading::Foreign;
        }
        if is_error {
            return Reading::Failed(code);
        }
        if is_truncated {
            return Reading::Truncated;
        }
        Reading::Answer(self.reply(&message))
    }

    fn is_asked_by(&self, query: &Query) -> bool {
        (query.name(), query.query_type(), query.query_class())
            == (&self.name, self.kind, DNSClass::IN)
    }

    fn reply(&self, message: &Message) -> Reply {
        let mut name = &self.name;
        let mut ttl = u32::MAX;
        let mut records = Vec::new();
        for _ in 0..=ALIASES_MAX {
            let of_name = message.answers.iter().filter(|record| record.name == *name);
            let found = of_name.clone().filter(|record| record.record_type() == self.kind);
            records = found.take(RECORDS_MAX).cloned().collect::<Vec<_>>();
            let alias = of_name.clone().find_map(|record| match &record.data {
                RData::CNAME(alias) => Some((&alias.0, record.ttl)),
                _ => None,
            });
            match alias {
                Some((target, alias_ttl)) if records.is_empty() => {
                    (name, ttl) = (target, ttl.min(alias_ttl));
                }
                _ => break,
            }
        }
        let ttl = match records.iter().map(|record| record.ttl).min() {
            Some(of_records) => ttl.min(of_records),
            None => ttl.min(negative_ttl(message)),
        };
        let code = message.metadata.response_code;
        Reply {
            is_no_name: records.is_empty() && code == ResponseCode::NXDomain,
            records,
            ttl: Duration::from_secs(ttl.into()),
        }
    }
}

/// For how long there is nothing, in seconds (RFC 2308 §5). Without a record that says so, this is not kept.
fn negative_ttl(message: &Message) -> u32 {
    let of_zone = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(soa.minimum.min(record.ttl)),
        _ => None,
    });
    of_zone.unwrap_or(0)
}

/// What must hold for any message of a name server.
#[cfg(any(test, fuzzing))]
pub(super) mod model {
    use super::*;
    use crate::resolver::names;

    /// Reads a message as the answer to a question for addresses of `a.test`. The first byte says for which family.
    ///
    /// # Panics
    ///
    /// A promise is broken.
    #[cfg_attr(not(fuzzing), expect(unreachable_pub, reason = "only a fuzz target is outside"))]
    pub fn run(input: &[u8]) {
        let Some((flags, message)) = input.split_first() else { return };
        let kind = match flags % 3 {
            0 => RecordType::A,
            1 => RecordType::AAAA,
            _ => RecordType::HTTPS,
        };
        let id = message.first_chunk().map_or(0, |id| u16::from_be_bytes(*id));
        let question = Question { id, name: names::parse("a.test").expect("a name"), kind };
        if let Reading::Answer(reply) = question.read(message) {
            assert!(reply.records().len() <= RECORDS_MAX);
            assert!(reply.records().iter().all(|record| record.record_type() == kind));
            assert!(!reply.is_no_name || reply.records().is_empty());
            let is_right = |ip: IpAddr| match kind {
                RecordType::A => ip.is_ipv4(),
                RecordType::AAAA => ip.is_ipv6(),
                _ => false,
            };
            assert!(reply.addresses().all(is_right));
        }
        let other = Question { id: id ^ 1, ..question };
        assert!(matches!(other.read(message), Reading::Foreign), "it has another number");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolver::names;

    fn name(text: &str) -> Name {
        names::parse(text).expect("a name")
    }

    fn record(owner: &str, kind: RecordType, text: &str) -> Record {
        Record::from_rdata(name(owner), 60, RData::try_from_str(kind, text).expect(text))
    }

    fn response(question: &Question, answers: Vec<Record>) -> Message {
        let mut message = Message::response(question.id, hickory_proto::op::OpCode::Query);
        message.add_query(Query::query(question.name.clone(), question.kind));
        message.answers = answers;
        message
    }

    fn found(question: &Question, answers: Vec<Record>) -> Vec<String> {
        match question.read(&response(question, answers).to_vec().unwrap()) {
            Reading::Answer(reply) => reply.addresses().map(|ip| ip.to_string()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn aliases_are_followed_and_other_names_ignored() {
        let question = Question::new(name("a.test"), RecordType::A);
        let (a, cname) = (RecordType::A, RecordType::CNAME);
        assert_eq!(
            found(
                &question,
                vec![
                    record("c.test", a, "10.0.0.1"),
                    record("b.test", cname, "c.test."),
                    record("A.test", cname, "B.test."),
                    record("other.test", a, "10.0.0.9"),
                ]
            ),
            ["10.0.0.1"]
        );
        let circle = vec![record("a.test", cname, "b.test."), record("b.test", cname, "a.test.")];
        assert!(found(&question, circle).is_empty());
        let many = (0..200).map(|n| record("a.test", a, &format!("10.0.0.{n}"))).collect();
        assert_eq!(found(&question, many).len(), RECORDS_MAX);
    }

    #[test]
    fn only_the_answer_to_the_question_counts() {
        let question = Question::new(name("a.test"), RecordType::A);
        let good = response(&question, vec![record("a.test", RecordType::A, "10.0.0.1")]);
        let is_foreign = |message: &Message| {
            matches!(question.read(&message.to_vec().unwrap()), Reading::Foreign)
        };
        assert!(!is_foreign(&good));
        let mut other_id = good.clone();
        other_id.metadata.id ^= 1;
        let mut other_name = good.clone();
        other_name.queries = vec![Query::query(name("b.test"), RecordType::A)];
        let mut other_kind = good.clone();
        other_kind.queries = vec![Query::query(name("a.test"), RecordType::AAAA)];
        let mut no_response = good.clone();
        no_response.metadata.message_type = MessageType::Query;
        for message in [other_id, other_name, other_kind, no_response] {
            assert!(is_foreign(&message), "{message:?}");
        }
    }

    #[test]
    fn any_message_is_read_within_bounds() {
        let question = Question { id: 7, ..Question::new(name("a.test"), RecordType::A) };
        let message = response(
            &question,
            vec![
                record("a.test", RecordType::CNAME, "b.test."),
                record("b.test", RecordType::A, "10.0.0.1"),
            ],
        );
        let bytes = message.to_vec().unwrap();
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = [&[0][..], &bytes].concat();
                changed[at + 1] ^= change;
                model::run(&changed);
            }
            model::run(&[&[1], &bytes[..at]].concat());
        }
    }
}
