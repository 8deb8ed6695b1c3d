//! Requests to a node other than queries: of other nodes of its cluster, and about range files (`docs/format.md`,
//! section 9).

use crate::bytes::{Put, Reader};
use crate::control::Plan;
use crate::error::{Result, malformed};

/// Bit of a hello: this side is a node of the cluster. A node answers [`Task`]s of other nodes.
pub const CAPABILITY_CLUSTER: u64 = 1 << 5;

/// Bit of a hello: the server has range files, and answers [`Task`]s about them.
pub const CAPABILITY_RANGE_FILES: u64 = 1 << 7;

/// Largest payload of a task frame. Some contain plans of queries, others rows.
pub const TASK_BYTES_MAX: u32 = 16 << 20;

/// The part of a node that a [`Task`] is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Recipient {
    /// The engine. Only other nodes of the cluster send it tasks.
    #[default]
    Engine,
    /// The range files. Clients may send tasks too.
    RangeFiles,
}

/// A request of a node or a client to a node. It is answered by a result, like a [`crate::control::Query`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// What it is for.
    pub recipient: Recipient,
    /// The request, in a format of the recipient.
    pub body: Vec<u8>,
    /// The plan of the answer's transfer. Its `streams` is always 1.
    pub plan: Plan,
}

impl Task {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.body.len());
        self.plan.put(&mut out);
        out.put_u32(u32::try_from(self.body.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(&self.body);
        // Of the engine, it is left out: nodes of all versions can read these tasks and refuse them by name.
        if self.recipient == Recipient::RangeFiles {
            out.push(1);
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("task", bytes);
        let plan = Plan::read(&mut reader)?;
        let body_bytes = reader.u32()? as usize;
        let body = reader.take(body_bytes)?.to_vec();
        let recipient = if reader.is_empty() { 0 } else { reader.u8()? };
        let recipient = match recipient {
            0 => Recipient::Engine,
            1 => Recipient::RangeFiles,
            other => return Err(malformed("task", format!("unknown recipient {other}"))),
        };
        reader.end()?;
        Ok(Self { recipient, body, plan })
    }
}
