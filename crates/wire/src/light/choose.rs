//! Chooses the scheme of each column on a sample of a message. The choice is kept for later messages, and later
//! results with the same columns, while it is good.

use fsst::Compressor;

use super::{Encoded, Scheme};
use crate::codec::{Compression, Packer};

/// A scheme is chosen again when the ratio of a message to its plain size exceeds that of the message for which
/// it was chosen by this factor ...
const DRIFT: f64 = 1.25;
/// ... and this is no drift, however little the first message took.
const DRIFT_FLOOR: f64 = 0.02;
/// ... and after this many messages in any case, because another may be better by then.
const KEPT_MESSAGES: u32 = 256;
/// Finding symbols takes milliseconds for any amount of text. For less text of a column than this, in all messages
/// so far, it saves less than a link sends in that time.
const SYMBOLS_BYTES_MIN: u64 = 64 << 10;
/// A message with less text of a column than this uses no symbols, because their table alone takes 2 KB.
const MESSAGE_SYMBOLS_BYTES_MIN: usize = 8 << 10;
/// A buffer is compressed in addition if that saves at least this fraction of it: one part in this many.
const COMPRESSION_PAYS: usize = 16;
/// Smaller buffers are not compressed.
const COMPRESSED_BYTES_MIN: usize = 64;

/// Values that can be encoded in several ways, without those of NULL rows.
pub(super) trait Site {
    /// The schemes to try, first that of [`Site::plain`].
    fn candidates(&self) -> &'static [Scheme];
    /// The values in a scheme that can represent any values.
    fn plain(&self) -> Encoded;
    /// The size of the values in Arrow's layout.
    fn plain_bytes(&self) -> usize;
    /// The values as one value, if all are equal.
    fn constant(&self) -> Option<Encoded>;
    /// `None` if the scheme can't represent the values.
    fn encode(&self, scheme: Scheme, symbols: &mut Option<Compressor>) -> Option<Encoded>;
    /// A run of the values, as a sample.
    fn sample(&self) -> Self;
}

/// The choice for each column of a result, in the order of the walk.
#[derive(Default)]
pub(crate) struct Columns {
    columns: Vec<Column>,
}

/// A column's scheme, and the measurements on which it was chosen.
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

/// The size of a symbol table of `fsst`.
const SYMBOLS_BYTES: usize = 200 << 10;

impl Columns {
    /// The approximate memory that is kept.
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
    /// The values in the scheme that was chosen before or is chosen now, and the bits of the buffers that are
    /// worth compressing.
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
        let sample = site.sample();
        // A sample of one value says nothing about the others, as of a sorted column.
        let whole = sample.constant().is_some();
        let mut failed = Vec::new();
        let (scheme, compressed, encoded) = loop {
            let tried =
                |scheme: &Scheme| !failed.contains(scheme) && (symbols_tried || *scheme != Scheme::Fsst);
            let by = if whole { site } else { &sample };
            let (scheme, compressed) = choose(by, &mut self.symbols, tried, compression, packer);
            if scheme != Scheme::Fsst {
                self.symbols = None;
            }
            match site.encode(scheme, &mut self.symbols) {
                Some(encoded) => break (scheme, compressed, encoded),
                None if scheme == site.candidates()[0] => break (scheme, compressed, site.plain()),
                // The sample misled: the whole does not have narrow values, or few distinct ones.
                None => failed.push(scheme),
            }
        };
        let share = encoded.bytes() as f64 / plain_bytes;
        self.kept = Some(Kept { scheme, compressed, share, messages: 0, symbols_tried });
        (encoded, compressed)
    }
}

/// Tries schemes, and takes the one with the smallest result.
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
    // Of equal ones the first, which is the cheapest to read.
    let best = tried.min_by_key(|&(bytes, ..)| bytes);
    best.map_or((sample.candidates()[0], 0), |(_, scheme, flags)| (scheme, flags))
}

/// The size of values on the wire, and which of their buffers to compress.
fn cost(encoded: &Encoded, compression: Compression, packer: &mut Packer) -> (usize, u32) {
    let mut bytes = encoded.head.len();
    let mut compressed = 0;
    for (at, buffer) in encoded.buffers.iter().enumerate() {
        let packed = match compression {
            Compression::None => None,
            _ if buffer.len() < COMPRESSED_BYTES_MIN => None,
            // If compression fails, the buffer is sent uncompressed.
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
