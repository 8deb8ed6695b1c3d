//! What is said so that one result can come over several connections
//! (`docs/format.md`, section 8).

use crate::bytes::{Put, Reader};
use crate::error::{Result, malformed};

/// Capability: a result may come over further connections, which join it. On TCP only.
pub const CAPABILITY_JOIN: u64 = 1 << 3;
/// Most connections that may join a result.
pub const JOINED_MAX: u32 = 64;

/// What lets connections join a result. Whoever has it may read rows of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// 128 random bits.
    pub secret: [u8; 16],
    /// Connections that may join, from 1 to [`JOINED_MAX`]; they have the numbers from 1 to this.
    pub connections: u32,
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl Ticket {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.secret.to_vec();
        out.put_u32(self.connections);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("ticket", bytes);
        let ticket = Self { secret: secret(&mut reader)?, connections: number("ticket", &mut reader)? };
        reader.end()?;
        Ok(ticket)
    }
}

/// A connection joins the result of a [`Ticket`].
#[derive(Clone, PartialEq, Eq)]
pub struct Join {
    /// The ticket's.
    pub secret: [u8; 16],
    /// Number of the connection, from 1. Each can be had once.
    pub connection: u32,
}

impl std::fmt::Debug for Join {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Join").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Join {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.secret.to_vec();
        out.put_u32(self.connection);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("join", bytes);
        let join = Self { secret: secret(&mut reader)?, connection: number("join", &mut reader)? };
        reader.end()?;
        Ok(join)
    }
}

/// In the stead of a message's payload, which comes by a joined connection: what it will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dealt {
    /// Which connection: the payload is that of its next message.
    pub connection: u32,
    /// Bytes of the payload.
    pub bytes: u32,
    /// Rows in it, as the payload says.
    pub rows: u32,
    /// Bytes of its body once decoded, as the payload says.
    pub body_bytes: u32,
}

impl Dealt {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for value in [self.connection, self.bytes, self.rows, self.body_bytes] {
            out.put_u32(value);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("dealt message", bytes);
        let dealt = Self {
            connection: number("dealt message", &mut reader)?,
            bytes: reader.u32()?,
            rows: reader.u32()?,
            body_bytes: reader.u32()?,
        };
        reader.end()?;
        Ok(dealt)
    }
}

fn secret(reader: &mut Reader<'_>) -> Result<[u8; 16]> {
    let mut secret = [0; 16];
    secret.copy_from_slice(reader.take(16)?);
    Ok(secret)
}

fn number(what: &'static str, reader: &mut Reader<'_>) -> Result<u32> {
    match reader.u32()? {
        number @ 1..=JOINED_MAX => Ok(number),
        number => Err(malformed(what, format!("{number} connections"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_back() {
        for number in [1, JOINED_MAX] {
            let ticket = Ticket { secret: [7; 16], connections: number };
            assert_eq!(Ticket::decode(&ticket.encode()).unwrap(), ticket);
            let join = Join { secret: [9; 16], connection: number };
            assert_eq!(Join::decode(&join.encode()).unwrap(), join);
            let dealt = Dealt { connection: number, bytes: 1, rows: 2, body_bytes: u32::MAX };
            assert_eq!(Dealt::decode(&dealt.encode()).unwrap(), dealt);
        }
    }

    #[test]
    fn what_is_cut_too_long_or_of_no_connection_is_refused() {
        let of = |number| {
            [
                Ticket { secret: [0; 16], connections: number }.encode(),
                Join { secret: [0; 16], connection: number }.encode(),
                Dealt { connection: number, bytes: 0, rows: 0, body_bytes: 0 }.encode(),
            ]
        };
        let refused = |[ticket, join, dealt]: [&[u8]; 3]| {
            assert!(Ticket::decode(ticket).is_err(), "{ticket:?}");
            assert!(Join::decode(join).is_err(), "{join:?}");
            assert!(Dealt::decode(dealt).is_err(), "{dealt:?}");
        };
        let good = of(1);
        for len in 0..16 {
            refused(good.each_ref().map(|bytes| &bytes[..len]));
        }
        refused(good.clone().map(|bytes| [bytes, vec![0]].concat()).each_ref().map(Vec::as_slice));
        for number in [0, JOINED_MAX + 1, u32::MAX] {
            refused(of(number).each_ref().map(Vec::as_slice));
        }
    }
}
