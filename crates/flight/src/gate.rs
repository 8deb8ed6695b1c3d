//! Who may send requests: tokens, as bearers or as passwords.

use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::Mutex;
use tonic::Status;

/// The time that each wrong token takes; they wait for each other, which limits how many can be tried.
const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(100);
/// Clients written in Go leave the padding out, which includes ADBC's driver.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
/// The bearer of clients that need none.
const NO_TOKEN: &str = "none";

/// Checks the tokens of requests.
pub(crate) struct Gate {
    tokens: Vec<String>,
    wrong: Mutex<()>,
}

/// A credential of a request.
enum Credential {
    Missing,
    Token(String),
    Malformed,
}

impl Gate {
    pub(crate) fn new(tokens: Vec<String>) -> Self {
        Self { tokens, wrong: Mutex::new(()) }
    }

    /// Fails unless a request has a token, as a bearer or as a password.
    pub(crate) async fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        if self.tokens.is_empty() {
            return Ok(());
        }
        let message = match credential(headers) {
            Credential::Token(token) if self.is_token(&token) => return Ok(()),
            Credential::Missing => "a token is needed, as a bearer token or as the password of any user",
            Credential::Token(_) | Credential::Malformed => {
                let _turn = self.wrong.lock().await;
                tokio::time::sleep(WRONG_TOKEN_DELAY).await;
                "the token is not known"
            }
        };
        Err(Status::unauthenticated(message))
    }

    /// Whether it is one of the tokens. It takes the same time whichever characters are wrong.
    fn is_token(&self, token: &str) -> bool {
        let none = Choice::from(0);
        self.tokens.iter().fold(none, |known, t| known | t.as_bytes().ct_eq(token.as_bytes())).into()
    }

    /// The bearer that a client uses after its handshake.
    pub(crate) fn bearer(&self, headers: &HeaderMap) -> String {
        match credential(headers) {
            Credential::Token(token) if !self.tokens.is_empty() => token,
            _ => NO_TOKEN.to_owned(),
        }
    }
}

fn credential(headers: &HeaderMap) -> Credential {
    let Some(header) = headers.get(AUTHORIZATION) else { return Credential::Missing };
    let token = header.to_str().ok().and_then(|header| {
        let (scheme, value) = header.split_once(' ')?;
        let value = value.trim();
        match scheme.to_ascii_lowercase().as_str() {
            "bearer" => Some(value.to_owned()),
            "basic" => {
                let decoded = String::from_utf8(BASE64.decode(value).ok()?).ok()?;
                Some(decoded.split_once(':')?.1.to_owned())
            }
            _ => None,
        }
    });
    token.map_or(Credential::Malformed, Credential::Token)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(gate: &Gate, authorization: Option<&str>) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value.parse().unwrap());
        }
        gate.check(&headers).await.map_err(|status| status.message().to_owned())?;
        Ok(gate.bearer(&headers))
    }

    #[tokio::test]
    async fn tokens_are_bearers_or_passwords() {
        let gate = Gate::new(vec!["one".into(), "two:2".into()]);
        let basic = |text: &str| format!("Basic {}", BASE64.encode(text));
        for (header, token) in [
            ("Bearer one".to_owned(), "one"),
            ("bearer  two:2".to_owned(), "two:2"),
            (basic("anybody:one"), "one"),
            (basic(":two:2"), "two:2"),
            (basic("any:one"), "one"),
            (basic("any:one").trim_end_matches('=').to_owned(), "one"),
        ] {
            assert_eq!(check(&gate, Some(&header)).await.as_deref(), Ok(token), "{header}");
        }
        for header in ["Bearer", "Bearer ", "Bearer on", "Bearer three", "one", "Basic one", "Basic b25l"] {
            assert!(check(&gate, Some(header)).await.unwrap_err().contains("not known"), "{header}");
        }
        assert!(check(&gate, Some(&basic("one:anybody"))).await.is_err());
        assert!(check(&gate, None).await.unwrap_err().contains("needed"));
    }

    #[tokio::test]
    async fn without_tokens_everybody_is_accepted() {
        let gate = Gate::new(Vec::new());
        for header in [None, Some("Bearer x"), Some("nonsense")] {
            assert_eq!(check(&gate, header).await.as_deref(), Ok(NO_TOKEN));
        }
    }
}
