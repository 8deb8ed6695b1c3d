//! What is wrong with an object.

/// Why an object is refused.
#[derive(Debug)]
pub(super) enum Problem {
    /// It is no JSON object, or something follows it.
    Syntax,
    /// A field has something that it may not have. The path is the names of fields from the inside out.
    Field(Vec<String>, String),
    /// The value of a field does not fit its type.
    Value(Vec<String>, String),
    /// A field is not in the table.
    Unknown(Vec<String>),
    /// The object as a whole is wrong.
    Whole(String),
}

impl Problem {
    pub(super) fn field(what: String) -> Self {
        Self::Field(Vec::new(), what)
    }

    pub(super) fn twice() -> Self {
        Self::field("occurs twice in one object".to_owned())
    }

    /// The same, found in the value of a field.
    #[cold]
    pub(super) fn inside(mut self, name: &str) -> Self {
        if let Self::Field(path, _) | Self::Value(path, _) | Self::Unknown(path) = &mut self {
            path.push(name.to_owned());
        }
        self
    }

    /// The problem of this object in words.
    pub(super) fn message(&self, object: &[u8]) -> String {
        match self {
            Self::Syntax => syntax(object),
            Self::Field(path, what) => format!("field `{}` {what}", dotted(path)),
            Self::Value(path, what) => format!("field `{}`: {what}", dotted(path)),
            Self::Unknown(path) => format!("the table has no field `{}`", dotted(path)),
            Self::Whole(what) => what.clone(),
        }
    }
}

fn dotted(path: &[String]) -> String {
    path.iter().rev().map(String::as_str).collect::<Vec<_>>().join(".")
}

/// Why a text is not an object, as a parser says it.
fn syntax(object: &[u8]) -> String {
    let parsed = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(object);
    match parsed.err() {
        Some(error) => {
            let text = error.to_string();
            let place = format!(" at line {} column {}", error.line(), error.column());
            format!("not a JSON object: {}", text.strip_suffix(&place).unwrap_or(&text))
        }
        None => "not a JSON object".into(),
    }
}
