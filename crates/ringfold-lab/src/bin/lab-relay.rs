//! A relay, for tests with real processes.
//!
//! Prints `listening on ADDRESS`. Ends when standard input is closed.
#![forbid(unsafe_code)]

use clap::Parser;
use ringfold::Relay;

/// A relay, for tests with real processes.
#[derive(Parser)]
struct Arguments {
    /// The address to listen on. Port 0 means any free port.
    #[arg(long)]
    listen: String,
    /// The join token of the run.
    #[arg(long, default_value = "")]
    token: String,
}

fn main() -> anyhow::Result<()> {
    ringfold_lab::log::start();
    let Arguments { listen, token } = Arguments::parse();
    let relay = Relay::builder().listen(listen).token(token).start()?;
    println!("listening on {}", relay.addresses()[0]);
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    relay.interrupt();
    relay.wait()?;
    Ok(())
}
