//! Files that are written for users: what stands at the name decides, and nothing of another user is followed or written to.

#[path = "../../../ci/skip.rs"]
mod skip;

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use telpher_os::{check_writable, create_file, write_file};

/// A directory of the test's own, empty.
fn room(name: &str) -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("output").join(name);
    let _ = fs::remove_dir_all(&room);
    fs::create_dir_all(&room).unwrap();
    room
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Names in a directory; fresh files that were left would be among them.
fn names(room: &Path) -> Vec<String> {
    let entries = fs::read_dir(room).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_as_a_whole_and_keeps_its_permissions() {
    let room = room("replaced");
    let (path, other) = (room.join("report"), room.join("other"));
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&path, &other).unwrap();
    let mut reader = File::open(&path).unwrap();
    write_file(&path, b"new").unwrap();
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!((text(&path).as_str(), read.as_str(), text(&other).as_str()), ("new", "old", "old"));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(names(&room), ["other", "report"]);
}

#[test]
fn a_new_file_has_its_name_while_it_grows() {
    let room = room("grows");
    let path = room.join("trace");
    fs::write(&path, "old").unwrap();
    let mut file = create_file(&path).unwrap();
    assert_eq!(text(&path), "");
    file.write_all(b"line 1\n").unwrap();
    assert_eq!(text(&path), "line 1\n");
    assert_eq!(names(&room), ["trace"]);
}

#[test]
fn a_link_of_this_user_is_followed_to_where_it_leads() {
    let room = room("followed");
    let (link, target) = (room.join("link"), room.join("target"));
    symlink("target", &link).unwrap();
    for old in [None, Some("old")] {
        let _ = old.map(|old| fs::write(&target, old).unwrap());
        write_file(&link, b"new").unwrap();
        assert_eq!((text(&target).as_str(), fs::read_link(&link).unwrap()), ("new", "target".into()));
    }
    let ring = room.join("ring");
    symlink("ring", &ring).unwrap();
    let error = write_file(&ring, b"new").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn a_link_of_another_user_is_refused_and_its_target_stays() {
    let room = room("refused");
    let (link, target) = (room.join("link"), room.join("target"));
    fs::write(&target, "old").unwrap();
    symlink("target", &link).unwrap();
    if std::os::unix::fs::lchown(&link, Some(4711), None).is_err() {
        return skip::skip(
            "a_link_of_another_user_is_refused_and_its_target_stays",
            "a link can be given away by root only",
        );
    }
    let pipe = room.join("pipe");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o666));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
    std::os::unix::fs::chown(&pipe, Some(4711), None).unwrap();
    for (path, what) in [(&link, "link"), (&pipe, "pipe")] {
        let errors =
            [write_file(path, b"new"), create_file(path).map(drop), check_writable(path)].map(Result::unwrap_err);
        for error in errors {
            let said = error.to_string();
            assert!(
                said.contains(&format!("is a {what} of another user (uid 4711), which is not written to")),
                "{said}"
            );
        }
    }
    assert_eq!((text(&target).as_str(), names(&room).len()), ("old", 3));
}

#[test]
fn pipes_devices_and_descriptors_are_written_as_they_are() {
    let room = room("special");
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
    // Standard output that goes to a file: what was printed before stays.
    let path = room.join("printed");
    let mut printed = File::create(&path).unwrap();
    printed.write_all(b"table\n").unwrap();
    write_file(&descriptor(&printed), b"report\n").unwrap();
    assert_eq!(text(&path), "table\nreport\n");
    assert_eq!(names(&room), ["printed"]);
}

#[test]
fn looking_whether_a_file_can_be_written_changes_nothing() {
    let room = room("looked");
    let (there, new) = (room.join("there"), room.join("new"));
    fs::write(&there, "old").unwrap();
    check_writable(&there).unwrap();
    check_writable(&new).unwrap();
    assert_eq!((text(&there).as_str(), names(&room)), ("old", vec!["there".to_owned()]));
    for (path, errno) in [(room.join("none/x"), libc::ENOENT), (room.clone(), libc::EISDIR)] {
        assert_eq!(check_writable(&path).unwrap_err().raw_os_error(), Some(errno), "{path:?}");
        assert_eq!(write_file(&path, b"").unwrap_err().raw_os_error(), Some(errno), "{path:?}");
    }
}
