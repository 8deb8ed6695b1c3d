//! SCRAM-SHA-256 (RFC 5802, RFC 7677), the server's side, for any of several passwords.
//!
//! The exchange names no password. All have one salt and number of iterations, so the server sends its first message
//! before it knows which one the client has, and compares the client's proof with each.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac::{HMAC_SHA256, Key, sign};
use ring::rand::SecureRandom as _;
use ring::{digest, pbkdf2};
use subtle::ConstantTimeEq as _;

/// The mechanism's name.
pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";
/// What PostgreSQL uses.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4096).expect("above 0");
/// The longest message of a client.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What a server keeps of a password.
struct Keys {
    stored: [u8; 32],
    server: [u8; 32],
}

/// The passwords that are accepted.
pub(crate) struct Verifier {
    salt: [u8; 16],
    keys: Vec<Keys>,
}

/// An exchange, after the client's first message.
pub(crate) struct Exchange {
    /// The client's first message without its header.
    client_first: String,
    /// `n,,` in base64, or what else the header was.
    binding: String,
    nonce: String,
    server_first: String,
}

fn mac(key: &[u8], data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(sign(&Key::new(HMAC_SHA256, key), data).as_ref());
    out
}

fn hash(data: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, data).as_ref());
    out
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    ring::rand::SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}

impl Verifier {
    /// The verifier of these passwords. `None` if the system has no random numbers.
    pub(crate) fn new(passwords: &[String]) -> Option<Self> {
        let salt = random()?;
        let keys = passwords.iter().map(|password| Keys::new(password, &salt)).collect();
        Some(Self { salt, keys })
    }

    /// The exchange that the client's first message begins. `None` if it is malformed.
    pub(crate) fn begin(&self, message: &[u8]) -> Option<Exchange> {
        let message =
            std::str::from_utf8(message).ok().filter(|message| message.len() <= MESSAGE_BYTES_MAX)?;
        // The header: whether the client supports channel binding (n, y), and whom it acts for. `p` would need
        // a mechanism that is not offered.
        let header = ["n,", "y,"].iter().find(|header| message.starts_with(**header))?;
        let (identity, client_first) = message[header.len()..].split_once(',')?;
        if !identity.is_empty() {
            return None;
        }
        let client_nonce = client_first.split(',').find_map(|part| part.strip_prefix("r="))?;
        if client_nonce.is_empty() || !client_nonce.bytes().all(|b| b.is_ascii_graphic()) {
            return None;
        }
        let nonce = format!("{client_nonce}{}", STANDARD.encode(random::<18>()?));
        let server_first = format!("r={nonce},s={},i={ITERATIONS}", STANDARD.encode(self.salt));
        Some(Exchange {
            client_first: client_first.to_owned(),
            binding: STANDARD.encode(format!("{header},")),
            nonce,
            server_first,
        })
    }

    /// The server's last message, if the client's last one proves that it knows a password.
    pub(crate) fn finish(&self, exchange: &Exchange, message: &[u8]) -> Option<String> {
        let message =
            std::str::from_utf8(message).ok().filter(|message| message.len() <= MESSAGE_BYTES_MAX)?;
        let (without_proof, proof) = message.rsplit_once(",p=")?;
        let mut parts = without_proof.split(',');
        let is_bound = parts.next()?.strip_prefix("c=") == Some(exchange.binding.as_str());
        let is_fresh = parts.next()?.strip_prefix("r=") == Some(exchange.nonce.as_str());
        let proof: [u8; 32] = STANDARD.decode(proof).ok()?.try_into().ok()?;
        if !is_bound || !is_fresh {
            return None;
        }
        let signed = format!("{},{},{without_proof}", exchange.client_first, exchange.server_first);
        // All are compared, so that the time tells nothing.
        let mut matched = None;
        for keys in &self.keys {
            let mut client_key = mac(&keys.stored, signed.as_bytes());
            client_key.iter_mut().zip(proof).for_each(|(byte, proof)| *byte ^= proof);
            if bool::from(hash(&client_key).ct_eq(&keys.stored)) {
                matched = Some(keys);
            }
        }
        Some(format!("v={}", STANDARD.encode(mac(&matched?.server, signed.as_bytes()))))
    }
}

impl Exchange {
    /// The server's first message.
    pub(crate) fn message(&self) -> &str {
        &self.server_first
    }
}

impl Keys {
    fn new(password: &str, salt: &[u8]) -> Self {
        // As PostgreSQL: a password that SASLprep refuses is used as it is.
        let prepared = stringprep::saslprep(password);
        let password = prepared.as_deref().unwrap_or(password);
        let mut salted = [0; 32];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, salt, password.as_bytes(), &mut salted);
        Self { stored: hash(&mac(&salted, b"Client Key")), server: mac(&salted, b"Server Key") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client answers.
    fn answer(password: &str, client_first: &str, server_first: &str) -> String {
        let part = |name: &str| server_first.split(',').find_map(|part| part.strip_prefix(name)).unwrap();
        let mut salted = [0; 32];
        let salt = STANDARD.decode(part("s=")).unwrap();
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, &salt, password.as_bytes(), &mut salted);
        let client_key = mac(&salted, b"Client Key");
        let without_proof = format!("c=biws,r={}", part("r="));
        let signed = format!("{client_first},{server_first},{without_proof}");
        let signature = mac(&hash(&client_key), signed.as_bytes());
        let proof: Vec<u8> = client_key.iter().zip(signature).map(|(key, byte)| key ^ byte).collect();
        format!("{without_proof},p={}", STANDARD.encode(proof))
    }

    #[test]
    fn any_of_the_passwords_is_accepted() {
        let verifier = Verifier::new(&["one".into(), "two".into()]).unwrap();
        for (password, is_right) in [("one", true), ("two", true), ("three", false), ("", false)] {
            let exchange = verifier.begin(b"n,,n=me,r=nonce").unwrap();
            let last = answer(password, "n=me,r=nonce", exchange.message());
            assert_eq!(verifier.finish(&exchange, last.as_bytes()).is_some(), is_right, "{password}");
        }
    }

    #[test]
    fn a_proof_is_good_for_one_exchange() {
        let verifier = Verifier::new(&["one".into()]).unwrap();
        let first = verifier.begin(b"n,,n=,r=x").unwrap();
        let last = answer("one", "n=,r=x", first.message());
        let second = verifier.begin(b"n,,n=,r=x").unwrap();
        assert!(verifier.finish(&second, last.as_bytes()).is_none());
    }

    #[test]
    fn malformed_messages_are_refused() {
        let verifier = Verifier::new(&["one".into()]).unwrap();
        for message in ["", "n", "n,,", "p=tls-unique,,n=,r=x", "n,a=me,n=,r=x", "n,,n=,r="] {
            assert!(verifier.begin(message.as_bytes()).is_none(), "{message}");
        }
        let exchange = verifier.begin(b"y,,n=,r=x").unwrap();
        for message in ["", ",p=", "c=eSws,r=x,p=AAAA", "c=biws"] {
            assert!(verifier.finish(&exchange, message.as_bytes()).is_none(), "{message}");
        }
    }
}
