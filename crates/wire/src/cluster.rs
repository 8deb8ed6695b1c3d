//! Requests between the nodes of a cluster (`docs/format.md`, section 9).

use crate::bytes::{Put, Reader};
use crate::control::Plan;
use crate::error::Result;

/// Bit of a hello: this side is a node of the cluster. A node answers [`Task`]s of other nodes.
pub const CAPABILITY_CLUSTER: u64 = 1 << 5;

/// Largest payload of a task frame. Some contain plans of queries.
pub const TASK_BYTES_MAX: u32 = 16 << 20;

/// A request of one node to another. It is answered by a result, like a [`crate::control::Query`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// The request, in a format of the engine.
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
        reader.end()?;
        Ok(Self { body, plan })
    }
}
