//! The origin.

use std::path::Path;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use h3::server::RequestResolver;
use http::Response;
use quinn::Connection;
use tokio::fs;

use crate::ends::{Packets, listen};

pub async fn run(cert: &str, key: &str, root: &str) -> Result<()> {
    let endpoint = listen(cert, key, Packets::Default)?;
    while let Some(incoming) = endpoint.accept().await {
        let root = root.to_owned();
        tokio::spawn(async move {
            let result = serve(incoming.await?, root).await;
            eprintln!("a connection ended: {result:?}");
            anyhow::Ok(())
        });
    }
    Ok(())
}

async fn serve(connection: Connection, root: String) -> Result<()> {
    let quic = h3_quinn::Connection::new(connection);
    let mut http: h3::server::Connection<_, Bytes> = h3::server::builder().build(quic).await?;
    while let Some(request) = http.accept().await? {
        let root = root.clone();
        tokio::spawn(async move {
            if let Err(error) = answer(request, &root).await {
                eprintln!("a request failed: {error:?}");
            }
        });
    }
    Ok(())
}

/// Sends the file that the last segment of the path names.
async fn answer(request: RequestResolver<h3_quinn::Connection, Bytes>, root: &str) -> Result<()> {
    let (request, mut stream) = request.resolve_request().await?;
    eprintln!("{} {}", request.method(), request.uri());
    let name = Path::new(request.uri().path()).file_name().context("no file")?;
    let body = fs::read(Path::new(root).join(name)).await?;
    let response = Response::builder().header("content-length", body.len()).body(())?;
    stream.send_response(response).await?;
    stream.send_data(body.into()).await?;
    Ok(stream.finish().await?)
}
