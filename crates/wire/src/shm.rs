//! Frames between a client and a server on one host: the rendezvous, and slots of shared memory
//! (`docs/format.md`, section 7).

use crate::bytes::{Put, Reader};
use crate::error::{Result, malformed};

/// Capability: payloads of messages may lie in segments of shared memory. A client with it accepts them; a
/// server with it uses them. On Unix sockets only.
pub const CAPABILITY_SEGMENTS: u64 = 1 << 1;
/// Capability: the client prefers a Unix socket on this host. The server sends a [`Rendezvous`] right after
/// its hello.
pub const CAPABILITY_RENDEZVOUS: u64 = 1 << 2;

/// Every name in a [`Rendezvous`] begins with this; a client refuses others.
pub const RENDEZVOUS_NAME_PREFIX: &str = "lightship-";
/// Payloads in a segment begin at a multiple of this, for vector instructions and cache lines.
pub const PLACE_ALIGNMENT: u32 = 64;

/// A Unix socket where a server waits for a client that has connected by TCP.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendezvous {
    /// Name in the abstract namespace, without its leading zero byte. It is not secret: the system shows such
    /// names to all users.
    pub name: String,
    /// The token of the client's hello on that socket, known only to this client.
    pub client_token: String,
    /// The token of the server's hello there, known only to this server.
    pub server_token: String,
}

impl std::fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rendezvous").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Rendezvous {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for text in [&self.name, &self.client_token, &self.server_token] {
            out.put_str(text);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed, or the name does not begin with [`RENDEZVOUS_NAME_PREFIX`].
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("rendezvous", bytes);
        let rendezvous = Self {
            name: reader.str()?.to_owned(),
            client_token: reader.str()?.to_owned(),
            server_token: reader.str()?.to_owned(),
        };
        reader.end()?;
        if rendezvous.name.starts_with(RENDEZVOUS_NAME_PREFIX) {
            Ok(rendezvous)
        } else {
            Err(malformed("rendezvous", "a name that is not Lightship's"))
        }
    }
}

/// Where a message's payload lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSlot {
    /// Number of the segment, from 1, ascending on a connection.
    pub segment: u32,
    /// Its first byte, a multiple of [`PLACE_ALIGNMENT`].
    pub offset: u32,
    /// Bytes of the payload.
    pub bytes: u32,
    /// CRC-32C of the payload.
    pub crc: u32,
}

impl SegmentSlot {
    /// The size of a slot on the wire.
    pub const BYTES: usize = 16;

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        for value in [self.segment, self.offset, self.bytes, self.crc] {
            out.put_u32(value);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed. The caller must check that the segment has such a slot.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("slot", bytes);
        let slot =
            Self { segment: reader.u32()?, offset: reader.u32()?, bytes: reader.u32()?, crc: reader.u32()? };
        reader.end()?;
        if slot.offset.is_multiple_of(PLACE_ALIGNMENT) {
            Ok(slot)
        } else {
            Err(malformed("slot", format!("offset {} is not aligned", slot.offset)))
        }
    }
}

/// A slot that the consumer releases: segment and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Loan {
    /// The segment's number.
    pub segment: u32,
    /// The offset of the slot.
    pub offset: u32,
}

impl Loan {
    /// The size of a loan on the wire.
    pub const BYTES: usize = 8;
}

/// The maximum number of loans in one release.
pub const RELEASE_LOANS_MAX: usize = 1024;

/// Encodes a release of at most [`RELEASE_LOANS_MAX`] loans.
pub fn encode_release(loans: &[Loan]) -> Vec<u8> {
    let mut out = Vec::with_capacity(loans.len() * Loan::BYTES);
    for loan in loans {
        out.put_u32(loan.segment);
        out.put_u32(loan.offset);
    }
    out
}

/// Decodes what [`encode_release`] wrote.
///
/// # Errors
/// If the bytes are malformed, or there are too many loans.
pub fn decode_release(bytes: &[u8]) -> Result<Vec<Loan>> {
    let count = bytes.len() / Loan::BYTES;
    if count > RELEASE_LOANS_MAX {
        return Err(malformed("release", format!("{count} slots at once")));
    }
    let mut reader = Reader::new("release", bytes);
    let loans = (0..count)
        .map(|_| Ok(Loan { segment: reader.u32()?, offset: reader.u32()? }))
        .collect::<Result<_>>()?;
    reader.end()?;
    Ok(loans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_decoded_as_they_were_encoded() {
        let meeting = Rendezvous {
            name: "lightship-1".into(),
            client_token: "client".into(),
            server_token: "server".into(),
        };
        assert_eq!(Rendezvous::decode(&meeting.encode()).unwrap(), meeting);
        let place = SegmentSlot { segment: 1, offset: 128, bytes: 9, crc: 7 };
        assert_eq!(SegmentSlot::decode(&place.encode()).unwrap(), place);
        assert_eq!(place.encode().len(), SegmentSlot::BYTES);
        let loans: Vec<Loan> = (0..3).map(|n| Loan { segment: n, offset: 64 * n }).collect();
        assert_eq!(decode_release(&encode_release(&loans)).unwrap(), loans);
    }

    #[test]
    fn malformed_frames_are_refused() {
        let meeting = |name: &str| Rendezvous {
            name: name.into(),
            client_token: "client".into(),
            server_token: "server".into(),
        };
        let bytes = meeting("lightship-1").encode();
        (0..bytes.len()).for_each(|len| assert!(Rendezvous::decode(&bytes[..len]).is_err(), "{len}"));
        assert!(Rendezvous::decode(&meeting("/run/dbus").encode()).is_err());

        let place = SegmentSlot { segment: 1, offset: 64, bytes: 9, crc: 7 };
        (0..SegmentSlot::BYTES)
            .for_each(|len| assert!(SegmentSlot::decode(&place.encode()[..len]).is_err(), "{len}"));
        assert!(SegmentSlot::decode(&[place.encode(), vec![0]].concat()).is_err());
        assert!(SegmentSlot::decode(&SegmentSlot { offset: 65, ..place }.encode()).is_err());

        let loans = vec![Loan { segment: 1, offset: 0 }; RELEASE_LOANS_MAX + 1];
        assert!(decode_release(&encode_release(&loans)).is_err());
        assert!(decode_release(&encode_release(&loans[1..])).is_ok());
        assert!(decode_release(&encode_release(&loans[..1])[..7]).is_err());
    }
}
