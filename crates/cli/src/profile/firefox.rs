//! An add-on for Firefox. Firefox has no setting for such a proxy; only add-ons can name one.
//!
//! Source: `proxy.onRequest` of web extensions, and `toolkit/components/extensions/ProxyChannelFilter.sys.mjs`.

use std::io::{Cursor, Write};

use serde_json::json;
use zip::{CompressionMethod, DateTime, ZipWriter, write::SimpleFileOptions};

use super::{Content, Domain, NAME, Profile};
use crate::error::ProfileError;

/// What the add-on does with each request. The settings stand before it.
const SCRIPT: &str = include_str!("firefox.js");

pub(super) fn profile(profile: &Profile) -> Result<Content, ProfileError> {
    let hop = profile.last();
    let template = hop.template.as_str();
    // Firefox takes a path, and sends a whole URI as a path.
    let path = template.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
    let path = path.map_or("/".to_owned(), |(_, path)| format!("/{path}"));
    let proxy = json!({
        "type": "masque",
        "host": hop.template.host(),
        "port": hop.template.port(),
        "masqueTemplate": path,
        "proxyAuthorizationHeader": hop.bearer(),
    });
    let names = |domains: &[Domain]| domains.iter().map(Domain::to_string).collect::<Vec<_>>();
    let settings = format!(
        "const proxy = {proxy:#};\nconst domains = {};\nconst excluded = {};\n",
        json!(names(&profile.domains)),
        json!(names(&profile.excluded)),
    );
    let manifest = json!({
        "manifest_version": 2,
        "name": format!("{NAME}: {}", hop.template.host()),
        "version": "1.0",
        "browser_specific_settings": { "gecko": { "id": "proxy@tandem.invalid" } },
        "permissions": ["proxy", "<all_urls>"],
        "background": { "scripts": ["background.js"] },
    });
    let files = [
        ("manifest.json", format!("{manifest:#}\n")),
        ("background.js", format!("{settings}\n{SCRIPT}")),
    ];
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default());
    for (name, text) in files {
        let written = archive.start_file(name, options);
        written
            .and_then(|()| Ok(archive.write_all(text.as_bytes())?))
            .map_err(|_| ProfileError::Archive)?;
    }
    let archive = archive.finish().map_err(|_| ProfileError::Archive)?;
    Ok(Content::Binary(archive.into_inner()))
}
