//! Errors of object stores, which name the object and say what to do.

use std::error::Error;

use object_store::client::{HttpError, HttpErrorKind};

use super::ObjectScheme;

/// What kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectErrorKind {
    /// There is no such object or bucket.
    Missing,
    /// The credentials are missing, wrong or expired, or do not suffice.
    Denied,
    /// The object has changed while it was read.
    Changed,
    /// The server can't be reached, is too slow, or fails.
    Unreachable,
    /// The server refuses the request, or answers what makes no sense.
    Other,
}

/// An error of an object store.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{object}: {reason}")]
pub struct ObjectError {
    /// The object, without a signature.
    pub object: String,
    /// What went wrong.
    pub reason: String,
    /// What to do.
    pub hint: Option<String>,
    /// What kind of failure.
    pub kind: ObjectErrorKind,
}

/// Maximum characters of a server's message in an error.
const MESSAGE_CHARS_MAX: usize = 300;

/// The address of the service that has the credentials of a virtual machine.
const METADATA_ADDRESSES: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];

impl ObjectError {
    /// The error behind another one, if it is of an object store.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            // An `io::Error` passes over the error that it wraps.
            cause = match error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref()) {
                Some(inner) => Some(inner),
                None => error.source(),
            };
        }
        None
    }

    /// An error of a library, which may contain a signed URL, as one of ours.
    pub(super) fn of(object: &str, scheme: ObjectScheme, error: &object_store::Error) -> Self {
        use object_store::Error as E;
        if let Some(own) = Self::find(error) {
            return own.clone();
        }
        let of = |kind, reason: String, hint: Option<&str>| Self {
            object: object.to_owned(),
            reason,
            hint: hint.map(str::to_owned),
            kind,
        };
        let text = error.to_string();
        if METADATA_ADDRESSES.iter().any(|address| text.contains(address)) {
            let (names, public) = match scheme {
                ObjectScheme::Google => ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE"),
                ObjectScheme::Azure => {
                    ("AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY", "AZURE_SKIP_SIGNATURE")
                }
                _ => ("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE", "AWS_SKIP_SIGNATURE"),
            };
            let hint = format!("set {names}; for a public bucket, set {public}=true");
            let reason = "no credentials: none in the environment, and no service of this host has some";
            return of(ObjectErrorKind::Denied, reason.into(), Some(&hint));
        }
        if let Some(http) = find::<HttpError>(error) {
            let reason = match http.kind() {
                HttpErrorKind::Timeout => "the server did not answer in time".to_owned(),
                HttpErrorKind::Connect => format!("cannot connect: {}", root(http)),
                _ => format!("the connection failed: {}", root(http)),
            };
            return match find::<std::io::Error>(error) {
                None if root(http).contains("URL scheme is not allowed") => of(
                    ObjectErrorKind::Other,
                    "the server is to be reached without encryption, which is not allowed".into(),
                    Some("use https://, or allow http:// with AWS_ALLOW_HTTP=true"),
                ),
                _ if root(http).contains("redirect") => of(
                    ObjectErrorKind::Other,
                    format!("the server redirects without end: {}", root(http)),
                    None,
                ),
                _ => {
                    of(ObjectErrorKind::Unreachable, reason, Some("try again; several attempts have failed"))
                }
            };
        }
        let said = Said::in_text(&text);
        if text.contains("redirect without LOCATION") || said.code == "PermanentRedirect" {
            return of(
                ObjectErrorKind::Other,
                "the bucket is in another region".into(),
                Some("set AWS_REGION to the region of the bucket"),
            );
        }
        match error {
            // A list that fails is of no particular kind in the library.
            _ if said.code == "NoSuchBucket" => of(
                ObjectErrorKind::Missing,
                "there is no such bucket".into(),
                Some("check its name and AWS_ENDPOINT_URL"),
            ),
            E::NotFound { .. } => of(ObjectErrorKind::Missing, "there is no such object".into(), None),
            E::Precondition { .. } => of(
                ObjectErrorKind::Changed,
                "the object has changed since the table was opened".into(),
                Some("try again, or reopen the table"),
            ),
            _ if matches!(error, E::PermissionDenied { .. } | E::Unauthenticated { .. })
                || matches!(said.status, Some(401 | 403)) =>
            {
                let hint = match said.code.as_str() {
                    "ExpiredToken" | "TokenRefreshRequired" => "the credentials have expired: log in again",
                    "InvalidAccessKeyId" | "SignatureDoesNotMatch" => {
                        "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile of AWS_PROFILE"
                    }
                    "RequestTimeTooSkewed" => "set the clock of this host",
                    _ => "check the credentials, and what they may do",
                };
                of(ObjectErrorKind::Denied, format!("access denied{}", said.in_brackets()), Some(hint))
            }
            _ => match said.status {
                Some(status) if status >= 500 || status == 429 => of(
                    ObjectErrorKind::Unreachable,
                    format!("the server failed{}", said.in_brackets()),
                    Some("try again later; several attempts have failed"),
                ),
                Some(status) if (300..400).contains(&status) => {
                    of(ObjectErrorKind::Other, format!("the server redirects{}", said.in_brackets()), None)
                }
                Some(_) => {
                    of(ObjectErrorKind::Other, format!("the request failed{}", said.in_brackets()), None)
                }
                None if text.contains("non-partial response") => of(
                    ObjectErrorKind::Other,
                    "the server does not send parts of files (range requests)".into(),
                    Some("download the file and read it from there"),
                ),
                None => of(ObjectErrorKind::Other, shortened(&root(error)), None),
            },
        }
    }
}

/// What a server said.
#[derive(Debug, Default, PartialEq)]
struct Said {
    status: Option<u16>,
    code: String,
    message: String,
}

impl Said {
    /// Finds it in the text of an error, which is where the library puts the body of the response.
    fn in_text(text: &str) -> Self {
        const STATUS: &str = "status code: ";
        let status =
            text.find(STATUS).and_then(|at| text.get(at + STATUS.len()..at + STATUS.len() + 3)?.parse().ok());
        let element = |name: &str| {
            let (_, rest) = text.split_once(&format!("<{name}>"))?;
            Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
        };
        Self {
            status,
            code: element("Code").unwrap_or_default(),
            message: shortened(&element("Message").unwrap_or_default()),
        }
    }

    fn in_brackets(&self) -> String {
        let status = self.status.map(|status| status.to_string()).unwrap_or_default();
        let parts = [status.as_str(), &self.code, &self.message];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An error and what caused it.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (*error).source())
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    causes(error).find_map(|error| error.downcast_ref())
}

/// The text of the first cause. Those above it repeat it, and the URL.
fn root(error: &(dyn Error + 'static)) -> String {
    causes(error).last().unwrap_or(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_said_is_found_in_the_text_of_an_error() {
        let text = "Error performing GET http://h/b/k?x in 1ms - Server returned non-2xx status code: 403 Forbidden: \
                    <?xml?><Error><Code>ExpiredToken</Code><Message>It has expired.</Message></Error>";
        let said = Said::in_text(text);
        assert_eq!(said.in_brackets(), " (403, ExpiredToken, It has expired.)");
        assert_eq!(Said::in_text("no answer"), Said::default());
        assert_eq!(Said::in_text("status code: 5é").in_brackets(), "");
    }
}
