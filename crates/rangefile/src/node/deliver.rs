//! Connections that this node opens to clients which ask for them (push and back-off).
//!
//! The node connects only to the address that the request has come from, so that nobody can make it connect
//! elsewhere. All attempts belong to the answer of the request: when the client drops it, they end.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, stream};
use lightship_transport::net::{Answer, Caller, Intake, PushAttempt, PushToken, blobs, push_connect};
use lightship_transport::proto::reception::{
    ReceptionStrategy, Sender, SenderAction, SenderConfig, SenderEvent,
};
use lightship_wire::control::{ErrorCode, Failure};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::Node;
use crate::error::{RangeError, Result};
use crate::request::Deliver;

/// The most parts of a request.
const PARTS_MAX: usize = 65_536;
/// Parts of a request for which the node connects, or waits to connect again, at a time.
const PARTS_AT_ONCE: usize = 16;
/// Connections that the node is opening at a time, for all requests.
const CONNECTS_MAX: usize = 64;
/// How long an attempt may take, from the first packet to the client's answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What connections to clients need.
pub(super) struct Delivery {
    /// Where they are served.
    intake: Mutex<Option<Intake>>,
    connects: Semaphore,
}

impl Default for Delivery {
    fn default() -> Self {
        Self { intake: Mutex::default(), connects: Semaphore::new(CONNECTS_MAX) }
    }
}

/// The client that waits for parts.
#[derive(Clone)]
struct Target {
    address: SocketAddr,
    token: PushToken,
    strategy: ReceptionStrategy,
    intake: Intake,
}

impl Node {
    /// Lets clients ask this node to connect to them. `intake` is that of the server which answers with this node.
    pub fn set_intake(&self, intake: Intake) {
        *self.shared.delivery.intake.lock().unwrap_or_else(PoisonError::into_inner) = Some(intake);
    }

    /// Connects to the caller for each part. The answer has no rows, and ends when all parts are wanted, or given up.
    pub(super) fn deliver(&self, deliver: Deliver, caller: &Caller) -> Result<Answer> {
        self.file(&deliver.file)?;
        let intake = self.shared.delivery.intake.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let target = Target {
            address: address_of(caller, deliver.port)?,
            token: token(&deliver.token)?,
            strategy: if deliver.backs_off { ReceptionStrategy::BackOff } else { ReceptionStrategy::Push },
            intake: intake.ok_or_else(|| forbidden("this node can't connect to clients"))?,
        };
        if deliver.parts.len() > PARTS_MAX {
            return Err(RangeError::Definition(format!("a node connects for at most {PARTS_MAX} parts")));
        }
        let node = self.clone();
        let parts = stream::iter(deliver.parts).map(move |part| {
            let (node, target) = (node.clone(), target.clone());
            async move { node.deliver_part(&target, part).await }
        });
        Ok(blobs(parts.buffer_unordered(PARTS_AT_ONCE).filter_map(|()| async { None })))
    }

    async fn deliver_part(&self, target: &Target, part: u64) {
        let mut random = fastrand::Rng::new();
        let now = || Instant::now().into_std();
        let Ok(mut sender) = Sender::new(SenderConfig::default(), target.strategy, now(), &mut random) else {
            return;
        };
        loop {
            let event = match (sender.next_action(), sender.deadline()) {
                (Some(SenderAction::Connect), _) => self.connect(target, part).await,
                (Some(SenderAction::End(_) | SenderAction::Announce), _) | (None, None) => return,
                (None, Some(at)) => {
                    sleep_until(at.into()).await;
                    SenderEvent::Tick
                }
            };
            sender.handle(event, now(), &mut random);
        }
    }

    /// Connects to a client. From the client's answer on, the server has the connection.
    async fn connect(&self, target: &Target, part: u64) -> SenderEvent {
        let attempt = {
            let _permit = self.shared.delivery.connects.acquire().await;
            push_connect(target.address, target.token, part, CONNECT_TIMEOUT).await
        };
        match attempt {
            PushAttempt::Wanted(stream) => {
                // If the server has ended, the client finds the connection closed, and asks again.
                let _ = target.intake.serve_socket(stream, format!("{} (push)", target.address)).await;
                SenderEvent::Ended
            }
            PushAttempt::Refused(reason) => SenderEvent::Refused(reason),
            PushAttempt::Unreachable => SenderEvent::Unreachable,
        }
    }
}

/// The address that a request comes from, with a port that it names.
pub(super) fn address_of(caller: &Caller, port: u32) -> Result<SocketAddr> {
    let address = caller
        .address
        .ok_or_else(|| forbidden("push, back-off and announce need a TCP connection to the node"))?;
    match u16::try_from(port) {
        Ok(port @ 1..) => Ok(SocketAddr::new(address, port)),
        _ => Err(RangeError::Definition(format!("{port} is not a port"))),
    }
}

/// The token that a request names.
pub(super) fn token(bytes: &[u8]) -> Result<PushToken> {
    PushToken::from_bytes(bytes).ok_or_else(|| RangeError::Definition("the token must have 16 bytes".into()))
}

fn forbidden(why: &str) -> RangeError {
    Failure::new(ErrorCode::Forbidden, why)
        .hint("connect by TCP (lightship://HOST), or leave --reception at auto")
        .into()
}
