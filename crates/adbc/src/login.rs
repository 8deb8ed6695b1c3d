//! The options `username` and `password`.

use adbc_core::error::{Result, Status};
use lightship::Location;

use crate::errors::{error, not_implemented};

/// What was set; it replaces what the URI says.
#[derive(Default, Clone)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Login {
    /// The location with this user and password. A node has tokens, not users: its token is the password.
    ///
    /// # Errors
    /// If the source takes none.
    pub(crate) fn apply(&self, location: Location) -> Result<Location> {
        if self.username.is_none() && self.password.is_none() {
            return Ok(location);
        }
        Ok(match location {
            Location::Node { host, port, token, tls, shared_memory, insecure } => {
                let token = self.password.clone().or(token);
                Location::Node { host, port, token, tls, shared_memory, insecure }
            }
            Location::Postgres(uri) => Location::Postgres(self.in_uri(&uri)),
            Location::MySql(uri) => Location::MySql(self.in_uri(&uri)),
            Location::Adbc(_) => {
                return Err(not_implemented(
                    "a user for an ADBC driver: give the options of the driver in the URI",
                ));
            }
            Location::NodeUnix { .. }
            | Location::Sqlite(_)
            | Location::Path(_)
            | Location::Object(_)
            | Location::Tables(_) => {
                let message = format!("{location} takes no user and no password");
                return Err(error(Status::InvalidArguments, message));
            }
        })
    }

    fn in_uri(&self, uri: &str) -> String {
        let Some((scheme, rest)) = uri.split_once("://") else { return uri.to_owned() };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match user.split_once(':') {
            Some((user, password)) => (user, Some(password.to_owned())),
            None => (user, None),
        };
        let user = self.username.as_deref().map_or_else(|| user.to_owned(), encoded);
        let password = self.password.as_deref().map(encoded).or(password);
        let password = password.map(|password| format!(":{password}")).unwrap_or_default();
        format!("{scheme}://{user}{password}@{host}{path}")
    }
}

/// A text as a part of a URI.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_passwords_replace_those_of_the_uri() {
        let check = |uri: &str, username: Option<&str>, password: Option<&str>, expected: &str| {
            let login = Login { username: username.map(Into::into), password: password.map(Into::into) };
            let found = login.apply(Location::parse(uri).expect("valid")).expect("a user");
            assert!(found == Location::parse(expected).expect("valid"), "{uri}");
        };
        check("postgresql://h/d", Some("me"), Some("a@b:c/"), "postgresql://me:a%40b%3Ac%2F@h/d");
        check(
            "postgresql://old:pw@h:5433/d?sslmode=disable",
            Some("me"),
            None,
            "postgresql://me:pw@h:5433/d?sslmode=disable",
        );
        check("postgresql://old:pw@h/d", None, Some("new"), "postgresql://old:new@h/d");
        check("postgresql:///d?host=/run", Some("me"), Some("pw"), "postgresql://me:pw@/d?host=/run");
        check("mysql://h/d", Some("me"), Some("pw"), "mysql://me:pw@h/d");
        check("lightship://h", Some("anyone"), Some("token"), "lightship://token@h");
        check("lightship://token@h", None, None, "lightship://token@h");
        let login = Login { username: Some("me".into()), password: Some("hush".into()) };
        assert!(login.apply(Location::parse("a.csv").expect("valid")).is_err());
        assert!(!format!("{login:?}").contains("hush"));
    }
}
