//! The conversion of a request's path to the segments of a file's path.

use percent_encoding::percent_decode_str;

/// The length of the longest path of a request in bytes.
const PATH_MAX: usize = 4096;

/// Returns the decoded segments of a path. The last one is empty if the path ends with a slash.
///
/// The result is `None` if the path cannot identify a file: it is longer than [`PATH_MAX`], not
/// absolute or not UTF-8, or one of its decoded segments is `.` or `..`, is empty and not the last,
/// or contains a slash, a backslash or a NUL.
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
