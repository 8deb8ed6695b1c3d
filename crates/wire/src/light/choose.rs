//! Which scheme a column travels in: found out on a sample of a message, and kept
//! while it holds, for the next messages and the next results with the same columns.

use fsst::Compressor;

use super::{Encoded, Scheme};
use crate::codec::{Compression, Packer};

/// A scheme is chosen anew when a message takes this much more of its plain size
/// than the one it was chosen for...
const DRIFT: f64 = 1.25;
/// ... and this is no drift, however little the first message took.
const DRIFT_FLOOR: f64 = 0.02;
/// ... and after so many messages in any case: another may do better by now.
const KEPT_MESSAGES: u32 = 256;
/// To find symbols takes milliseconds, whatever they are found in: less text of a column than this, in all
/// messages so far, does not get smaller by as much as a link sends in that time.
const SYMBOLS_BYTES_MIN: u64 = 64 << 10;
/// A message with less text of a column than this does without the symbols: their table alone takes 2 KB.
const MESSAGE_SYMBOLS_BYTES_MIN: usize = 8 << 10;
/// A buffer is compressed on top where that saves at least one part in so many.
const COMPRESSION_PAYS: usize = 16;
/// Below this, compressing is not tried.
const COMPRESSED_BYTES_MIN: usize = 64;

/// Values that can be encoded in several ways; those below NULLs are left out.
pub(super) trait Site {
    /// Schemes to be tried, that of [`Site::plain`] first.
    fn candidates(&self) -> &'static [Scheme];
    /// In a scheme that can hold any values.
    fn plain(&self) -> Encoded;
    /// Bytes of the values as Arrow has them.
    fn plain_bytes(&self) -> usize;
    /// As one value, where all are equal.
    fn constant(&self) -> Option<Encoded>;
    /// `None` where the scheme can't hold the values.
    fn encode(&self, scheme: Scheme, symbols: &mut Option<Compressor>) -> Option<Encoded>;
    /// A run of the values that stands for all of them.
    fn sample(&self) -> Self;
}

/// What was chosen for each column of a result, in the order of the walk.
#[derive(Default)]
pub(crate) struct Columns {
    columns: Vec<Column>,
}

/// A column's scheme, and what it was chosen on.
#[derive(Default)]
pub(super) struct Column {
    kept: Option<Kept>,
    symbols: Option<Compressor>,
    /// Plain size of all messages so far.
    seen_bytes: u64,
}

struct Kept {
    scheme: Scheme,
    /// Bit n: buffer n is worth compressing.
    compressed: u32,
    /// Of the plain size.
    share: f64,
    messages: u32,
    /// Whether symbols were tried.
    symbols_tried: bool,
}

impl std::fmt::Debug for Columns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let schemes = self.columns.iter().map(|column| column.kept.as_ref().map(|kept| kept.scheme));
        f.debug_list().entries(schemes).finish()
    }
}

/// What a table of symbols takes, as `fsst` makes it.
const SYMBOLS_BYTES: usize = 200 << 10;

impl Columns {
    /// Memory that is kept, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        let symbols = self.columns.iter().filter(|column| column.symbols.is_some()).count();
        self.columns.capacity() * size_of::<Column>() + symbols * SYMBOLS_BYTES
    }

    pub(super) fn column(&mut self, index: usize) -> &mut Column {
        if index >= self.columns.len() {
            self.columns.resize_with(index + 1, Column::default);
        }
        &mut self.columns[index]
    }
}

impl Column {
    /// The values in the scheme that was chosen, or one chosen now; and the bits of
    /// the buffers that are worth compressing.
    pub(super) fn encode<S: Site>(
        &mut self,
        site: &S,
        compression: Compression,
        packer: &mut Packer,
    ) -> (Encoded, u32) {
        if let Some(constant) = site.constant() {
            return (constant, 0);
        }
        let plain_bytes = site.plain_bytes() as f64;
        self.seen_bytes += site.plain_bytes() as u64;
        let symbols_tried = self.seen_bytes >= SYMBOLS_BYTES_MIN && site.candidates().contains(&Scheme::Fsst);
        if self.symbols.is_some() && site.plain_bytes() < MESSAGE_SYMBOLS_BYTES_MIN {
            let (scheme, compressed) =
                choose(site, &mut None, |scheme| *scheme != Scheme::Fsst, compression, packer);
            return (site.encode(scheme, &mut None).unwrap_or_else(|| site.plain()), compressed);
        }
        if let Some(kept) = &mut self.kept
            && kept.messages < KEPT_MESSAGES
            && kept.symbols_tried == symbols_tried
        {
            kept.messages += 1;
            if let Some(encoded) = site.encode(kept.scheme, &mut self.symbols)
                && encoded.bytes() as f64 <= plain_bytes * (kept.share * DRIFT + DRIFT_FLOOR)
            {
                return (encoded, kept.compressed);
            }
        }
        self.symbols = None;
        let mut failed = Vec::new();
        let (scheme, compressed, encoded) = loop {
            let tried =
                |scheme: &Scheme| !failed.contains(scheme) && (symbols_tried || *scheme != Scheme::Fsst);
            let (scheme, compressed) = choose(&site.sample(), &mut self.symbols, tried, compression, packer);
            if scheme != Scheme::Fsst {
                self.symbols = None;
            }
            match site.encode(scheme, &mut self.symbols) {
                Some(encoded) => break (scheme, compressed, encoded),
                None if scheme == site.candidates()[0] => break (scheme, compressed, site.plain()),
                // What the sample had, the whole has not: narrow values, or few distinct ones.
                None => failed.push(scheme),
            }
        };
        let share = encoded.bytes() as f64 / plain_bytes;
        self.kept = Some(Kept { scheme, compressed, share, messages: 0, symbols_tried });
        (encoded, compressed)
    }
}

/// Tries schemes, and takes the smallest.
fn choose<S: Site>(
    sample: &S,
    symbols: &mut Option<Compressor>,
    tried: impl Fn(&Scheme) -> bool,
    compression: Compression,
    packer: &mut Packer,
) -> (Scheme, u32) {
    let candidates = sample.candidates().iter().filter(|scheme| tried(scheme));
    let tried = candidates.filter_map(|&scheme| {
        let encoded = sample.encode(scheme, symbols)?;
        let (bytes, compressed) = cost(&encoded, compression, packer);
        Some((bytes, scheme, compressed))
    });
    // Of equals the first, which is the cheapest to read.
    let best = tried.min_by_key(|&(bytes, ..)| bytes);
    best.map_or((sample.candidates()[0], 0), |(_, scheme, flags)| (scheme, flags))
}

/// What values take on the wire, and which of their buffers to compress for it.
fn cost(encoded: &Encoded, compression: Compression, packer: &mut Packer) -> (usize, u32) {
    let mut bytes = encoded.head.len();
    let mut compressed = 0;
    for (at, buffer) in encoded.buffers.iter().enumerate() {
        let packed = match compression {
            Compression::None => None,
            _ if buffer.len() < COMPRESSED_BYTES_MIN => None,
            // A buffer that can't be compressed is one that does not shrink.
            compression => packer.compress(compression, buffer).ok().flatten().map(|packed| packed.len()),
        };
        bytes += match packed {
            Some(packed) if packed < buffer.len() - buffer.len() / COMPRESSION_PAYS => {
                compressed |= 1 << at;
                packed
            }
            _ => buffer.len(),
        };
    }
    (bytes, compressed)
}
