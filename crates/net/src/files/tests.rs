use std::os::unix::fs::symlink;

use socket2::{Domain, SockAddr, Socket, Type};
use tempfile::TempDir;

use super::*;

/// Creates a folder `served` that the node may read, with a secret file beside it.
fn folder() -> (TempDir, Files) {
    let folder = TempDir::new().unwrap();
    let served = folder.path().join("served");
    fs::create_dir_all(served.join("inner")).unwrap();
    fs::write(folder.path().join("secret"), "secret").unwrap();
    fs::write(served.join("plain"), "0123456789").unwrap();
    fs::write(served.join("inner/deep"), "deep").unwrap();
    let files = Files::below(&served).unwrap();
    (folder, files)
}

fn open(files: &Files, path: &[&str]) -> Result<(OpenFile, FileMeta), FileError> {
    files.open(&path.iter().map(ToString::to_string).collect::<Vec<_>>())
}

#[test]
fn requested_parts_of_a_file_are_read() {
    let (_folder, files) = folder();
    let (file, meta) = open(&files, &["plain"]).unwrap();
    assert_eq!(meta.len, 10);
    assert!(meta.modified.is_some());
    for (offset, len, expected) in
        [(0, 10, "0123456789"), (3, 4, "3456"), (9, 1, "9"), (8, 9, "89"), (10, 1, ""), (99, 1, "")]
    {
        assert_eq!(file.read(offset, len).unwrap(), expected, "{len} bytes from {offset}");
    }
    assert_eq!(open(&files, &["inner", "deep"]).unwrap().1.len, 4);
}

#[test]
fn an_open_file_keeps_its_content_when_it_is_replaced() {
    let (folder, files) = folder();
    let (file, meta) = open(&files, &["plain"]).unwrap();
    fs::remove_file(folder.path().join("served/plain")).unwrap();
    fs::write(folder.path().join("served/plain"), "other").unwrap();
    assert_eq!(file.read(0, usize::try_from(meta.len).unwrap()).unwrap(), "0123456789");
}

#[test]
fn only_regular_files_below_the_folder_are_opened() {
    let (folder, files) = folder();
    let served = folder.path().join("served");
    symlink("../secret", served.join("out")).unwrap();
    symlink(folder.path().join("secret"), served.join("out-absolute")).unwrap();
    symlink("..", served.join("parent")).unwrap();
    symlink("nowhere", served.join("dangling")).unwrap();
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    socket.bind(&SockAddr::unix(served.join("socket")).unwrap()).unwrap();
    let long_name = "x".repeat(1000);
    for (path, error, why) in [
        (&["out"][..], FileError::NotFound, "a link out of the folder"),
        (&["out-absolute"], FileError::NotFound, "an absolute link out of the folder"),
        (&["parent", "secret"], FileError::NotFound, "a link to the folder above"),
        (&["dangling"], FileError::NotFound, "a link to nothing"),
        (&["..", "secret"], FileError::NotFound, "the folder above"),
        (&["inner", "..", "plain"], FileError::NotFound, "the folder above, from within"),
        (&["inner/deep"], FileError::NotFound, "a slash in a segment"),
        (&["/etc/passwd"], FileError::NotFound, "an absolute path"),
        (&["plain\0"], FileError::NotFound, "a NUL"),
        (&["", "plain"], FileError::NotFound, "an empty segment"),
        (&["plain", "more"], FileError::NotFound, "below a file"),
        (&["none"], FileError::NotFound, "no such file"),
        (&[&long_name], FileError::NotFound, "a name that no file can have"),
        (&["inner"], FileError::IsFolder, "a folder"),
        (&[], FileError::IsFolder, "the folder itself"),
    ] {
        assert_eq!(open(&files, path).map(|(_, meta)| meta), Err(error), "{why}");
    }
    assert!(open(&files, &["socket"]).is_err(), "a socket");
}

#[test]
fn links_within_the_folder_are_followed() {
    let (folder, files) = folder();
    symlink("inner/deep", folder.path().join("served/link")).unwrap();
    symlink("../plain", folder.path().join("served/inner/up")).unwrap();
    assert_eq!(open(&files, &["link"]).unwrap().1.len, 4);
    assert_eq!(open(&files, &["inner", "up"]).unwrap().1.len, 10);
}

/// Opening a FIFO for reading blocks until there is a writer, unless `O_NONBLOCK` is set.
#[test]
fn a_fifo_is_refused_and_does_not_hang() {
    let (folder, files) = folder();
    let path = folder.path().join("served/fifo");
    let made = std::process::Command::new("mkfifo").env_clear().arg(&path).status().unwrap();
    assert!(made.success());
    assert_eq!(open(&files, &["fifo"]).map(|(_, meta)| meta), Err(FileError::NotFound));
}
