//! `lab verify`: shows requested and measured values side by side.

use std::process::ExitCode;

use clap::Args;
use lab::{Lab, LabError, Link, Measured};
use serde_json::json;

/// Measure links: bandwidth, round trip, loss
///
/// Runs TCP both ways, a TCP ping-pong and 1000 datagrams each way. The exit code is 1 if
/// a link differs too much from the requested one, which a busy machine can cause: the fast
/// links need two free cores.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lab verify --link lan
  lab verify --link all --json
  lab verify --link wan,1% --link 5mbit,80ms")]
pub(crate) struct VerifyArgs {
    /// A link, or `all` for all named links. Can be repeated.
    #[arg(long = "link", value_name = "LINK|all", default_value = "all")]
    links: Vec<String>,
    /// Print JSON, one object per line.
    #[arg(long)]
    json: bool,
}

pub(crate) fn cmd_verify(args: VerifyArgs) -> Result<ExitCode, LabError> {
    let links = match links(&args.links) {
        Ok(links) => links,
        Err(message) => {
            eprintln!("error: --link {message}");
            return Ok(ExitCode::from(2));
        }
    };
    let lab = Lab::new()?;
    if !args.json {
        println!(
            "{:<18}{:<8}{:>22}  {:>24}  {:>16}",
            "link", "shaper", "Mbit/s  a-b / b-a", "round trip ms min / med", "lost % a-b / b-a"
        );
    }
    let mut all_near = true;
    for link in links {
        let (measured, off) = match lab.pair(&link)?.verify() {
            Ok(measured) => (measured, Vec::new()),
            Err(LabError::FarOff { measured, off }) => (*measured, off),
            Err(error) => return Err(error),
        };
        all_near &= off.is_empty();
        if args.json {
            println!("{}", json!({"asked": asked(&link), "measured": measured, "off": off}));
        } else {
            row(&measured, &off);
        }
    }
    Ok(if all_near { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn links(texts: &[String]) -> Result<Vec<Link>, String> {
    let mut links = Vec::new();
    for text in texts {
        match text.as_str() {
            "all" => links.extend(Link::named()),
            text => links.push(text.parse()?),
        }
    }
    Ok(links)
}

fn asked(link: &Link) -> serde_json::Value {
    match link {
        Link::Local => json!({}),
        Link::Wire(shape) => json!({
            "mbit_per_s": shape.bandwidth_bits_per_s.map(|bits| bits as f64 / 1e6),
            "rtt_ms": shape.round_trip().as_secs_f64() * 1e3,
            "loss": shape.loss,
        }),
    }
}

fn row(measured: &Measured, off: &[String]) {
    let Measured { link, shaper, mbit_per_s, rtt_ms, loss, left_out, .. } = measured;
    if let Link::Wire(shape) = link {
        let bandwidth =
            shape.bandwidth_bits_per_s.map_or("any".into(), |bits| format!("{}", bits as f64 / 1e6));
        let (rtt_ms, loss) = (shape.round_trip().as_secs_f64() * 1e3, shape.loss * 100.0);
        println!("{:<18}{:<8}{bandwidth:>22}  {rtt_ms:>24}  {loss:>16}", link.to_string(), "asked");
    }
    let name = if *link == Link::Local { "local" } else { "" };
    let both = |a: f64, b: f64, decimals: usize| format!("{a:.decimals$} / {b:.decimals$}");
    println!(
        "{name:<18}{:<8}{:>22}  {:>24}  {:>16}",
        shaper.to_string(),
        both(mbit_per_s.a_to_b, mbit_per_s.b_to_a, 1),
        both(rtt_ms.min, rtt_ms.median, 3),
        both(loss.a_to_b * 100.0, loss.b_to_a * 100.0, 2),
    );
    left_out.iter().for_each(|left_out| println!("{:18}{left_out}", ""));
    off.iter().for_each(|off| println!("{:18}FAR OFF: {off}", ""));
}
