//! An agent that samples at its interval, and sends to collectors that may change while it runs.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::Poll;
use std::time::Duration;

use lightship_usage::Sample;
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use crate::agent::{Agent, AgentCounter};
use crate::datagram::{DATAGRAM_BYTES_MAX, Description, Keys, SealableBody};
use crate::sender::{Reaction, Sender};
use crate::time::monotonic_ns;

/// The most collectors of an agent; further ones are ignored.
pub const COLLECTORS_MAX: usize = 64;
/// The time between two descriptions of the host. They are repeated, because one may be lost.
const DESCRIPTION_INTERVAL: Duration = Duration::from_secs(10);
/// How long a datagram waits for room in the system's buffer. A later sample says more than this one.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);
/// Errors that are read from a socket at once. The system reports each error once; if there are more, the socket is
/// broken, and is looked at again at the next sample.
const ERRORS_MAX: usize = 16;

/// An event of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgentEvent {
    /// A collector accepts the samples.
    Accepted {
        /// The collector.
        collector: SocketAddr,
    },
    /// Another agent with the same name of the host sends to a collector.
    NameTaken {
        /// The collector.
        collector: SocketAddr,
    },
    /// An answer is not authentic: it is from a collector with another token, or from another sender.
    Forged {
        /// The collector that it claims to be from.
        collector: SocketAddr,
    },
    /// A sample was taken, and sent if there are collectors.
    Sampled(Sample),
}

/// Samples at the agent's interval, sends to `collectors`, and answers their exchanges, until it is dropped. A sample
/// that is being taken then is finished by its thread, and not sent.
///
/// Samples begin at equal distances. One that can't begin in time, because the one before is not finished, is skipped.
///
/// The collectors may change at any time. A new one first gets a description of the host; one that is removed gets no
/// more datagrams. A collector to which the system has no route is tried again every 10 s. If the sender of
/// `collectors` is dropped, the last ones stay.
///
/// # Errors
/// If sampling fails.
pub async fn run_agent(
    agent: Agent,
    mut collectors: watch::Receiver<Vec<SocketAddr>>,
    token: &str,
    mut on_event: impl FnMut(AgentEvent),
) -> io::Result<Infallible> {
    let counter = agent.counter();
    let interval = Duration::from_nanos(agent.options().interval_ns);
    let mut links = Links {
        keys: Keys::of(token),
        run: agent.run(),
        host: agent.options().host.clone(),
        counter: counter.clone(),
        sequence: 0,
        links: Vec::new(),
    };
    let first = collectors.borrow_and_update().clone();
    links.change(&first).await;
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut described, mut ticked): (Option<Instant>, Option<Instant>) = (None, None);
    // The agent, or `None` while a thread samples with it.
    let mut idle = Some(agent);
    let mut sampling = None;
    // Entries for which datagrams had no room.
    let mut cut = 0_u64;
    loop {
        tokio::select! {
            tick = ticks.tick(), if idle.is_some() => {
                let passed = ticked.replace(tick).map_or(interval, |before| tick - before);
                let intervals = (passed.as_nanos() + interval.as_nanos() / 2) / interval.as_nanos().max(1);
                let skipped = u64::try_from(intervals).unwrap_or(u64::MAX).saturating_sub(1);
                counter.add(|counts| counts.samples_skipped += skipped);
                sampling = idle.take().map(|mut agent| tokio::task::spawn_blocking(move || {
                    let began_ns = monotonic_ns();
                    let sample = agent.sample(began_ns);
                    (agent, sample, monotonic_ns().saturating_sub(began_ns))
                }));
            }
            sampled = finished(&mut sampling) => {
                sampling = None;
                let (agent, sample, sampling_ns) = sampled?;
                let (bodies, left_out) = SealableBody::of_sample(&sample);
                cut += left_out;
                let due = described.is_none_or(|at| at.elapsed() >= DESCRIPTION_INTERVAL);
                if due {
                    let wanted = collectors.borrow().clone();
                    links.change(&wanted).await;
                    described = Some(Instant::now());
                }
                links.send(&bodies, due, &agent).await;
                counter.add(|counts| {
                    counts.samples += 1;
                    counts.sampling_ns += sampling_ns;
                    counts.entries_left_out = agent.facts().entries_left_out.saturating_add(cut);
                });
                on_event(AgentEvent::Sampled(sample));
                idle = Some(agent);
            }
            wanted = changed(&mut collectors) => links.change(&wanted).await,
            (index, answer) = receive(&links.links, &counter) => {
                if let Some(event) = links.receive(index, &answer).await {
                    on_event(event);
                }
            }
        }
    }
}

/// The collectors after they have changed; never, if they can't change any more.
async fn changed(collectors: &mut watch::Receiver<Vec<SocketAddr>>) -> Vec<SocketAddr> {
    match collectors.changed().await {
        Ok(()) => collectors.borrow_and_update().clone(),
        Err(_) => std::future::pending().await,
    }
}

/// The collectors that samples are sent to.
struct Links {
    keys: Keys,
    run: u64,
    host: String,
    counter: AgentCounter,
    /// The first number of a datagram that no removed link has used: a collector may be added again.
    sequence: u64,
    links: Vec<Link>,
}

/// One collector.
struct Link {
    address: SocketAddr,
    socket: UdpSocket,
    sender: Sender,
    /// It must be told of the host again.
    describe: bool,
}

impl Links {
    /// Removes collectors that are not wanted any more, and adds those that are missing, as far as the system can reach
    /// them.
    async fn change(&mut self, wanted: &[SocketAddr]) {
        let wanted = wanted.get(..COLLECTORS_MAX).unwrap_or(wanted);
        let sequence = &mut self.sequence;
        self.links.retain(|link| {
            let is_wanted = wanted.contains(&link.address);
            *sequence = if is_wanted { *sequence } else { link.sender.sequence().max(*sequence) };
            is_wanted
        });
        for address in wanted {
            if self.links.iter().any(|link| link.address == *address) {
                continue;
            }
            match connect(*address).await {
                Ok(socket) => {
                    let sender = Sender::new(self.keys.clone(), self.run).starting_at(self.sequence);
                    let mut link = Link { address: *address, socket, sender, describe: true };
                    link.hello(&self.host, &self.counter).await;
                    self.links.push(link);
                }
                Err(error) => {
                    self.counter.add(|counts| counts.socket_errors += 1);
                    tracing::debug!(collector = %address, %error, "cannot send to a collector");
                }
            }
        }
        self.counter.add(|counts| counts.collectors = self.links.len() as u64);
    }

    /// Sends a sample, and a description to those that need one, or to all.
    async fn send(&mut self, sample: &[SealableBody], describe_all: bool, agent: &Agent) {
        let describe = describe_all || self.links.iter().any(|link| link.describe);
        let description = match describe {
            true => SealableBody::of_description(&agent.description()),
            false => Vec::new(),
        };
        for link in &mut self.links {
            link.send(sample, true, &self.counter).await;
            if std::mem::take(&mut link.describe) || describe_all {
                link.send(&description, false, &self.counter).await;
            }
        }
    }

    /// Reads an answer of a collector.
    async fn receive(&mut self, index: usize, answer: &[u8]) -> Option<AgentEvent> {
        let now_ns = monotonic_ns();
        let link = self.links.get_mut(index)?;
        let collector = link.address;
        let reaction = link.sender.receive(answer, now_ns);
        self.counter.add(|counts| match reaction {
            Ok(_) => counts.answers += 1,
            Err(_) => counts.forged += 1,
        });
        match reaction {
            Ok(Reaction::Nothing) => None,
            Ok(Reaction::Accepted) => {
                link.describe = true;
                Some(AgentEvent::Accepted { collector })
            }
            Ok(Reaction::RunRaised) => {
                link.hello(&self.host, &self.counter).await;
                None
            }
            Ok(Reaction::NameTaken) => Some(AgentEvent::NameTaken { collector }),
            Err(_) => Some(AgentEvent::Forged { collector }),
        }
    }
}

/// A socket for one collector.
async fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    // The system then drops what comes from elsewhere.
    socket.connect(address).await?;
    Ok(socket)
}

impl Link {
    /// Asks for an answer, so that the next sample is accepted.
    async fn hello(&mut self, host: &str, counter: &AgentCounter) {
        let description = Description { host: host.to_owned(), ..Description::default() };
        self.send(&SealableBody::of_description(&description), true, counter).await;
    }

    /// Sends bodies; the first one asks for an answer if `exchange` is set. A datagram that can't be sent is lost, as
    /// any datagram may be, and the collector counts it.
    async fn send(&mut self, bodies: &[SealableBody], exchange: bool, counter: &AgentCounter) {
        for (index, body) in bodies.iter().enumerate() {
            let datagram = self.sender.datagram(body, exchange && index == 0, monotonic_ns());
            let sent = tokio::time::timeout(SEND_TIMEOUT, self.socket.send(&datagram)).await;
            let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            counter.add(|counts| match sent {
                Ok(_) => {
                    counts.datagrams += 1;
                    counts.datagram_bytes += datagram.len() as u64;
                }
                Err(_) => counts.send_errors += 1,
            });
            if let Err(error) = sent {
                tracing::debug!(collector = %self.address, %error, "cannot send a sample");
            }
        }
    }
}

/// The result of the task, if there is one.
async fn finished<T>(task: &mut Option<tokio::task::JoinHandle<T>>) -> io::Result<T> {
    match task {
        Some(task) => task.await.map_err(io::Error::other),
        None => std::future::pending().await,
    }
}

/// The next datagram from any collector, and the collector's index.
async fn receive(links: &[Link], counter: &AgentCounter) -> (usize, Vec<u8>) {
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    poll_fn(|context| {
        for (index, link) in links.iter().enumerate() {
            for _ in 0..ERRORS_MAX {
                let mut read = ReadBuf::new(&mut buffer);
                match link.socket.poll_recv(context, &mut read) {
                    Poll::Ready(Ok(())) => return Poll::Ready((index, read.filled().to_vec())),
                    // The system reports once that an earlier datagram was refused, for example because the collector
                    // does not run. The socket is polled again: only `Pending` makes it wake this task.
                    Poll::Ready(Err(error)) => {
                        counter.add(|counts| counts.socket_errors += 1);
                        tracing::debug!(collector = %link.address, %error, "cannot receive answers");
                    }
                    Poll::Pending => break,
                }
            }
        }
        Poll::Pending
    })
    .await
}
