//! Checks of the rules in `ARCHITECTURE.md` that the compiler does not check.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Crates by level; a crate may use those of lower levels. ARCHITECTURE.md has
/// the same table.
const LEVELS: [(&str, u8); 23] = [
    ("lightship-wire", 0),
    ("lightship-tuner", 0),
    ("lightship-usage", 0),
    ("lightship-overlay", 0),
    ("lightship-plot", 0),
    ("lightship-transport", 1),
    ("lightship-relay", 1),
    ("lightship-session", 2),
    ("lightship-sources", 2),
    ("lightship-flight", 3),
    ("lightship-netbench", 3),
    ("lightship-rangefile", 3),
    ("lightship-monitor", 3),
    ("lightship-pgserver", 3),
    ("lightship-engine", 4),
    ("lightship", 5),
    ("lightship-cli", 6),
    ("lightship-adbc", 6),
    ("lightship-python", 7),
    ("lightship-testkit", DEV),
    ("lab", DEV),
    ("bench", DEV),
    ("xtask", DEV),
];
const DEV: u8 = u8::MAX;

/// Libraries that only these crates may depend on.
const OWNED: [(&str, &[&str]); 12] = [
    ("datafusion", &["lightship-engine"]),
    ("datafusion-distributed", &["lightship-engine"]),
    ("datafusion-proto", &["lightship-engine"]),
    ("tonic", &["lightship-engine", "lightship-flight"]),
    ("arrow-flight", &["lightship-flight"]),
    ("clap_mangen", &["lightship-cli"]),
    ("plotters", &["lightship-plot"]),
    ("rusqlite", &["lightship-pgserver", "lightship-sources"]),
    ("mysql_async", &["lightship-sources"]),
    ("pyo3", &["lightship-python"]),
    ("adbc_core", &["lightship-adbc", "lightship-sources"]),
    ("adbc_driver_manager", &["lightship-sources"]),
];

/// Crates without I/O, clock and threads.
const PURE: [&str; 5] =
    ["lightship-wire", "lightship-tuner", "lightship-overlay", "lightship-plot", "lightship-usage"];
const IMPURE: [&str; 3] = ["tokio", "socket2", "rustls"];
/// What their sources may not use, but for tests.
const IMPURE_CODE: [&str; 6] =
    ["Instant", "SystemTime", "std::fs", "std::net", "std::thread", "std::process"];

const LINES_MAX: usize = 800;

/// Words of unfinished work and of leftovers. One letter of each is escaped, so that
/// this file does not match.
const STRAY: [&str; 8] =
    ["TO\x44O", "FIX\x4dE", "XX\x58", "HA\x43K", "d\x62g!(", "crates\x2eio", "pypi\x2eorg", "<<<<\x3c<<"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// Runs all checks and lists everything found.
///
/// # Errors
/// When anything was found, or a check can't run.
pub(crate) fn tidy() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let mut found = Vec::new();
    dependencies(&root, &mut found)?;
    files(&root, &mut found)?;
    let figures = crate::figures::check(&root, &mut found)?;
    if found.is_empty() {
        println!("tidy; {figures} figures agree with their data");
        return Ok(());
    }
    found.iter().for_each(|line| println!("{line}"));
    Err(format!("{} problems found", found.len()).into())
}

fn dependencies(root: &Path, found: &mut Vec<String>) -> Result<()> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let levels: BTreeMap<_, _> = LEVELS.into_iter().collect();
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    for package in &metadata.packages {
        let name = package.name.as_str();
        let Some(&level) = levels.get(name) else {
            found.push(format!("{name}: no level in xtask/src/tidy.rs"));
            continue;
        };
        let short = name.trim_start_matches("lightship-");
        if !architecture.contains(&format!("`{short}`")) {
            found.push(format!("ARCHITECTURE.md: does not mention `{short}`"));
        }
        for dependency in package.dependencies.iter().filter(|d| d.kind.is_none()) {
            if let Some(&below) = levels.get(dependency.name.as_str())
                && below >= level
                && level != DEV
            {
                found.push(format!("{name} (level {level}) uses {} (level {below})", dependency.name));
            }
            if let Some((_, owners)) = OWNED.iter().find(|(library, _)| *library == dependency.name)
                && !owners.contains(&name)
            {
                let owners = owners.join(" and ");
                found.push(format!("{name} depends on {}, which only {owners} may do", dependency.name));
            }
            if PURE.contains(&name) && IMPURE.contains(&dependency.name.as_str()) {
                found.push(format!("{name} must be pure, but depends on {}", dependency.name));
            }
        }
    }
    for (name, _) in LEVELS {
        if !metadata.packages.iter().any(|package| package.name == name) {
            found.push(format!("{name}: in xtask/src/tidy.rs, but not in the workspace"));
        }
    }
    Ok(())
}

/// Whether a file is code of a pure crate, and not of its tests.
fn is_pure(name: &str) -> bool {
    let is_of =
        |krate: &&str| name.starts_with(&format!("crates/{}/src/", krate.trim_start_matches("lightship-")));
    PURE.iter().any(is_of) && !name.ends_with("tests.rs") && !name.contains("/tests/")
}

/// Whether code, and not a comment, has a word.
fn has_word(line: &str, word: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    code.match_indices(word).any(|(at, _)| {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let ends = [code[..at].chars().next_back(), code[at + word.len()..].chars().next()];
        !ends.into_iter().flatten().any(is_part)
    })
}

fn files(root: &Path, found: &mut Vec<String>) -> Result<()> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    for name in String::from_utf8(output.stdout)?.lines() {
        let Ok(text) = std::fs::read_to_string(root.join(name)) else { continue };
        let is_code = name.ends_with(".rs");
        if is_code && !text.starts_with("//!") {
            found.push(format!("{name}: does not begin with a `//!` comment on what it is about"));
        }
        if is_code && text.lines().count() > LINES_MAX {
            found.push(format!(
                "{name}: {} lines; split it unless it is about one thing",
                text.lines().count()
            ));
        }
        if name.ends_with(".lock") || name == "LICENSE" {
            continue;
        }
        if is_pure(name) {
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for (number, line) in code.lines().enumerate() {
                for word in IMPURE_CODE.iter().filter(|word| has_word(line, word)) {
                    found.push(format!("{name}:{}: `{word}` in a pure crate", number + 1));
                }
            }
        }
        for (number, line) in text.lines().enumerate() {
            for word in STRAY.iter().filter(|word| line.contains(*word)) {
                found.push(format!("{name}:{}: `{word}`", number + 1));
            }
            if (is_code || name.ends_with(".md")) && line.ends_with([' ', '\t']) {
                found.push(format!("{name}:{}: trailing blanks", number + 1));
            }
        }
    }
    Ok(())
}
