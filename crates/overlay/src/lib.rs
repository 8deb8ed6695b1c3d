//! Overlays: shuffles between nodes that are not all connected to each other.

mod circulant;
mod connectivity;
mod direct;
mod draw;
mod error;
mod figures;
pub mod forwarding;
mod reserve;
mod routes;
pub mod simulate;
#[cfg(test)]
mod tests;
mod topology;
mod traffic;
mod ways;

pub use circulant::circulant;
pub use direct::{Direct, Knowledge, Pool};
pub use draw::draw;
pub use error::{OverlayError, Result};
pub use figures::{Figures, Least, moore_mean_hops};
pub use reserve::{Expected, Reserve, Split};
pub use routes::Routes;
pub use simulate::Simulation;
pub use topology::{NODES_MAX, Shape, Topology};
pub use traffic::{Demand, Destinations, THESIS_WEIGHTS_PERCENT, Traffic};
pub use ways::Through;
