use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use super::*;

/// Id of a user who is neither root nor we.
const OTHER: u32 = 54_321;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

fn temp() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap();
    (dir, path)
}

/// Makes a directory that belongs to somebody else.
fn theirs(path: &Path) -> PathBuf {
    fs::create_dir(path).unwrap();
    chown(path, Some(OTHER), Some(OTHER)).unwrap();
    path.to_owned()
}

#[track_caller]
fn planted(path: &Path) {
    assert!(matches!(reach(path), Err(WalkError::Planted(_))), "{path:?}: {:?}", reach(path));
}

#[test]
fn links_of_ours_are_followed_as_the_kernel_does() {
    let (_dir, top) = temp();
    fs::create_dir_all(top.join("a/b/c")).unwrap();
    symlink("a/b", top.join("relative")).unwrap();
    symlink(top.join("a"), top.join("absolute")).unwrap();
    symlink("../../absolute/b/../b", top.join("a/b/through")).unwrap();
    for way in ["a/b/c", "relative/c", "absolute/b/c", "relative/../b/./c", "a/b/through/c", "a//b/c/../c/"] {
        let place = reach(&top.join(way)).unwrap();
        assert_eq!(place.path(), top.join("a/b/c"), "{way}");
        assert_eq!(fs::read_link(place.as_path()).unwrap(), top.join("a/b/c"), "{way}");
        assert_eq!(place.path(), fs::canonicalize(top.join(way)).unwrap());
    }
    assert_eq!(reach(Path::new("/../..")).unwrap().path(), Path::new("/"));
    symlink("loop", top.join("loop")).unwrap();
    assert_eq!(reach(&top.join("loop")).unwrap_err().errno(), Errno::LOOP);
    assert_eq!(reach(&top.join("none/x")).unwrap_err().errno(), Errno::NOENT);
    fs::write(top.join("file"), "").unwrap();
    for way in ["file", "file/x", "file/.."] {
        assert_eq!(reach(&top.join(way)).unwrap_err().errno(), Errno::NOTDIR, "{way}");
    }
    assert!(reach(&top.join("a/b/c")).unwrap().is_empty().unwrap());
    assert!(!reach(&top).unwrap().is_empty().unwrap());
}

#[test]
fn no_link_is_followed_below_a_directory_of_others() {
    if !is_root() {
        return;
    }
    let (_dir, top) = temp();
    let other = theirs(&top.join("theirs"));
    fs::create_dir(other.join("real")).unwrap();
    assert_eq!(reach(&other.join("real")).unwrap().path(), other.join("real"));
    symlink("/etc", other.join("link")).unwrap();
    planted(&other.join("link"));
    planted(&other.join("link/ssl"));
    planted(&other.join("real/../link"));
    // This holds also if what is below is root's, since others could have moved it there.
    symlink("/etc", other.join("real/link")).unwrap();
    assert_eq!(fs::metadata(other.join("real")).unwrap().uid(), 0);
    planted(&other.join("real/link"));
    // A link of ours is followed to there, and a link of theirs from there is not.
    symlink(other.join("real"), top.join("in")).unwrap();
    assert_eq!(reach(&top.join("in")).unwrap().path(), other.join("real"));
    planted(&top.join("in/link"));
}

#[test]
fn directories_that_others_may_write_are_not_ours() {
    if !is_root() {
        return;
    }
    let (_dir, top) = temp();
    let at = |name: &str, mode: u32| {
        let dir = top.join(name);
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        symlink("/etc", dir.join("link")).unwrap();
        dir
    };
    planted(&at("all", 0o777).join("link"));
    let group = at("group", 0o775);
    reach(&group.join("link")).unwrap();
    chown(&group, None, Some(OTHER)).unwrap();
    planted(&group.join("link"));
    // In a sticky directory, others cannot replace what is root's.
    let sticky = at("sticky", 0o1777);
    reach(&sticky.join("link")).unwrap();
    symlink("/etc", sticky.join("their-link")).unwrap();
    std::os::unix::fs::lchown(sticky.join("their-link"), Some(OTHER), Some(OTHER)).unwrap();
    planted(&sticky.join("their-link"));
    planted(&theirs(&sticky.join("dir")).join("../dir/../their-link"));
}

#[test]
fn directories_are_made_one_by_one_and_through_no_link_of_others() {
    if !is_root() {
        return;
    }
    let (_dir, top) = temp();
    let made = make(&top.join("a/b"), true).unwrap();
    assert_eq!(fs::metadata(made.path()).unwrap().mode() & 0o777, 0o700);
    assert_eq!(make(&top.join("a/b"), false).unwrap().path(), made.path());
    let mode = fs::metadata(make(&top.join("c"), false).unwrap().path()).unwrap().mode();
    assert_eq!(mode & 0o022, 0, "{mode:o}");
    let outside = top.join("outside");
    fs::create_dir(&outside).unwrap();
    let other = theirs(&top.join("theirs"));
    symlink(&outside, other.join("link")).unwrap();
    symlink(outside.join("new"), other.join("dangling")).unwrap();
    for way in ["link/new", "dangling", "dangling/x"] {
        assert!(matches!(make(&other.join(way), false), Err(WalkError::Planted(_))), "{way}");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert_eq!(make(&other.join("x/y"), false).unwrap().path(), other.join("x/y"));
}

#[test]
fn a_place_stays_what_it_was_when_its_way_is_renamed() {
    let (_dir, top) = temp();
    fs::create_dir_all(top.join("a/b")).unwrap();
    let place = reach(&top.join("a/b")).unwrap();
    let (parent, name) = reach_parent(&top.join("a/b/new")).unwrap();
    fs::rename(top.join("a"), top.join("moved")).unwrap();
    symlink("/etc", top.join("a")).unwrap();
    fs::write(parent.entry_path(&name), "x").unwrap();
    assert!(top.join("moved/b/new").exists());
    assert_eq!(fs::read_link(place.as_path()).unwrap(), top.join("moved/b"));
    assert!(reach_parent(Path::new("/")).is_err());
}

#[test]
fn only_files_that_nobody_else_can_change_are_kept() {
    let (_dir, top) = temp();
    let file = top.join("file");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    symlink("file", top.join("link")).unwrap();
    let kept = kept_file(&top.join("link")).unwrap();
    assert_eq!((kept.path, kept.mode), (file.clone(), 0o755));
    assert_eq!(kept_file(&top).unwrap_err().errno(), Errno::ISDIR);
    fs::set_permissions(&file, Permissions::from_mode(0o757)).unwrap();
    assert_eq!(kept_file(&file).unwrap_err().errno(), Errno::ACCESS);
    if !is_root() {
        return;
    }
    fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    chown(&file, Some(OTHER), None).unwrap();
    assert_eq!(kept_file(&file).unwrap_err().errno(), Errno::ACCESS);
    let other = theirs(&top.join("theirs"));
    fs::write(other.join("roots"), "").unwrap();
    assert_eq!(kept_file(&other.join("roots")).unwrap_err().errno(), Errno::ACCESS);
    assert_eq!(kept_file(Path::new("/dev/null")).unwrap_err().errno(), Errno::ACCESS);
    assert!(kept_file(Path::new("/bin/sh")).is_ok());
}

#[test]
fn the_kernels_list_tells_who_serves_a_mount() {
    let root = reach(Path::new("/")).unwrap();
    assert!(root.mount_id() != 0 && is_mount_ours(root.mount_id()));
    assert!(!is_mount_ours(u64::MAX));
}
