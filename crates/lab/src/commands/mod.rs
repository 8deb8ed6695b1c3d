//! One file per subcommand.

pub(crate) mod doctor;
pub(crate) mod per_host;
pub(crate) mod run;
pub(crate) mod verify;
