//! A template's expansion is a path, and a proxy finds the target in it.
//!
//! The input is four lines: a template, and a target's host, port and path.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_wire::uri_template::check_host;
use tandem_wire::{PathMatcher, Template};

fuzz_target!(|text: &str| {
    let mut lines = text.splitn(4, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (template, host, port, path) = (line(), line(), line(), line());
    let port = port.parse().unwrap_or_default();
    let default = Template::default_for("proxy.example").expect("a host");
    // A text is more often a template with the prefix "https://a/" than without it.
    let rooted = Template::parse(&format!("https://a/{template}"));
    for template in [Ok(default), rooted, Template::parse(template)].into_iter().flatten() {
        assert_eq!(template.as_str().parse(), Ok(template.clone()));
        assert_ne!(template.port(), 0);
        let expanded = template.expand(host, port);
        assert!(expanded.path.starts_with('/'));
        assert!(expanded.path.bytes().all(|byte| byte.is_ascii_graphic()));

        let Ok(matcher) = PathMatcher::new(&template) else { continue };
        let found = matcher.match_path(&expanded.path).expect("its own expansion");
        match check_host(host) {
            Ok(()) if port != 0 => assert_eq!(found, Ok((host.to_owned(), port))),
            Ok(()) | Err(_) => assert!(found.is_err(), "{found:?}"),
        }
        if let Some(Ok((host, port))) = matcher.match_path(path) {
            assert_eq!(check_host(&host), Ok(()));
            assert_ne!(port, 0);
        }
    }
});
