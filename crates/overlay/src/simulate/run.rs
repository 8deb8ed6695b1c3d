//! Handles the events of a simulation.

use fastrand::Rng;

use super::agenda::{Agenda, Event};
use super::network::{Job, Mesh, Message, State};
use super::{NodeReport, Report, Simulation, Ties, Watch};
use crate::direct::Direct;
use crate::error::{OverlayError, Result};
use crate::forwarding::Classes;
use crate::routes::Routes;
use crate::topology::Topology;
use crate::traffic::{Destinations, TrafficMatrix};
use crate::ways::HybridRoutes;

/// Events between two calls of the watch callback: some milliseconds.
const WATCHED_EVENTS: u64 = 1 << 14;

/// Runs a simulation. Its parameters must have been checked.
pub(super) fn run(
    simulation: &Simulation,
    routes: &Routes,
    classes: Classes,
    last: Option<&TrafficMatrix>,
    watch: &mut Watch<'_>,
) -> Result<Report> {
    let mut run = Run::new(simulation, routes, classes);
    if let Some(last) = last {
        run.assign(last, 0);
        // It fades as traffic of this run is added.
        run.recent = last.clone();
    }
    (0..simulation.nodes).for_each(|node| run.make(node));
    if simulation.pool.opened_max > 0 {
        run.agenda.add(run.period_ns, Event::Period);
    }
    let mut handled = 0_u64;
    while run.delivered < run.messages {
        let Some((ns, event)) = run.agenda.next() else {
            return Err(run.deadlock());
        };
        if matches!(event, Event::Period) && run.agenda.is_empty() {
            return Err(run.deadlock());
        }
        run.now_ns = ns;
        run.handle(event);
        handled += 1;
        if handled.is_multiple_of(WATCHED_EVENTS) && watch(run.delivered).is_break() {
            return Err(OverlayError::Stopped { delivered: run.delivered, messages: run.messages });
        }
    }
    Ok(run.report())
}

struct Run<'a> {
    simulation: &'a Simulation,
    classes: Classes,
    ways: HybridRoutes<'a>,
    mesh: Mesh,
    agenda: Agenda,
    rng: Rng,
    now_ns: u64,
    /// Time per message at the processor, at a node's port, and on a link.
    work_ns: u64,
    port_ns: u64,
    wire_ns: u64,
    latency_ns: u64,
    period_ns: u64,
    destinations: Vec<Destinations<'a>>,
    direct: Direct,
    /// Traffic as the pool remembers it, and in total.
    recent: TrafficMatrix,
    demand: TrafficMatrix,
    messages: u64,
    delivered: u64,
    reconnections: u64,
    queued_most: usize,
    /// Kept to reuse its allocation.
    next: Vec<usize>,
}

impl<'a> Run<'a> {
    fn new(simulation: &'a Simulation, routes: &'a Routes, classes: Classes) -> Self {
        let Simulation { nodes, traffic, network, seed, .. } = simulation;
        let ns = |seconds: f64| (seconds * 1e9).round() as u64;
        let bytes = traffic.message_bytes as f64;
        let mut mesh = Mesh::new(routes, classes, simulation.queue_messages);
        let sockets = sockets(routes.topology(), &Direct::new());
        mesh.nodes.iter_mut().zip(sockets).for_each(|(node, sockets)| node.sockets_max = sockets);
        Self {
            simulation,
            classes,
            ways: HybridRoutes::new(routes, simulation.through),
            mesh,
            agenda: Agenda::default(),
            rng: Rng::with_seed(*seed),
            now_ns: 0,
            work_ns: ns(network.message_seconds),
            port_ns: ns(bytes / network.node_bytes_per_second),
            wire_ns: ns(bytes / network.link_bytes_per_second),
            latency_ns: ns(network.latency_seconds),
            period_ns: ns(simulation.period_seconds),
            destinations: (0..*nodes).map(|node| traffic.destinations(node, *nodes, *seed)).collect(),
            direct: Direct::new(),
            recent: TrafficMatrix::new(*nodes),
            demand: TrafficMatrix::new(*nodes),
            messages: traffic.messages_per_node * *nodes as u64,
            delivered: 0,
            reconnections: 0,
            queued_most: 0,
            next: Vec::new(),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Done { node } => self.done(node),
            Event::Wake { node } => {
                self.mesh.nodes[node].wakes_ns = None;
                self.work(node);
            }
            Event::Idle { link } => {
                self.mesh.links[link].busy = false;
                self.work(self.mesh.links[link].from);
            }
            Event::Arrived { message } => self.arrived(message),
            Event::In { message } => {
                let node = self.whereabouts(&message);
                self.mesh.nodes[node].inbox.push_back(message);
                self.work(node);
            }
            Event::Credit { link, class } => {
                self.mesh.links[link].credits.give(class);
                self.work(self.mesh.links[link].from);
            }
            Event::Opened { link } => {
                let link = &mut self.mesh.links[link];
                if link.state == State::Opening {
                    link.state = State::Open;
                }
            }
            Event::Period => {
                let recent = std::mem::replace(&mut self.recent, TrafficMatrix::new(0));
                self.assign(&recent, (self.simulation.network.connect_seconds * 1e9) as u64);
                self.recent = recent;
                self.recent.fade(self.simulation.pool.memory);
                self.agenda.add(self.now_ns + self.period_ns, Event::Period);
            }
        }
    }

    fn whereabouts(&self, message: &Message) -> usize {
        message.slot.map_or(message.from as usize, |(link, _)| self.mesh.links[link].to)
    }

    /// Creates a node's own messages until its window is full.
    fn make(&mut self, node: usize) {
        while self.mesh.nodes[node].own_queued < self.simulation.window_messages {
            let Some(to) = self.destinations[node].next() else { break };
            let bytes = self.simulation.traffic.message_bytes as f64;
            self.recent.add(node, to, bytes);
            self.mesh.nodes[node].own_queued += 1;
            self.mesh.nodes[node].sent += 1;
            let (from, to) = (node as u32, to as u32);
            self.queue(node, Message { from, to, hops: 0, queued_ns: self.now_ns, slot: None });
        }
        self.work(node);
    }

    /// Puts a message into the queue of the link it takes next.
    fn queue(&mut self, node: usize, message: Message) {
        self.ways.next(node, message.to as usize, message.hops, &self.classes, &mut self.next);
        let Self { next, mesh, rng, .. } = self;
        // From here on, `next` holds links instead of nodes.
        let open =
            |to: usize| mesh.nodes[node].links.get(&to).copied().filter(|link| mesh.links[*link].is_open());
        keep_some(next, open);
        if next.is_empty() {
            // The direct connection is not open yet: use the topology meanwhile.
            next.extend(self.ways.routes.next_hops(node, message.to as usize).filter_map(open));
        }
        if self.simulation.ties == Ties::ShortestQueue {
            let least = next.iter().map(|link| mesh.links[*link].waiting_count).min();
            next.retain(|link| Some(mesh.links[*link].waiting_count) == least);
        }
        let Some(&link) = next.get(rng.usize(..next.len().max(1))) else {
            debug_assert!(false, "the topology always has a route");
            return;
        };
        let class = self.classes.of(message.hops + 1);
        debug_assert!(class.is_some(), "a message makes no more hops than there are classes");
        let link = &mut mesh.links[link];
        link.waiting[class.unwrap_or_default()].push_back(message);
        link.waiting_count += 1;
        self.queued_most = self.queued_most.max(link.waiting_count);
    }

    /// Starts the next job of a node's processor if it is idle. Receiving and sending take turns.
    fn work(&mut self, node: usize) {
        if self.mesh.nodes[node].job.is_some() {
            return;
        }
        let sends_first = self.mesh.nodes[node].sends_next;
        let mut job = if sends_first { self.next_to_send(node) } else { None };
        job = job.or_else(|| self.mesh.nodes[node].inbox.pop_front().map(|message| Job::Receive { message }));
        if job.is_none() && !sends_first {
            job = self.next_to_send(node);
        }
        if let Some(job) = job {
            self.mesh.nodes[node].sends_next = matches!(job, Job::Receive { .. });
            self.mesh.nodes[node].job = Some(job);
            self.agenda.add(self.now_ns + self.work_ns, Event::Done { node });
        }
    }

    fn next_to_send(&mut self, node: usize) -> Option<Job> {
        // Start late enough that the outbound port is free when the processor finishes.
        let wakes_ns = self.mesh.nodes[node].out_free_ns.saturating_sub(self.work_ns);
        if wakes_ns > self.now_ns {
            if self.mesh.nodes[node].wakes_ns.is_none() {
                self.mesh.nodes[node].wakes_ns = Some(wakes_ns);
                self.agenda.add(wakes_ns, Event::Wake { node });
            }
            return None;
        }
        let (link, message) = self.mesh.next_message(node)?;
        self.mesh.links[link].busy = true;
        Some(Job::Send { link, message })
    }

    fn done(&mut self, node: usize) {
        self.mesh.nodes[node].last_ns = self.now_ns;
        match self.mesh.nodes[node].job.take() {
            Some(Job::Send { link, message }) => self.send(node, link, message),
            Some(Job::Receive { message }) => self.receive(node, message),
            None => {}
        }
        self.work(node);
    }

    fn send(&mut self, node: usize, link: usize, message: Message) {
        let starts_ns = self.now_ns.max(self.mesh.nodes[node].out_free_ns);
        self.mesh.nodes[node].out_free_ns = starts_ns + self.port_ns;
        self.agenda.add(starts_ns + self.wire_ns, Event::Idle { link });
        let hops = message.hops + 1;
        let slot = self.classes.of(hops).map(|class| (link, class));
        let arrives_ns = starts_ns + self.port_ns.max(self.wire_ns) + self.latency_ns;
        self.agenda.add(arrives_ns, Event::Arrived { message: Message { hops, slot, ..message } });
        self.leave(message);
        if message.slot.is_some() {
            self.mesh.nodes[node].forwarded += 1;
        } else {
            self.mesh.nodes[node].own_queued -= 1;
            self.make(node);
        }
    }

    /// Returns a message's queue slot. The credit reaches the near end of the link after its latency.
    fn leave(&mut self, message: Message) {
        if let Some((link, class)) = message.slot {
            self.agenda.add(self.now_ns + self.latency_ns, Event::Credit { link, class });
        }
    }

    fn arrived(&mut self, message: Message) {
        let node = self.whereabouts(&message);
        let node = &mut self.mesh.nodes[node];
        // It passes the port while it crosses the link, unless the port is busy with another message.
        node.in_free_ns = self.now_ns.max(node.in_free_ns + self.port_ns);
        self.agenda.add(node.in_free_ns, Event::In { message });
    }

    fn receive(&mut self, node: usize, message: Message) {
        if message.to as usize != node {
            self.queue(node, message);
            return;
        }
        self.delivered += 1;
        self.demand.add(message.from as usize, node, self.simulation.traffic.message_bytes as f64);
        self.mesh.nodes[node].received += 1;
        self.mesh.nodes[node].latency.add(self.now_ns - message.queued_ns);
        self.leave(message);
    }

    /// Assigns direct connections. New ones open after `opens_after_ns`; those that lost their place close,
    /// and the messages that wait for them are rerouted.
    fn assign(&mut self, demand: &TrafficMatrix, opens_after_ns: u64) {
        let pool = &self.simulation.pool;
        let direct = pool.assign(self.ways.routes, demand, &self.direct, &mut self.rng);
        let before = std::mem::replace(&mut self.direct, direct);
        self.ways.change(&self.direct, pool.both_ways);
        let directions = |(from, to): (u32, u32)| {
            let (from, to) = (from as usize, to as usize);
            [Some((from, to)), pool.both_ways.then_some((to, from))].into_iter().flatten()
        };
        let opened: Vec<_> = self.direct.difference(&before).copied().collect();
        let closed: Vec<_> = before.difference(&self.direct).copied().collect();
        if opens_after_ns > 0 {
            self.reconnections += opened.len() as u64;
        }
        let mut astray = Vec::new();
        for (from, to) in closed.into_iter().flat_map(directions) {
            let link = self.mesh.link(from, to);
            astray.extend(self.mesh.links[link].close().into_iter().map(|message| (from, message)));
        }
        for (from, to) in opened.into_iter().flat_map(directions) {
            let link = self.mesh.link(from, to);
            if self.mesh.links[link].state == State::Closed {
                self.mesh.links[link].state = State::Opening;
                self.agenda.add(self.now_ns + opens_after_ns, Event::Opened { link });
            }
        }
        for (node, message) in astray {
            self.queue(node, message);
            self.work(node);
        }
        let sockets = sockets(self.ways.routes.topology(), &self.direct);
        let nodes = self.mesh.nodes.iter_mut();
        nodes.zip(sockets).for_each(|(node, sockets)| node.sockets_max = node.sockets_max.max(sockets));
    }

    fn deadlock(&self) -> OverlayError {
        OverlayError::Deadlock {
            undelivered: self.messages - self.delivered,
            seconds: self.now_ns as f64 * 1e-9,
        }
    }

    fn report(self) -> Report {
        let forwards = self.mesh.nodes.iter().map(|node| node.forwarded).sum();
        let node = |node: &super::network::Node| NodeReport {
            sent: node.sent,
            received: node.received,
            forwarded: node.forwarded,
            sockets_max: node.sockets_max,
            seconds: node.last_ns as f64 * 1e-9,
            latency: node.latency.percentiles(),
        };
        Report {
            parameters: self.simulation.clone(),
            messages: self.messages,
            forwards,
            forwards_per_message: forwards as f64 / self.messages as f64,
            seconds: self.now_ns as f64 * 1e-9,
            pairs: self.demand.pairs().count(),
            reconnections: self.reconnections,
            queued_most: self.queued_most,
            per_node: self.mesh.nodes.iter().map(node).collect(),
            direct: self.direct.into_iter().collect(),
            demand: self.demand,
        }
    }
}

/// Replaces each item by what `other` returns for it, and removes the items for which it returns `None`.
fn keep_some(list: &mut Vec<usize>, other: impl Fn(usize) -> Option<usize>) {
    list.retain_mut(|item| other(*item).map(|other| *item = other).is_some());
}

/// Sockets of every node, including direct connections at either end.
fn sockets(topology: &Topology, direct: &Direct) -> Vec<usize> {
    let mut sockets = topology.sockets();
    for (from, to) in direct {
        sockets[*from as usize] += 1;
        sockets[*to as usize] += 1;
    }
    sockets
}
