//! What two ends tell each other so that the producer can choose the codec, and the consumer the sizes
//! (`docs/format.md`, section 3).

use crate::bytes::{Put, Reader};
use crate::codec::Codec;
use crate::error::{Result, malformed};

/// Bit of a hello's capabilities: this side knows the light layout, and a codec
/// that the producer chooses and changes.
pub const CAPABILITY_ADAPTIVE: u64 = 1;

/// Bit of a hello's capabilities: the sizes of a result may change on its way, as its consumer asks.
pub const CAPABILITY_RESIZE: u64 = 1 << 4;

/// Work done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes of Arrow data it was done on.
    pub bytes: u64,
    /// Nanoseconds it took, those of several threads added up.
    pub ns: u64,
}

impl Work {
    /// Adds to it.
    pub fn add(&mut self, bytes: u64, ns: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.ns = self.ns.saturating_add(ns);
    }
}

/// What the consumer has measured since the result began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Messages that this side decodes at once, at most; 0 for unknown.
    pub decoders: u32,
    /// What the application has taken, and how long it was busy with it.
    pub consumed: Work,
    /// What was decoded of each codec, by [`Codec`]'s number.
    pub decoded: [Work; Codec::ALL.len()],
}

impl Progress {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(self.decoders);
        out.put_u64(self.consumed.bytes);
        out.put_u64(self.consumed.ns);
        let decoded = || Codec::ALL.into_iter().zip(self.decoded).filter(|(_, work)| work.bytes > 0);
        out.put_u32(decoded().count() as u32);
        for (codec, work) in decoded() {
            out.put_u8(codec as u8);
            out.put_u64(work.bytes);
            out.put_u64(work.ns);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are no progress: a codec that is not known, or is there twice, too.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("progress", bytes);
        let mut progress = Self {
            decoders: reader.u32()?,
            consumed: Work { bytes: reader.u64()?, ns: reader.u64()? },
            ..Self::default()
        };
        let mut last = None;
        for _ in 0..reader.count(17)? {
            let codec = Codec::parse(reader.u8()?)?;
            if last >= Some(codec) {
                return Err(malformed("progress", format!("{codec} out of order")));
            }
            last = Some(codec);
            progress.decoded[codec as usize] = Work { bytes: reader.u64()?, ns: reader.u64()? };
        }
        reader.end()?;
        Ok(progress)
    }
}

/// A part of a transfer that bounds its speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Making the query's rows.
    Produce = 1,
    /// Rows to messages.
    Encode = 2,
    /// The link.
    Send = 3,
    /// Messages to rows.
    Decode = 4,
    /// What the application does with rows.
    Consume = 5,
}

impl Stage {
    /// All of them, in the order in which rows pass them.
    pub const ALL: [Self; 5] = [Self::Produce, Self::Encode, Self::Send, Self::Decode, Self::Consume];
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Produce => "produce",
            Self::Encode => "encode",
            Self::Send => "send",
            Self::Decode => "decode",
            Self::Consume => "consume",
        })
    }
}

/// The producer's choice for the messages that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retune {
    /// How they are encoded.
    pub codec: Codec,
    /// The slowest stage under what was in use before; `None` at the start.
    pub slowest: Option<Stage>,
}

impl Retune {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        vec![self.codec as u8, self.slowest.map_or(0, |stage| stage as u8)]
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are none.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("retune", bytes);
        let codec = Codec::parse(reader.u8()?)?;
        let slowest = match reader.u8()? {
            0 => None,
            number => Some(
                Stage::ALL
                    .into_iter()
                    .find(|&stage| stage as u8 == number)
                    .ok_or_else(|| malformed("retune", format!("unknown stage {number}")))?,
            ),
        };
        reader.end()?;
        Ok(Self { codec, slowest })
    }
}

/// How much travels at once: asked for by the consumer, and said by the producer where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Most bytes of a batch, but for one of a single message.
    pub batch_bytes: u32,
    /// M: what messages are cut to.
    pub message_bytes: u32,
    /// W: batches that may be on their way or unconsumed.
    pub window_batches: u32,
}

impl Sizes {
    /// Most bytes of rows on their way or unconsumed, but for a single message that is larger.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.batch_bytes) * u64::from(self.window_batches)
    }

    /// Whether none of them is more than the other's.
    pub fn are_within(&self, other: &Self) -> bool {
        self.batch_bytes <= other.batch_bytes
            && self.message_bytes <= other.message_bytes
            && self.window_batches <= other.window_batches
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(self.batch_bytes);
        out.put_u32(self.message_bytes);
        out.put_u32(self.window_batches);
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// When they are no sizes: none of them is 0.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("sizes", bytes);
        let mut size = |name| match reader.u32()? {
            0 => Err(malformed("sizes", format!("{name} is 0"))),
            size => Ok(size),
        };
        let sizes = Self {
            batch_bytes: size("batch_bytes")?,
            message_bytes: size("message_bytes")?,
            window_batches: size("window_batches")?,
        };
        reader.end()?;
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_comes_back() {
        let mut progress =
            Progress { decoders: 2, consumed: Work { bytes: 5, ns: 6 }, ..Progress::default() };
        assert_eq!(Progress::decode(&progress.encode()).unwrap(), progress);
        progress.decoded[Codec::Lz4 as usize].add(7, 8);
        progress.decoded[Codec::LightZstd as usize].add(u64::MAX, 1);
        progress.decoded[Codec::LightZstd as usize].add(1, 1);
        assert_eq!(progress.decoded[Codec::LightZstd as usize], Work { bytes: u64::MAX, ns: 2 });
        let bytes = progress.encode();
        assert_eq!(Progress::decode(&bytes).unwrap(), progress);
        (0..bytes.len()).for_each(|len| assert!(Progress::decode(&bytes[..len]).is_err(), "{len}"));
    }

    #[test]
    fn codecs_that_are_unknown_or_there_twice_are_refused() {
        let mut progress = Progress::default();
        progress.decoded[1].add(1, 1);
        progress.decoded[2].add(1, 1);
        let good = progress.encode();
        for (place, codec) in [(24, 77), (24, 2), (24, 3), (41, 1)] {
            let mut bad = good.clone();
            bad[place] = codec;
            assert!(Progress::decode(&bad).is_err(), "{codec} at {place}");
        }
    }

    #[test]
    fn sizes_come_back_and_none_is_zero() {
        let sizes = Sizes { batch_bytes: 3, message_bytes: 2, window_batches: 1 };
        assert_eq!(Sizes::decode(&sizes.encode()).unwrap(), sizes);
        assert_eq!(sizes.memory_bytes(), 3);
        for zero in [
            Sizes { batch_bytes: 0, ..sizes },
            Sizes { message_bytes: 0, ..sizes },
            Sizes { window_batches: 0, ..sizes },
        ] {
            assert!(Sizes::decode(&zero.encode()).is_err() && zero.are_within(&sizes));
            assert!(!sizes.are_within(&zero));
        }
        let bytes = sizes.encode();
        (0..bytes.len()).for_each(|len| assert!(Sizes::decode(&bytes[..len]).is_err(), "{len}"));
        assert!(Sizes::decode(&[bytes, vec![0]].concat()).is_err());
    }

    #[test]
    fn choices_come_back() {
        for codec in Codec::ALL {
            for slowest in Stage::ALL.map(Some).into_iter().chain([None]) {
                let retune = Retune { codec, slowest };
                assert_eq!(Retune::decode(&retune.encode()).unwrap(), retune);
            }
        }
        for bad in [&[6, 0][..], &[0, 6], &[0], &[0, 0, 0]] {
            assert!(Retune::decode(bad).is_err(), "{bad:?}");
        }
    }
}
