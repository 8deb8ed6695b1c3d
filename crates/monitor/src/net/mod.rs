//! Sockets and timers around the agent and the collector.

mod agent;
mod collector;
#[cfg(feature = "otlp")]
mod spans;

pub use agent::{AgentEvent, COLLECTORS_MAX, run_agent};
pub use collector::{bind_collector, run_collector};
#[cfg(feature = "otlp")]
pub use spans::{SpanReceiver, send_spans};

#[cfg(test)]
mod tests;
