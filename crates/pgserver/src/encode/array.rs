//! Lists as arrays of one dimension.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, FieldRef};
use bytes::{BufMut, BytesMut};

use super::{Format, Values};
use crate::error::PgResult;
use crate::types::PgColumn;

/// Lists in any of Arrow's layouts.
pub(crate) struct Lists {
    array: ArrayRef,
    items: Values,
    /// The type of the items.
    element: u32,
    /// Whether they are `int2vector`: `1 2` as text, and counted from 0.
    is_vector: bool,
}

impl Lists {
    /// The lists of an array, to be written as arrays of the type `element`.
    pub(super) fn new(array: &ArrayRef, item: &FieldRef, element: u32, is_vector: bool) -> PgResult<Self> {
        let values = match array.data_type() {
            DataType::List(_) => array.as_list::<i32>().values(),
            DataType::LargeList(_) => array.as_list::<i64>().values(),
            DataType::ListView(_) => array.as_list_view::<i32>().values(),
            DataType::LargeListView(_) => array.as_list_view::<i64>().values(),
            _ => array.as_fixed_size_list().values(),
        };
        let column = PgColumn::new(item.name(), element);
        Ok(Self { array: array.clone(), items: Values::new(values, item, &column)?, element, is_vector })
    }

    pub(super) fn is_null(&self, row: usize) -> bool {
        self.array.is_null(row)
    }

    /// The items of a row.
    fn range(&self, row: usize) -> std::ops::Range<usize> {
        let sized = |start: usize, size: usize| start..start + size;
        match self.array.data_type() {
            DataType::List(_) => {
                let offsets = self.array.as_list::<i32>().value_offsets();
                offsets[row] as usize..offsets[row + 1] as usize
            }
            DataType::LargeList(_) => {
                let offsets = self.array.as_list::<i64>().value_offsets();
                offsets[row] as usize..offsets[row + 1] as usize
            }
            DataType::ListView(_) => {
                let list = self.array.as_list_view::<i32>();
                sized(list.value_offset(row) as usize, list.value_size(row) as usize)
            }
            DataType::LargeListView(_) => {
                let list = self.array.as_list_view::<i64>();
                sized(list.value_offset(row) as usize, list.value_size(row) as usize)
            }
            _ => {
                let list = self.array.as_fixed_size_list();
                sized(list.value_offset(row) as usize, list.value_length() as usize)
            }
        }
    }

    /// Appends `{1,2,NULL}`, or `1 2` of a vector.
    pub(super) fn put_text(&self, row: usize, out: &mut BytesMut) -> PgResult<()> {
        let mut item = BytesMut::new();
        if !self.is_vector {
            out.put_u8(b'{');
        }
        for (index, at) in self.range(row).enumerate() {
            if index > 0 {
                out.put_u8(if self.is_vector { b' ' } else { b',' });
            }
            if self.items.is_null(at) {
                out.put_slice(b"NULL");
                continue;
            }
            item.clear();
            self.items.put(at, Format::Text, &mut item)?;
            put_element(&item, out);
        }
        if !self.is_vector {
            out.put_u8(b'}');
        }
        Ok(())
    }

    pub(super) fn put_binary(&self, row: usize, out: &mut BytesMut) -> PgResult<()> {
        let range = self.range(row);
        out.put_i32(i32::from(!range.is_empty()));
        out.put_i32(range.clone().any(|at| self.items.is_null(at)).into());
        out.put_u32(self.element);
        if !range.is_empty() {
            out.put_i32(range.len() as i32);
            out.put_i32(if self.is_vector { 0 } else { 1 });
        }
        range.into_iter().try_for_each(|at| self.items.put_sized(at, Format::Binary, out))
    }
}

/// Appends an element of an array, in quotes if it could be taken for something else.
pub(crate) fn put_element(text: &[u8], out: &mut BytesMut) {
    let needs_quotes = text.is_empty()
        || text.eq_ignore_ascii_case(b"NULL")
        || text.iter().any(|b| {
            matches!(b, b'{' | b'}' | b',' | b'"' | b'\\' | b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
        });
    if !needs_quotes {
        out.put_slice(text);
        return;
    }
    out.put_u8(b'"');
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.put_u8(b'\\');
        }
        out.put_u8(byte);
    }
    out.put_u8(b'"');
}

/// The elements of an array of one dimension in text format. `None` if it is malformed.
pub(crate) fn elements(text: &str) -> Option<Vec<Option<String>>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let mut found = Vec::new();
    let mut chars = inner.chars().peekable();
    if inner.trim().is_empty() {
        return Some(found);
    }
    loop {
        while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        let mut element = String::new();
        let is_quoted = chars.next_if_eq(&'"').is_some();
        loop {
            match chars.peek() {
                None if is_quoted => return None,
                Some('"') if is_quoted => {
                    chars.next();
                    break;
                }
                None | Some(',') if !is_quoted => break,
                Some('{' | '}' | '"') if !is_quoted => return None,
                Some('\\') => {
                    chars.next();
                    element.push(chars.next()?);
                }
                _ => element.push(chars.next()?),
            }
        }
        if !is_quoted {
            element.truncate(element.trim_end().len());
            if element.is_empty() {
                return None;
            }
        }
        found.push((is_quoted || !element.eq_ignore_ascii_case("NULL")).then_some(element));
        while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        match chars.next() {
            None => return Some(found),
            Some(',') => {}
            Some(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_as_they_are_written() {
        let all = ["a", "", "NULL", "a b", "x\"y", "back\\slash", "{}", "ä,b"];
        let mut out = BytesMut::new();
        out.put_u8(b'{');
        for (index, element) in all.iter().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            put_element(element.as_bytes(), &mut out);
        }
        out.put_slice(b",NULL}");
        let read = elements(std::str::from_utf8(&out).unwrap()).unwrap();
        let mut expected: Vec<_> = all.iter().map(|e| Some((*e).to_owned())).collect();
        expected.push(None);
        assert_eq!(read, expected);
        assert_eq!(elements("{}"), Some(vec![]));
        for malformed in ["", "{", "a", "{a", "{\"a}", "{{1},{2}}", "{a,}", "{\"a\"b}"] {
            assert_eq!(elements(malformed), None, "{malformed}");
        }
    }
}
