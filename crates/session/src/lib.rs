//! The Rust client: transfers rows from a node to this process.
//!
//! [`Client`] is an open connection; [`Client::fetch`] plans and begins a
//! transfer; [`Transfer`] returns its batches and, at the end, a [`Report`] of what
//! was planned and what happened.
//!
//! It does not write files or talk to databases; `lightship-sources` does.
//!
//! ```no_run
//! use lightship_session::{Client, Options};
//!
//! # async fn example() -> Result<(), lightship_session::TransportError> {
//! let endpoint = lightship_session::Endpoint::Tcp { host: "localhost".into(), port: 4270, tls: None };
//! let mut client = Client::connect(&endpoint, "").await?;
//! let mut transfer = client.fetch("select * from lineitem", &Options::default()).await?;
//! while let Some(batch) = transfer.next().await? {
//!     println!("{} rows", batch.num_rows());
//! }
//! println!("{:?}", transfer.report());
//! # Ok(())
//! # }
//! ```

mod budget;
mod calibrate;
#[cfg(fuzzing)]
pub mod fuzzing;
mod history;
mod plan;
mod predictions;
mod prior;
mod profile;
mod report;
mod state;
mod transfer;

pub use budget::Budget;
pub use calibrate::{Batches, CalibrateError, CalibrationPlan, NodeProbe, Pair, Probe, calibrate};
pub use history::TransferRecord;
pub use lightship_transport::TransportError;
pub use lightship_transport::net::{Carrier, ClientConfig, Endpoint, Prepared};
pub use lightship_wire::Codec;
pub use lightship_wire::control::{ErrorCode, Failure, Reason};
pub use lightship_wire::tuning::Stage;
pub use plan::{Memory, Options};
pub use predictions::{MeasuredRun, PredictionComparison, Predictions, PredictionsError, SavedPrediction};
pub use prior::LinkPrior;
pub use profile::{Profile, ProfileError, Profiles, Staleness};
pub use report::{CodecReport, NodeStages, PlanReport, Report, Retune, Stages};
pub use state::{StateError, encoded_name, host_name, read_json, replace_file, state_folder, write_json};
pub use transfer::{Client, Transfer};
