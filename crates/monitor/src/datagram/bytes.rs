//! Numbers and texts in datagrams.

use super::DatagramError;

type Result<T> = std::result::Result<T, DatagramError>;

/// A number in groups of 7 bits, the lowest first, with bit 7 set in all bytes but the last (LEB128).
pub(super) fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// A length of one byte, and the bytes. Longer texts are cut, and control characters become blanks.
pub(super) fn put_text(bytes: &mut Vec<u8>, text: &str, bytes_max: usize) {
    if text.contains(char::is_control) {
        return put_text(bytes, &text.replace(char::is_control, " "), bytes_max);
    }
    let end =
        (0..=bytes_max.min(255).min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    bytes.push(end as u8);
    bytes.extend_from_slice(text.as_bytes().get(..end).unwrap_or_default());
}

/// Reads the rest of a datagram, field by field.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(DatagramError::Cut)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(DatagramError::Cut)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn varint(&mut self) -> Result<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            // The tenth byte has one bit.
            if part << shift >> shift != part {
                break;
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(DatagramError::Invalid("number"))
    }

    pub(super) fn varint_u32(&mut self) -> Result<u32> {
        u32::try_from(self.varint()?).map_err(|_| DatagramError::Invalid("number"))
    }

    pub(super) fn text(&mut self, bytes_max: usize) -> Result<&'a str> {
        let length = usize::from(self.byte()?);
        if length > bytes_max {
            return Err(DatagramError::Invalid("text"));
        }
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| DatagramError::Invalid("text"))?;
        // Texts are printed, and must not contain escape sequences of terminals.
        if text.chars().any(char::is_control) {
            return Err(DatagramError::Invalid("text"));
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_come_back() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            assert_eq!(Reader(&bytes).varint().unwrap(), number);
            assert!(Reader(&bytes[1..]).varint().is_err() || bytes.len() > 1);
        }
        let mut bytes = Vec::new();
        put_text(&mut bytes, "ééé", 5);
        assert_eq!(Reader(&bytes).text(5).unwrap(), "éé");
        assert!(Reader(&bytes).text(3).is_err());
        bytes.clear();
        put_text(&mut bytes, "a\nb", 5);
        assert_eq!(Reader(&bytes).text(5).unwrap(), "a b");
    }

    #[test]
    fn numbers_that_are_too_long_and_control_characters_are_refused() {
        let eleven = [0xff_u8; 11];
        assert!(Reader(&eleven).varint().is_err());
        let mut ten = [0xff_u8; 10];
        ten[9] = 2;
        assert!(Reader(&ten).varint().is_err());
        ten[9] = 1;
        assert_eq!(Reader(&ten).varint().unwrap(), u64::MAX);
        assert!(Reader(b"\x01\x1b").text(5).is_err());
        assert!(Reader(b"\x01\xff").text(5).is_err());
        assert!(Reader(b"\x05ab").text(5).is_err());
    }
}
