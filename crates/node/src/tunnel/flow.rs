use tandem_wire::CapsuleDecoder;

use super::{
    agreement::{Asked, RepairOffer},
    contexts::Contexts,
    doubt::Doubt,
    group::StreamGroup,
    queue::{Form, TooLarge},
};
use crate::{mode::Repair, quic::StreamId};

/// The state of a flow, or of a request stream that joined one.
#[derive(Debug)]
pub(super) struct Flow {
    /// The form in which payloads go to the peer.
    pub(super) form: Form,
    /// How the flow treats a payload that fits no datagram.
    pub(super) too_large: TooLarge,
    pub(super) is_granted: bool,
    /// The Context IDs that the peer may use.
    pub(super) contexts: Contexts,
    /// The capsules on the request stream.
    pub(super) capsules: CapsuleDecoder,
    /// How the flow is repaired.
    pub(super) repair: RepairOffer,
    /// The retransmission limit that this client last sent to a proxy that speaks
    /// draft-yang-masque-dgram-retrans.
    pub(super) asked_limit: u8,
    /// The first request stream of the flow that this one joined.
    pub(super) first: Option<StreamId>,
    /// The request streams of the flow: the one that opened it, and those that joined it.
    pub(super) group: StreamGroup,
    /// A client's doubt whether the proxy relays capsules, until the first answer.
    pub(super) doubt: Option<Doubt>,
    /// The repair that this client wants, if it wants any.
    pub(super) wish: Option<Repair>,
    /// The parameters of the client's request. Only a proxy has them.
    pub(super) asked: Option<Asked>,
}

impl Flow {
    pub(super) fn new(stream: StreamId, form: Form, capsules: CapsuleDecoder) -> Self {
        Self {
            form,
            too_large: TooLarge::Drop,
            is_granted: false,
            contexts: Contexts::default(),
            capsules,
            repair: RepairOffer::None,
            asked_limit: 0,
            first: None,
            group: StreamGroup::new(stream),
            doubt: None,
            wish: None,
            asked: None,
        }
    }

    /// Chooses the form of a proxy's payloads: that of the last payload of the client. `fits`: the
    /// payload fits a datagram. Some capsules do not count, because the client uses them for payloads
    /// that fit no datagram: those where repair was agreed on, and those that are large.
    pub(super) fn update_form(&mut self, form: Option<Form>, fits: bool) {
        let is_choice =
            self.repair == RepairOffer::None && (fits || self.too_large == TooLarge::Drop);
        match form {
            Some(Form::Datagram) if self.is_granted => self.form = Form::Datagram,
            Some(Form::Capsule) if is_choice => self.form = Form::Capsule,
            _ => {}
        }
    }
}
