//! Statements as text: where they end, and which of them this crate answers itself.

pub(crate) mod command;
pub(crate) mod copy;
pub(crate) mod lexer;
