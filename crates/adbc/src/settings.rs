//! The options `lightship.*`: those of the library by their names, and further sources.

use std::collections::BTreeMap;

use adbc_core::error::{Result, Status};
use adbc_core::options::OptionValue;
use lightship::Options;
use serde_json::{Map, Value};

use crate::errors::error;

const PREFIX: &str = "lightship.";
/// More sources, one a line, whose rows are added.
const ALSO: &str = "also";

/// What was set, by its name without the prefix.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings(BTreeMap<String, String>);

impl Settings {
    pub(crate) fn set(&mut self, key: &str, value: OptionValue) -> Result<()> {
        let Some(name) = key.strip_prefix(PREFIX) else { return Err(unknown(key)) };
        let mut changed = self.clone();
        changed.0.insert(name.to_owned(), text_of(value)?);
        // Refused now, and not by the first query.
        changed.options()?;
        *self = changed;
        Ok(())
    }

    pub(crate) fn get(&self, key: &str) -> Result<String> {
        let name = key.strip_prefix(PREFIX).ok_or_else(|| unknown(key))?;
        if let Some(value) = self.0.get(name) {
            return Ok(value.clone());
        }
        let default =
            serde_json::to_value(Options::default()).map_err(|e| error(Status::Internal, e.to_string()))?;
        // What is not set is chosen from measurements.
        if name == ALSO || default.get(name).is_some() {
            return Ok(if name == ALSO { String::new() } else { "auto".to_owned() });
        }
        Err(unknown(key))
    }

    /// All sources except the first.
    pub(crate) fn also(&self) -> impl Iterator<Item = &str> {
        self.0.get(ALSO).into_iter().flat_map(|uris| uris.lines()).filter(|uri| !uri.is_empty())
    }

    pub(crate) fn options(&self) -> Result<Options> {
        let given = self.0.iter().filter(|(name, value)| *name != ALSO && *value != "auto");
        let fields: Map<String, Value> = given
            .map(|(name, text)| {
                let value = text.parse::<u64>().map_or_else(|_| Value::from(text.as_str()), Value::from);
                (name.clone(), value)
            })
            .collect();
        serde_json::from_value(Value::Object(fields))
            .map_err(|e| error(Status::InvalidArguments, e.to_string()))
    }
}

pub(crate) fn unknown(key: &str) -> adbc_core::error::Error {
    error(Status::NotFound, format!("unknown option `{key}`"))
}

/// The error of an option that has no value yet.
pub(crate) fn unset(key: &str) -> adbc_core::error::Error {
    error(Status::NotFound, format!("the option `{key}` is not set"))
}

pub(crate) fn text_of(value: OptionValue) -> Result<String> {
    match value {
        OptionValue::String(text) => Ok(text),
        OptionValue::Int(number) => Ok(number.to_string()),
        OptionValue::Double(number) => Ok(number.to_string()),
        OptionValue::Bytes(bytes) => {
            String::from_utf8(bytes).map_err(|e| error(Status::InvalidArguments, e.to_string()))
        }
        _ => Err(error(Status::InvalidArguments, "unknown kind of value")),
    }
}

/// A value that was asked for as a number.
pub(crate) fn int_of(text: &str) -> Result<i64> {
    text.parse().map_err(|_| error(Status::NotFound, format!("`{text}` is not a whole number")))
}

/// A value that was asked for as a number.
pub(crate) fn double_of(text: &str) -> Result<f64> {
    text.parse().map_err(|_| error(Status::NotFound, format!("`{text}` is not a number")))
}
