//! `adbc:DRIVER?OPTION=VALUE&...`

use std::fmt;

use crate::location::{percent_decode, redact};

/// Options whose values are shown. All others may be secrets: their names differ between drivers.
const SHOWN: [&str; 15] = [
    "account",
    "catalog",
    "database",
    "dataset_id",
    "db",
    "entrypoint",
    "host",
    "path",
    "port",
    "project_id",
    "region",
    "role",
    "schema",
    "username",
    "warehouse",
];

/// A driver, and the options of a database.
///
/// `Display` and `Debug` show the values only of options that are known not to be secrets.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct AdbcLocation {
    /// The path of a shared library or a manifest, or the name of an installed driver.
    pub driver: String,
    /// The function of the library that initialises it; `None` is the usual one.
    pub entrypoint: Option<String>,
    /// Options of the database, in the order given.
    pub options: Vec<(String, String)>,
}

impl AdbcLocation {
    /// Parses what follows `adbc:`.
    ///
    /// # Errors
    /// What is wrong, without the values of options.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (driver, query) = text.split_once('?').unwrap_or((text, ""));
        let driver = percent_decode(driver)?;
        if driver.is_empty() {
            return Err(
                "the driver is missing; expected adbc:DRIVER?OPTION=VALUE, where DRIVER is the path of a \
                        shared library or the name of an installed driver"
                    .into(),
            );
        }
        if driver.starts_with("//") {
            return Err("a driver is a path or a name: adbc:DRIVER?OPTION=VALUE, without `//`".into());
        }
        let (mut entrypoint, mut options) = (None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(
                    "an option has no value; expected OPTION=VALUE, with `&` in a value as %26".into()
                );
            };
            let (name, value) = (percent_decode(name)?, percent_decode(value)?);
            match &*name {
                "" => return Err("an option has no name; expected OPTION=VALUE".into()),
                "entrypoint" => entrypoint = Some(value),
                _ => options.push((name, value)),
            }
        }
        Ok(Self { driver, entrypoint, options })
    }

    /// Values that must not be shown.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        self.options
            .iter()
            .filter(|(name, value)| shown(name, value).is_none())
            .map(|(_, value)| value.as_str())
    }
}

/// The value of an option, if it is no secret.
fn shown(name: &str, value: &str) -> Option<String> {
    // The URI of a server may contain a password anywhere; the URI of a file contains none.
    if value.contains(['@', '?', ';', '=']) {
        return None;
    }
    if name == "uri" {
        return Some(redact(value));
    }
    let last = name.rsplit(['.', '_']).next().unwrap_or(name);
    let is_shown = SHOWN.contains(&name) || name.contains('.') && SHOWN.contains(&last);
    is_shown.then(|| value.to_owned())
}

impl fmt::Display for AdbcLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "adbc:{}", self.driver)?;
        let entrypoint = self.entrypoint.iter().map(|value| ("entrypoint", value.as_str()));
        let options = self.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (at, (name, value)) in entrypoint.chain(options).enumerate() {
            let value = shown(name, value).unwrap_or_else(|| "***".into());
            write!(f, "{}{name}={value}", if at == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for AdbcLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdbcLocation({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_parsed() {
        let found =
            AdbcLocation::parse("/lib/duck%20db.so?entrypoint=duckdb_adbc_init&path=a%26b.db").unwrap();
        assert_eq!(found.driver, "/lib/duck db.so");
        assert_eq!(found.entrypoint.as_deref(), Some("duckdb_adbc_init"));
        assert_eq!(found.options, [("path".to_owned(), "a&b.db".to_owned())]);
        assert_eq!(AdbcLocation::parse("snowflake").unwrap().options, []);
        for (wrong, word) in [
            ("", "driver is missing"),
            ("//h/x", "without `//`"),
            ("x?secret", "has no value"),
            ("x?=1", "no name"),
            ("%zz", "%"),
        ] {
            let error = AdbcLocation::parse(wrong).unwrap_err();
            assert!(error.contains(word) && !error.contains("secret"), "{wrong}: {error}");
        }
    }

    #[test]
    fn only_values_that_are_no_secrets_are_shown() {
        let check = |text: &str, expected: &str| {
            assert_eq!(AdbcLocation::parse(text).unwrap().to_string(), expected);
        };
        check("duckdb?path=x.db", "adbc:duckdb?path=x.db");
        check("sqlite?uri=x.db", "adbc:sqlite?uri=x.db");
        check("pg?uri=postgresql://me:hush@h/d", "adbc:pg?uri=***");
        check("pg?host=me:hush@h&path=x?key%3Dhush", "adbc:pg?host=***&path=***");
        check("snow?uri=me:hush@account/db", "adbc:snow?uri=***");
        check(
            "snow?username=me&password=hush&adbc.snowflake.sql.db=d",
            "adbc:snow?username=me&password=***&adbc.snowflake.sql.db=d",
        );
        check(
            "big?adbc.bigquery.sql.auth_credentials=hush",
            "adbc:big?adbc.bigquery.sql.auth_credentials=***",
        );
        check("x?adbc.snowflake.sql.auth_token=hush", "adbc:x?adbc.snowflake.sql.auth_token=***");
        let secrets = AdbcLocation::parse("x?path=a&password=hush").unwrap();
        assert_eq!(secrets.secrets().collect::<Vec<_>>(), ["hush"]);
    }
}
