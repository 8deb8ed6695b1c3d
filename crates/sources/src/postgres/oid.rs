//! OIDs of built-in types, which are the same in every database (`pg_type.dat`).

pub(super) const TEXT: u32 = 25;
/// `char(n)`.
pub(super) const BPCHAR: u32 = 1042;
pub(super) const VARCHAR: u32 = 1043;
pub(super) const TIME: u32 = 1083;
pub(super) const TIMESTAMP: u32 = 1114;
pub(super) const TIMESTAMPTZ: u32 = 1184;
pub(super) const INTERVAL: u32 = 1186;
pub(super) const NUMERIC: u32 = 1700;
pub(super) const RECORD: u32 = 2249;
