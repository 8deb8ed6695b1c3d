//! Range files: load, limited scans, and receptions over links and in virtual time.

pub(crate) mod in_virtual_time;
pub(crate) mod limit;
pub(crate) mod load;
pub(crate) mod reception;
