//! Frames between the nodes of an overlay, and the route of a frame over them (`docs/format.md`, section 10).

use crate::bytes::{Put, Reader};
use crate::error::{Result, WireError, malformed};
use crate::frame::crc32c;

/// Bit of a hello: the connection belongs to an overlay.
pub const CAPABILITY_OVERLAY: u64 = 1 << 6;
/// Flag of any frame: a [`Route`] follows its header.
pub const FLAG_ROUTED: u16 = 1 << 15;
/// The size of a route.
pub const ROUTE_BYTES: usize = 24;
/// Largest payload of the frames of this module.
pub const OVERLAY_BYTES_MAX: u32 = 64;

const CRC_OFFSET: usize = 20;
/// Flag of a route: the frame was sent by the node that has accepted the tunnel.
const FLAG_ACCEPTED: u16 = 1;

/// The way of a frame over an overlay. Only `hops` changes on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The node that made the frame.
    pub from: u32,
    /// The node that it is for.
    pub to: u32,
    /// Connections that it has crossed, including the one it is sent on.
    pub hops: u16,
    /// Whether `from` has accepted the tunnel, instead of having opened it.
    pub accepted: bool,
    /// The tunnel, numbered from 1 by the node that opens it; 0 for a frame outside of tunnels.
    pub tunnel: u32,
    /// Frames that `from` sent before in this tunnel, modulo 2^32. Frames may overtake each other on the way.
    pub number: u32,
}

impl Route {
    /// As bytes.
    pub fn encode(&self) -> [u8; ROUTE_BYTES] {
        let mut bytes = Vec::with_capacity(ROUTE_BYTES);
        bytes.put_u32(self.from);
        bytes.put_u32(self.to);
        bytes.put_u16(self.hops);
        bytes.put_u16(if self.accepted { FLAG_ACCEPTED } else { 0 });
        bytes.put_u32(self.tunnel);
        bytes.put_u32(self.number);
        bytes.put_u32(crc32c(&bytes));
        let mut route = [0; ROUTE_BYTES];
        route.copy_from_slice(&bytes);
        route
    }

    /// From bytes.
    ///
    /// # Errors
    /// If the checksum is wrong, or a flag is unknown.
    pub fn decode(bytes: &[u8; ROUTE_BYTES]) -> Result<Self> {
        let mut reader = Reader::new("route", bytes);
        let (from, to, hops, flags) = (reader.u32()?, reader.u32()?, reader.u16()?, reader.u16()?);
        let (tunnel, number, found) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let computed = crc32c(&bytes[..CRC_OFFSET]);
        if found != computed {
            return Err(WireError::Checksum { what: "route", found, computed });
        }
        if flags & !FLAG_ACCEPTED != 0 {
            return Err(malformed("route", format!("unknown flags {flags:#x}")));
        }
        Ok(Self { from, to, hops, accepted: flags != 0, tunnel, number })
    }
}

/// The use of a connection of an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LinkUse {
    /// It belongs to the topology.
    Topology = 0,
    /// A direct connection on which only the node that opens it sends frames.
    DirectOneWay = 1,
    /// A direct connection for frames in both directions.
    DirectBothWays = 2,
}

/// Sent by the node that opens a connection of an overlay, right after its hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neighbour {
    /// The node that opens it.
    pub node: u32,
    /// The node that it is for.
    pub peer: u32,
    /// What it is for.
    pub link: LinkUse,
    /// The number of the connection at the node that opens it: 0 for a link of the topology that is opened for the
    /// first time.
    pub number: u64,
    /// A hash of what all nodes must agree on: epoch, topology, sizes.
    pub digest: u64,
}

impl Neighbour {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(self.node);
        out.put_u32(self.peer);
        out.put_u8(self.link as u8);
        out.put_u64(self.number);
        out.put_u64(self.digest);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "neighbour";
        let mut reader = Reader::new(what, bytes);
        let (node, peer) = (reader.u32()?, reader.u32()?);
        let link = match reader.u8()? {
            0 => LinkUse::Topology,
            1 => LinkUse::DirectOneWay,
            2 => LinkUse::DirectBothWays,
            other => return Err(malformed(what, format!("unknown use {other}"))),
        };
        let (number, digest) = (reader.u64()?, reader.u64()?);
        reader.end()?;
        Ok(Self { node, peer, link, number, digest })
    }
}

/// Room for more frames of a class, and a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassCredit {
    /// Which class.
    pub class: u32,
    /// How many frames.
    pub count: u32,
    /// Routed frames that have arrived on the connection so far.
    pub received: u64,
}

impl ClassCredit {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(self.class);
        out.put_u32(self.count);
        out.put_u64(self.received);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("class credit", bytes);
        let credit = Self { class: reader.u32()?, count: reader.u32()?, received: reader.u64()? };
        reader.end()?;
        Ok(credit)
    }
}

/// What an end of a connection of an overlay tells all nodes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkNotice {
    /// The end that tells it.
    pub by: u32,
    /// The other end.
    pub peer: u32,
    /// Whether `by` has opened the connection.
    pub opened: bool,
    /// Whether it belongs to the topology.
    pub topology: bool,
    /// The opener's number for it.
    pub number: u64,
    /// Routed frames that `by` has received on it, if it broke; `None` if it was opened again.
    pub received: Option<u64>,
}

/// Flags of a [`LinkNotice`].
const NOTICE_OPENED: u8 = 1;
const NOTICE_TOPOLOGY: u8 = 2;
const NOTICE_BROKEN: u8 = 4;

impl LinkNotice {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let mut out = Vec::new();
        out.put_u32(self.by);
        out.put_u32(self.peer);
        out.put_u8(
            flag(self.opened, NOTICE_OPENED)
                | flag(self.topology, NOTICE_TOPOLOGY)
                | flag(self.received.is_some(), NOTICE_BROKEN),
        );
        out.put_u64(self.number);
        out.put_u64(self.received.unwrap_or(0));
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "link notice";
        let mut reader = Reader::new(what, bytes);
        let (by, peer, flags) = (reader.u32()?, reader.u32()?, reader.u8()?);
        let (number, received) = (reader.u64()?, reader.u64()?);
        reader.end()?;
        let is_set = |flag: u8| flags & flag != 0;
        if flags > NOTICE_OPENED | NOTICE_TOPOLOGY | NOTICE_BROKEN {
            return Err(malformed(what, format!("unknown flags {flags:#x}")));
        }
        let received = match is_set(NOTICE_BROKEN) {
            true => Some(received),
            false if received == 0 => None,
            false => return Err(malformed(what, "frames on a connection that has just been opened")),
        };
        Ok(Self {
            by,
            peer,
            opened: is_set(NOTICE_OPENED),
            topology: is_set(NOTICE_TOPOLOGY),
            number,
            received,
        })
    }
}

/// The payload of a [`Lost`](crate::frame::FrameKind::Lost) frame: the number of the node.
pub fn encode_lost(node: u32) -> Vec<u8> {
    node.to_le_bytes().to_vec()
}

/// Decodes the payload of a [`Lost`](crate::frame::FrameKind::Lost) frame.
///
/// # Errors
/// If it is malformed.
pub fn decode_lost(bytes: &[u8]) -> Result<u32> {
    let mut reader = Reader::new("lost", bytes);
    let node = reader.u32()?;
    reader.end()?;
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route() -> Route {
        Route { from: 1, to: 2, hops: 3, accepted: true, tunnel: 5, number: 6 }
    }

    #[test]
    fn a_route_is_decoded_as_it_was_encoded() {
        for accepted in [false, true] {
            let route = Route { accepted, ..route() };
            assert_eq!(Route::decode(&route.encode()).unwrap(), route);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_route_is_detected() {
        for bit in 0..ROUTE_BYTES * 8 {
            let mut bad = route().encode();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(Route::decode(&bad), Err(WireError::Checksum { what: "route", .. })), "{bit}");
        }
    }

    #[test]
    fn payloads_are_decoded_as_they_were_encoded_and_only_as_a_whole() {
        for link in [LinkUse::Topology, LinkUse::DirectOneWay, LinkUse::DirectBothWays] {
            let neighbour = Neighbour { node: 1, peer: 2, link, number: 3, digest: 1 << 60 };
            let bytes = neighbour.encode();
            assert!(bytes.len() <= OVERLAY_BYTES_MAX as usize);
            assert_eq!(Neighbour::decode(&bytes).unwrap(), neighbour);
            assert!(Neighbour::decode(&bytes[1..]).is_err());
        }
        let mut unknown =
            Neighbour { node: 1, peer: 2, link: LinkUse::Topology, number: 0, digest: 0 }.encode();
        unknown[8] = 3;
        assert!(Neighbour::decode(&unknown).unwrap_err().to_string().contains("unknown use 3"));
        let credit = ClassCredit { class: 1, count: u32::MAX, received: 1 << 40 };
        assert_eq!(ClassCredit::decode(&credit.encode()).unwrap(), credit);
        assert!(ClassCredit::decode(&[0; 17]).is_err());
        let notice =
            LinkNotice { by: 1, peer: 2, opened: true, topology: false, number: 9, received: Some(0) };
        for notice in [notice, LinkNotice { topology: true, opened: false, received: None, ..notice }] {
            assert_eq!(LinkNotice::decode(&notice.encode()).unwrap(), notice);
            assert!(LinkNotice::decode(&notice.encode()[1..]).is_err());
        }
        let mut unknown = notice.encode();
        for (at, flags) in [(8, 8), (17, 1)] {
            unknown[8] = 3;
            unknown[at] = flags;
            assert!(LinkNotice::decode(&unknown).is_err(), "{at}");
        }
        assert_eq!(decode_lost(&encode_lost(7)).unwrap(), 7);
        assert!(decode_lost(&[0; 3]).is_err());
    }
}
