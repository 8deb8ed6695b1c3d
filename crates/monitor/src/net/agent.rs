//! An agent that samples at its interval, and sends to collectors.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::Poll;
use std::time::Duration;

use lightship_usage::Sample;
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::time::{Instant, MissedTickBehavior};

use crate::agent::Agent;
use crate::datagram::{DATAGRAM_BYTES_MAX, Description, Keys, SealableBody};
use crate::sender::{Reaction, Sender};
use crate::time::monotonic_ns;

/// The most collectors of an agent.
const COLLECTORS_MAX: usize = 8;
/// The time between two descriptions of the host. They are sent again and again, because one may be lost.
const DESCRIPTION_INTERVAL: Duration = Duration::from_secs(10);
/// How long a datagram waits for room in the system's buffer. Later ones say more than this one.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// What has happened to an agent.
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
    /// An answer is not authentic: it is of a collector with another token, or of somebody else.
    Forged {
        /// Where it came from.
        collector: SocketAddr,
    },
    /// A sample was taken, and sent if there are collectors.
    Sampled(Sample),
}

/// One collector.
struct Link {
    address: SocketAddr,
    socket: UdpSocket,
    sender: Sender,
    /// It must be told of the host again.
    describe: bool,
}

/// Samples at the agent's interval, sends to `collectors`, and answers their exchanges, until it is dropped. A sample
/// that is being taken then is finished by its thread, and not sent.
///
/// Samples begin at equal distances. One that can't begin in time, because the one before is not finished, is skipped.
///
/// # Errors
/// If there is no socket, or sampling fails.
pub async fn run_agent(
    agent: Agent,
    collectors: &[SocketAddr],
    token: &str,
    mut on_event: impl FnMut(AgentEvent),
) -> io::Result<Infallible> {
    let keys = Keys::of(token);
    let mut links = Vec::with_capacity(collectors.len().min(COLLECTORS_MAX));
    for address in collectors.iter().take(COLLECTORS_MAX) {
        links.push(Link::open(*address, keys.clone(), &agent).await?);
    }
    let host = agent.options().host.clone();
    let mut ticks = tokio::time::interval(Duration::from_nanos(agent.options().interval_ns));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut described: Option<Instant> = None;
    // The agent, or `None` while a thread samples with it.
    let mut idle = Some(agent);
    let mut sampling = None;
    loop {
        tokio::select! {
            _ = ticks.tick(), if idle.is_some() => {
                sampling = idle.take().map(|mut agent| tokio::task::spawn_blocking(move || {
                    let sample = agent.sample(monotonic_ns());
                    (agent, sample)
                }));
            }
            sampled = finished(&mut sampling) => {
                sampling = None;
                let (agent, sample) = sampled?;
                let (bodies, _) = SealableBody::of_sample(&sample);
                let due = described.is_none_or(|at| at.elapsed() >= DESCRIPTION_INTERVAL);
                let describe = due || links.iter().any(|link| link.describe);
                let description = match describe {
                    true => SealableBody::of_description(&agent.description()),
                    false => Vec::new(),
                };
                for link in &mut links {
                    link.send(&bodies, true).await;
                    if due || std::mem::take(&mut link.describe) {
                        link.send(&description, false).await;
                    }
                }
                if due {
                    described = Some(Instant::now());
                }
                on_event(AgentEvent::Sampled(sample));
                idle = Some(agent);
            }
            (index, answer) = receive(&links) => {
                let now_ns = monotonic_ns();
                let Some(link) = links.get_mut(index) else { continue };
                let collector = link.address;
                match link.sender.receive(&answer, now_ns) {
                    Ok(Reaction::Nothing) => {}
                    Ok(Reaction::Accepted) => {
                        link.describe = true;
                        on_event(AgentEvent::Accepted { collector });
                    }
                    Ok(Reaction::RunRaised) => link.hello(&host).await,
                    Ok(Reaction::NameTaken) => on_event(AgentEvent::NameTaken { collector }),
                    Err(_) => on_event(AgentEvent::Forged { collector }),
                }
            }
        }
    }
}

impl Link {
    async fn open(address: SocketAddr, keys: Keys, agent: &Agent) -> io::Result<Self> {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        // The system then drops what comes from elsewhere.
        socket.connect(address).await?;
        let mut link = Self { address, socket, sender: Sender::new(keys, agent.run()), describe: true };
        link.hello(&agent.options().host).await;
        Ok(link)
    }

    /// Asks for an answer, so that the next sample is accepted.
    async fn hello(&mut self, host: &str) {
        let description = Description { host: host.to_owned(), ..Description::default() };
        self.send(&SealableBody::of_description(&description), true).await;
    }

    /// Sends bodies; the first one asks for an answer if `exchange` is set. What can't be sent is lost, as any datagram
    /// may be, and the collector counts it.
    async fn send(&mut self, bodies: &[SealableBody], exchange: bool) {
        for (index, body) in bodies.iter().enumerate() {
            let datagram = self.sender.datagram(body, exchange && index == 0, monotonic_ns());
            let sent = tokio::time::timeout(SEND_TIMEOUT, self.socket.send(&datagram)).await;
            if let Ok(Err(error)) = sent {
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

/// The next datagram from any collector, and its number.
async fn receive(links: &[Link]) -> (usize, Vec<u8>) {
    let mut buffer = [0; DATAGRAM_BYTES_MAX];
    poll_fn(|context| {
        for (index, link) in links.iter().enumerate() {
            loop {
                let mut read = ReadBuf::new(&mut buffer);
                match link.socket.poll_recv(context, &mut read) {
                    Poll::Ready(Ok(())) => return Poll::Ready((index, read.filled().to_vec())),
                    // The collector does not run, as the system says of an earlier datagram.
                    Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Poll::Ready(Err(error)) => {
                        tracing::debug!(collector = %link.address, %error, "cannot receive answers");
                        break;
                    }
                    Poll::Pending => break,
                }
            }
        }
        Poll::Pending
    })
    .await
}
