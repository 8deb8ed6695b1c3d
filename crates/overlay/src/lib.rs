//! Overlays: shuffles between nodes that are not all connected to each other.
//!
//! With a limited number of connections a node, messages between the others are forwarded. Which
//! connections, by what way, and how that can't deadlock, with a simulation that says what it comes to.
//! The hybrid of an overlay and direct connections is that of S. Samson, "Improving Data-Shuffle Performance
//! in Data-Parallel Distributed Systems", MSc thesis, Illinois Institute of Technology, 2018.
//! `docs/overlay.md` has the figures.
//!
//! - [`Topology`]: nodes and links, of a [`Shape`]; [`circulant()`] finds offsets of few hops. [`Figures`]: what
//!   one is worth; [`draw()`]: its picture.
//! - [`Routes`]: hops and every next hop of the shortest ways.
//! - [`forwarding`]: classes by hops, with which bounded queues can't deadlock.
//! - [`Forwarder`](forwarder::Forwarder): a node that forwards, without its sockets.
//! - [`Pool`]: who gets direct connections after what [`Traffic`]; [`Reserve`]: how many sockets to keep for
//!   them.
//! - [`Division`], [`Way`]: whether a stream goes direct or over the overlay, by peers, connections and message size.
//! - [`Simulation`]: a shuffle in virtual time, and its [`Report`](simulate::Report).
//!
//! No I/O, no clock, no threads; randomness by seeds. It does not send anything, and does not route
//! around nodes that fail.
//!
//! ```
//! use lightship_overlay::{Figures, Routes, Shape, Simulation, Topology, circulant};
//!
//! // Twelve sockets a node: one way as in the thesis, and both ways.
//! let figures = |shape: Shape| Ok(Figures::of(&Routes::new(Topology::new(shape, 60)?)));
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

pub use choice::{CONNECTIONS_MIN, Division, LARGE_MESSAGE_BYTES, Way};
pub use circulant::circulant;
pub use direct::{Direct, Knowledge, Pool};
pub use draw::draw;
pub use error::{OverlayError, Result};
pub use figures::{Figures, Least, moore_mean_hops};
pub use latency::{Histogram, Latencies};
pub use reserve::{Expected, Reserve, Split};
pub use routes::Routes;
pub use simulate::Simulation;
pub use topology::{NODES_MAX, Shape, Topology};
pub use traffic::{Demand, Destinations, THESIS_WEIGHTS_PERCENT, Traffic};
pub use ways::Through;
