//! Sockets and timers around the agent and the collector.

mod agent;
mod collector;

pub use agent::{AgentEvent, COLLECTORS_MAX, run_agent};
pub use collector::{bind_collector, run_collector};

#[cfg(test)]
mod tests;
