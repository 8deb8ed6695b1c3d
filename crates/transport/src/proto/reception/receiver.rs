//! The receiver's side.

mod actions;
mod measure;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::time::Instant;

use lightship_tuner::reception::{ConnectionController, Reception, ReceptionStrategy};

use self::measure::Measured;
pub use self::measure::ReceptionReport;
use super::budget::Budget;
use super::config::{ReceptionConfig, ReceptionMode, Start, doubled};
use super::coverage::{Admission, Coverage};
use super::part::{Part, Phase};
use super::{Action, Announcement, Event, NAMED_MAX, ReceptionError, Refusal};
use crate::proto::OVERSLEPT;
use crate::{Result, TransportError};

/// After this many attempts to pull a part, its sender is asked again: it may have moved.
const PULLS_MAX: u32 = 3;

/// Receives the parts of an answer. See the [module](super) for how to drive it.
///
/// It never waits for ever: while it is not over, either a connection is open, or [`Receiver::deadline`] returns a
/// time. A part that makes no progress within [`ReceptionConfig::patience`] ends it.
#[derive(Debug)]
pub struct Receiver<C> {
    config: ReceptionConfig,
    strategy: ReceptionStrategy,
    coverage: C,
    parts: HashMap<u64, Part>,
    /// Parts to be pulled, by rank and order.
    queue: BTreeSet<(u64, u32, u64)>,
    /// Parts to be asked again.
    unasked: BTreeSet<u64>,
    /// Parts that haven't ended, if they are received in order.
    unended_in_order: BTreeSet<(u64, u32, u64)>,
    /// Parts with the time at which to look at them. Each has at most one entry that counts, [`Part::timer`].
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    budget: Budget,
    controller: Option<ConnectionController>,
    /// Open connections, or those being opened.
    open: u32,
    /// Parts and holes in [`Phase::Asked`].
    asked: usize,
    /// Holes among `parts`.
    holes: usize,
    /// Parts that were admitted and haven't ended.
    unended: usize,
    order_next: u32,
    /// Pulling has begun.
    has_started: bool,
    /// The announcements have covered the query at some time.
    was_covered: bool,
    /// Holes are asked for, from the end of a quiet time until the query is covered.
    asks_holes: bool,
    news_at: Instant,
    began_at: Instant,
    now: Instant,
    /// Replies to the last event; emptied by the driver before the next.
    actions: VecDeque<Action>,
    is_over: bool,
    measured: Measured,
}

impl<C: Coverage> Receiver<C> {
    /// A receiver for a query that is about to be sent at `now`. The senders are to be told the
    /// [`Receiver::strategy`] with the query.
    ///
    /// # Errors
    /// [`TransportError::Config`] for invalid limits.
    pub fn new(config: ReceptionConfig, coverage: C, now: Instant) -> Result<Self> {
        config.check()?;
        let invalid = |error: lightship_tuner::TunerError| TransportError::Config(error.to_string());
        let mut config = config;
        // No more connections than the budget has floors for.
        let floors = config.budget_bytes / config.grant_bytes_min - u64::from(config.in_order);
        config.connections_max = config.connections_max.min(u32::try_from(floors).unwrap_or(u32::MAX));
        let conditions = Reception {
            connections_max: config.connections_max,
            budget_bytes: config.budget_bytes as f64,
            ..config.conditions
        };
        let strategy = match config.mode {
            ReceptionMode::Push => ReceptionStrategy::Push,
            ReceptionMode::BackOff => ReceptionStrategy::BackOff,
            ReceptionMode::Pull { connections } => {
                ReceptionStrategy::Pull { connections: connections.min(config.connections_max) }
            }
            ReceptionMode::Auto => {
                // Not fewer connections than for many parts.
                let many = Reception { parts: u64::from(u32::MAX), ..conditions };
                ReceptionStrategy::Pull { connections: many.connections().map_err(invalid)? }
            }
        };
        let controller = match (config.mode, strategy) {
            (ReceptionMode::Auto, ReceptionStrategy::Pull { connections }) => {
                let (max, rtt) = (config.connections_max, conditions.rtt_seconds);
                let first = config.connections_first.unwrap_or(connections);
                Some(ConnectionController::new(first, max, rtt).map_err(invalid)?)
            }
            _ => None,
        };
        let budget = Budget::new(config.budget_bytes, config.grant_bytes_min, config.in_order);
        let mut receiver = Self {
            config,
            strategy,
            coverage,
            parts: HashMap::new(),
            queue: BTreeSet::new(),
            unasked: BTreeSet::new(),
            unended_in_order: BTreeSet::new(),
            timers: BinaryHeap::new(),
            budget,
            controller,
            open: 0,
            asked: 0,
            holes: 0,
            unended: 0,
            order_next: 0,
            has_started: false,
            was_covered: false,
            asks_holes: false,
            news_at: now,
            began_at: now,
            now,
            actions: VecDeque::new(),
            is_over: false,
            measured: Measured::default(),
        };
        receiver.end_if_complete();
        Ok(receiver)
    }

    /// The strategy, which the senders have to follow.
    pub fn strategy(&self) -> ReceptionStrategy {
        self.strategy
    }

    /// The caller's coverage.
    pub fn coverage(&self) -> &C {
        &self.coverage
    }

    /// The caller's coverage, to be changed: for instance when more is known of holes.
    pub fn coverage_mut(&mut self) -> &mut C {
        &mut self.coverage
    }

    /// Whether [`Action::Done`] or [`Action::Failed`] was reached.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// How many rows of a part have arrived.
    pub fn rows(&self, part: u64) -> u64 {
        self.parts.get(&part).map_or(0, |part| part.rows)
    }

    /// Records an event. The actions that follow from it have to be taken from [`Receiver::next_action`] before the
    /// next event. Events that contradict earlier ones, such as rows of a part that has ended, are ignored.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.now = now.max(self.now);
        if self.is_over {
            self.turn_away(event);
            return;
        }
        match event {
            Event::Announced(announcement) => self.announced(announcement),
            Event::Connected { part, connection } => self.connected(part, connection),
            Event::Opened { part } => self.opened(part),
            Event::Received { part, bytes, rows } => self.received(part, bytes, rows),
            Event::Consumed { part, bytes } => self.consumed(part, bytes),
            Event::Ended { part } => self.ended(part),
            Event::Lost { part } => self.lost(part),
            Event::Withdrawn { part } => self.withdrawn(part),
            Event::Stop => self.fail(ReceptionError::Stopped),
            Event::Tick => {}
        }
        self.tick();
        self.end_if_complete();
    }

    /// When to call [`Receiver::handle`] with [`Event::Tick`] if nothing else happens. `None` after the end, or while
    /// other events must come first.
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_over {
            return None;
        }
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        timer.into_iter().chain(self.holes_deadline()).min()
    }

    /// The reply to an event after the end.
    fn turn_away(&mut self, event: Event) {
        match event {
            Event::Announced(Announcement { part, .. }) => self.actions.push_back(Action::Stop { part }),
            Event::Connected { part, connection } => {
                self.actions.push_back(Action::Refuse { part, connection, reason: Refusal::Stopped });
            }
            _ => {}
        }
    }

    fn announced(&mut self, announcement: Announcement) {
        let id = announcement.part;
        self.measured.announcements += 1;
        self.news_at = self.now;
        let is_known = self.parts.get(&id).is_some_and(|part| part.is_admitted);
        if !is_known && !self.admit(id) {
            if !self.is_over {
                self.actions.push_back(Action::Stop { part: id });
            }
            return;
        }
        let Some(part) = self.parts.get_mut(&id) else { return };
        if part.phase == Phase::Ended {
            self.actions.push_back(Action::Stop { part: id });
            return;
        }
        self.actions.push_back(Action::Acknowledge { part: id });
        if !part.is_announced {
            part.is_announced = true;
            part.bytes_expected = announcement.bytes;
            let before = part.key(id);
            part.rank = announcement.rank;
            if self.config.in_order {
                self.unended_in_order.remove(&before);
                self.unended_in_order.insert(part.key(id));
            }
        }
        // An announcement shows that the sender is there: there is no need to pause.
        if matches!(part.phase, Phase::Unasked | Phase::Asked(_) | Phase::Pausing(_)) {
            self.enter(id, Phase::Queued);
        }
    }

    fn connected(&mut self, id: u64, connection: u64) {
        self.news_at = self.now;
        let phase = self.parts.get(&id).filter(|part| part.is_admitted).map(|part| part.phase);
        let refusal = match phase {
            Some(Phase::Ended) => Some(Refusal::Unwanted),
            Some(Phase::Opening | Phase::Receiving) => Some(Refusal::Busy),
            _ if self.config.in_order
                || self.open >= self.config.connections_max
                || !self.budget.can_open(id, false) =>
            {
                Some(Refusal::Full)
            }
            Some(_) => None,
            None if self.admit(id) => None,
            None => Some(Refusal::Unwanted),
        };
        if self.is_over {
            return;
        }
        if let Some(reason) = refusal {
            self.measured.refused += 1;
            self.actions.push_back(Action::Refuse { part: id, connection, reason });
            return;
        }
        let (from_row, grant_bytes) = self.open(id, Phase::Receiving);
        self.actions.push_back(Action::Accept { part: id, connection, from_row, grant_bytes });
    }

    fn opened(&mut self, id: u64) {
        let Some(part) = self.parts.get_mut(&id).filter(|part| part.phase == Phase::Opening) else { return };
        self.measured.opened(self.now.saturating_duration_since(part.active_at));
        part.active_at = self.now;
        self.enter(id, Phase::Receiving);
        self.grant(id);
    }

    fn received(&mut self, id: u64, bytes: u64, rows: u64) {
        self.opened(id);
        let Some(part) = self.parts.get_mut(&id).filter(|part| part.phase == Phase::Receiving) else {
            return;
        };
        if let Err(granted_bytes) = self.budget.received(id, bytes) {
            self.fail(ReceptionError::Overrun { part: id, bytes, granted_bytes });
            return;
        }
        if part.bytes == 0 {
            self.measured.first_byte(self.now.saturating_duration_since(part.active_at));
            if let Some(controller) = &mut self.controller {
                controller.first_byte(self.now.saturating_duration_since(part.requested_at).as_secs_f64());
            }
        }
        part.bytes = part.bytes.saturating_add(bytes);
        part.rows = part.rows.saturating_add(rows);
        part.progress(self.now);
        self.measured.bytes = self.measured.bytes.saturating_add(bytes);
        self.measured.rows = self.measured.rows.saturating_add(rows);
    }

    fn consumed(&mut self, id: u64, bytes: u64) {
        self.budget.consumed(id, bytes);
        let Some(part) = self.parts.get_mut(&id).filter(|part| part.phase == Phase::Receiving) else {
            return;
        };
        part.active_at = self.now;
        self.grant(id);
    }

    fn ended(&mut self, id: u64) {
        let Some(part) = self.parts.get_mut(&id).filter(|part| part.is_open()) else { return };
        part.progress(self.now);
        let bytes = part.bytes;
        self.news_at = self.now;
        self.budget.close(id);
        self.enter(id, Phase::Ended);
        self.measured.parts += 1;
        if let Some(controller) = &mut self.controller {
            let at = self.now.saturating_duration_since(self.began_at).as_secs_f64();
            controller.ended(at, bytes);
        }
    }

    fn lost(&mut self, id: u64) {
        let Some(part) = self.parts.get_mut(&id).filter(|part| part.is_open()) else { return };
        self.measured.lost += 1;
        self.budget.close(id);
        part.attempts += 1;
        part.tried += self.now.saturating_duration_since(part.active_at);
        let pause = doubled(self.config.retry_first, part.attempts, self.config.retry_max);
        let is_given_up = part.tried >= self.config.patience;
        part.tried += pause;
        self.enter(id, Phase::Pausing(self.now + pause));
        if is_given_up {
            self.fail_missing(id);
        }
    }

    fn withdrawn(&mut self, id: u64) {
        let Some(part) = self.parts.get(&id).filter(|part| part.is_admitted) else { return };
        if part.phase == Phase::Ended {
            return;
        }
        if part.is_open() {
            self.budget.close(id);
        }
        self.enter(id, Phase::Ended);
        self.parts.remove(&id);
        self.coverage.withdraw(id);
        // What is missing is known: there is nothing to wait for.
        self.asks_holes = true;
    }

    /// Adds a part to those that are to be received, if it belongs to the answer.
    fn admit(&mut self, id: u64) -> bool {
        if !self.parts.contains_key(&id) && self.parts.len() >= self.config.parts_max {
            self.fail(ReceptionError::TooManyParts { parts_max: self.config.parts_max });
            return false;
        }
        if self.coverage.admit(id) == Admission::Redundant {
            return false;
        }
        let order = self.order_next;
        self.order_next = order.wrapping_add(1);
        let part = self.parts.entry(id).or_insert_with(|| Part::new(self.now, order));
        if part.is_hole() {
            self.holes -= 1;
        }
        (part.is_admitted, part.order) = (true, order);
        if self.config.in_order {
            self.unended_in_order.insert(part.key(id));
        }
        self.unended += 1;
        true
    }

    /// Moves a part to another phase, with all that is counted.
    fn enter(&mut self, id: u64, phase: Phase) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        let key = part.key(id);
        let is_new = part.timer.is_none();
        match std::mem::replace(&mut part.phase, phase) {
            Phase::Queued => drop(self.queue.remove(&key)),
            Phase::Opening | Phase::Receiving => self.open -= 1,
            Phase::Asked(_) => self.asked -= 1,
            Phase::Unasked => drop(self.unasked.remove(&id)),
            Phase::Pausing(_) | Phase::Ended => {}
        }
        match phase {
            Phase::Queued => drop(self.queue.insert(key)),
            Phase::Opening | Phase::Receiving => self.open += 1,
            Phase::Asked(_) => self.asked += 1,
            Phase::Unasked => drop(self.unasked.insert(id)),
            Phase::Ended => {
                self.unended -= 1;
                self.unended_in_order.remove(&key);
            }
            Phase::Pausing(_) => {}
        }
        let Some(deadline) = part.deadline(&self.config) else { return };
        if is_new || part.timer.is_some_and(|timer| deadline < timer) {
            part.timer = Some(deadline);
            self.timers.push(Reverse((deadline, id)));
        }
    }

    /// Opens the connection of a part. Returns the rows to leave out, and the grant.
    fn open(&mut self, id: u64, phase: Phase) -> (u64, u64) {
        let share = self.share(id);
        let Some(part) = self.parts.get_mut(&id) else { return (0, 0) };
        (part.active_at, part.requested_at) = (self.now, self.now);
        self.measured.requested += 1;
        let from_row = part.rows;
        self.enter(id, phase);
        (from_row, self.budget.open(id, share))
    }

    fn grant(&mut self, part: u64) {
        let bytes = self.budget.grant(part, self.share(part));
        if bytes > 0 {
            self.actions.push_back(Action::Grant { part, bytes });
        }
    }

    /// The share of a part of the budget, in bytes: as much as each other that is received at the same time, and no more
    /// than it is expected to need.
    fn share(&self, id: u64) -> u64 {
        let expected = self.config.conditions.parts;
        let left = match (self.coverage.is_covered(), expected) {
            (true, _) => self.unended as u64,
            (false, 0) => u64::MAX,
            (false, expected) => expected.saturating_sub(self.measured.parts).max(self.unended as u64),
        };
        let share = self.config.budget_bytes / u64::from(self.connections()).min(left).max(1);
        let needed =
            self.parts.get(&id).and_then(|part| Some(part.bytes_expected?.saturating_sub(part.bytes)));
        share.min(needed.unwrap_or(u64::MAX)).max(self.config.grant_bytes_min)
    }

    /// Connections at a time, at present.
    pub fn connections(&self) -> u32 {
        match (&self.controller, self.strategy) {
            (Some(controller), _) => controller.connections(),
            (None, ReceptionStrategy::Pull { connections }) => connections,
            (None, ReceptionStrategy::Push | ReceptionStrategy::BackOff) => self.config.connections_max,
        }
    }

    /// What [`ReceptionConfig::connections_first`] of the next reception should be, if this one adjusts the number.
    pub fn connections_settled(&self) -> Option<u32> {
        self.controller.as_ref().map(ConnectionController::connections)
    }

    /// Looks at the parts whose time has come.
    fn tick(&mut self) {
        while !self.is_over
            && let Some(&Reverse((at, id))) = self.timers.peek()
            && at <= self.now
        {
            self.timers.pop();
            let Some(part) = self.parts.get_mut(&id).filter(|part| part.timer == Some(at)) else { continue };
            part.timer = None;
            let Some(deadline) = part.deadline(&self.config) else { continue };
            if deadline <= self.now {
                self.expired(id, deadline);
            }
            // It may have got a timer meanwhile.
            let deadline = self.parts.get(&id).filter(|part| part.timer.is_none());
            if let Some(deadline) = deadline.and_then(|part| part.deadline(&self.config)) {
                if let Some(part) = self.parts.get_mut(&id) {
                    part.timer = Some(deadline);
                }
                self.timers.push(Reverse((deadline, id)));
            }
        }
        if !self.is_over {
            self.look_for_holes();
        }
    }

    fn expired(&mut self, id: u64, deadline: Instant) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        match part.phase {
            Phase::Opening | Phase::Receiving => {
                let has_overslept = self.now.saturating_duration_since(deadline) > OVERSLEPT;
                if has_overslept || (part.phase == Phase::Receiving && !self.budget.is_drained(id)) {
                    // Something may have arrived that wasn't read yet; or the consumer is what it waits for.
                    part.active_at = self.now;
                    return;
                }
                self.actions.push_back(Action::Close { part: id });
                self.lost(id);
            }
            Phase::Pausing(_) => {
                let is_pulled = part.is_announced && !part.attempts.is_multiple_of(PULLS_MAX + 1);
                self.enter(id, if is_pulled { Phase::Queued } else { Phase::Unasked });
            }
            Phase::Asked(_) => self.unanswered(id),
            Phase::Queued | Phase::Unasked | Phase::Ended => {}
        }
    }

    /// A part or a hole was asked again, and there was no answer in time.
    fn unanswered(&mut self, id: u64) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        let waited = doubled(self.config.quiet, part.attempts, self.config.retry_max.max(self.config.quiet));
        part.attempts += 1;
        part.tried += waited;
        let is_given_up = part.tried >= self.config.patience;
        if part.is_admitted {
            let phase = if part.is_announced { Phase::Queued } else { Phase::Unasked };
            self.enter(id, phase);
        } else {
            let attempts = part.attempts;
            let is_hole = !self.coverage.is_covered()
                && self.coverage.holes(self.config.asks_max.max(self.holes)).contains(&id);
            if !is_hole {
                self.forget_hole(id);
                return;
            }
            let wait = doubled(self.config.quiet, attempts, self.config.retry_max.max(self.config.quiet));
            self.enter(id, Phase::Asked(self.now + wait));
            self.measured.asked += 1;
            self.actions.push_back(Action::Ask { part: id, from_row: 0 });
        }
        if is_given_up {
            self.fail_missing(id);
        }
    }

    fn fail_missing(&mut self, id: u64) {
        let mut parts = vec![id];
        let holes = self.coverage.holes(NAMED_MAX + 1);
        let late = self.parts.iter().filter(|(_, part)| part.tried >= self.config.patience);
        parts.extend(late.map(|(id, _)| *id).take(NAMED_MAX + 1));
        parts.extend(holes);
        parts.sort_unstable();
        parts.dedup();
        let more = parts.len() > NAMED_MAX;
        parts.truncate(NAMED_MAX);
        self.fail(ReceptionError::Missing { parts, more });
    }

    fn fail(&mut self, error: ReceptionError) {
        if !self.is_over {
            self.is_over = true;
            self.actions.clear();
            self.actions.push_back(Action::Failed(error));
        }
    }

    fn end_if_complete(&mut self) {
        if !self.is_over && self.unended == 0 && self.coverage.is_covered() {
            self.is_over = true;
            self.actions.push_back(Action::Done);
        }
    }
}
