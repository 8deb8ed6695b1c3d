//! Connections between nodes that carry others: hellos as on any, and then whatever the nodes make of it.

use std::time::{Duration, Instant};

use lightship_wire::cluster::{CAPABILITY_CLUSTER, CAPABILITY_TRUNK};
use socket2::{SockRef, TcpKeepalive};
use tokio::time::timeout;

use super::endpoint::Socket;
use super::frames::{FrameReader, FrameWriter, Segments};
use super::{ClientConfig, Endpoint, ReadHalf, WriteHalf};
use crate::proto::{Client, ClientEvent};
use crate::{Result, TransportError};

/// Bytes that the system takes and has not sent: what is said next waits for no more than these.
const UNSENT_BYTES: u32 = 128 << 10;
/// A trunk on which nothing was said for so long is probed, and given up after three times this.
const PROBED_AFTER: Duration = Duration::from_secs(10);
const PROBES: u32 = 2;
/// What is sent and not acknowledged for so long will not be: where something is, there are no probes.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// One end of a trunk: bytes both ways, after the hellos.
pub struct Trunk {
    /// From the other node.
    pub read: ReadHalf,
    /// To it.
    pub write: WriteHalf,
    /// Whether both are on one host, as far as addresses tell.
    pub same_host: bool,
}

impl Trunk {
    /// Connects to another node of the cluster, as [`ClientConfig::peer`], and is welcomed. Nothing where the node
    /// knows of no trunks.
    ///
    /// # Errors
    /// When the node can't be reached, does not speak the protocol, or refuses the token.
    pub async fn connect(endpoint: &Endpoint, config: &ClientConfig) -> Result<Option<Self>> {
        let socket = endpoint.connect(config).await?;
        let after = config.welcome_timeout;
        let awaited = "no welcome";
        timeout(after, Self::greet(socket, config)).await.unwrap_or_else(|_| {
            Err(TransportError::Unwelcome { target: endpoint.to_string(), awaited, after })
        })
    }

    async fn greet(socket: Socket, config: &ClientConfig) -> Result<Option<Self>> {
        let capabilities = CAPABILITY_CLUSTER | CAPABILITY_TRUNK;
        let mut client =
            Client::new(Instant::now(), config.token.clone(), capabilities, config.ping_interval);
        let mut reader = FrameReader::new(socket.read, Segments::None);
        let mut writer = FrameWriter::new(socket.write, None);
        if let Some(tcp) = &socket.tcp {
            prepare(&SockRef::from(tcp.as_ref()));
        }
        let frames: Vec<_> = std::iter::from_fn(|| client.poll_transmit()).collect();
        writer.write(&frames, || ()).await?;
        loop {
            let limit = |kind| client.payload_bytes_max(kind);
            let Some((header, payload)) = reader.next(limit, || ()).await? else {
                return Err(TransportError::Closed { during: Some("before its hello") });
            };
            match client.handle(Instant::now(), &header, payload)? {
                Some(ClientEvent::Ready) => break,
                Some(ClientEvent::Failed(failure)) => return Err(failure.into()),
                _ => {}
            }
        }
        if client.server().capabilities & CAPABILITY_TRUNK == 0 {
            return Ok(None);
        }
        let read = reader.into_stream()?;
        Ok(Some(Self { read, write: writer.into_stream(), same_host: socket.same_host }))
    }
}

/// What the system is to do with a trunk's socket: keep little that is unsent, and notice who has vanished without a
/// word, as what goes over the trunk may have nothing to say.
pub(super) fn prepare(socket: &SockRef<'_>) {
    let probes = TcpKeepalive::new().with_time(PROBED_AFTER).with_interval(PROBED_AFTER).with_retries(PROBES);
    let done = [
        socket.set_tcp_notsent_lowat(UNSENT_BYTES),
        socket.set_tcp_keepalive(&probes),
        socket.set_tcp_user_timeout(Some(ACKNOWLEDGED_WITHIN)),
    ];
    for done in done {
        if let Err(error) = done {
            tracing::debug!(%error, "a trunk's socket stays as it is");
        }
    }
}
