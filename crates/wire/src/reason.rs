//! Reasons of failures, for programs that react to them (`docs/format.md`, section 3).

/// Capability: the reasons of errors are sent.
pub const CAPABILITY_REASONS: u64 = 1 << 9;

/// What is wrong with a statement or a value, as far as programs react to it. The numbers are those on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Reason {
    /// The text is not SQL.
    Syntax = 1,
    /// There is no such table.
    UndefinedTable = 2,
    /// There is no such column.
    UndefinedColumn = 3,
    /// There is no such function.
    UndefinedFunction = 4,
    /// Several columns have the name.
    AmbiguousColumn = 5,
    /// Two columns of a result or table would have the same name.
    DuplicateColumn = 6,
    /// A parameter has no value.
    Parameters = 7,
    /// The statement is SQL that is not supported.
    Unsupported = 8,
    /// A division by zero.
    DivisionByZero = 9,
    /// A number is too large for its type.
    OutOfRange = 10,
    /// A value can't be read as, or cast to, another type.
    InvalidValue = 11,
    /// The statement needs more memory than there is for it.
    OutOfMemory = 12,
}

impl Reason {
    pub(crate) const ALL: [Self; 12] = [
        Self::Syntax,
        Self::UndefinedTable,
        Self::UndefinedColumn,
        Self::UndefinedFunction,
        Self::AmbiguousColumn,
        Self::DuplicateColumn,
        Self::Parameters,
        Self::Unsupported,
        Self::DivisionByZero,
        Self::OutOfRange,
        Self::InvalidValue,
        Self::OutOfMemory,
    ];

    /// `None` for 0 and for reasons that this version does not know.
    pub(crate) fn parse(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&reason| reason as u8 == number)
    }

    /// The code that PostgreSQL has for it (SQLSTATE).
    pub fn sqlstate(self) -> &'static str {
        match self {
            Self::Syntax => "42601",
            Self::UndefinedTable => "42P01",
            Self::UndefinedColumn => "42703",
            Self::UndefinedFunction => "42883",
            Self::AmbiguousColumn => "42702",
            Self::DuplicateColumn => "42701",
            Self::Parameters => "42P02",
            Self::Unsupported => "0A000",
            Self::DivisionByZero => "22012",
            Self::OutOfRange => "22003",
            Self::InvalidValue => "22P02",
            Self::OutOfMemory => "53200",
        }
    }
}
