//! Files written for users: the kind of the existing file decides, and nothing of another user is followed or written
//! to.

#[path = "../../../ci/skip.rs"]
mod skip;

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use telpher_os::{check_writable, create_file, write_file};

/// Creates an empty directory for the test.
fn test_directory(name: &str) -> PathBuf {
    let test_directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("output").join(name);
    let _ = fs::remove_dir_all(&test_directory);
    fs::create_dir_all(&test_directory).unwrap();
    test_directory
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Returns the names in a directory, including draft files that were left behind.
fn names(test_directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(test_directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_as_a_whole_and_keeps_its_permissions() {
    let test_directory = test_directory("replaced");
    let (path, other) = (test_directory.join("report"), test_directory.join("other"));
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&path, &other).unwrap();
    let mut reader = File::open(&path).unwrap();
    write_file(&path, b"new").unwrap();
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!((text(&path).as_str(), read.as_str(), text(&other).as_str()), ("new", "old", "old"));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(names(&test_directory), ["other", "report"]);
}

#[test]
fn a_new_file_has_its_name_while_it_grows() {
    let test_directory = test_directory("grows");
    let path = test_directory.join("trace");
    fs::write(&path, "old").unwrap();
    let mut file = create_file(&path).unwrap();
    assert_eq!(text(&path), "");
    file.write_all(b"line 1\n").unwrap();
    assert_eq!(text(&path), "line 1\n");
    assert_eq!(names(&test_directory), ["trace"]);
}

#[test]
fn a_link_of_this_user_is_followed_to_where_it_leads() {
    let test_directory = test_directory("followed");
    let (link, target) = (test_directory.join("link"), test_directory.join("target"));
    symlink("target", &link).unwrap();
    for old in [None, Some("old")] {
        let _ = old.map(|old| fs::write(&target, old).unwrap());
        write_file(&link, b"new").unwrap();
        assert_eq!((text(&target).as_str(), fs::read_link(&link).unwrap()), ("new", "target".into()));
    }
    let ring = test_directory.join("ring");
    symlink("ring", &ring).unwrap();
    let error = write_file(&ring, b"new").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn a_link_of_another_user_is_refused_and_its_target_stays() {
    let test_directory = test_directory("refused");
    let (link, target) = (test_directory.join("link"), test_directory.join("target"));
    fs::write(&target, "old").unwrap();
    symlink("target", &link).unwrap();
    if std::os::unix::fs::lchown(&link, Some(4711), None).is_err() {
        return skip::skip(
            "a_link_of_another_user_is_refused_and_its_target_stays",
            "a link can be given away by root only",
        );
    }
    let pipe = test_directory.join("pipe");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o666));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
    std::os::unix::fs::chown(&pipe, Some(4711), None).unwrap();
    for (path, what) in [(&link, "link"), (&pipe, "pipe")] {
        let errors =
            [write_file(path, b"new"), create_file(path).map(drop), check_writable(path)].map(Result::unwrap_err);
        for error in errors {
            let message = error.to_string();
            assert!(
                message.contains(&format!("is a {what} of another user (uid 4711); telpher does not write to it")),
                "{message}"
            );
        }
    }
    assert_eq!((text(&target).as_str(), names(&test_directory).len()), ("old", 3));
}

#[test]
fn pipes_devices_and_descriptors_are_written_to_directly() {
    let test_directory = test_directory("special");
    let (reader, writer) = std::io::pipe().unwrap();
    let descriptor = |file: &dyn std::os::fd::AsRawFd| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    check_writable(&descriptor(&writer)).unwrap();
    write_file(&descriptor(&writer), b"through a pipe\n").unwrap();
    create_file(&descriptor(&writer)).unwrap().write_all(b"and on\n").unwrap();
    drop(writer);
    let mut read = String::new();
    { reader }.read_to_string(&mut read).unwrap();
    assert_eq!(read, "through a pipe\nand on\n");
    write_file(Path::new("/dev/null"), b"nowhere").unwrap();
    // If standard output goes to a file, the text printed before is kept.
    let path = test_directory.join("printed");
    let mut printed = File::create(&path).unwrap();
    printed.write_all(b"table\n").unwrap();
    write_file(&descriptor(&printed), b"report\n").unwrap();
    assert_eq!(text(&path), "table\nreport\n");
    assert_eq!(names(&test_directory), ["printed"]);
}

#[test]
fn checking_whether_a_file_is_writable_changes_nothing() {
    let test_directory = test_directory("looked");
    let (there, new) = (test_directory.join("there"), test_directory.join("new"));
    fs::write(&there, "old").unwrap();
    check_writable(&there).unwrap();
    check_writable(&new).unwrap();
    assert_eq!((text(&there).as_str(), names(&test_directory)), ("old", vec!["there".to_owned()]));
    for (path, errno) in [(test_directory.join("none/x"), libc::ENOENT), (test_directory.clone(), libc::EISDIR)] {
        assert_eq!(check_writable(&path).unwrap_err().raw_os_error(), Some(errno), "{path:?}");
        assert_eq!(write_file(&path, b"").unwrap_err().raw_os_error(), Some(errno), "{path:?}");
    }
}
