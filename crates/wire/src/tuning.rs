//! Frames with which the producer chooses the codec and the consumer chooses the sizes (`docs/format.md`,
//! section 3).

use crate::bytes::{Put, Reader};
use crate::codec::Codec;
use crate::error::{Result, malformed};

/// Bit of a hello's capabilities: the consumer may change the sizes during a result.
pub const CAPABILITY_RESIZE: u64 = 1 << 4;

/// Work done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes of Arrow data processed.
    pub bytes: u64,
    /// Nanoseconds spent, summed over all threads.
    pub ns: u64,
}

impl Work {
    /// Adds bytes and nanoseconds.
    pub fn add(&mut self, bytes: u64, ns: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.ns = self.ns.saturating_add(ns);
    }
}

/// What the consumer has measured since the start of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The maximum number of messages that this side decodes concurrently; 0 if unknown.
    pub decoders: u32,
    /// What the application has consumed, and the time that it took.
    pub consumed: Work,
    /// What was decoded of each codec, by [`Codec::index`].
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
    /// If they are malformed, or a codec is unknown or occurs twice.
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
            progress.decoded[codec.index()] = Work { bytes: reader.u64()?, ns: reader.u64()? };
        }
        reader.end()?;
        Ok(progress)
    }
}

/// A part of a transfer that bounds its speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Stage {
    /// Producing the query's rows.
    Produce = 1,
    /// Encoding rows as messages.
    Encode = 2,
    /// The link.
    Send = 3,
    /// Decoding messages to rows.
    Decode = 4,
    /// Processing rows in the application.
    Consume = 5,
}

impl Stage {
    /// All stages, in the order in which rows pass them.
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

/// The producer's choice of codec for the messages that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retune {
    /// The codec.
    pub codec: Codec,
    /// The slowest stage with the previous codec; `None` at the start.
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
    /// If they are malformed.
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

/// Sizes of a result: requested by the consumer, and announced by the producer when they take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// The maximum size of a batch, unless it is a single message.
    pub batch_bytes: u32,
    /// M: the size to which messages are cut.
    pub message_bytes: u32,
    /// W: batches that may be in flight or unconsumed.
    pub window_batches: u32,
}

impl Sizes {
    /// The maximum bytes of rows that are in flight or unconsumed, except for a single larger message.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.batch_bytes) * u64::from(self.window_batches)
    }

    /// Whether no size is larger than that of `other`.
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
    /// If they are malformed, or a size is 0.
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
    fn progress_is_decoded_as_it_was_encoded() {
        let mut progress =
            Progress { decoders: 2, consumed: Work { bytes: 5, ns: 6 }, ..Progress::default() };
        assert_eq!(Progress::decode(&progress.encode()).unwrap(), progress);
        progress.decoded[Codec::Light.index()].add(7, 8);
        progress.decoded[Codec::LightZstd.index()].add(u64::MAX, 1);
        progress.decoded[Codec::LightZstd.index()].add(1, 1);
        assert_eq!(progress.decoded[Codec::LightZstd.index()], Work { bytes: u64::MAX, ns: 2 });
        let bytes = progress.encode();
        assert_eq!(Progress::decode(&bytes).unwrap(), progress);
        (0..bytes.len()).for_each(|len| assert!(Progress::decode(&bytes[..len]).is_err(), "{len}"));
    }

    #[test]
    fn unknown_and_repeated_codecs_are_refused() {
        let mut progress = Progress::default();
        progress.decoded[1].add(1, 1);
        progress.decoded[2].add(1, 1);
        let good = progress.encode();
        for (place, codec) in [(24, 77), (24, 1), (24, 2), (24, 4), (24, 5), (41, 2), (41, 3)] {
            let mut bad = good.clone();
            bad[place] = codec;
            assert!(Progress::decode(&bad).is_err(), "{codec} at {place}");
        }
    }

    #[test]
    fn sizes_are_decoded_and_zeros_are_refused() {
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
    fn retunes_are_decoded_as_they_were_encoded() {
        for codec in Codec::ALL {
            for slowest in Stage::ALL.map(Some).into_iter().chain([None]) {
                let retune = Retune { codec, slowest };
                assert_eq!(Retune::decode(&retune.encode()).unwrap(), retune);
            }
        }
        for bad in [&[6, 0][..], &[1, 0], &[2, 0], &[0, 6], &[0], &[0, 0, 0]] {
            assert!(Retune::decode(bad).is_err(), "{bad:?}");
        }
    }
}
