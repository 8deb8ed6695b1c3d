//! Checks what a lab needs on the machine, and installs rattan.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::check::Check;
use crate::error::LabError;
use crate::group::Tree;
use crate::namespace::Namespace;
use crate::say;
use crate::system::is_root;

const RATTAN_VERSION: &str = "0.1.1";
/// The folder in which a lab installs programs.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/lab-tools");

/// Checks everything that a lab can use. Changes nothing.
pub fn doctor() -> Vec<Check> {
    let root = is_root();
    let (ip, tc) = (on_path("ip").is_some(), on_path("tc").is_some());
    let scratch = if root && ip { Namespace::new().ok() } else { None };
    let kernel = |qdisc: &str| {
        tc && scratch.as_ref().is_some_and(|ns| ns.tool(&format!("tc qdisc add dev lo root {qdisc}")).is_ok())
    };
    let package = "apt-get install iproute2";
    let check = |what, found, required, purpose, hint: &str| Check {
        what,
        found,
        required,
        purpose,
        hint: hint.to_owned(),
    };
    vec![
        check("root", root, true, "creates namespaces and control groups", "run as root or with sudo"),
        check("ip", ip, true, "joins namespaces", package),
        check("tc", tc, true, "shapes links", package),
        check(
            "namespaces",
            scratch.is_some(),
            true,
            "are the hosts",
            "run as root; in a container, with CAP_SYS_ADMIN (docker run --privileged)",
        ),
        check(
            "tbf",
            kernel("tbf rate 1gbit burst 125000b limit 625000b"),
            true,
            "limits bandwidth",
            "use a kernel with CONFIG_NET_SCH_TBF",
        ),
        check(
            "control groups",
            Tree::plan().is_ok(),
            true,
            "limit hosts, and list the processes to kill at the end",
            "mount them: mount -t cgroup2 none /sys/fs/cgroup",
        ),
        check(
            "netem",
            kernel("netem delay 1ms"),
            false,
            "adds delay and loss",
            "use a kernel with CONFIG_NET_SCH_NETEM; without it, rattan is used",
        ),
        check(
            "rattan",
            rattan().is_some(),
            false,
            "adds delay and loss without netem",
            &format!("installed when a link needs it: {}", install().1),
        ),
    ]
}

/// The path of rattan if it is installed, in `PATH` or by [`install_rattan`].
pub(crate) fn rattan() -> Option<PathBuf> {
    on_path("rattan").or_else(|| Some(Path::new(TOOLS).join("bin/rattan")).filter(|path| path.exists()))
}

/// Installs rattan with cargo, for this workspace only. Prints a message, as it takes minutes.
pub(crate) fn install_rattan() -> Result<PathBuf, LabError> {
    let (mut command, shown) = install();
    say(&format!(
        "this link has delay or loss, but this kernel has no netem: installing rattan instead, \
         once, in about 4 minutes\n  {shown}"
    ));
    let talk = Stdio::from(std::io::stderr());
    let status = command.stdout(talk).status().map_err(LabError::io(format!("can't run `{shown}`")))?;
    rattan().filter(|_| status.success()).ok_or(LabError::Install { command: shown, status })
}

fn install() -> (Command, String) {
    let words = ["install", "rattan", "--version", RATTAN_VERSION, "--locked", "--root", TOOLS];
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut command = Command::new(&cargo);
    command.args(words);
    (command, format!("cargo {}", words.join(" ")))
}

fn on_path(program: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}
