//! The frames on a connection between two nodes (`docs/format.md`, section 10).

use std::io;

use bytes::Bytes;
use lightship_overlay::forwarder::{LinkNotice, Packet};
use lightship_wire::WireError;
use lightship_wire::frame::{FrameHeader, FrameKind, HEADER_BYTES};
use lightship_wire::overlay::{self as wire, FLAG_ROUTED, ROUTE_BYTES, Route};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Memory for a payload is allocated in steps of this size, as its bytes arrive.
const STEP_BYTES: usize = 1 << 20;

/// A frame between two nodes, without the node numbers. Nodes on the way forward it as it is.
#[derive(Debug, Clone)]
pub(crate) struct RoutedFrame {
    /// Its header, with [`FLAG_ROUTED`].
    pub(crate) header: FrameHeader,
    /// Whether the sender has accepted the tunnel.
    pub(crate) accepted: bool,
    /// The tunnel; 0 for a single message.
    pub(crate) tunnel: u32,
    /// Its number in the tunnel.
    pub(crate) number: u32,
    /// What follows the header.
    pub(crate) part: Bytes,
    /// Whether it holds one of its sender's slots for own frames.
    pub(crate) has_slot: bool,
}

impl RoutedFrame {
    pub(crate) fn new(header: FrameHeader, part: Bytes) -> Self {
        let (flags, part_bytes) = (header.flags | FLAG_ROUTED, part.len() as u32);
        let header = FrameHeader { flags, part_bytes, ..header };
        Self { header, accepted: false, tunnel: 0, number: 0, part, has_slot: true }
    }

    /// The header as its receiver gets it.
    pub(crate) fn plain_header(&self) -> FrameHeader {
        FrameHeader { flags: self.header.flags & !FLAG_ROUTED, ..self.header }
    }
}

/// What precedes the payload of a frame in transit.
pub(crate) fn head(packet: &Packet<RoutedFrame>) -> [u8; HEADER_BYTES + ROUTE_BYTES] {
    let frame = &packet.body;
    let route = Route {
        from: packet.from,
        to: packet.to,
        hops: u16::try_from(packet.hops).unwrap_or(u16::MAX),
        accepted: frame.accepted,
        tunnel: frame.tunnel,
        number: frame.number,
    };
    let mut head = [0; HEADER_BYTES + ROUTE_BYTES];
    head[..HEADER_BYTES].copy_from_slice(&frame.header.encode());
    head[HEADER_BYTES..].copy_from_slice(&route.encode());
    head
}

/// The payload of a notice.
pub(crate) fn encode_notice(notice: LinkNotice) -> Vec<u8> {
    let LinkNotice { by, peer, opened, number, topology, received } = notice;
    wire::LinkNotice { by, peer, opened, number, topology, received }.encode()
}

/// The notice in a payload.
pub(crate) fn decode_notice(payload: &[u8]) -> lightship_wire::Result<LinkNotice> {
    let wire::LinkNotice { by, peer, opened, number, topology, received } =
        wire::LinkNotice::decode(payload)?;
    Ok(LinkNotice { by, peer, opened, number, topology, received })
}

/// Why a frame can't be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(io::Error),
    Invalid(String),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<WireError> for ReadError {
    fn from(error: WireError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// Reads the header of a frame.
pub(crate) async fn read_header(read: &mut (impl AsyncRead + Unpin)) -> Result<FrameHeader, ReadError> {
    let mut bytes = [0; HEADER_BYTES];
    read.read_exact(&mut bytes).await?;
    Ok(FrameHeader::decode(&bytes)?)
}

/// Reads the route that follows a header with [`FLAG_ROUTED`].
pub(crate) async fn read_route(read: &mut (impl AsyncRead + Unpin)) -> Result<Route, ReadError> {
    let mut bytes = [0; ROUTE_BYTES];
    read.read_exact(&mut bytes).await?;
    Ok(Route::decode(&bytes)?)
}

/// Reads this many bytes; calls `alive` whenever some of them arrive.
pub(crate) async fn read_part(
    read: &mut (impl AsyncRead + Unpin),
    bytes: u32,
    alive: impl Fn(),
) -> io::Result<Bytes> {
    let bytes = bytes as usize;
    let mut part = Vec::with_capacity(bytes.min(STEP_BYTES));
    while part.len() < bytes {
        let left = bytes - part.len();
        if part.len() == part.capacity() {
            part.reserve_exact(left.min(part.len()));
        }
        if (&mut *read).take(left as u64).read_buf(&mut part).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        alive();
    }
    Ok(part.into())
}

/// Numbers the frames of the connection itself, in one direction.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ControlFrames {
    next: u32,
}

impl ControlFrames {
    /// The bytes of the next frame to send.
    pub(crate) fn encode(&mut self, kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        let header = FrameHeader::whole(kind, 0, 0, self.next, payload);
        self.next = self.next.wrapping_add(1);
        [&header.encode(), payload].concat()
    }

    /// Reads the payload of a frame that has arrived.
    pub(crate) async fn read(
        &mut self,
        header: &FrameHeader,
        read: &mut (impl AsyncRead + Unpin),
    ) -> Result<Bytes, ReadError> {
        let is_expected = header.flags == 0
            && header.stream == 0
            && header.sequence == self.next
            && header.part_bytes == header.payload_bytes;
        // A relay takes no messages that have no route.
        if !is_expected || header.payload_bytes > header.kind.payload_bytes_max(0) {
            return Err(ReadError::Invalid(format!("an unexpected {:?} frame", header.kind)));
        }
        self.next = self.next.wrapping_add(1);
        let payload = read_part(read, header.payload_bytes, || ()).await?;
        header.verify(&payload)?;
        Ok(payload)
    }
}
