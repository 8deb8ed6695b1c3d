//! What two ends on one host say to each other: where to meet, and where in
//! shared memory a payload lies (`docs/format.md`, section 7).

use crate::bytes::{Put, Reader};
use crate::error::{Result, malformed};

/// Capability: payloads of messages may lie in segments of shared memory. Of a
/// client: it takes them; of a server: it will use them. On Unix sockets only.
pub const CAPABILITY_SEGMENTS: u64 = 1 << 1;
/// Capability: a client would rather meet on a Unix socket of this host; a server
/// tells where in a [`Meeting`] right after its hello.
pub const CAPABILITY_MEETING: u64 = 1 << 2;

/// Every name in a [`Meeting`] begins with this; a client connects to no other.
pub const MEETING_NAME_PREFIX: &str = "lightship-";
/// Payloads in a segment begin at a multiple of this: what vector instructions and cache lines like.
pub const PLACE_ALIGNMENT: u32 = 64;

/// A Unix socket where a server waits for one client that has come to it by TCP.
#[derive(Clone, PartialEq, Eq)]
pub struct Meeting {
    /// Name in the abstract namespace, without its leading zero byte. Not a
    /// secret: the system shows such names to everybody.
    pub name: String,
    /// The token of the client's hello on that socket: only this client has it.
    pub client_token: String,
    /// The token of the server's hello there: only this server has it.
    pub server_token: String,
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meeting").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Meeting {
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
    /// When they are none, or name a socket that can't be Lightship's.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("meeting", bytes);
        let meeting = Self {
            name: reader.str()?.to_owned(),
            client_token: reader.str()?.to_owned(),
            server_token: reader.str()?.to_owned(),
        };
        reader.end()?;
        if meeting.name.starts_with(MEETING_NAME_PREFIX) {
            Ok(meeting)
        } else {
            Err(malformed("meeting", "a name that is not Lightship's"))
        }
    }
}

/// Where a message's payload lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the segment, from 1, ascending on a connection.
    pub segment: u32,
    /// First byte in it, a multiple of [`PLACE_ALIGNMENT`].
    pub offset: u32,
    /// Bytes of the payload.
    pub bytes: u32,
    /// CRC-32C of the payload.
    pub crc: u32,
}

impl Place {
    /// Bytes of a place on the wire.
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
    /// When they are none. Whether the segment has such a place is the reader's to judge.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("place", bytes);
        let place =
            Self { segment: reader.u32()?, offset: reader.u32()?, bytes: reader.u32()?, crc: reader.u32()? };
        reader.end()?;
        if place.offset.is_multiple_of(PLACE_ALIGNMENT) {
            Ok(place)
        } else {
            Err(malformed("place", format!("offset {} is not aligned", place.offset)))
        }
    }
}

/// A place that its consumer is done with: segment and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Loan {
    /// The segment's number.
    pub segment: u32,
    /// Where the place begins.
    pub offset: u32,
}

impl Loan {
    /// Bytes of a loan on the wire.
    pub const BYTES: usize = 8;
}

/// Most loans that one frame gives back.
pub const RELEASE_LOANS_MAX: usize = 1024;

/// Places given back, as bytes: at most [`RELEASE_LOANS_MAX`].
pub fn encode_release(loans: &[Loan]) -> Vec<u8> {
    let mut out = Vec::with_capacity(loans.len() * Loan::BYTES);
    for loan in loans {
        out.put_u32(loan.segment);
        out.put_u32(loan.offset);
    }
    out
}

/// What [`encode_release`] wrote.
///
/// # Errors
/// When the bytes are none, or too many.
pub fn decode_release(bytes: &[u8]) -> Result<Vec<Loan>> {
    let count = bytes.len() / Loan::BYTES;
    if count > RELEASE_LOANS_MAX {
        return Err(malformed("release", format!("{count} places at once")));
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
    fn they_come_back() {
        let meeting = Meeting {
            name: "lightship-1".into(),
            client_token: "client".into(),
            server_token: "server".into(),
        };
        assert_eq!(Meeting::decode(&meeting.encode()).unwrap(), meeting);
        let place = Place { segment: 1, offset: 128, bytes: 9, crc: 7 };
        assert_eq!(Place::decode(&place.encode()).unwrap(), place);
        assert_eq!(place.encode().len(), Place::BYTES);
        let loans: Vec<Loan> = (0..3).map(|n| Loan { segment: n, offset: 64 * n }).collect();
        assert_eq!(decode_release(&encode_release(&loans)).unwrap(), loans);
    }

    #[test]
    fn what_is_cut_too_long_or_strange_is_refused() {
        let meeting = |name: &str| Meeting {
            name: name.into(),
            client_token: "client".into(),
            server_token: "server".into(),
        };
        let bytes = meeting("lightship-1").encode();
        (0..bytes.len()).for_each(|len| assert!(Meeting::decode(&bytes[..len]).is_err(), "{len}"));
        assert!(Meeting::decode(&meeting("/run/dbus").encode()).is_err());

        let place = Place { segment: 1, offset: 64, bytes: 9, crc: 7 };
        (0..Place::BYTES).for_each(|len| assert!(Place::decode(&place.encode()[..len]).is_err(), "{len}"));
        assert!(Place::decode(&[place.encode(), vec![0]].concat()).is_err());
        assert!(Place::decode(&Place { offset: 65, ..place }.encode()).is_err());

        let loans = vec![Loan { segment: 1, offset: 0 }; RELEASE_LOANS_MAX + 1];
        assert!(decode_release(&encode_release(&loans)).is_err());
        assert!(decode_release(&encode_release(&loans[1..])).is_ok());
        assert!(decode_release(&encode_release(&loans[..1])[..7]).is_err());
    }
}
