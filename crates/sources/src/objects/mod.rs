//! Objects of object stores: where they are, access to them, and uploads.
//!
//! [`ObjectLocation`] is a location as a user types it. [`Store`] is access to its bucket, with the credentials that the
//! store's own tools use; no location holds a secret, except that the query of an `https://` URL may be a signature, which is never shown. All
//! errors of a store are an [`ObjectError`], which names the object.

mod error;
mod location;
mod profile;
mod store;
mod upload;

pub use error::{ObjectError, ObjectErrorKind};
pub(crate) use location::SCHEMES;
pub use location::{ObjectLocation, ObjectScheme};
pub use store::Store;
pub(crate) use upload::{Cancel, Upload};
