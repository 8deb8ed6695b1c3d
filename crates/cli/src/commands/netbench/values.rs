//! Lists of numbers and sizes, on the command line and in a file.

use std::str::FromStr;

use lightship_netbench::{CONNECTIONS_MAX, MESSAGE_BYTES_MAX, parse_values};
use serde::{Deserialize, Deserializer};

use crate::size::Size;

/// Numbers of connections, as `2,4,8` or `2..64`, doubling.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counts(pub(super) Vec<u32>);

/// Sizes of messages, as `256..1MiB`, doubling.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SizeList(pub(super) Vec<u32>);

impl FromStr for Counts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = |text: &str| text.parse::<u64>().map_err(|_| "not a number of connections".to_owned());
        parse_values(text, CONNECTIONS_MAX, count).map(Self).map_err(|e| e.to_string())
    }
}

impl FromStr for SizeList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |text: &str| text.parse().map(|Size(bytes)| bytes);
        parse_values(text, MESSAGE_BYTES_MAX, size).map(Self).map_err(|e| e.to_string())
    }
}

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        in_file(deserializer)
    }
}

impl<'de> Deserialize<'de> for SizeList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        in_file(deserializer)
    }
}

/// A text as on the command line, a number, or a list of both.
fn in_file<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum One {
        Number(u64),
        Text(String),
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        One(One),
        Many(Vec<One>),
    }
    let items = match Given::deserialize(deserializer)? {
        Given::One(one) => vec![one],
        Given::Many(many) => many,
    };
    let text = |one: One| match one {
        One::Number(number) => number.to_string(),
        One::Text(text) => text,
    };
    let typed: Vec<_> = items.into_iter().map(text).collect();
    typed.join(",").parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_the_same_on_the_command_line_and_in_a_file() {
        #[derive(Deserialize)]
        struct File {
            counts: Counts,
            sizes: SizeList,
        }
        let sizes = SizeList(vec![256, 512, 1024]);
        for text in
            ["counts = '2..8'\nsizes = '256..1KiB'", "counts = [2, 4, '8']\nsizes = [256, '512', '1KiB']"]
        {
            let file: File = toml::from_str(text).expect(text);
            assert_eq!((file.counts, file.sizes), (Counts(vec![2, 4, 8]), sizes.clone()));
        }
        for text in ["counts = 0\nsizes = 1", "counts = 1\nsizes = '65MiB'", "counts = []\nsizes = 1"] {
            assert!(toml::from_str::<File>(text).is_err(), "{text}");
        }
        assert!("1KiB".parse::<Counts>().is_err());
    }
}
