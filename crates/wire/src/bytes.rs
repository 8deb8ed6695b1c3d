//! Little-endian reading and writing of small values.

use crate::error::{Result, WireError, malformed};

/// Reads values from the front of a slice; every read is checked.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.rest.split_at_checked(bytes) else {
            return Err(WireError::Truncated {
                what: self.what,
                needed: bytes as u64,
                available: self.rest.len() as u64,
            });
        };
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length as `u32`, then UTF-8.
    pub(crate) fn str(&mut self) -> Result<&'a str> {
        let length = self.u32()? as usize;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|e| malformed(self.what, e.to_string()))
    }

    /// A count of items of at least `bytes_each` bytes. A count that the remaining bytes can't hold is
    /// refused, before memory is allocated.
    pub(crate) fn count(&mut self, bytes_each: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count.saturating_mul(bytes_each) > self.rest.len() {
            return Err(WireError::Truncated {
                what: self.what,
                needed: (count as u64).saturating_mul(bytes_each as u64),
                available: self.rest.len() as u64,
            });
        }
        Ok(count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All bytes that are left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Fails if bytes are left.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(malformed(self.what, format!("{} excess bytes", self.rest.len())))
        }
    }
}

/// Appends values to a vector.
pub(crate) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_i32(&mut self, value: i32);
    fn put_u64(&mut self, value: u64);
    fn put_str(&mut self, value: &str);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }

    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_i32(&mut self, value: i32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_str(&mut self, value: &str) {
        // A control frame has no string of 4 GB; the frame's limit refuses it.
        self.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.extend_from_slice(value.as_bytes());
    }
}
