//! Unsigned integers in as few bits as the largest of them needs.
//!
//! Blocks of 1024 go through the FastLanes kernels (A. Afroozeh, P. Boncz, "The
//! FastLanes Compression Layout", PVLDB 2023), in the smallest lanes that hold
//! the width. The rest is a plain string of bits, so that a short run is not padded to a block.

use arrow_buffer::{ArrowNativeType, ToByteSlice};
use fastlanes::BitPacking;

pub(super) const BLOCK: usize = 1024;

/// A lane: the word that values are packed from and unpacked to.
pub(super) trait Lane: BitPacking + ArrowNativeType {
    const ZERO: Self;
    const BITS: u32;
    fn narrow(word: u64) -> Self;
    fn widen(self) -> u64;
}

macro_rules! lane {
    ($($t:ty),*) => {$(
        impl Lane for $t {
            const ZERO: Self = 0;
            const BITS: u32 = <$t>::BITS;
            #[inline(always)]
            fn narrow(word: u64) -> Self {
                word as $t
            }
            #[inline(always)]
            fn widen(self) -> u64 {
                self as u64
            }
        }
    )*};
}
lane!(u8, u16, u32, u64);

/// Bits that a value of at most `max` needs.
pub(super) fn width_of(max: u64) -> u32 {
    u64::BITS - max.leading_zeros()
}

/// Bytes of `count` values of `width` bits.
pub(super) fn packed_bytes(count: usize, width: u32) -> usize {
    let (blocks, tail) = (count / BLOCK, count % BLOCK);
    blocks * block_bytes(width) + (tail * width as usize).div_ceil(8)
}

fn block_bytes(width: u32) -> usize {
    BLOCK / 8 * width as usize
}

/// Calls a function with the lane type for a width.
macro_rules! with_lane {
    ($width:expr, $lane:ident => $body:expr) => {
        match $width {
            0..=8 => {
                type $lane = u8;
                $body
            }
            9..=16 => {
                type $lane = u16;
                $body
            }
            17..=32 => {
                type $lane = u32;
                $body
            }
            _ => {
                type $lane = u64;
                $body
            }
        }
    };
}
pub(super) use with_lane;

/// Packs values; `word` converts each to a word below 2^`width`.
pub(super) fn pack<V: Copy, L: Lane>(values: &[V], width: u32, out: &mut Vec<u8>, word: impl Fn(V) -> u64) {
    debug_assert!(width <= L::BITS);
    out.reserve(packed_bytes(values.len(), width));
    let mut block = [L::ZERO; BLOCK];
    let mut packed = [L::ZERO; BLOCK];
    let words = BLOCK * width as usize / L::BITS as usize;
    let blocks = values.chunks_exact(BLOCK);
    let tail = blocks.remainder();
    for values in blocks {
        block.iter_mut().zip(values).for_each(|(slot, &value)| *slot = L::narrow(word(value)));
        // SAFETY: a block has 1024 words, `packed[..words]` has 1024 x width / bits words, and
        // the width is at most that of the lane.
        unsafe { L::unchecked_pack(width as usize, &block, &mut packed[..words]) };
        out.extend_from_slice(packed[..words].to_byte_slice());
    }
    let (mut bits, mut held) = (0u128, 0);
    for &value in tail {
        bits |= u128::from(word(value)) << held;
        held += width;
        while held >= 8 {
            out.push(bits as u8);
            bits >>= 8;
            held -= 8;
        }
    }
    if held > 0 {
        out.push(bits as u8);
    }
}

/// Unpacks what [`pack`] wrote, up to a block at a time. `packed` must begin at a
/// multiple of its lane's size and have just [`packed_bytes`] bytes.
pub(super) fn unpack<L: Lane>(packed: &[u8], count: usize, width: u32, mut take: impl FnMut(&[L])) {
    assert!(packed.len() == packed_bytes(count, width) && width <= L::BITS);
    let mut block = [L::ZERO; BLOCK];
    let (blocks, tail) = packed.split_at(count / BLOCK * block_bytes(width));
    if width == 0 {
        (0..count / BLOCK).for_each(|_| take(&block));
    } else {
        // SAFETY: every bit pattern is an integer.
        let (before, words, after) = unsafe { blocks.align_to::<L>() };
        assert!(before.is_empty() && after.is_empty(), "packed words out of their alignment");
        for words in words.chunks_exact(BLOCK * width as usize / L::BITS as usize) {
            // SAFETY: as in `pack`; the width was just checked.
            unsafe { L::unchecked_unpack(width as usize, words, &mut block) };
            take(&block);
        }
    }
    let rest = &mut block[..count % BLOCK];
    unpack_tail(tail, width, rest);
    if !rest.is_empty() {
        take(rest);
    }
}

fn unpack_tail<L: Lane>(bytes: &[u8], width: u32, out: &mut [L]) {
    let mask = if width == 0 { 0 } else { u64::MAX >> (u64::BITS - width) };
    for (index, slot) in out.iter_mut().enumerate() {
        let bit = index * width as usize;
        let (first, shift) = (bit / 8, bit as u32 % 8);
        // A value may begin in the middle of a byte: it is in 9 bytes at most.
        let word = match bytes.get(first..).and_then(|rest| rest.first_chunk()) {
            Some(word) if width + shift <= u64::BITS => u64::from_le_bytes(*word) >> shift,
            _ => {
                let near = bytes.iter().skip(first).take(9).rev();
                (near.fold(0u128, |word, &byte| (word << 8) | u128::from(byte)) >> shift) as u64
            }
        };
        *slot = L::narrow(word & mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(count: usize, width: u32) {
        let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
        let words: Vec<_> = (0..count as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask).collect();
        with_lane!(width, L => {
            let mut packed = Vec::new();
            pack::<u64, L>(&words, width, &mut packed, |word| word);
            assert_eq!(packed.len(), packed_bytes(count, width));
            // Aligned, as the body of a message is.
            let packed = arrow_buffer::Buffer::from(packed.as_slice());
            let mut back = Vec::new();
            unpack::<L>(&packed, count, width, |words| back.extend(words.iter().map(|w| w.widen())));
            assert_eq!(back, words, "{count} of {width} bits");
        });
    }

    #[test]
    fn every_width_is_unpacked_as_it_was_packed() {
        for width in 0..=64 {
            for count in [0, 1, 7, 8, 1023, 1024, 1025, 3000] {
                round_trip(count, width);
            }
        }
    }

    #[test]
    fn widths_are_minimal() {
        for (max, width) in [(0, 0), (1, 1), (2, 2), (255, 8), (256, 9), (u64::MAX, 64)] {
            assert_eq!(width_of(max), width);
        }
    }
}
