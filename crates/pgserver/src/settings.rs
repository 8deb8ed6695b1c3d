//! Settings of a session: those that clients set, ask for and are told about.

use std::collections::BTreeMap;

use crate::error::{PgError, PgResult, code};

/// The version of PostgreSQL whose protocol and catalog are followed. Drivers read the number before the first space.
const VERSION: &str = concat!("16.4 (Lightship ", env!("CARGO_PKG_VERSION"), ")");

/// Whether and how a setting can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Fixed,
    Free,
    /// It keeps its value: another is accepted with a warning.
    Kept,
    /// UTF8 under its names.
    Encoding,
    Duration,
}

/// Name, default, rule, and whether its value is reported when it changes.
const SETTINGS: [(&str, &str, Rule, bool); 46] = [
    ("application_name", "", Rule::Free, true),
    ("backslash_quote", "safe_encoding", Rule::Free, false),
    ("bytea_output", "hex", Rule::Kept, false),
    ("check_function_bodies", "on", Rule::Free, false),
    ("client_encoding", "UTF8", Rule::Encoding, true),
    ("client_min_messages", "notice", Rule::Free, false),
    ("cursor_tuple_fraction", "0.1", Rule::Free, false),
    ("datestyle", "ISO, MDY", Rule::Kept, true),
    ("default_table_access_method", "heap", Rule::Free, false),
    ("default_transaction_deferrable", "off", Rule::Free, false),
    ("default_transaction_isolation", "read committed", Rule::Free, false),
    ("default_transaction_read_only", "off", Rule::Free, true),
    ("enable_seqscan", "on", Rule::Free, false),
    ("escape_string_warning", "on", Rule::Free, false),
    ("extra_float_digits", "1", Rule::Free, false),
    ("geqo", "on", Rule::Free, false),
    ("idle_in_transaction_session_timeout", "0", Rule::Free, false),
    ("idle_session_timeout", "0", Rule::Free, false),
    ("in_hot_standby", "off", Rule::Fixed, true),
    ("integer_datetimes", "on", Rule::Fixed, true),
    ("intervalstyle", "postgres", Rule::Kept, true),
    ("is_superuser", "off", Rule::Fixed, true),
    ("jit", "off", Rule::Free, false),
    ("lc_collate", "C.UTF-8", Rule::Fixed, false),
    ("lc_ctype", "C.UTF-8", Rule::Fixed, false),
    ("lc_messages", "C.UTF-8", Rule::Free, false),
    ("lc_monetary", "C.UTF-8", Rule::Free, false),
    ("lock_timeout", "0", Rule::Free, false),
    ("max_identifier_length", "63", Rule::Fixed, false),
    ("max_index_keys", "32", Rule::Fixed, false),
    ("plan_cache_mode", "auto", Rule::Free, false),
    ("quote_all_identifiers", "off", Rule::Free, false),
    ("role", "none", Rule::Free, false),
    ("row_security", "on", Rule::Free, false),
    ("search_path", "\"$user\", public", Rule::Free, false),
    ("server_encoding", "UTF8", Rule::Fixed, true),
    ("server_version", VERSION, Rule::Fixed, true),
    ("server_version_num", "160004", Rule::Fixed, false),
    ("session_authorization", "", Rule::Fixed, true),
    ("standard_conforming_strings", "on", Rule::Kept, true),
    ("statement_timeout", "0", Rule::Duration, false),
    ("timezone", "UTC", Rule::Kept, true),
    ("transaction_isolation", "read committed", Rule::Free, false),
    ("transaction_read_only", "off", Rule::Free, false),
    ("synchronous_commit", "on", Rule::Free, false),
    ("work_mem", "4MB", Rule::Free, false),
];

/// The most settings of a client's own (`name.part`), and the longest value.
const CUSTOM_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 1 << 10;

/// The values of a session.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    values: BTreeMap<String, String>,
    /// What `RESET` goes back to.
    initial: BTreeMap<String, String>,
}

/// What a change did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The name and value that the client is to be told.
    pub(crate) report: Option<(String, String)>,
    /// The text of a warning.
    pub(crate) warning: Option<String>,
}

impl Settings {
    /// The settings of a user's session.
    pub(crate) fn new(user: &str) -> Self {
        let mut values: BTreeMap<_, _> =
            SETTINGS.iter().map(|(name, value, ..)| ((*name).to_owned(), (*value).to_owned())).collect();
        values.insert("session_authorization".into(), user.to_owned());
        Self { initial: values.clone(), values }
    }

    /// Makes the present values those of `RESET`.
    pub(crate) fn begin(&mut self) {
        self.initial = self.values.clone();
    }

    fn rule(name: &str) -> Option<(Rule, bool)> {
        SETTINGS.iter().find(|setting| setting.0 == name).map(|(.., rule, is_reported)| (*rule, *is_reported))
    }

    /// The value of a setting.
    ///
    /// # Errors
    /// If there is no such setting.
    pub(crate) fn get(&self, name: &str) -> PgResult<&str> {
        let name = name.to_lowercase();
        self.values.get(&name).map(String::as_str).ok_or_else(|| unknown(&name))
    }

    /// All settings, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Those that a client is told at the start, with their names as PostgreSQL writes them.
    pub(crate) fn reported(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all()
            .filter(|(name, _)| Self::rule(name).is_some_and(|(_, is_reported)| is_reported))
            .map(|(name, value)| (shown(name), value))
    }

    /// Changes a setting; `None` is its default.
    ///
    /// # Errors
    /// If there is no such setting, or it can't have this value.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>) -> PgResult<Change> {
        let name = name.to_lowercase();
        let Some((rule, is_reported)) = Self::rule(&name) else { return self.set_custom(&name, value) };
        let value = match value {
            Some(value) => value,
            None => &self.initial[&name].clone(),
        };
        if value.len() > VALUE_BYTES_MAX {
            return Err(invalid(&name, "a value that is too long"));
        }
        let silent = Change { report: None, warning: None };
        let current = &self.values[&name];
        let value = match rule {
            Rule::Fixed if value == current => return Ok(silent),
            Rule::Fixed => {
                let message = format!("parameter \"{name}\" cannot be changed");
                return Err(PgError::new("55P02", message));
            }
            Rule::Kept if is_same(&name, current, value) => return Ok(silent),
            Rule::Kept => {
                let warning = format!("{} stays {current}; {value} is not supported", shown(&name));
                return Ok(Change { report: None, warning: Some(warning) });
            }
            Rule::Encoding if is_utf8(value) => "UTF8".to_owned(),
            Rule::Encoding => {
                let error = PgError::unsupported(format!("client_encoding {value} is not supported"));
                return Err(error.hint("use UTF8"));
            }
            Rule::Duration => milliseconds(value).ok_or_else(|| invalid(&name, value))?.to_string(),
            Rule::Free => value.to_owned(),
        };
        let report = (is_reported && value != *current).then(|| (shown(&name).to_owned(), value.clone()));
        self.values.insert(name, value);
        Ok(Change { report, warning: None })
    }

    /// Settings with a point in their names belong to the client.
    fn set_custom(&mut self, name: &str, value: Option<&str>) -> PgResult<Change> {
        if !name.contains('.') {
            return Err(unknown(name));
        }
        let silent = Change { report: None, warning: None };
        let Some(value) = value else {
            self.values.remove(name);
            return Ok(silent);
        };
        if value.len() + name.len() > VALUE_BYTES_MAX {
            return Err(invalid(name, "a value that is too long"));
        }
        let is_new = !self.values.contains_key(name);
        if is_new && self.values.len() >= SETTINGS.len() + CUSTOM_MAX {
            return Err(PgError::new(
                code::PROGRAM_LIMIT,
                format!("more than {CUSTOM_MAX} settings of the client's own"),
            ));
        }
        self.values.insert(name.to_owned(), value.to_owned());
        Ok(silent)
    }

    /// Replaces all values. Returns what the client is to be told.
    pub(crate) fn replace(&mut self, others: Self) -> Vec<(String, String)> {
        let before = std::mem::replace(self, others);
        let is_changed = |name: &str, value: &str| before.values.get(name).is_none_or(|old| old != value);
        self.all()
            .filter(|(name, value)| {
                Self::rule(name).is_some_and(|(_, is_reported)| is_reported) && is_changed(name, value)
            })
            .map(|(name, value)| (shown(name).to_owned(), value.to_owned()))
            .collect()
    }

    /// Sets all settings back. Returns what the client is to be told.
    pub(crate) fn reset_all(&mut self) -> Vec<(String, String)> {
        let names: Vec<String> = self.values.keys().cloned().collect();
        names.iter().filter_map(|name| self.set(name, None).ok()?.report).collect()
    }

    /// The time after which statements are cancelled.
    pub(crate) fn statement_timeout(&self) -> Option<std::time::Duration> {
        let ms = self.values.get("statement_timeout")?.parse().ok()?;
        (ms > 0).then(|| std::time::Duration::from_millis(ms))
    }
}

/// The name as PostgreSQL writes it.
fn shown(name: &str) -> &str {
    match name {
        "datestyle" => "DateStyle",
        "intervalstyle" => "IntervalStyle",
        "timezone" => "TimeZone",
        other => other,
    }
}

fn unknown(name: &str) -> PgError {
    PgError::new(code::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
}

fn invalid(name: &str, value: &str) -> PgError {
    PgError::new(
        code::INVALID_PARAMETER_VALUE,
        format!("invalid value for parameter \"{name}\": \"{value}\""),
    )
}

/// Whether a value of a setting that is kept means what it is.
fn is_same(name: &str, current: &str, value: &str) -> bool {
    let value = value.to_lowercase();
    match name {
        "datestyle" => value.split(',').next().is_some_and(|style| style.trim() == "iso"),
        "timezone" => matches!(
            value.as_str(),
            "utc" | "gmt" | "z" | "etc/utc" | "etc/gmt" | "zulu" | "universal" | "0" | "+00" | "+00:00"
        ),
        "standard_conforming_strings" => matches!(value.as_str(), "on" | "true" | "1" | "yes"),
        _ => value == current.to_lowercase(),
    }
}

fn is_utf8(name: &str) -> bool {
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    // ASCII is a part of it; psql asks for it in a C locale.
    matches!(name.to_lowercase().as_str(), "utf8" | "unicode" | "sqlascii")
}

/// A duration as settings have it: milliseconds, or a number with a unit.
fn milliseconds(value: &str) -> Option<u64> {
    let value = value.trim();
    let unit_at = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let number: u64 = value[..unit_at].parse().ok()?;
    let factor = match value[unit_at..].trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor).filter(|&ms| ms <= i32::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_reported_where_clients_expect_it() {
        let mut settings = Settings::new("me");
        let change = settings.set("application_name", Some("x")).unwrap();
        assert_eq!(change.report, Some(("application_name".into(), "x".into())));
        assert_eq!(settings.get("session_authorization").unwrap(), "me");
        assert_eq!(settings.set("extra_float_digits", Some("3")).unwrap().report, None);
        assert_eq!(settings.get("EXTRA_FLOAT_DIGITS").unwrap(), "3");
        assert!(settings.reset_all().contains(&("application_name".into(), String::new())));
        assert_eq!(settings.get("extra_float_digits").unwrap(), "1");
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let mut settings = Settings::new("me");
        assert!(settings.set("TimeZone", Some("Europe/Berlin")).unwrap().warning.is_some());
        assert_eq!(settings.get("timezone").unwrap(), "UTC");
        assert_eq!(settings.set("TimeZone", Some("GMT")).unwrap().warning, None);
        assert_eq!(settings.set("DateStyle", Some("ISO")).unwrap().warning, None);
        assert!(settings.set("client_encoding", Some("LATIN1")).is_err());
        // As asyncpg writes it.
        assert!(settings.set("client_encoding", Some("'utf-8'")).is_ok());
        assert!(settings.set("server_version", Some("9")).is_err());
        assert!(settings.set("nonsense", Some("9")).is_err());
    }

    #[test]
    fn timeouts_have_units() {
        let mut settings = Settings::new("me");
        settings.set("statement_timeout", Some("2s")).unwrap();
        assert_eq!(settings.statement_timeout(), Some(std::time::Duration::from_secs(2)));
        assert!(settings.set("statement_timeout", Some("-1")).is_err());
        settings.set("statement_timeout", None).unwrap();
        assert_eq!(settings.statement_timeout(), None);
    }

    #[test]
    fn a_client_has_few_settings_of_its_own() {
        let mut settings = Settings::new("me");
        for number in 0..CUSTOM_MAX {
            settings.set(&format!("a.b{number}"), Some("x")).unwrap();
        }
        assert_eq!(settings.set("a.c", Some("x")).unwrap_err().code, code::PROGRAM_LIMIT);
    }
}
