//! Overlays: shuffles between nodes that are not all connected to each other.
//!
//! When the number of connections per node is limited, nodes without a connection to each other
//! communicate through relays. This crate chooses the connections, routes messages over them and
//! forwards without deadlock. A simulation computes the resulting forwards and times.
//! The hybrid of an overlay and direct connections is from S. Samson, "Improving Data-Shuffle Performance
//! in Data-Parallel Distributed Systems", MSc thesis, Illinois Institute of Technology, 2018.
//! `docs/overlay.md` has the results.
//!
//! - [`Topology`]: nodes and links, built from a [`Shape`]; [`circulant()`] searches for offsets with few
//!   hops. [`TopologyMetrics`]: properties of a topology; [`draw()`]: a picture of it.
//! - [`Routes`]: hop counts and every next hop of the shortest paths.
//! - [`forwarding`]: classes by hop count, with which bounded queues can't deadlock.
//! - [`Forwarder`](forwarder::Forwarder): a node that forwards, without its sockets.
//! - [`DirectPolicy`]: which nodes get direct connections for a given [`Traffic`]; [`Reserve`]: how many sockets
//!   to reserve for them.
//! - [`SocketBudget`], [`StreamRoute`]: whether a stream goes direct or over the overlay, depending on the number of
//!   peers, the number of connections and the message size.
//! - [`Simulation`]: a shuffle in virtual time, and its [`Report`](simulate::Report).
//!
//! No I/O, no clock, no threads; random choices come from seeds. The crate sends nothing and does not
//! route around failed nodes.
//!
//! ```
//! use lightship_overlay::{TopologyMetrics, Routes, Shape, Simulation, Topology, circulant};
//!
//! // Twelve sockets per node, used one way as in the thesis, and both ways.
//! let figures = |shape: Shape| Ok(TopologyMetrics::of(&Routes::new(Topology::new(shape, 60)?)));
//! let (one_way, both_ways) = (figures(Shape::Original { degree: 6 })?, figures(circulant(60, 12, 1000, 1)?)?);
//! assert_eq!((one_way.sockets_max, both_ways.sockets_max), (12, 12));
//! assert!(one_way.mean_hops > 2.9 && both_ways.mean_hops < 1.8);
//!
//! let report = Simulation::new(Shape::Original { degree: 12 }, 60, 1).run(None)?;
//! assert!((report.forwards_per_message - 1.05).abs() < 0.01);
//! # Ok::<(), lightship_overlay::OverlayError>(())
//! ```

mod choice;
mod circulant;
mod connectivity;
mod direct;
mod draw;
mod error;
mod figures;
pub mod forwarder;
pub mod forwarding;
mod latency;
mod reserve;
mod routes;
pub mod simulate;
#[cfg(test)]
mod tests;
mod topology;
mod traffic;
mod ways;

pub use choice::{CONNECTIONS_MIN, LARGE_MESSAGE_BYTES, SocketBudget, StreamRoute};
pub use circulant::circulant;
pub use direct::{Direct, DirectPolicy, TrafficKnowledge};
pub use draw::draw;
pub use error::{OverlayError, Result};
pub use figures::{LowerBound, TopologyMetrics, moore_mean_hops};
pub use latency::{Histogram, Latencies};
pub use reserve::{Expected, Reserve, Split};
pub use routes::Routes;
pub use simulate::Simulation;
pub use topology::{NODES_MAX, Shape, Topology};
pub use traffic::{Destinations, THESIS_WEIGHTS_PERCENT, Traffic, TrafficMatrix};
pub use ways::DirectUse;
