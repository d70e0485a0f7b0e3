use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::{FileTypeExt, PermissionsExt, symlink},
    path::Path,
};

use http::HeaderValue;
use tandem_node::client::Resume;

use super::{Download, Wanted};
use crate::error::TransferError;

/// SHA-256 of "abc" (FIPS 180-2, appendix B.1).
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

const TAG: HeaderValue = HeaderValue::from_static("\"a\"");

const FRESH: Wanted<'static> =
    Wanted { url: "https://a.example/", in_ranges: false, resume: false };
const RESUME: Wanted<'static> = Wanted { resume: true, ..FRESH };
const RANGES: Wanted<'static> = Wanted { in_ranges: true, ..FRESH };

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Downloads "abc" to this path.
fn download_abc(path: &Path) {
    let mut download = Download::to(path, FRESH).unwrap();
    download.write(0, b"abc").unwrap();
    assert_eq!(download.finish().unwrap().unwrap().0, ABC);
}

/// A download that has these bytes when it is interrupted.
fn interrupted(path: &Path, wanted: Wanted<'_>, pieces: &[(u64, &[u8])]) -> String {
    let mut download = Download::to(path, wanted).unwrap();
    download.answered(0, Some(&TAG));
    for (offset, piece) in pieces {
        download.write(*offset, piece).unwrap();
    }
    download.explain(TransferError::Interrupted).to_string()
}

fn refusal(path: &Path, wanted: Wanted<'_>) -> String {
    Download::to(path, wanted).unwrap_err().to_string()
}

#[test]
fn the_order_of_arrival_does_not_matter() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut download = Download::to(&path, RANGES).unwrap();
        for offset in order {
            let byte = b'a' + u8::try_from(offset).unwrap();
            download.write(offset, &[byte]).unwrap();
            assert!(!path.exists());
        }
        assert_eq!(download.finish().unwrap().unwrap().0, ABC, "{order:?}");
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        assert_eq!(names(dir.path()), ["file"]);
    }
}

#[test]
fn nothing_is_left_behind_before_the_first_byte() {
    let dir = tempfile::tempdir().unwrap();
    let mut download = Download::to(&dir.path().join("file"), FRESH).unwrap();
    let error = download.explain(TransferError::Interrupted);
    assert!(matches!(error, TransferError::Interrupted));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_error_names_the_part_that_arrived() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let error = interrupted(&path, FRESH, &[(0, b"ab")]);
    for words in ["2 bytes", "file.tandem-part", "--continue"] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(names(dir.path()), ["file.tandem-part", "file.tandem-state"]);
}

#[test]
fn an_empty_file_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    Download::to(&path, FRESH).unwrap().finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn a_bad_output_is_refused_before_anything_is_fetched() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path(), FRESH).contains("folder"));
    assert!(refusal(&dir.path().join("no/file"), FRESH).contains("folder does not exist"));
}

#[test]
fn a_download_goes_on_where_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    interrupted(&path, FRESH, &[(0, b"ab")]);
    let mut download = Download::to(&path, RESUME).unwrap();
    assert_eq!(download.resume(), Some(&Resume { offset: 2, validator: TAG }));
    download.answered(2, Some(&TAG));
    download.write(2, b"c").unwrap();
    assert_eq!(download.finish().unwrap().unwrap().0, ABC);
    assert_eq!(names(dir.path()), ["file"]);
    // Without a part there is nothing to continue.
    assert_eq!(Download::to(&path, RESUME).unwrap().resume(), None);
}

#[test]
fn a_download_that_cannot_go_on_starts_at_the_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    interrupted(&path, FRESH, &[(0, b"an older and longer file")]);
    let mut download = Download::to(&path, RESUME).unwrap();
    download.answered(0, None);
    assert_eq!(download.resume(), None);
    download.write(0, b"ab").unwrap();
    let error = download.explain(TransferError::Interrupted).to_string();
    assert!(error.contains("2 bytes") && error.contains("no validator"), "{error}");
    drop(download);
    assert_eq!(Download::to(&path, RESUME).unwrap().resume(), None, "it has no validator");
    download_abc(&path);
    assert_eq!(fs::read(&path).unwrap(), b"abc");
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn of_ranges_only_the_beginning_without_a_gap_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let error = interrupted(&path, RANGES, &[(0, b"a"), (2, b"c"), (4, b"e")]);
    assert!(error.contains("first 1 bytes"), "{error}");
    let mut download = Download::to(&path, RESUME).unwrap();
    assert_eq!(download.resume().unwrap().offset, 1);
    download.answered(1, Some(&TAG));
    download.write(1, b"b").unwrap();
    download.write(2, b"c").unwrap();
    assert_eq!(download.finish().unwrap().unwrap().0, ABC);
    assert_eq!(fs::read(&path).unwrap(), b"abc", "the byte after the gap is gone");
    // Without the first range, nothing is of use.
    let error = interrupted(&path, RANGES, &[(2, b"c")]);
    assert_eq!(error, "interrupted");
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn after_a_crash_the_gaps_of_ranges_are_not_taken_for_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut download = Download::to(&path, RANGES).unwrap();
    download.answered(0, Some(&TAG));
    download.write(2, b"c").unwrap();
    drop(download); // as a crash, which explains nothing
    assert_eq!(Download::to(&path, RESUME).unwrap().resume(), None);
    // In order, every byte that is there counts.
    let mut download = Download::to(&path, FRESH).unwrap();
    download.answered(0, Some(&TAG));
    download.write(0, b"ab").unwrap();
    drop(download);
    assert_eq!(Download::to(&path, RESUME).unwrap().resume().unwrap().offset, 2);
}

#[test]
fn a_failure_before_the_first_byte_keeps_the_part() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    interrupted(&path, FRESH, &[(0, b"ab")]);
    let mut download = Download::to(&path, FRESH).unwrap();
    assert_eq!(download.explain(TransferError::Interrupted).to_string(), "interrupted");
    drop(download);
    let mut download = Download::to(&path, RESUME).unwrap();
    let error = download.explain(TransferError::Interrupted).to_string();
    assert!(error.contains("first 2 bytes") && error.contains("--continue"), "{error}");
    drop(download);
    assert_eq!(Download::to(&path, RESUME).unwrap().resume().unwrap().offset, 2);
}

#[test]
fn the_files_of_others_are_not_touched() {
    for (name, others) in [("file.tandem-part", "mine"), ("file.tandem-state", "{\"mine\": 1}")] {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join(name));
        fs::write(&other, others).unwrap();
        for wanted in [FRESH, RESUME] {
            let error = refusal(&path, wanted);
            assert!(error.contains(name) && error.contains("choose another name"), "{error}");
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), others);
        fs::remove_file(&other).unwrap();
        symlink("elsewhere", &other).unwrap();
        assert!(refusal(&path, FRESH).contains(name));
        assert!(other.is_symlink());
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(dir.path().join("file.part"), "mine").unwrap();
    download_abc(&path);
    assert_eq!(fs::read(dir.path().join("file.part")).unwrap(), b"mine");
}

#[test]
fn two_downloads_to_one_file_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut first = Download::to(&path, FRESH).unwrap();
    let mut second = Download::to(&path, FRESH).unwrap();
    first.write(0, b"ab").unwrap();
    assert!(second.write(0, b"x").is_err());
    assert_eq!(second.explain(TransferError::Interrupted).to_string(), "interrupted");
    assert!(refusal(&path, FRESH).contains("another download"));
    assert!(refusal(&path, RESUME).contains("another download"));
    first.write(2, b"c").unwrap();
    assert_eq!(first.finish().unwrap().unwrap().0, ABC);
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn a_part_of_another_url_is_not_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    interrupted(&path, FRESH, &[(0, b"ab")]);
    let error = refusal(&path, Wanted { url: "https://b.example/", ..RESUME });
    assert!(error.contains("https://a.example/") && error.contains("--continue"), "{error}");
    let download = Download::to(&path, Wanted { url: "https://b.example/", ..FRESH });
    assert!(download.is_ok());
}

#[test]
fn links_stay_and_lead_to_the_new_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    let target = dir.path().join("sub/target");
    fs::write(&target, "old").unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
    symlink("sub/target", dir.path().join("link")).unwrap();
    symlink("link", dir.path().join("second")).unwrap();
    symlink("sub/dangling", dir.path().join("dangling")).unwrap();
    symlink("circle", dir.path().join("circle")).unwrap();
    for (link, leads_to) in [("second", "sub/target"), ("dangling", "sub/dangling")] {
        download_abc(&dir.path().join(link));
        assert!(dir.path().join(link).is_symlink(), "{link}");
        assert_eq!(fs::read(dir.path().join(leads_to)).unwrap(), b"abc");
        assert!(!dir.path().join(leads_to).is_symlink());
    }
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(names(&dir.path().join("sub")), ["dangling", "target"]);
    assert!(refusal(&dir.path().join("circle"), FRESH).contains("symbolic links"));
}

#[test]
fn a_pipe_is_written_in_place_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut text = String::new();
            File::open(path).unwrap().read_to_string(&mut text).unwrap();
            text
        }
    });
    download_abc(&path);
    assert_eq!(reader.join().unwrap(), "abc");
    assert!(fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
    assert_eq!(names(dir.path()), ["pipe"]);
    let reader = std::thread::spawn({
        let path = path.clone();
        move || File::open(path).map(drop)
    });
    assert!(refusal(&path, RANGES).contains("--streams"));
    reader.join().unwrap().unwrap();
    assert!(refusal(Path::new("-"), RANGES).contains("--streams"));
    assert!(refusal(Path::new("-"), RESUME).contains("--continue"));
}

#[test]
fn a_device_is_written_in_place() {
    let null = Path::new("/dev/null");
    download_abc(null);
    let mut download = Download::to(null, RANGES).unwrap();
    download.write(1, b"b").unwrap();
    download.write(0, b"a").unwrap();
    assert_eq!(download.finish().unwrap(), None, "the bytes cannot be read again");
    assert!(fs::metadata(null).unwrap().file_type().is_char_device());
    assert!(!Path::new("/dev/null.tandem-part").exists());
    let mut full = Download::to(Path::new("/dev/full"), FRESH).unwrap();
    let error = full.write(0, b"a").unwrap_err();
    let error = full.write_error(error).to_string();
    assert!(error.contains("/dev/full: No space left"), "{error}");
}
