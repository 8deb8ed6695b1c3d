//! Runs a simulation.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lightship_tuner::reception::ReceptionStrategy;

use super::agenda::{Agenda, Event};
use super::{Outcome, Simulation, SimulationReport};
use crate::Result;
use crate::proto::reception::{
    Action, Announcement, Event as Received, Receiver, Sender, SenderAction, SenderEvent, Sources,
};

/// Virtual time after which a simulation is stuck: a week.
const NS_MAX: u64 = 7 * 24 * 3600 * 1_000_000_000;

/// A sender, and both ends of its connection.
#[derive(Debug, Default)]
struct Simulated {
    /// `None` before the query arrives, and when its part has been received.
    machine: Option<Sender>,
    /// The time of its timer; zero if it has none.
    timer_ns: u64,
    /// Number of the present connection. Events of earlier ones are void.
    connection: u32,
    /// Messages of its part.
    messages: u32,
    /// The next message that it sends.
    next: u32,
    /// Bytes that it may send.
    credit: u64,
    is_sending: bool,
    /// Its connection will be lost half-way.
    crashes: bool,
    /// When the last message that it sent arrives, in order.
    last_arrival_ns: u64,
    /// Messages that the receiver got.
    got: u32,
    /// Messages that are decoded.
    decoded: u32,
    has_ended: bool,
    is_faulty: bool,
}

struct World<'a> {
    simulation: &'a Simulation,
    start: Instant,
    now_ns: u64,
    rng: Rng,
    agenda: Agenda,
    receiver: Receiver<Sources>,
    receiver_timer_ns: u64,
    senders: Vec<Simulated>,
    half_rtt_ns: u64,
    message_ns: u64,
    decode_ns: u64,
    /// When the receiver's link, its thread for connections, and its processors are free.
    link_free_ns: u64,
    thread_free_ns: u64,
    processors_free_ns: Vec<u64>,
    /// Connections that wait to be accepted, and announcements that wait to be read.
    pending: u32,
    datagrams: u32,
    open: u32,
    buffered_bytes: u64,
    /// Messages that wait for those of earlier parts, if the parts are consumed in order.
    unordered: Vec<VecDeque<u32>>,
    first: usize,
    report: SimulationReport,
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

pub(super) fn run(simulation: &Simulation, start: Instant) -> Result<SimulationReport> {
    let receiver = Receiver::new(simulation.config(), Sources::new(simulation.senders.into()), start)?;
    let mut rng = Rng::with_seed(simulation.seed);
    let senders = (0..simulation.senders)
        .map(|_| Simulated {
            messages: match simulation.is_varied {
                true => rng.u32(0..=simulation.part_messages.saturating_mul(2)),
                false => simulation.part_messages,
            },
            crashes: simulation.crashes > 0.0 && rng.f64() < simulation.crashes,
            ..Simulated::default()
        })
        .collect();
    let report = SimulationReport::new(simulation.seed, receiver.strategy());
    let decode_seconds = simulation.message_seconds + simulation.message_rows as f64 * simulation.row_seconds;
    let mut world = World {
        simulation,
        start,
        now_ns: 0,
        rng,
        agenda: Agenda::default(),
        receiver,
        receiver_timer_ns: 0,
        senders,
        half_rtt_ns: ns(simulation.rtt_seconds / 2.0),
        message_ns: ns(simulation.message_bytes as f64 / simulation.link_bytes_per_second),
        decode_ns: ns(decode_seconds),
        link_free_ns: 0,
        thread_free_ns: 0,
        processors_free_ns: vec![0; simulation.processors as usize],
        pending: 0,
        datagrams: 0,
        open: 0,
        buffered_bytes: 0,
        unordered: if simulation.in_order {
            vec![VecDeque::new(); simulation.senders as usize]
        } else {
            Vec::new()
        },
        first: 0,
        report,
    };
    world.run();
    Ok(world.finish())
}

impl World<'_> {
    fn run(&mut self) {
        self.agenda.add(self.half_rtt_ns, Event::Query);
        self.act();
        while self.report.outcome == Outcome::Stuck
            && let Some((ns, event)) = self.agenda.next()
            && ns <= NS_MAX
        {
            debug_assert!(ns >= self.now_ns);
            self.now_ns = ns;
            self.report.events += 1;
            self.happen(event);
        }
    }

    fn finish(mut self) -> SimulationReport {
        let counts = self.receiver.report();
        self.report.strategy = counts.strategy;
        (self.report.refused, self.report.asked) = (counts.refused, counts.asked);
        self.report.lost = counts.lost;
        self.report.used_bytes_peak = counts.used_bytes_peak;
        self.report.seconds = self.now_ns as f64 * 1e-9;
        let faulty =
            |sender: &&Simulated| sender.is_faulty || !sender.has_ended || sender.got != sender.messages;
        self.report.faulty_parts = self.senders.iter().filter(faulty).count() as u64;
        self.report
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.now_ns)
    }

    fn is_lost(&mut self) -> bool {
        self.simulation.loss > 0.0 && self.rng.f64() < self.simulation.loss
    }

    /// Schedules an event for a message that half a round trip takes, or longer; it may be lost, or arrive twice.
    fn datagram(&mut self, event: Event) -> bool {
        if self.is_lost() {
            return false;
        }
        let is_doubled = self.simulation.doubles > 0.0 && self.rng.f64() < self.simulation.doubles;
        for _ in 0..1 + u8::from(is_doubled) {
            let jitter = self.simulation.jitter_seconds;
            let late_ns = if jitter > 0.0 { ns(self.rng.f64() * jitter) } else { 0 };
            self.agenda.add(self.now_ns + self.half_rtt_ns + late_ns, event);
        }
        true
    }

    /// Schedules an event on a connection: a loss delays it.
    fn segment(&mut self, event: Event) {
        let mut at = self.now_ns + self.half_rtt_ns;
        if self.is_lost() {
            self.report.retransmissions += 1;
            at += ns(self.simulation.message_retransmit_seconds);
        }
        self.agenda.add(at, event);
    }

    /// Uses the receiver's thread. Returns when it is done.
    fn thread(&mut self, seconds: f64) -> u64 {
        self.thread_free_ns = self.thread_free_ns.max(self.now_ns) + ns(seconds);
        self.thread_free_ns
    }

    fn is_current(&self, sender: u32, connection: u32) -> bool {
        self.senders[sender as usize].connection == connection
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Query => {
                for sender in 0..self.simulation.senders {
                    if !self.is_lost() {
                        self.begin(sender);
                    }
                }
            }
            Event::SenderTimer { sender } => {
                let simulated = &mut self.senders[sender as usize];
                if simulated.timer_ns == self.now_ns {
                    simulated.timer_ns = 0;
                    self.tell(sender, SenderEvent::Tick);
                }
            }
            Event::ReceiverTimer => {
                if self.receiver_timer_ns == self.now_ns {
                    self.receiver_timer_ns = 0;
                    self.handle(Received::Tick);
                }
            }
            Event::Datagram { sender } => {
                if self.datagrams >= self.simulation.datagrams_max {
                    self.report.announcements_lost += 1;
                } else {
                    self.datagrams += 1;
                    let at = self.thread(self.simulation.announcement_seconds);
                    self.agenda.add(at, Event::Announced { sender });
                }
            }
            Event::Announced { sender } => {
                self.datagrams -= 1;
                let messages = u64::from(self.senders[sender as usize].messages);
                self.handle(Received::Announced(Announcement {
                    part: sender.into(),
                    bytes: Some(messages * self.simulation.message_bytes),
                    rows: Some(messages * self.simulation.message_rows),
                    rank: if self.simulation.in_order { sender.into() } else { 0 },
                }));
            }
            Event::Syn { sender, connection, attempt } => self.syn(sender, connection, attempt),
            Event::Unreachable { sender, connection } => {
                if self.is_current(sender, connection) {
                    self.tell(sender, SenderEvent::Unreachable);
                }
            }
            Event::Connected { sender, connection } => {
                self.pending -= 1;
                if self.is_current(sender, connection) {
                    self.handle(Received::Connected { part: sender.into(), connection: connection.into() });
                }
            }
            Event::Opened { sender, connection } => {
                if self.is_current(sender, connection) {
                    self.handle(Received::Opened { part: sender.into() });
                }
            }
            Event::Requested { sender, connection, from_message, grant_bytes } => {
                if self.is_current(sender, connection) {
                    self.requested(sender, from_message, grant_bytes);
                }
            }
            Event::Ready { sender, connection } => {
                if self.is_current(sender, connection) {
                    self.senders[sender as usize].is_sending = true;
                    self.send(sender);
                }
            }
            Event::Granted { sender, connection, bytes } => {
                if self.is_current(sender, connection) {
                    self.senders[sender as usize].credit += bytes;
                    self.send(sender);
                }
            }
            Event::Message { sender, connection, number } => {
                if self.is_current(sender, connection) {
                    self.arrived(sender, number);
                }
            }
            Event::End { sender, connection } => {
                if self.is_current(sender, connection) {
                    self.open -= 1;
                    let simulated = &mut self.senders[sender as usize];
                    simulated.connection += 1;
                    simulated.is_faulty |= simulated.has_ended;
                    simulated.has_ended = true;
                    simulated.machine = None;
                    self.handle(Received::Ended { part: sender.into() });
                    self.consume_in_order();
                }
            }
            Event::Lost { sender, connection } => {
                if self.is_current(sender, connection) {
                    self.open -= 1;
                    self.senders[sender as usize].connection += 1;
                    self.handle(Received::Lost { part: sender.into() });
                }
            }
            Event::Decoded { sender } => {
                let bytes = self.simulation.message_bytes;
                self.buffered_bytes -= bytes;
                self.senders[sender as usize].decoded += 1;
                self.handle(Received::Consumed { part: sender.into(), bytes });
                self.consume_in_order();
            }
            Event::Refused { sender, connection, reason } => {
                if self.is_current(sender, connection) {
                    self.senders[sender as usize].connection += 1;
                    self.tell(sender, SenderEvent::Refused(reason));
                }
            }
            Event::Acknowledged { sender } => self.tell(sender, SenderEvent::Acknowledged),
            Event::Stopped { sender } => self.tell(sender, SenderEvent::Stopped),
            Event::Asked { sender } => {
                let simulated = &self.senders[sender as usize];
                if simulated.machine.is_some() {
                    self.tell(sender, SenderEvent::Asked);
                } else if !simulated.has_ended {
                    self.begin(sender);
                }
            }
        }
    }

    /// The query has reached a sender.
    fn begin(&mut self, sender: u32) {
        let now = self.now();
        let strategy = self.receiver.strategy();
        // The configuration was checked when the receiver was made.
        let machine = Sender::new(self.simulation.sender, strategy, now, &mut self.rng);
        self.senders[sender as usize].machine = machine.ok();
        self.act_for(sender);
    }

    /// Passes an event to a sender's state machine.
    fn tell(&mut self, sender: u32, event: SenderEvent) {
        let now = self.now();
        let Some(machine) = &mut self.senders[sender as usize].machine else { return };
        machine.handle(event, now, &mut self.rng);
        self.act_for(sender);
    }

    fn act_for(&mut self, sender: u32) {
        let start = self.start;
        loop {
            let simulated = &mut self.senders[sender as usize];
            let Some(machine) = &mut simulated.machine else { return };
            match machine.next_action() {
                Some(SenderAction::Announce) => {
                    self.report.announcements += 1;
                    if !self.datagram(Event::Datagram { sender }) {
                        self.report.announcements_lost += 1;
                    }
                }
                Some(SenderAction::Connect) => {
                    simulated.connection += 1;
                    let connection = simulated.connection;
                    self.connect(sender, connection, 0);
                }
                Some(SenderAction::End(_)) => {}
                None => {
                    if let Some(deadline) = machine.deadline() {
                        let at = deadline.saturating_duration_since(start).as_nanos() as u64;
                        let at = at.max(self.now_ns);
                        if simulated.timer_ns == 0
                            || at < simulated.timer_ns
                            || simulated.timer_ns < self.now_ns
                        {
                            simulated.timer_ns = at;
                            self.agenda.add(at, Event::SenderTimer { sender });
                        }
                    }
                    return;
                }
            }
        }
    }

    /// Sends a connection request, which may be lost.
    fn connect(&mut self, sender: u32, connection: u32, attempt: u32) {
        if self.is_lost() {
            self.repeat(sender, connection, attempt);
        } else {
            self.agenda.add(self.now_ns + self.half_rtt_ns, Event::Syn { sender, connection, attempt });
        }
    }

    /// The system repeats a connection request that was lost or dropped.
    fn repeat(&mut self, sender: u32, connection: u32, attempt: u32) {
        let at = self.now_ns + (ns(self.simulation.retransmit_seconds) << attempt);
        if attempt >= self.simulation.retransmissions {
            self.agenda.add(at, Event::Unreachable { sender, connection });
        } else {
            self.report.retransmissions += 1;
            self.agenda.add(at, Event::Syn { sender, connection, attempt: attempt + 1 });
        }
    }

    fn syn(&mut self, sender: u32, connection: u32, attempt: u32) {
        if !self.is_current(sender, connection) {
            return;
        }
        if self.pending >= self.simulation.backlog {
            self.report.dropped += 1;
            if self.simulation.resets || self.receiver.strategy() == ReceptionStrategy::BackOff {
                self.agenda.add(self.now_ns + self.half_rtt_ns, Event::Unreachable { sender, connection });
                return;
            }
            self.repeat(sender, connection, attempt);
            return;
        }
        self.pending += 1;
        // Accepted, and a round trip after the request the receiver knows whose connection it is.
        let at = self.thread(self.simulation.connect_seconds).max(self.now_ns + 2 * self.half_rtt_ns);
        self.agenda.add(at, Event::Connected { sender, connection });
    }

    fn requested(&mut self, sender: u32, from_message: u32, grant_bytes: u64) {
        let simulated = &mut self.senders[sender as usize];
        simulated.next = from_message;
        simulated.credit = grant_bytes;
        simulated.is_sending = false;
        simulated.last_arrival_ns = 0;
        let connection = simulated.connection;
        self.tell(sender, SenderEvent::Requested);
        self.agenda
            .add(self.now_ns + ns(self.simulation.request_seconds), Event::Ready { sender, connection });
    }

    /// Sends as many messages as the credit allows.
    fn send(&mut self, sender: u32) {
        let bytes = self.simulation.message_bytes;
        loop {
            let simulated = &self.senders[sender as usize];
            if !simulated.is_sending {
                return;
            }
            let connection = simulated.connection;
            let last_ns = simulated.last_arrival_ns.max(self.now_ns + self.half_rtt_ns);
            if simulated.crashes && simulated.next >= simulated.messages.div_ceil(2) {
                let simulated = &mut self.senders[sender as usize];
                simulated.crashes = false;
                simulated.is_sending = false;
                self.agenda.add(last_ns, Event::Lost { sender, connection });
                self.tell(sender, SenderEvent::Lost);
                return;
            }
            if simulated.next >= simulated.messages {
                self.senders[sender as usize].is_sending = false;
                self.agenda.add(last_ns, Event::End { sender, connection });
                return;
            }
            if simulated.credit < bytes {
                return;
            }
            let is_lost = self.is_lost();
            let link_ns = self.link_free_ns.max(self.now_ns + self.half_rtt_ns) + self.message_ns;
            self.link_free_ns = link_ns;
            let mut at = link_ns;
            if is_lost {
                self.report.retransmissions += 1;
                at += ns(self.simulation.message_retransmit_seconds);
            }
            let simulated = &mut self.senders[sender as usize];
            simulated.last_arrival_ns = simulated.last_arrival_ns.max(at);
            simulated.credit -= bytes;
            let number = simulated.next;
            simulated.next += 1;
            self.agenda.add(simulated.last_arrival_ns, Event::Message { sender, connection, number });
        }
    }

    /// A message has arrived at the receiver.
    fn arrived(&mut self, sender: u32, number: u32) {
        let (bytes, rows) = (self.simulation.message_bytes, self.simulation.message_rows);
        let simulated = &mut self.senders[sender as usize];
        simulated.is_faulty |= simulated.got != number || simulated.has_ended;
        simulated.got = simulated.got.saturating_add(1);
        self.report.messages += 1;
        self.buffered_bytes += bytes;
        self.report.buffered_bytes_peak = self.report.buffered_bytes_peak.max(self.buffered_bytes);
        if self.simulation.in_order {
            self.unordered[sender as usize].push_back(number);
        } else {
            self.decode(sender);
        }
        self.handle(Received::Received { part: sender.into(), bytes, rows });
        self.consume_in_order();
    }

    fn decode(&mut self, sender: u32) {
        let now_ns = self.now_ns;
        let Some(free) = self.processors_free_ns.iter_mut().min() else { return };
        *free = now_ns.max(*free) + self.decode_ns;
        self.agenda.add(*free, Event::Decoded { sender });
    }

    /// The consumer takes messages of the first part that isn't complete.
    fn consume_in_order(&mut self) {
        while self.simulation.in_order && self.first < self.senders.len() {
            if self.unordered[self.first].pop_front().is_some() {
                self.decode(self.first as u32);
                continue;
            }
            let first = &self.senders[self.first];
            if !first.has_ended || first.decoded < first.messages {
                return;
            }
            self.first += 1;
        }
    }

    /// Passes an event to the receiver's state machine.
    fn handle(&mut self, event: Received) {
        let now = self.now();
        self.receiver.handle(event, now);
        self.act();
    }

    fn act(&mut self) {
        while let Some(action) = self.receiver.next_action() {
            match action {
                Action::Acknowledge { part } => {
                    self.datagram(Event::Acknowledged { sender: part as u32 });
                }
                Action::Stop { part } => {
                    self.datagram(Event::Stopped { sender: part as u32 });
                }
                Action::Ask { part, .. } => {
                    self.datagram(Event::Asked { sender: part as u32 });
                }
                Action::Pull { part, from_row, grant_bytes } => self.pull(part as u32, from_row, grant_bytes),
                Action::Accept { part, connection, from_row, grant_bytes } => {
                    self.opens();
                    let (sender, connection) = (part as u32, connection as u32);
                    let from_message = (from_row / self.simulation.message_rows.max(1)) as u32;
                    self.segment(Event::Requested { sender, connection, from_message, grant_bytes });
                }
                Action::Refuse { part, connection, reason } => {
                    let (sender, connection) = (part as u32, connection as u32);
                    self.segment(Event::Refused { sender, connection, reason });
                }
                Action::Grant { part, bytes } => {
                    let (sender, connection) = (part as u32, self.senders[part as usize].connection);
                    self.segment(Event::Granted { sender, connection, bytes });
                }
                Action::Close { part } => {
                    self.open -= 1;
                    self.senders[part as usize].connection += 1;
                    self.tell(part as u32, SenderEvent::Lost);
                }
                Action::Done => self.report.outcome = Outcome::Complete,
                Action::Failed(error) => self.report.outcome = Outcome::Failed(error),
            }
        }
        if let Some(deadline) = self.receiver.deadline() {
            let at = deadline.saturating_duration_since(self.start).as_nanos() as u64;
            let at = at.max(self.now_ns);
            let timer = self.receiver_timer_ns;
            if timer == 0 || at < timer || timer < self.now_ns {
                self.receiver_timer_ns = at;
                self.agenda.add(at, Event::ReceiverTimer);
            }
        }
    }

    fn pull(&mut self, sender: u32, from_row: u64, grant_bytes: u64) {
        self.opens();
        let simulated = &mut self.senders[sender as usize];
        simulated.connection += 1;
        let connection = simulated.connection;
        let mut at = self.thread(self.simulation.connect_seconds) + 2 * self.half_rtt_ns;
        let mut wait = ns(self.simulation.retransmit_seconds);
        for attempt in 0.. {
            if !self.is_lost() {
                break;
            }
            if attempt == self.simulation.retransmissions {
                self.agenda.add(at + wait, Event::Lost { sender, connection });
                return;
            }
            self.report.retransmissions += 1;
            at += wait;
            wait *= 2;
        }
        let from_message = (from_row / self.simulation.message_rows.max(1)) as u32;
        self.agenda.add(at, Event::Opened { sender, connection });
        let at = at + self.half_rtt_ns;
        self.agenda.add(at, Event::Requested { sender, connection, from_message, grant_bytes });
    }

    fn opens(&mut self) {
        self.open += 1;
        self.report.open_peak = self.report.open_peak.max(self.open);
    }
}
