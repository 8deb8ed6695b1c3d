//! Rows of COPY as `CopyData` messages.

use std::io::IoSlice;

use bytes::Buf;

use super::super::message::MessageHeader;

/// Rows divided into messages, without copying them. A message may end within a row.
pub(super) struct CopyData<'a> {
    rows: &'a [u8],
    body_bytes_max: usize,
    /// The headers of all messages but the last, and of the last.
    headers: [[u8; MessageHeader::BYTES]; 2],
    /// Bytes already sent, headers included.
    sent: usize,
}

impl<'a> CopyData<'a> {
    /// `body_bytes_max`: the most bytes of rows in a message.
    pub(super) fn new(rows: &'a [u8], body_bytes_max: usize) -> Self {
        let header = |body_bytes: usize| {
            let mut header = [b'd'; MessageHeader::BYTES];
            // The length counts itself.
            header[1..].copy_from_slice(&(body_bytes as u32 + 4).to_be_bytes());
            header
        };
        let last = match rows.len() % body_bytes_max {
            0 => body_bytes_max,
            rest => rest,
        };
        Self { rows, body_bytes_max, headers: [header(body_bytes_max), header(last)], sent: 0 }
    }

    fn total(&self) -> usize {
        self.rows.len() + self.rows.len().div_ceil(self.body_bytes_max) * MessageHeader::BYTES
    }

    /// The header or body that contains byte `at` of all messages, from there on.
    fn piece(&self, at: usize) -> &[u8] {
        let message_bytes = MessageHeader::BYTES + self.body_bytes_max;
        let (message, at) = (at / message_bytes, at % message_bytes);
        let start = message * self.body_bytes_max;
        let rest = self.rows.get(start..).unwrap_or_default();
        if rest.is_empty() {
            return &[];
        }
        match at.checked_sub(MessageHeader::BYTES) {
            None => &self.headers[usize::from(rest.len() <= self.body_bytes_max)][at..],
            Some(at) => &rest[at..rest.len().min(self.body_bytes_max)],
        }
    }
}

impl Buf for CopyData<'_> {
    fn remaining(&self) -> usize {
        self.total() - self.sent
    }

    fn chunk(&self) -> &[u8] {
        self.piece(self.sent)
    }

    fn chunks_vectored<'a>(&'a self, pieces: &mut [IoSlice<'a>]) -> usize {
        let mut at = self.sent;
        let mut count = 0;
        for slot in pieces {
            let piece = self.piece(at);
            if piece.is_empty() {
                break;
            }
            *slot = IoSlice::new(piece);
            at += piece.len();
            count += 1;
        }
        count
    }

    fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "advanced beyond the end");
        self.sent += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages, as read by taking at most `step` bytes at a time.
    fn written(rows: &[u8], body_bytes_max: usize, step: usize, slices: usize) -> Vec<u8> {
        let mut messages = CopyData::new(rows, body_bytes_max);
        let mut all = Vec::new();
        while messages.has_remaining() {
            let mut pieces = vec![IoSlice::new(&[]); slices];
            let count = messages.chunks_vectored(&mut pieces);
            let bytes: Vec<u8> = pieces[..count].iter().flat_map(|piece| piece.iter().copied()).collect();
            assert!(bytes.starts_with(messages.chunk()));
            let taken = bytes.len().min(step);
            all.extend_from_slice(&bytes[..taken]);
            messages.advance(taken);
        }
        assert!(messages.chunk().is_empty());
        all
    }

    #[test]
    fn rows_are_divided_into_messages_however_they_are_written() {
        let rows: Vec<u8> = (0..23).collect();
        for body_bytes_max in [1, 4, 10, 22, 23, 24] {
            for length in [0, 1, 4, 20, 22, 23] {
                let rows = &rows[..length];
                let expected: Vec<u8> = rows
                    .chunks(body_bytes_max)
                    .flat_map(|body| [&[b'd', 0, 0, 0, body.len() as u8 + 4], body].concat())
                    .collect();
                for (step, slices) in [(1, 1), (3, 2), (7, 5), (1000, 3), (1000, 64)] {
                    let found = written(rows, body_bytes_max, step, slices);
                    assert_eq!(
                        found, expected,
                        "{length} bytes, {body_bytes_max} a message, {step} at a time"
                    );
                }
            }
        }
    }
}
