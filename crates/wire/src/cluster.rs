//! What nodes of a cluster ask each other for (`docs/format.md`, section 9).

use crate::bytes::{Put, Reader};
use crate::control::Plan;
use crate::error::Result;

/// Bit of a hello: this side is a node of the same cluster, and answers [`Task`]s of the other.
pub const CAPABILITY_CLUSTER: u64 = 1 << 5;

/// Bit of a hello, of nodes of one cluster: no frames follow the hellos, but the messages of circuits, each of which
/// carries a connection of its own.
pub const CAPABILITY_TRUNK: u64 = 1 << 6;

/// Largest payload of a task frame: plans of queries are among them.
pub const TASK_BYTES_MAX: u32 = 16 << 20;

/// What one node asks another for. Its answer is a result like that of a [`crate::control::Query`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// What is wanted, in bytes that only the nodes' engines understand.
    pub body: Vec<u8>,
    /// The plan of the answer's transfer. Its streams are always 1.
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
    /// When they are no task.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new("task", bytes);
        let plan = Plan::read(&mut reader)?;
        let body_bytes = reader.u32()? as usize;
        let body = reader.take(body_bytes)?.to_vec();
        reader.end()?;
        Ok(Self { body, plan })
    }
}
