//! Frames for a result that comes over several connections (`docs/format.md`, section 8).

use crate::bytes::{Put, Reader};
use crate::error::{Result, malformed};

/// Capability: a result may come over further connections, which join it. On TCP only.
pub const CAPABILITY_JOIN: u64 = 1 << 3;
/// The maximum number of connections that may join a result.
pub const JOINED_MAX: u32 = 64;

/// Lets connections join a result. The secret gives access to rows of the result.
#[derive(Clone, PartialEq, Eq)]
pub struct StripeOffer {
    /// 128 random bits.
    pub secret: [u8; 16],
    /// The number of connections that may join, from 1 to [`JOINED_MAX`]. They are numbered from 1.
    pub connections: u32,
}

impl std::fmt::Debug for StripeOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StripeOffer").field("connections", &self.connections).finish_non_exhaustive()
    }
}

impl StripeOffer {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.secret.to_vec();
        out.put_u32(self.connections);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let what = "stripe offer";
        let mut reader = Reader::new(what, bytes);
        let offer = Self { secret: secret(&mut reader)?, connections: number(what, &mut reader)? };
        reader.end()?;
        Ok(offer)
    }
}

/// A connection joins the result of a [`StripeOffer`].
#[derive(Clone, PartialEq, Eq)]
pub struct Join {
    /// The secret of the stripe offer.
    pub secret: [u8; 16],
    /// The number of the connection, from 1. Each number can be used once.
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
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("join", bytes);
        let join = Self { secret: secret(&mut reader)?, connection: number("join", &mut reader)? };
        reader.end()?;
        Ok(join)
    }
}

/// Replaces the payload of a message that comes over a joined connection, and describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placeholder {
    /// The number of the connection: the payload is that of its next message.
    pub connection: u32,
    /// Bytes of the payload.
    pub bytes: u32,
    /// Rows, as stated in the payload.
    pub rows: u32,
    /// Bytes of the decoded body, as stated in the payload.
    pub body_bytes: u32,
}

impl Placeholder {
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
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("placeholder", bytes);
        let placeholder = Self {
            connection: number("placeholder", &mut reader)?,
            bytes: reader.u32()?,
            rows: reader.u32()?,
            body_bytes: reader.u32()?,
        };
        reader.end()?;
        Ok(placeholder)
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
    fn frames_are_decoded_as_they_were_encoded() {
        for number in [1, JOINED_MAX] {
            let offer = StripeOffer { secret: [7; 16], connections: number };
            assert_eq!(StripeOffer::decode(&offer.encode()).unwrap(), offer);
            let join = Join { secret: [9; 16], connection: number };
            assert_eq!(Join::decode(&join.encode()).unwrap(), join);
            let placeholder = Placeholder { connection: number, bytes: 1, rows: 2, body_bytes: u32::MAX };
            assert_eq!(Placeholder::decode(&placeholder.encode()).unwrap(), placeholder);
        }
    }

    #[test]
    fn wrong_lengths_and_numbers_are_refused() {
        let of = |number| {
            [
                StripeOffer { secret: [0; 16], connections: number }.encode(),
                Join { secret: [0; 16], connection: number }.encode(),
                Placeholder { connection: number, bytes: 0, rows: 0, body_bytes: 0 }.encode(),
            ]
        };
        let refused = |[offer, join, placeholder]: [&[u8]; 3]| {
            assert!(StripeOffer::decode(offer).is_err(), "{offer:?}");
            assert!(Join::decode(join).is_err(), "{join:?}");
            assert!(Placeholder::decode(placeholder).is_err(), "{placeholder:?}");
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
