//! Logs in: the startup message, and the methods of authentication.

use std::io;

use bytes::BytesMut;
use postgres_protocol::authentication::{md5_hash, sasl};
use postgres_protocol::message::frontend;

use super::super::message::{Parser, ServerError};
use super::Connection;
use super::dial::cant_connect;
use crate::{Result, SourceError};

impl Connection {
    pub(super) async fn log_in(&mut self) -> Result<()> {
        let config = self.config.clone();
        let fail = |e: io::Error| cant_connect(&config, e.to_string(), Some(e));
        let mut parameters = vec![
            ("user", &*config.user),
            ("database", &*config.database),
            ("application_name", &*config.application),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO, YMD"),
            ("extra_float_digits", "3"),
            // A role may turn this off, which changes the meaning of backslashes in literals.
            ("standard_conforming_strings", "on"),
        ];
        if let Some(options) = &config.options {
            parameters.push(("options", options));
        }
        frontend::startup_message(parameters, &mut self.write).map_err(fail)?;
        self.flush().await.map_err(fail)?;
        let mut scram = None;
        loop {
            let frame = self.frame().await.map_err(fail)?;
            match frame.tag {
                b'R' => {
                    if let Authentication::Answer = self.authenticate(&frame.body, &mut scram)? {
                        self.flush().await.map_err(fail)?;
                    }
                }
                b'K' => {
                    let mut body = Parser(&frame.body);
                    self.key = Some((body.i32().map_err(fail)?, body.i32().map_err(fail)?));
                }
                b'E' => {
                    let error = ServerError::parse(&frame.body).map_err(fail)?;
                    // The server is there, but accepts no more connections, or is starting or stopping.
                    return Err(match error.code.get(..2) {
                        Some("53" | "57" | "58") => cant_connect(&config, error.message, None),
                        _ => self.refused(error.message),
                    });
                }
                b'Z' => return Ok(()),
                _ => {}
            }
        }
    }

    fn authenticate(&mut self, body: &[u8], scram: &mut Option<sasl::ScramSha256>) -> Result<Authentication> {
        let config = self.config.clone();
        let malformed = |e: io::Error| self.refused(e.to_string());
        let password = || {
            let missing = || self.refused("it requires a password, and none was given".into());
            config.password.as_deref().map(str::as_bytes).ok_or_else(missing)
        };
        let mut body = Parser(body);
        let mut answer = BytesMut::new();
        match body.i32().map_err(malformed)? {
            0 => return Ok(Authentication::Done),
            3 => frontend::password_message(password()?, &mut answer),
            5 => {
                let salt = body.array().map_err(malformed)?;
                let hash = md5_hash(config.user.as_bytes(), password()?, salt);
                frontend::password_message(hash.as_bytes(), &mut answer)
            }
            10 => {
                let mut mechanisms = Vec::new();
                while let Ok(name) = body.text() {
                    mechanisms.push(name);
                }
                if !mechanisms.iter().any(|name| name == sasl::SCRAM_SHA_256) {
                    return Err(
                        self.refused(format!("it requires {}, which is not supported", mechanisms.join(" ")))
                    );
                }
                let start = sasl::ScramSha256::new(password()?, sasl::ChannelBinding::unsupported());
                let sent = frontend::sasl_initial_response(sasl::SCRAM_SHA_256, start.message(), &mut answer);
                *scram = Some(start);
                sent
            }
            11 => match scram.as_mut() {
                Some(scram) => {
                    scram.update(body.0).map_err(malformed)?;
                    frontend::sasl_response(scram.message(), &mut answer)
                }
                None => Err(io::Error::other("unexpected message during login")),
            },
            12 => {
                let mut scram = scram
                    .take()
                    .ok_or_else(|| malformed(io::Error::other("unexpected message during login")))?;
                scram.finish(body.0).map_err(malformed)?;
                return Ok(Authentication::Done);
            }
            other => {
                return Err(self.refused(format!(
                    "it requires login method {other}, which is not supported; use a password"
                )));
            }
        }
        .map_err(malformed)?;
        self.write.unsplit(answer);
        Ok(Authentication::Answer)
    }

    fn refused(&self, mut reason: String) -> SourceError {
        if let Some(file) = &self.config.password_file {
            reason = format!("{reason} ({file})");
        }
        SourceError::Login { target: format!("{:?}", self.config), reason }
    }
}

enum Authentication {
    Answer,
    Done,
}
