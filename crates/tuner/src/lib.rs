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
//!   fast as any: a [`Plan`].
//! - [`thesis`]: the links, queries and limits of the thesis.
//!
//! No I/O, no clock, no threads, no randomness: times are `f64` seconds that others measured. It does
//! not choose codecs or the number of connections, and does not follow a link that changes: whoever
//! has newer samples calibrates again. Nothing it is given makes a NaN: it is refused as a
//! [`TunerError`].
//!
//! ```
//! use lightship_tuner::{Budget, Link, Rates, Rules, newton, plan, thesis};
//!
//! // The thesis' plan: a step larger is taken as long as it saves a second.
//! let rules = Rules { gain_seconds: Some(1.0), ..Rules::default() };
//! let walk = newton(&thesis::TEN_GIGABIT, &thesis::Q3, &thesis::LIMITS, &rules)?;
//! assert_eq!((walk.k, walk.plan.message_bytes), (17, 22_377));
//!
//! // With several batches in flight: faster, and in less memory.
//! let link = Link { model: thesis::TEN_GIGABIT, rtt_seconds: 400e-6, rates: Rates::default() };
//! let plan = plan(&link, &thesis::Q3, &thesis::LIMITS, &Budget::default())?;
//! assert!(plan.predicted_seconds < walk.plan.predicted_seconds);
//! assert!(plan.memory_bytes < walk.plan.memory_bytes);
//! # Ok::<(), lightship_tuner::TunerError>(())
//! ```

mod calibrate;
mod cost;
mod descent;
mod error;
mod fit;
mod grid;
mod model;
mod newton;
mod plan;
mod stages;
mod strategies;
#[cfg(test)]
mod tests;
pub mod thesis;
mod walk;
mod window;

pub use calibrate::{Calibration, Sample, calibrate, mean_relative_error};
pub use cost::{Cost, Hessian};
pub use descent::descent;
pub use error::{Result, TunerError};
pub use fit::{Fit, Term, Why};
pub use grid::Grid;
pub use model::{Limits, LinkModel, Plan, Plane, Query};
pub use newton::newton;
pub use plan::{Budget, plan};
pub use stages::{Rates, Stage};
pub use strategies::Strategy;
pub use walk::{Halt, Iteration, Rules, Walk};
pub use window::{Link, WindowCost};
