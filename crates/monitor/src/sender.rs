//! An agent's side of the traffic with one collector. No I/O and no clock of its own.

use crate::datagram::{Answer, Answered, DatagramError, DatagramHeader, Keys, SealableBody};

/// How often an agent raises its run above the one that the collector knows. More often means that another agent does
/// the same.
const RUNS_RAISED_MAX: u32 = 8;

/// The effect of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// None, or only the times of an exchange.
    Nothing,
    /// The collector accepts samples from now on. It has no description of this agent yet.
    Accepted,
    /// The collector knows a later run of this host: the agent now has a greater one.
    RunRaised,
    /// The collector knows later runs again and again: another agent uses the same name of the host.
    NameTaken,
}

/// Numbers the datagrams to one collector, and reads its answers.
#[derive(Debug)]
pub struct Sender {
    keys: Keys,
    run: u64,
    /// The number of the next datagram.
    sequence: u64,
    session: u64,
    answered: Option<Answered>,
    runs_raised: u32,
}

impl Sender {
    /// A sender for a run of an agent.
    pub fn new(keys: Keys, run: u64) -> Self {
        Self { keys, run, sequence: 0, session: 0, answered: None, runs_raised: 0 }
    }

    /// The same, whose first datagram has a number. A run must not use a number twice for one collector, which drops
    /// what it has received before.
    #[must_use]
    pub fn starting_at(self, sequence: u64) -> Self {
        Self { sequence, ..self }
    }

    /// The number of the next datagram.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The next datagram, which must be sent at once: it says that it was sent at `now_ns` of the agent's clock.
    pub fn datagram(&mut self, body: &SealableBody, wants_answer: bool, now_ns: u64) -> Vec<u8> {
        let header = DatagramHeader {
            run: self.run,
            sequence: self.sequence,
            session: self.session,
            sent_ns: now_ns,
            wants_answer,
            answered: self.answered,
        };
        self.sequence += 1;
        body.seal(&header, &self.keys)
    }

    /// Reads an answer that came at `now_ns` of the agent's clock.
    ///
    /// # Errors
    /// If it is not authentic.
    pub fn receive(&mut self, bytes: &[u8], now_ns: u64) -> Result<Reaction, DatagramError> {
        let answer = Answer::open(bytes, &self.keys)?;
        if answer.run != self.run || answer.sequence >= self.sequence {
            return Ok(Reaction::Nothing);
        }
        if answer.run_seen > self.run {
            if self.runs_raised >= RUNS_RAISED_MAX {
                return Ok(Reaction::NameTaken);
            }
            self.runs_raised += 1;
            self.run = answer.run_seen.saturating_add(1);
            (self.sequence, self.session, self.answered) = (0, 0, None);
            return Ok(Reaction::RunRaised);
        }
        // A repeated or late answer would only show a longer round trip.
        if self.answered.is_some_and(|answered| answered.sequence >= answer.sequence) {
            return Ok(Reaction::Nothing);
        }
        self.answered = Some(Answered { sequence: answer.sequence, received_ns: now_ns });
        if self.session == answer.session {
            return Ok(Reaction::Nothing);
        }
        self.session = answer.session;
        Ok(Reaction::Accepted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::{self, Description};

    fn body() -> SealableBody {
        let description = Description { host: "h".into(), ..Description::default() };
        SealableBody::of_description(&description).remove(0)
    }

    #[test]
    fn answers_give_the_session_and_the_times_of_exchanges() {
        let keys = Keys::of("t");
        let mut sender = Sender::new(keys.clone(), 5);
        for now_ns in 0..3 {
            sender.datagram(&body(), true, now_ns);
        }
        let answer = |sequence, session, run_seen| Answer { run: 5, sequence, session, run_seen }.seal(&keys);
        assert_eq!(sender.receive(&answer(1, 77, 5), 10), Ok(Reaction::Accepted));
        assert_eq!(sender.receive(&answer(1, 78, 5), 20), Ok(Reaction::Nothing), "twice");
        assert_eq!(sender.receive(&answer(0, 78, 5), 20), Ok(Reaction::Nothing), "late");
        assert_eq!(sender.receive(&answer(9, 78, 5), 20), Ok(Reaction::Nothing), "never sent");
        assert_eq!(sender.receive(&answer(2, 77, 5), 30), Ok(Reaction::Nothing));
        assert!(sender.receive(b"LSUD", 30).is_err());
        let (header, _) = datagram::open(&sender.datagram(&body(), false, 40), &keys).unwrap();
        assert_eq!(
            header,
            DatagramHeader {
                run: 5,
                sequence: 3,
                session: 77,
                sent_ns: 40,
                wants_answer: false,
                answered: Some(Answered { sequence: 2, received_ns: 30 })
            }
        );
    }

    #[test]
    fn a_run_is_raised_above_that_which_the_collector_knows_but_not_forever() {
        let keys = Keys::of("t");
        let mut sender = Sender::new(keys.clone(), 5);
        for raised in 0..=RUNS_RAISED_MAX {
            sender.datagram(&body(), true, 0);
            let run = sender.run;
            let answer = Answer { run, sequence: 0, session: 1, run_seen: run + 10 }.seal(&keys);
            let expected = if raised < RUNS_RAISED_MAX { Reaction::RunRaised } else { Reaction::NameTaken };
            assert_eq!(sender.receive(&answer, 0), Ok(expected));
        }
        assert_eq!(sender.run, 5 + 11 * u64::from(RUNS_RAISED_MAX));
    }
}
