//! A client, a proxy and an origin on the crates h3 and quinn.
//!
//! - `interop-h3 get CA URL OUTPUT [PROXY]` fetches a URL, through the CONNECT-UDP proxy at this URL if there is one.
//! - `interop-h3 proxy CERT KEY` is such a proxy.
//! - `interop-h3 origin CERT KEY ROOT` serves the files of a folder.

mod ends;
mod get;
mod origin;
mod proxy;
mod tunnel;

use std::env;

use anyhow::{Result, bail};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["get", ca, url, output] => get::get(ca, url, output, None).await,
        ["get", ca, url, output, proxy] => get::get(ca, url, output, Some(proxy)).await,
        ["proxy", cert, key] => proxy::run(cert, key).await,
        ["origin", cert, key, root] => origin::run(cert, key, root).await,
        _ => bail!("unknown command: {words:?}"),
    }
}
