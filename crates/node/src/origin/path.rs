//! From the path of a request to the segments of a file's name.

use percent_encoding::percent_decode_str;

/// Longest path of a request in bytes.
const PATH_MAX: usize = 4096;

/// Decoded segments of a path, the last of which is empty if the path ends with a slash.
///
/// `None` for a path that is no way to a file: not absolute, not UTF-8, or with a segment that is
/// empty in the middle, `.`, `..` or contains a slash, a backslash or a NUL once decoded.
pub(super) fn segments(path_and_query: &str) -> Option<Vec<String>> {
    let path = path_and_query.split('?').next().unwrap_or_default();
    if path.len() > PATH_MAX {
        return None;
    }
    let encoded: Vec<_> = path.strip_prefix('/')?.split('/').collect();
    let last = encoded.len() - 1;
    let decode = |(index, segment): (usize, &&str)| {
        let segment = percent_decode_str(segment).decode_utf8().ok()?.into_owned();
        let is_name = (!segment.is_empty() || index == last)
            && segment != "."
            && segment != ".."
            && !segment.contains(['/', '\\', '\0']);
        is_name.then_some(segment)
    };
    encoded.iter().enumerate().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_folder() {
        for (path, expected) in [
            ("/", Some(vec![""])),
            ("/a", Some(vec!["a"])),
            ("/a/b.txt?query=/../c", Some(vec!["a", "b.txt"])),
            ("/a/", Some(vec!["a", ""])),
            ("/a%20b", Some(vec!["a b"])),
            ("/%E2%82%AC", Some(vec!["€"])),
            ("/...", Some(vec!["..."])),
            ("", None),
            ("a", None),
            ("//a", None),
            ("/a//b", None),
            ("/..", None),
            ("/../a", None),
            ("/a/../b", None),
            ("/%2e%2e/a", None),
            ("/.%2e/a", None),
            ("/a%2fb", None),
            ("/..%5ca", None),
            ("/a%00b", None),
            ("/%ff", None),
            ("/.", None),
        ] {
            let expected = expected.map(|segments: Vec<&str>| {
                segments.into_iter().map(str::to_owned).collect::<Vec<_>>()
            });
            assert_eq!(segments(path), expected, "{path:?}");
        }
        assert_eq!(segments(&format!("/{}", "a".repeat(5000))), None);
    }
}
