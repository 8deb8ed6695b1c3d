//! Which part is pulled or asked next.

use std::time::Instant;

use lightship_tuner::reception::{ConnectionController, Reception, ReceptionStrategy};

use super::{Action, Coverage, Part, Phase, Receiver, ReceptionError, ReceptionMode, Start, doubled};

impl<C: Coverage> Receiver<C> {
    /// The next thing to do. `None` until the next event.
    pub fn next_action(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if self.is_over {
            return None;
        }
        self.next_pull().or_else(|| self.next_ask())
    }

    fn next_pull(&mut self) -> Option<Action> {
        let &key = self.queue.first()?;
        if !self.was_covered && self.coverage.is_covered() {
            self.was_covered = true;
            self.size_is_known();
        }
        let at_once = self.config.start == Start::AsAnnounced && !self.config.in_order;
        self.has_started |= at_once || self.was_covered;
        if !self.has_started {
            return None;
        }
        let part = key.2;
        let is_first = self.unended_in_order.first() == Some(&key) && self.coverage.is_covered();
        let connections_max = self.connections() + u32::from(is_first);
        if self.open >= connections_max || !self.budget.can_open(part, is_first) {
            return None;
        }
        let (from_row, grant_bytes) = self.open(part, Phase::Opening);
        Some(Action::Pull { part, from_row, grant_bytes })
    }

    /// The query is covered for the first time: the number of connections is chosen for the parts that there are.
    fn size_is_known(&mut self) {
        let ReceptionStrategy::Pull { .. } = self.strategy else { return };
        if self.config.mode != ReceptionMode::Auto || self.has_started {
            return;
        }
        let bytes: Option<u64> = self.parts.values().map(|part| part.bytes_expected).sum();
        let (Some(bytes), parts @ 1..) = (bytes, self.unended as u64) else { return };
        let conditions = Reception {
            parts,
            part_bytes: bytes as f64 / parts as f64,
            connections_max: self.config.connections_max,
            budget_bytes: self.config.budget_bytes as f64,
            ..self.config.conditions
        };
        let controller = conditions.connections().and_then(|connections| {
            ConnectionController::new(connections, self.config.connections_max, conditions.rtt_seconds)
        });
        if let Ok(controller) = controller {
            self.controller = Some(controller);
        }
    }

    /// Asks in limited numbers: those that are asked to connect are not more than can be accepted.
    fn next_ask(&mut self) -> Option<Action> {
        let connects = !matches!(self.strategy, ReceptionStrategy::Pull { .. });
        let room = self.config.connections_max.saturating_sub(self.open) as usize;
        let asks_max = if connects { self.config.asks_max.min(room) } else { self.config.asks_max };
        if self.asked >= asks_max {
            return None;
        }
        let part = match self.unasked.first() {
            Some(&part) => part,
            None => self.next_hole()?,
        };
        let quiet = self.config.quiet;
        let (attempts, from_row) = self.parts.get(&part).map_or((0, 0), |part| (part.attempts, part.rows));
        let wait = doubled(quiet, attempts, self.config.retry_max.max(quiet));
        self.enter(part, Phase::Asked(self.now + wait));
        self.measured.asked += 1;
        Some(Action::Ask { part, from_row })
    }

    /// A hole that wasn't asked yet.
    fn next_hole(&mut self) -> Option<u64> {
        if !self.asks_holes || self.coverage.is_covered() || self.parts.len() >= self.config.parts_max {
            return None;
        }
        let holes = self.coverage.holes(self.holes + 1);
        let hole = holes.into_iter().find(|hole| !self.parts.contains_key(hole))?;
        let mut part = Part::new(self.now, 0);
        part.is_admitted = false;
        self.parts.insert(hole, part);
        self.holes += 1;
        Some(hole)
    }

    /// Forgets a hole that was filled under another number.
    pub(super) fn forget_hole(&mut self, id: u64) {
        self.enter(id, Phase::Unasked);
        self.unasked.remove(&id);
        self.parts.remove(&id);
        self.holes -= 1;
    }

    /// When to look for holes: after a quiet time; and when to give up, if nobody is known to be asked.
    pub(super) fn holes_deadline(&self) -> Option<Instant> {
        if self.coverage.is_covered() {
            return None;
        }
        if !self.asks_holes {
            return Some(self.news_at + self.config.quiet);
        }
        (self.holes == 0 && self.unended == 0).then(|| self.news_at + self.config.patience)
    }

    pub(super) fn look_for_holes(&mut self) {
        if self.coverage.is_covered() {
            self.asks_holes = false;
            return;
        }
        let quiet = self.now.saturating_duration_since(self.news_at);
        self.asks_holes |= quiet >= self.config.quiet;
        let nobody = self.asks_holes && self.holes == 0 && self.unended == 0;
        if nobody && quiet >= self.config.patience {
            self.fail(ReceptionError::Missing { parts: Vec::new(), more: true });
        }
    }
}
