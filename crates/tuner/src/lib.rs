//! The cost of a transfer as a model: calibrated from measurements, minimised into a plan.
//!
//! A result of V bytes travels as batches of F rows (F^B bytes), a batch as messages of at most M
//! bytes. The first message of a batch takes alpha seconds, every other beta; both are planes
//! over F^B and M that belong to the link alone. This is the model MIND of A. Belghoul, "Optimizing
//! Communication Cost in Distributed Query Processing", PhD thesis, Université Clermont Auvergne,
//! 2017, and beyond it a window of W batches in flight. `docs/cost-model.md` derives all of it.
//!
//! - [`calibrate()`]: [`Sample`]s to a [`LinkModel`], with what it is worth.
//! - [`Cost`] and [`WindowCost`]: what a [`Query`] costs at given sizes.
//! - [`newton()`]: the thesis' optimiser, with its halting [`Rules`]; [`descent()`]: one that never
//!   goes uphill; [`Grid`] and [`Strategy`]: what they are compared with.
//! - [`plan()`]: batch, message and window together, in the least memory that is nearly as
//!   fast as any: a [`Plan`]. [`explain()`]: what a plan's time is spent on, and what half or twice
//!   its memory would do.
//! - [`thesis`]: the links, queries and limits of the thesis.
//!
//! - [`Flight`] and [`Streams`]: sizes, and the number of connections, that follow a transfer on its way.
//!
//! No I/O, no clock, no threads, no randomness: times are `f64` seconds that others measured. It does
//! not choose codecs, and a model does not follow a link that changes: whoever has newer samples
//! calibrates again. Nothing it is given makes a NaN: it is refused as a [`TunerError`].
//!
//! ```
//! use lightship_tuner::{Budget, Limits, Link, LinkModel, Plane, Query, Rules, newton, plan, thesis};
//!
//! // The thesis' plan: larger by steps, as long as each saves a second.
//! let rules = Rules { gain_seconds: Some(1.0), ..Rules::default() };
//! let walk = newton(&thesis::TEN_GIGABIT, &thesis::Q3, &thesis::LIMITS, &rules)?;
//! assert_eq!((walk.k, walk.plan.message_bytes), (17, 22_377));
//!
//! // Several batches in flight, over 1 Gbit/s with 10 ms: bandwidth x delay are 1.25 MB.
//! let first = Plane::new(0.0, 8e-9, 10e-3);
//! let next = Plane::new(0.0, 8e-9, 10e-6);
//! let link = Link { model: LinkModel { first, next }, rtt_seconds: 10e-3, ..Link::default() };
//! let query = Query { volume_bytes: 10_000_000_000, row_bytes: 100.0 };
//! let limits = Limits { message_bytes_min: 512, message_bytes_max: 1 << 20, batch_bytes_max: 16 << 20 };
//! let plan = plan(&link, &query, &limits, &Budget::default())?;
//! assert!(plan.predicted_seconds < 82.0 && plan.memory_bytes < 1_500_000);
//! # Ok::<(), lightship_tuner::TunerError>(())
//! ```

mod calibrate;
mod cost;
mod descent;
mod error;
mod explain;
mod fit;
mod flight;
mod grid;
mod model;
mod newton;
mod plan;
mod stages;
mod strategies;
mod streams;
#[cfg(test)]
mod tests;
pub mod thesis;
mod walk;
mod window;

pub use calibrate::{Calibration, Sample, calibrate, mean_relative_error};
pub use cost::{Cost, Hessian};
pub use descent::descent;
pub use error::{Result, TunerError};
pub use explain::{Bound, Explanation, Slowest, explain};
pub use fit::{Fit, Term, Why};
pub use flight::{Bounds, Flight, Sizes};
pub use grid::Grid;
pub use model::{Limits, LinkModel, Plan, Plane, Query};
pub use newton::newton;
pub use plan::{Budget, plan};
pub use stages::{Rates, Stage};
pub use strategies::Strategy;
pub use streams::{Segments, Streams, Taken};
pub use walk::{Halt, Iteration, Rules, Walk};
pub use window::{Link, WindowCost};
