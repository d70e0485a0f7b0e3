//! Controllers from their configuration.

use std::time::Instant;

use tandem_units::ByteCount;

use crate::{
    Algorithm, Bbr1, Bbr1Config, ControllerConfig, ControllerName, Feedback, Flavor, Mdcc,
    MdccConfig, NewReno, Off, Tecc,
};

impl ControllerConfig {
    /// Builds the controller for a sender that drives an [`Algorithm`] itself, on a path whose datagrams have at most
    /// `max_datagram_size` bytes of UDP payload. `index` is added to the seed, so that the controllers of several paths
    /// do not make the same random choices. Only [`ControllerName::Tecc`] and [`ControllerName::Mdcc`] listen to
    /// `feedback`.
    ///
    /// `None`: the controller is one of noq's own ([`ControllerName::Cubic`], [`ControllerName::Bbr3`]).
    pub fn build(
        &self,
        index: u64,
        feedback: &Feedback,
        now: Instant,
        max_datagram_size: ByteCount,
    ) -> Option<Box<dyn Algorithm>> {
        let feedback = feedback.clone();
        let bbr1 = || self.bbr1(index, now, max_datagram_size);
        let initial_window = self.initial_window(max_datagram_size);
        Some(match self.name {
            ControllerName::Bbr1 | ControllerName::Bbr1Tunnel => Box::new(bbr1()),
            ControllerName::Tecc | ControllerName::TeccPaper => {
                Box::new(Tecc::new(bbr1(), self.tecc, feedback, max_datagram_size))
            }
            ControllerName::Mdcc | ControllerName::MdccPaper => {
                let mdcc = match self.name {
                    ControllerName::MdccPaper => MdccConfig::PAPER,
                    _ => MdccConfig::default(),
                };
                Box::new(Mdcc::new(mdcc, feedback, now, initial_window, max_datagram_size))
            }
            ControllerName::NewReno => Box::new(NewReno::new(initial_window, max_datagram_size)),
            ControllerName::Off => Box::new(Off),
            ControllerName::Cubic | ControllerName::Bbr3 => return None,
        })
    }

    pub(crate) fn bbr1(&self, index: u64, now: Instant, max_datagram_size: ByteCount) -> Bbr1 {
        let config = Bbr1Config {
            initial_window_packets: self.initial_window_packets(),
            up_gain_percent: self.bbr_up_gain_percent,
            flavor: match self.name {
                ControllerName::Bbr1Tunnel => Flavor::Tunnel,
                name if name.takes_reports() => Flavor::Follower,
                _ => Flavor::Plain,
            },
            seed: self.seed.wrapping_add(index),
        };
        Bbr1::new(config, now, max_datagram_size)
    }

    /// The initial window in bytes.
    pub(crate) fn initial_window(&self, max_datagram_size: ByteCount) -> ByteCount {
        max_datagram_size.saturating_mul(self.initial_window_packets().into())
    }

    fn initial_window_packets(&self) -> u32 {
        self.initial_window_packets.max(*Self::INITIAL_WINDOW_PACKETS.start())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_controllers_of_noq_are_built() {
        for name in ControllerName::ALL {
            let config = ControllerConfig::from(name);
            let size = ByteCount::new(1200);
            let built = config.build(0, &Feedback::default(), crate::test_start(), size);
            let is_of_noq = matches!(name, ControllerName::Cubic | ControllerName::Bbr3);
            assert_eq!(built.is_none(), is_of_noq, "{name}");
            if let Some(built) = built {
                assert_eq!(built.congestion_window(), built.initial_window(), "{name}");
            }
        }
    }
}
